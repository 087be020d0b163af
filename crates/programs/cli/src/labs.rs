//! The labs that run: which one is meant, and how its errors are told.

use ambit_lab::{Client, ClientError, StateDir, base_directory};

use crate::{CliError, ErrorKind, cluster::Target};

/// The lab that is meant if none is named.
const DEFAULT_LAB: &str = "default";

/// The lab of that name.
pub(crate) fn find(name: &str) -> Result<Client, CliError> {
    Client::find(&base_directory(), name).map_err(client_error)
}

pub(crate) fn client_error(error: ClientError) -> CliError {
    let kind = match &error {
        ClientError::State(_) => ErrorKind::NotFound,
        ClientError::Refused(_) => ErrorKind::Failed,
        ClientError::Io(_) => ErrorKind::Unreachable,
    };
    let text = error.to_string();
    match std::error::Error::source(&error) {
        Some(source) => CliError::new(kind, text).because(source.to_string()),
        None => CliError::new(kind, text),
    }
}

/// The lab that is meant, if one is: the one that is named, or the default one if it is up and no cluster is named.
pub(crate) fn chosen(named: Option<&str>, target: &Target) -> Option<String> {
    if target.kubeconfig.is_some() || target.context.is_some() {
        return None;
    }
    let labs = || StateDir::list(&base_directory());
    let default = || labs().into_iter().find(|name| name == DEFAULT_LAB);
    named.map(ToOwned::to_owned).or_else(default)
}
