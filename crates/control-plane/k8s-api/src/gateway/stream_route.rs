//! TCPRoute and TLSRoute: routes of connections to a service.

use std::collections::BTreeMap;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ParentReference;
use crate::{
    istio::custom_resource,
    status::{self, Status},
};

custom_resource! {
    /// Routes of TCP connections to a service.
    TCPRoute, TcpRouteSpec, "gateway.networking.k8s.io", "tcproutes", NamespaceResourceScope
}
custom_resource! {
    /// Routes of TLS connections to a service, by server name (SNI).
    TLSRoute, TlsRouteSpec, "gateway.networking.k8s.io", "tlsroutes", NamespaceResourceScope
}

/// Specification of a [`TCPRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TcpRouteSpec {
    /// Parents of the route.
    pub parent_refs: Vec<ParentReference>,
    /// Rules of the route, of which only the first applies.
    pub rules: Vec<StreamRouteRule>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Specification of a [`TLSRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsRouteSpec {
    /// Parents of the route.
    pub parent_refs: Vec<ParentReference>,
    /// Server names (SNI) of the route: exact ones, and those that begin with `*.`; all if empty.
    pub hostnames: Vec<String>,
    /// Rules of the route, of which only the first applies.
    pub rules: Vec<StreamRouteRule>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Rule of a TCPRoute or TLSRoute: the backends of its connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRouteRule {
    /// Name of the rule.
    pub name: Option<String>,
    /// Backends of the rule.
    pub backend_refs: Vec<BackendRef>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Backend of TCP or TLS connections, with its weight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendRef {
    /// API group of the backend; empty if left out.
    pub group: Option<String>,
    /// Kind of the backend; `Service` if left out.
    pub kind: Option<String>,
    /// Namespace of the backend; the route's if left out.
    pub namespace: Option<String>,
    /// Name of the Service.
    pub name: String,
    /// Port of the Service, which is required for Services.
    pub port: Option<i32>,
    /// Weight of the backend; 1 if absent.
    pub weight: Option<i32>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}
