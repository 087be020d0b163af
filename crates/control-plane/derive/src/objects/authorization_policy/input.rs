//! A policy as it is understood.

use std::sync::Arc;

use ambit_k8s_api::istio;
use ambit_model::Authorization;

use crate::{labels::Labels, objects::authorization_policy::attached::Attached};

/// A policy as node proxies see it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolicyInput {
    /// `None`: nothing for node proxies.
    pub(crate) sent: Option<Authorization>,
    /// Labels of the workloads that list it; `None`: all in its scope.
    pub(crate) selector: Option<Labels>,
    /// The first field that names callers.
    pub(crate) callers: Option<String>,
    /// Part that waypoints enforce.
    pub(crate) attached: Option<Attached>,
    /// Hash of its action and rules; `None` for those that have no effect or are not understood.
    pub(crate) content: Option<u64>,
    /// Rules of [`Self::sent`] as they are written, if they compare principals.
    pub(crate) with_principals: Option<Arc<[istio::Rule]>>,
}
