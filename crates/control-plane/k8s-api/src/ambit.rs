//! Kinds of our own, for what the Gateway API and Istio's kinds that waypoints follow have no place for.
//!
//! Unknown fields are errors. Numbers are read wider than they may be, so that what is wrong with one can be said.

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    gateway::Fraction,
    istio::custom_resource,
    status::{self, Status},
};

/// The API group.
pub const GROUP: &str = "ambit.io";
/// The kind by which routes name a subset of a service, in the place of one: there are no objects of it, the name is
/// that of the Service, a dot, and that of the subset in the service's `DestinationRule`.
pub const SUBSET: &str = "Subset";

custom_resource! {
    /// Faults that rules of routes inject.
    HTTPFault, HttpFaultSpec, "ambit.io", "httpfaults", NamespaceResourceScope, "v1alpha1"
}

/// See [`HTTPFault`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct HttpFaultSpec {
    /// Requests that wait.
    pub delay: Option<FaultDelay>,
    /// Requests that are answered in the application's place, after the wait.
    pub abort: Option<FaultAbort>,
}

/// See [`HttpFaultSpec::delay`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FaultDelay {
    /// How long, as in GEP-2257.
    pub fixed_delay: Option<String>,
    /// Of all requests; all of them without a share.
    pub percent: Option<i32>,
    /// The same, more finely.
    pub fraction: Option<Fraction>,
}

/// See [`HttpFaultSpec::abort`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FaultAbort {
    /// A status of HTTP.
    pub http_status: Option<i64>,
    /// A status of gRPC, by name or number.
    pub grpc_status: Option<Value>,
    /// Of all requests; all of them without a share.
    pub percent: Option<i32>,
    /// The same, more finely.
    pub fraction: Option<Fraction>,
}
