//! Authorization of the control plane's callers.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Instant};

use ambit_grpc_listener::CallerState;
use ambit_model::{ArcStr, GatewayName};
use ambit_rt::RateLimits;
use tonic::{Status, metadata::MetadataMap};

use crate::{
    caller_pod::CallerRoles,
    metrics::CallerMetrics,
    token::{Authenticator, Caller, TokenError, bearer_token},
    waypoints::WaypointRegistry,
};

/// Rate limit of warnings about rejected calls from one address: per second, and burst.
const WARNING_RATE: (u32, u32) = (1, 10);

/// Service accounts, as pairs of namespace and name.
pub type ServiceAccounts = BTreeSet<(ArcStr, ArcStr)>;

/// Authorization rules for callers of xDS, the CSR API and debug endpoints.
#[derive(Debug)]
pub struct CallerAccess {
    authenticator: Arc<dyn Authenticator>,
    /// Service accounts of node proxies, which may act for the pods of their node.
    node_proxy_accounts: ServiceAccounts,
    /// Whether any service account may read the configuration of the whole mesh, rather than only node proxies.
    allows_any_reader: bool,
    /// Namespace whose service accounts may list connected xDS clients.
    mesh_namespace: ArcStr,
    waypoints: Arc<WaypointRegistry>,
    metrics: CallerMetrics,
    warning_rates: RateLimits<IpAddr>,
}

impl CallerAccess {
    /// Builds the authorization rules.
    pub fn new(
        authenticator: Arc<dyn Authenticator>,
        trusted_nodes: ServiceAccounts,
        any_reader: bool,
        mesh_namespace: ArcStr,
        waypoints: Arc<WaypointRegistry>,
        metrics: CallerMetrics,
    ) -> Self {
        Self {
            authenticator,
            node_proxy_accounts: trusted_nodes,
            allows_any_reader: any_reader,
            mesh_namespace,
            waypoints,
            metrics,
            warning_rates: RateLimits::new(WARNING_RATE.0, WARNING_RATE.1),
        }
    }

    /// Authenticates the caller by its token. The reason of a rejection is logged, not revealed to the caller.
    pub async fn authenticate_caller(
        &self,
        metadata: &MetadataMap,
        extensions: &http::Extensions,
    ) -> Result<Caller, Status> {
        let (caller_state, source) = CallerState::from_extensions(extensions);
        let caller = match bearer_token(metadata) {
            Ok(token) => self.authenticator.authenticate(token, source).await,
            Err(error) => Err(error),
        };
        match caller {
            Ok(caller) => {
                self.metrics.count_token("accepted");
                if let Some(caller_state) = caller_state {
                    caller_state.set_authenticated(self.may_read_mesh(&caller));
                }
                Ok(caller)
            }
            // The caller is not at fault and should try again.
            Err(error @ (TokenError::Unavailable(_) | TokenError::TooManyReviews)) => {
                self.metrics.count_token("unavailable");
                self.warn(source, &error);
                Err(Status::unavailable(
                    "the token cannot be reviewed at present",
                ))
            }
            Err(error) => {
                self.metrics.count_token("refused");
                self.warn(source, &error);
                if let Some(caller_state) = caller_state {
                    caller_state.count_rejected_call();
                }
                Err(Status::unauthenticated("the token is not accepted"))
            }
        }
    }

    /// Logs a rejected call, with a rate limit so that callers cannot flood the log.
    fn warn(&self, source: IpAddr, error: &TokenError) {
        if self.warning_rates.try_acquire(source, Instant::now()) {
            tracing::warn!(%source, %error, "a caller is not authenticated");
        } else {
            tracing::debug!(%source, %error, "a caller is not authenticated");
        }
    }

    /// Checks whether a caller may read configuration over xDS: node proxies read that of the whole mesh, waypoints
    /// only their own. Call this only after the initial objects are known: until then, no service account is a
    /// waypoint's. `denied` is the reason why the caller may not act as its own service account, if there is one.
    pub fn authorize_discovery(
        &self,
        caller: &Caller,
        denied: Option<String>,
        extensions: &http::Extensions,
    ) -> Result<(), Status> {
        let (caller_state, source) = CallerState::from_extensions(extensions);
        let no_reader = || "neither a trusted node account nor a waypoint's".to_owned();
        let denied = denied.or_else(|| (!self.may_read_mesh(caller)).then(no_reader));
        let Some(denied) = denied else {
            if let Some(caller_state) = caller_state {
                caller_state.set_authenticated(true);
            }
            return Ok(());
        };
        self.record_denial(caller_state, source, caller, &denied);
        Err(Status::permission_denied(
            "only trusted node accounts and the pods of waypoints may read the mesh (--trusted-node-accounts, --xds-any-account)",
        ))
    }

    /// Checks whether a caller may list connected xDS clients.
    pub fn authorize_debug(
        &self,
        caller: &Caller,
        extensions: &http::Extensions,
    ) -> Result<(), Status> {
        if caller.namespace == self.mesh_namespace {
            return Ok(());
        }
        let (caller_state, source) = CallerState::from_extensions(extensions);
        let denied =
            "not an account of the mesh's namespace, which alone may list connected proxies";
        self.record_denial(caller_state, source, caller, denied);
        Err(Status::permission_denied(format!(
            "only accounts of the namespace {} may list connected proxies",
            self.mesh_namespace
        )))
    }

    fn record_denial(
        &self,
        caller_state: Option<&CallerState>,
        source: IpAddr,
        caller: &Caller,
        denied: &str,
    ) {
        if self.warning_rates.try_acquire(source, Instant::now()) {
            tracing::warn!(%caller, denied, "refused discovery");
        }
        if let Some(caller_state) = caller_state {
            caller_state.count_rejected_call();
        }
    }

    fn may_read_mesh(&self, caller: &Caller) -> bool {
        self.allows_any_reader
            || self.is_node_proxy(caller)
            || self.waypoint_of_caller(caller).is_some()
    }

    /// Returns the waypoint that the caller is an instance of; `None` for node proxies, even if a Gateway has their
    /// account's name.
    pub fn waypoint_of_caller(&self, caller: &Caller) -> Option<GatewayName> {
        let waypoint = self.waypoints.waypoint_of_caller(caller);
        waypoint.filter(|_| !self.is_node_proxy(caller))
    }

    /// Returns whether the caller is a node proxy.
    pub fn is_node_proxy(&self, caller: &Caller) -> bool {
        self.is_node_proxy_account(&(caller.namespace.clone(), caller.service_account.clone()))
    }

    /// Returns whether a service account (namespace and name) belongs to node proxies.
    pub fn is_node_proxy_account(&self, account: &(ArcStr, ArcStr)) -> bool {
        self.node_proxy_accounts.contains(account)
    }
}

impl CallerRoles for CallerAccess {
    fn is_node_proxy(&self, caller: &Caller) -> bool {
        self.is_node_proxy(caller)
    }

    fn is_waypoint_account(&self, namespace: &str, account: &str) -> Option<bool> {
        if !self.waypoints.is_synced() {
            return None;
        }
        let is_waypoint = self
            .waypoints
            .waypoint_of_account(namespace, account)
            .is_some();
        let account = (ArcStr::from(namespace), ArcStr::from(account));
        Some(is_waypoint && !self.is_node_proxy_account(&account))
    }

    fn makes_calls_for(&self, waypoint: &GatewayName, namespace: &str) -> bool {
        self.waypoints.makes_calls_for(waypoint, namespace)
    }
}

/// Parses a list of service accounts, `namespace/name,namespace/name`.
pub fn parse_accounts(text: &str) -> Result<ServiceAccounts, String> {
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
