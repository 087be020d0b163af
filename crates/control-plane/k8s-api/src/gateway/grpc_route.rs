//! GRPCRoute: routes of gRPC requests to a service. Filters and backends have the types of
//! HTTPRoute.

use std::collections::BTreeMap;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{HttpBackendRef, HttpNamedMatch, HttpRouteFilter, ParentReference, SessionPersistence};
use crate::{
    istio::custom_resource,
    status::{self, Status},
};

custom_resource! {
    /// Routes of gRPC requests to a service.
    GRPCRoute, GrpcRouteSpec, "gateway.networking.k8s.io", "grpcroutes", NamespaceResourceScope
}

/// Specification of a [`GRPCRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteSpec {
    /// Parents of the route.
    pub parent_refs: Vec<ParentReference>,
    /// Host names, which have no effect on routes of services.
    pub hostnames: Vec<String>,
    /// Rules of the route.
    pub rules: Vec<GrpcRouteRule>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Rule of a GRPCRoute: the requests that it matches, and how they are handled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteRule {
    /// Name of the rule.
    pub name: Option<String>,
    /// Matches, of which one must match; without any, all requests match.
    pub matches: Vec<GrpcRouteMatch>,
    /// Filters of requests and responses.
    pub filters: Vec<HttpRouteFilter>,
    /// Backends of the rule.
    pub backend_refs: Vec<HttpBackendRef>,
    /// Session persistence: all requests of a session go to one endpoint.
    pub session_persistence: Option<SessionPersistence>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Match on attributes of a gRPC request, all of which must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteMatch {
    /// Service and method of the request.
    pub method: Option<GrpcMethodMatch>,
    /// Headers of the request.
    pub headers: Vec<HttpNamedMatch>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Match on the service and method of a gRPC request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcMethodMatch {
    /// Type of the match: `Exact` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// Fully qualified gRPC service; any if absent.
    pub service: Option<String>,
    /// gRPC method; any if absent.
    pub method: Option<String>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}
