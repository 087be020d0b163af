//! Who may call what.

use std::{collections::BTreeSet, sync::Arc};

use ambit_model::ArcStr;
use tonic::{Status, metadata::MetadataMap};

use crate::auth::{Authenticator, Caller, TokenError, bearer};

/// `namespace/name` of service accounts.
pub type Accounts = BTreeSet<(ArcStr, ArcStr)>;

/// Callers and what they may do.
#[derive(Debug)]
pub struct Access {
    authenticator: Arc<dyn Authenticator>,
    /// Accounts of node proxies: they may act for the pods of their node.
    pub(crate) trusted_nodes: Accounts,
    /// Whether any service account may read the whole mesh, rather than node proxies only.
    any_reader: bool,
}

impl Access {
    /// Builds the rules.
    pub fn new(
        authenticator: Arc<dyn Authenticator>,
        trusted_nodes: Accounts,
        any_reader: bool,
    ) -> Self {
        Self {
            authenticator,
            trusted_nodes,
            any_reader,
        }
    }

    /// The caller of a call, by its token. What is wrong with a token is logged, not told.
    pub async fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        let caller = match bearer(metadata) {
            Ok(token) => self.authenticator.authenticate(token).await,
            Err(error) => Err(error),
        };
        caller.map_err(|error| {
            tracing::warn!(%error, "a caller is not authenticated");
            match error {
                // Not the caller's fault: it shall come back.
                TokenError::Unavailable(_) => {
                    Status::unavailable("the token cannot be reviewed at present")
                }
                _ => Status::unauthenticated("the token is not accepted"),
            }
        })
    }

    /// The caller of a discovery stream.
    pub async fn discovery_caller(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        let caller = self.caller(metadata).await?;
        if !self.any_reader && !self.is_trusted_node(&caller) {
            tracing::warn!(%caller, "refused discovery: not a trusted node account");
            return Err(Status::permission_denied(
                "only trusted node accounts may read the mesh (--trusted-node-accounts, --xds-any-account)",
            ));
        }
        Ok(caller)
    }

    /// Whether the caller is a node proxy.
    pub fn is_trusted_node(&self, caller: &Caller) -> bool {
        self.trusted_nodes
            .contains(&(caller.namespace.clone(), caller.service_account.clone()))
    }
}

/// Reads `namespace/name,namespace/name`.
pub fn parse_accounts(text: &str) -> Result<Accounts, String> {
    text.split(',')
        .map(str::trim)
        .filter(|account| !account.is_empty())
        .map(|account| match account.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok((namespace.into(), name.into()))
            }
            _ => Err(format!("{account:?} is not <namespace>/<service account>")),
        })
        .collect()
}
