//! Parsed AuthorizationPolicy object.

use std::sync::Arc;

use ambit_k8s_api::istio;
use ambit_model::Authorization;

use crate::{labels::Labels, objects::authorization_policy::attached::AttachedPolicy};

/// Parsed AuthorizationPolicy: the parts that node proxies and waypoints enforce.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolicyInput {
    /// Policy that node proxies enforce; `None` if node proxies do not enforce it.
    pub(crate) node_proxy_policy: Option<Authorization>,
    /// Labels of the workloads that the policy applies to; `None` for all workloads in its scope.
    pub(crate) selector: Option<Labels>,
    /// Path of the policy's first field that compares properties of the client.
    pub(crate) client_field: Option<String>,
    /// Policy that waypoints enforce; `None` if the object has no `targetRefs`.
    pub(crate) attached: Option<AttachedPolicy>,
    /// Hash of the policy's action and rules; `None` for invalid policies and policies without effect.
    pub(crate) content_hash: Option<u64>,
    /// Rules of [`Self::node_proxy_policy`] before principals were expanded, if they compare principals.
    pub(crate) unexpanded_rules: Option<Arc<[istio::Rule]>>,
}
