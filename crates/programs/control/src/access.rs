//! Who may call what.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Instant};

use ambit_model::ArcStr;
use ambit_rt::Rates;
use tonic::{Status, metadata::MetadataMap};

use crate::{
    auth::{Authenticator, Caller, TokenError, bearer},
    grpc::CallerState,
    metrics::Metrics,
};

/// Refusals of one address that are worth a warning, in a second and at once.
const WARNINGS: (u32, u32) = (1, 10);

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
    metrics: Arc<Metrics>,
    warnings: Rates<IpAddr>,
}

impl Access {
    /// Builds the rules.
    pub fn new(
        authenticator: Arc<dyn Authenticator>,
        trusted_nodes: Accounts,
        any_reader: bool,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            authenticator,
            trusted_nodes,
            any_reader,
            metrics,
            warnings: Rates::new(WARNINGS.0, WARNINGS.1),
        }
    }

    /// The caller of a call, by its token. What is wrong with a token is logged, not answered.
    pub async fn caller(
        &self,
        metadata: &MetadataMap,
        extensions: &http::Extensions,
    ) -> Result<Caller, Status> {
        let (caller_state, source) = CallerState::of(extensions);
        let caller = match bearer(metadata) {
            Ok(token) => self.authenticator.authenticate(token, source).await,
            Err(error) => Err(error),
        };
        match caller {
            Ok(caller) => {
                self.metrics.token("accepted");
                let stays = self.any_reader || self.is_trusted_node(&caller);
                if let Some(caller_state) = caller_state {
                    caller_state.authenticated(stays);
                }
                Ok(caller)
            }
            // Not the caller's fault: it shall come back.
            Err(error @ (TokenError::Unavailable(_) | TokenError::TooMany)) => {
                self.metrics.token("unavailable");
                self.warn(source, &error);
                Err(Status::unavailable(
                    "the token cannot be reviewed at present",
                ))
            }
            Err(error) => {
                self.metrics.token("refused");
                self.warn(source, &error);
                if let Some(caller_state) = caller_state {
                    caller_state.refused();
                }
                Err(Status::unauthenticated("the token is not accepted"))
            }
        }
    }

    /// Nobody fills the log with refusals.
    fn warn(&self, source: IpAddr, error: &TokenError) {
        if self.warnings.take(source, Instant::now()) {
            tracing::warn!(%source, %error, "a caller is not authenticated");
        } else {
            tracing::debug!(%source, %error, "a caller is not authenticated");
        }
    }

    /// The caller of a discovery stream.
    pub async fn discovery_caller(
        &self,
        metadata: &MetadataMap,
        extensions: &http::Extensions,
    ) -> Result<Caller, Status> {
        let caller = self.caller(metadata, extensions).await?;
        if !self.any_reader && !self.is_trusted_node(&caller) {
            let (caller_state, source) = CallerState::of(extensions);
            if self.warnings.take(source, Instant::now()) {
                tracing::warn!(%caller, "refused discovery: not a trusted node account");
            }
            if let Some(caller_state) = caller_state {
                caller_state.refused();
            }
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
