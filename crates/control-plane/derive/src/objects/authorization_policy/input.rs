//! Parsed AuthorizationPolicy object.

use std::sync::Arc;

use ambit_k8s_api::istio;
use ambit_model::Authorization;

use crate::{labels::Labels, objects::authorization_policy::attached::Attached};

/// Parsed AuthorizationPolicy: the parts that node proxies and waypoints enforce.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolicyInput {
    /// Policy that node proxies enforce; `None` if node proxies do not enforce it.
    pub(crate) sent: Option<Authorization>,
    /// Labels of the workloads that the policy applies to; `None` for all workloads in its scope.
    pub(crate) selector: Option<Labels>,
    /// Path of the policy's first field that compares properties of the client.
    pub(crate) callers: Option<String>,
    /// Policy that waypoints enforce.
    pub(crate) attached: Option<Attached>,
    /// Hash of the policy's action and rules; `None` for invalid policies and policies without effect.
    pub(crate) content: Option<u64>,
    /// Rules of [`Self::sent`] before principals were expanded, if they compare principals.
    pub(crate) with_principals: Option<Arc<[istio::Rule]>>,
}
