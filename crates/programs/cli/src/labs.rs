//! Running labs: selects the lab that a command queries, and converts errors of the lab's client.

use ambit_k8s_api::{Kind, Namespace, ObjectKey, ObjectType};
use ambit_lab::{Client, ClientError, StateDir, base_directory};
use serde_json::Value;

use crate::{CliError, ErrorKind};

/// Finds the running lab of this name, and returns a client for it.
pub(crate) fn find_lab(name: &str) -> Result<Client, CliError> {
    Client::find(&base_directory(), name).map_err(client_error)
}

pub(crate) fn client_error(error: ClientError) -> CliError {
    let kind = match &error {
        ClientError::State(_) => ErrorKind::NotFound,
        ClientError::Refused(_) => ErrorKind::Failed,
        ClientError::NotReady | ClientError::Io(_) => ErrorKind::Unreachable,
    };
    let text = error.to_string();
    match std::error::Error::source(&error) {
        Some(source) => CliError::new(kind, text).with_source(source.to_string()),
        None => CliError::new(kind, text),
    }
}

/// Returns a hint on how to query a lab instead of a cluster; `None` if no lab is running.
pub(crate) fn running_labs_hint() -> Option<String> {
    let labs = StateDir::list(&base_directory());
    let first = labs.first()?;
    Some(format!(
        "running labs: {}; --lab {first} selects one, where a command has that flag",
        labs.join(", ")
    ))
}

/// Selects the objects of one kind from a lab's objects, as JSON.
pub(crate) fn values_of_kind(objects: &[Value], kind: Kind) -> impl Iterator<Item = &Value> {
    let is_one = move |one: &&Value| ObjectKey::read(one).is_ok_and(|key| key.kind == kind);
    objects.iter().filter(is_one)
}

/// Parses the objects of one kind from a lab's objects. Malformed objects are skipped.
pub(crate) fn objects_of_kind<T: ObjectType>(objects: &[Value]) -> Vec<T> {
    let found = values_of_kind(objects, T::OBJECT_KIND);
    found.filter_map(|one| T::deserialize(one).ok()).collect()
}

/// Returns the namespace of this name from a lab's objects.
pub(crate) fn find_namespace(objects: &[Value], name: &str) -> Result<Namespace, CliError> {
    let namespaces: Vec<Namespace> = objects_of_kind(objects);
    let mut namespaces = namespaces.into_iter();
    let found = namespaces.find(|one| one.metadata.name.as_deref() == Some(name));
    found.ok_or_else(|| CliError::new(ErrorKind::NotFound, format!("there is no namespace {name}")))
}
