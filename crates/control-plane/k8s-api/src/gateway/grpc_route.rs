//! GRPCRoute: where gRPC requests to a service go. Filters and backends are written as those of HTTPRoute.

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
    /// Where gRPC requests to a service go.
    GRPCRoute, GrpcRouteSpec, "gateway.networking.k8s.io", "grpcroutes", NamespaceResourceScope
}

/// See [`GRPCRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteSpec {
    /// What it is attached to.
    pub parent_refs: Vec<ParentReference>,
    /// Host names; of no meaning for services.
    pub hostnames: Vec<String>,
    /// Its rules.
    pub rules: Vec<GrpcRouteRule>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteRule {
    /// Its name.
    pub name: Option<String>,
    /// Any one suffices; without any, all requests match.
    pub matches: Vec<GrpcRouteMatch>,
    /// What is done with requests and answers.
    pub filters: Vec<HttpRouteFilter>,
    /// Where requests go.
    pub backend_refs: Vec<HttpBackendRef>,
    /// Requests of a client that are led to one endpoint.
    pub session_persistence: Option<SessionPersistence>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// One match; all that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteMatch {
    /// The service and its method.
    pub method: Option<GrpcMethodMatch>,
    /// Headers.
    pub headers: Vec<HttpNamedMatch>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// See [`GrpcRouteMatch::method`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcMethodMatch {
    /// `Exact` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// The service of gRPC with its package; any if left out.
    pub service: Option<String>,
    /// The method; any if left out.
    pub method: Option<String>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}
