//! Kinds of the Gateway API, with the fields that waypoints need; field names are those of its CRDs.
//!
//! Unknown fields of a route must be distinguished from missing ones, so those of rules are preserved; see
//! [`HttpRouteRule::other`].

mod backend_tls;
mod grpc_route;
mod stream_route;

use std::collections::BTreeMap;

use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    istio::custom_resource,
    status::{self, Condition, Status},
};

pub use backend_tls::{
    BackendTLSPolicy, BackendTlsPolicySpec, BackendTlsValidation, SubjectAltName,
    TlsTargetReference,
};
pub use grpc_route::{GRPCRoute, GrpcMethodMatch, GrpcRouteMatch, GrpcRouteRule, GrpcRouteSpec};
pub use stream_route::{
    BackendRef, StreamRouteRule, TCPRoute, TLSRoute, TcpRouteSpec, TlsRouteSpec,
};

/// API group of the Gateway API.
pub const GROUP: &str = "gateway.networking.k8s.io";

custom_resource! {
    /// Gateway, which is a waypoint if its GatewayClass has this mesh's controller.
    Gateway, GatewaySpec, "gateway.networking.k8s.io", "gateways", NamespaceResourceScope
}
custom_resource! {
    /// Class of Gateways, which names their controller.
    GatewayClass, GatewayClassSpec, "gateway.networking.k8s.io", "gatewayclasses", ClusterResourceScope
}
custom_resource! {
    /// Routes of HTTP requests to a service.
    HTTPRoute, HttpRouteSpec, "gateway.networking.k8s.io", "httproutes", NamespaceResourceScope
}

custom_resource! {
    /// Permission for objects of other namespaces to refer to objects of the grant's namespace.
    ReferenceGrant, ReferenceGrantSpec, "gateway.networking.k8s.io", "referencegrants", NamespaceResourceScope
}

/// Specification of a [`Gateway`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewaySpec {
    /// Class of the Gateway.
    pub gateway_class_name: String,
    /// Listeners of the Gateway.
    pub listeners: Vec<Listener>,
    /// Addresses that the Gateway requests.
    pub addresses: Vec<GatewayAddress>,
    /// Metadata for the resources that are generated for the Gateway.
    pub infrastructure: Option<Infrastructure>,
}

/// Listener of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listener {
    /// Name of the listener.
    pub name: String,
    /// Port of the listener.
    pub port: i32,
    /// Protocol of the listener; `HBONE` for waypoints.
    pub protocol: String,
    /// Host name of the listener, which waypoints ignore.
    pub hostname: Option<String>,
    /// Namespaces and kinds of routes that may attach to the listener.
    pub allowed_routes: Option<AllowedRoutes>,
    /// TLS settings of the listener, which waypoints ignore.
    pub tls: Option<Value>,
}

/// Namespaces and kinds of routes that may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedRoutes {
    /// Namespaces whose routes may attach to the listener.
    pub namespaces: Option<RouteNamespaces>,
    /// Kinds of routes that may attach to the listener.
    pub kinds: Vec<Value>,
}

/// Selection of the namespaces whose routes may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteNamespaces {
    /// Mode of the selection: `Same` (the default), `All`, `Selector` or `None`.
    pub from: Option<String>,
    /// Labels of the namespaces, for `Selector`.
    pub selector: Option<LabelSelector>,
}

/// Address of a Gateway, in its spec (requested) or status (assigned).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayAddress {
    /// Type of the address: `IPAddress` (the default) or `Hostname`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// IP address or host name, as text.
    pub value: String,
}

/// Status of a [`Gateway`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStatus {
    /// Addresses that the Gateway has.
    pub addresses: Vec<GatewayAddress>,
    /// Conditions of the Gateway.
    pub conditions: Vec<Condition>,
}

impl GatewayStatus {
    /// Returns the condition of a type, if the Gateway has it.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|one| one.type_ == type_)
    }
}

impl Gateway {
    /// Parses the status; returns an empty one if it is missing or invalid.
    pub fn parse_status(&self) -> GatewayStatus {
        GatewayStatus::deserialize(&self.status).unwrap_or_default()
    }
}

/// Metadata for the objects that are generated for a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infrastructure {
    /// Labels of all generated objects.
    pub labels: BTreeMap<String, String>,
    /// Annotations of all generated objects.
    pub annotations: BTreeMap<String, String>,
    /// Reference to a ConfigMap with overlays of the generated objects.
    pub parameters_ref: Option<Value>,
}

/// Specification of a [`GatewayClass`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassSpec {
    /// Controller of the class, for instance `istio.io/mesh-controller`.
    pub controller_name: String,
    /// Description of the class, for users.
    pub description: Option<String>,
    /// Reference to an object with parameters of the class, which Ambit does not read.
    pub parameters_ref: Option<Value>,
}

/// Specification of an [`HTTPRoute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteSpec {
    /// Parents of the route.
    pub parent_refs: Vec<ParentReference>,
    /// Host names, which have no effect on routes of services.
    pub hostnames: Vec<String>,
    /// Rules of the route.
    pub rules: Vec<HttpRouteRule>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Object that a route is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentReference {
    /// API group of the parent; that of the Gateway API if left out.
    pub group: Option<String>,
    /// Kind of the parent; `Gateway` if left out.
    pub kind: Option<String>,
    /// Namespace of the parent; the route's if left out.
    pub namespace: Option<String>,
    /// Name of the parent.
    pub name: String,
    /// Name of a listener of a Gateway, or of a port of a service.
    pub section_name: Option<String>,
    /// Number of a service port; all ports if absent.
    pub port: Option<i32>,
}

/// Rule of an HTTPRoute: the requests that it matches, and how they are handled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteRule {
    /// Name of the rule.
    pub name: Option<String>,
    /// Matches, of which one must match; without any, all requests match.
    pub matches: Vec<HttpRouteMatch>,
    /// Filters of requests and responses.
    pub filters: Vec<HttpRouteFilter>,
    /// Backends of the rule.
    pub backend_refs: Vec<HttpBackendRef>,
    /// Timeouts of requests.
    pub timeouts: Option<HttpRouteTimeouts>,
    /// Retry policy of requests.
    pub retry: Option<HttpRouteRetry>,
    /// Session persistence: all requests of a session go to one endpoint.
    pub session_persistence: Option<SessionPersistence>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Timeouts of a rule's requests. Durations are as in GEP-2257; zero disables a timeout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteTimeouts {
    /// Timeout of the whole request.
    pub request: Option<String>,
    /// Timeout of one attempt to forward the request.
    pub backend_request: Option<String>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Session persistence of a rule. Durations are as in GEP-2257.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionPersistence {
    /// Name of the cookie or header that carries the session.
    pub session_name: Option<String>,
    /// Maximum lifetime of a session.
    pub absolute_timeout: Option<String>,
    /// Lifetime of a session that receives no requests.
    pub idle_timeout: Option<String>,
    /// Type of the session: `Cookie` (the default) or `Header`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// Settings of the session cookie.
    pub cookie_config: Option<SessionCookie>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Settings of a session cookie.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionCookie {
    /// Lifetime type of the cookie: `Session` (the default) or `Permanent`.
    pub lifetime_type: Option<String>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Retry policy of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteRetry {
    /// Response status codes that are retried.
    pub codes: Vec<i32>,
    /// Maximum number of retries.
    pub attempts: Option<i32>,
    /// Minimum backoff before a retry, as in GEP-2257.
    pub backoff: Option<String>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Filter of requests or responses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteFilter {
    /// Type of the filter, which selects one of the following fields.
    #[serde(rename = "type")]
    pub type_: String,
    /// Settings of a filter of the type `RequestHeaderModifier`.
    pub request_header_modifier: Option<HttpHeaderFilter>,
    /// Settings of a filter of the type `ResponseHeaderModifier`.
    pub response_header_modifier: Option<HttpHeaderFilter>,
    /// Settings of a filter of the type `RequestRedirect`.
    pub request_redirect: Option<HttpRequestRedirect>,
    /// Settings of a filter of the type `URLRewrite`.
    pub url_rewrite: Option<HttpUrlRewrite>,
    /// Settings of a filter of the type `RequestMirror`.
    pub request_mirror: Option<HttpRequestMirror>,
    /// Settings of a filter of the type `CORS`.
    pub cors: Option<HttpCorsFilter>,
    /// Object that a filter of the type `ExtensionRef` refers to.
    pub extension_ref: Option<LocalObjectReference>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Reference to an object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalObjectReference {
    /// API group of the object.
    pub group: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Changes of request headers or response headers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpHeaderFilter {
    /// Headers to set, replacing existing values.
    pub set: Vec<HttpHeader>,
    /// Headers to add, keeping existing values.
    pub add: Vec<HttpHeader>,
    /// Headers to remove.
    pub remove: Vec<String>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Header with its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpHeader {
    /// Name of the header.
    pub name: String,
    /// Value of the header.
    pub value: String,
}

/// Redirect response of a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRequestRedirect {
    /// Scheme of the new location: `http` or `https`.
    pub scheme: Option<String>,
    /// Host of the new location.
    pub hostname: Option<String>,
    /// Path of the new location.
    pub path: Option<HttpPathModifier>,
    /// Port of the new location.
    pub port: Option<i32>,
    /// Status of the redirect; 302 if absent.
    pub status_code: Option<i32>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Changes of host and path before a request is forwarded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpUrlRewrite {
    /// Host that the backend receives.
    pub hostname: Option<String>,
    /// Path that the backend receives.
    pub path: Option<HttpPathModifier>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Service that receives a mirrored copy of each request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRequestMirror {
    /// Service that receives the mirrored requests.
    pub backend_ref: BackendReference,
    /// Percentage of requests that is mirrored, 0 to 100.
    pub percent: Option<i32>,
    /// Fraction of requests that is mirrored.
    pub fraction: Option<Fraction>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Reference to an object that requests are forwarded to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendReference {
    /// API group of the object; empty if left out.
    pub group: Option<String>,
    /// Kind of the object; `Service` if left out.
    pub kind: Option<String>,
    /// Namespace of the object; the route's if left out.
    pub namespace: Option<String>,
    /// Name of the Service.
    pub name: String,
    /// Port of the Service, which is required for Services.
    pub port: Option<i32>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Fraction of requests, as numerator and denominator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Fraction {
    /// Numerator of the fraction.
    pub numerator: i32,
    /// Denominator of the fraction; 100 if absent.
    pub denominator: Option<i32>,
}

/// CORS filter of a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpCorsFilter {
    /// Origins that are allowed.
    pub allow_origins: Vec<String>,
    /// Whether requests may contain credentials; false if absent.
    pub allow_credentials: Option<bool>,
    /// Methods that are allowed.
    pub allow_methods: Vec<String>,
    /// Request headers that are allowed.
    pub allow_headers: Vec<String>,
    /// Exposed response headers.
    pub expose_headers: Vec<String>,
    /// Seconds for which clients may cache a preflight response; 5 if absent.
    pub max_age: Option<i32>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Replacement of a request's path, or of its prefix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpPathModifier {
    /// Type of the replacement: `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub type_: String,
    /// New path, for the type `ReplaceFullPath`.
    pub replace_full_path: Option<String>,
    /// New prefix of the path, for the type `ReplacePrefixMatch`.
    pub replace_prefix_match: Option<String>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Match on attributes of a request, all of which must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteMatch {
    /// Path of the request.
    pub path: Option<HttpPathMatch>,
    /// Headers of the request.
    pub headers: Vec<HttpNamedMatch>,
    /// Parameters of the query.
    pub query_params: Vec<HttpNamedMatch>,
    /// Method of the request.
    pub method: Option<String>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Match on the path of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpPathMatch {
    /// Type of the match: `PathPrefix` (the default), `Exact` or `RegularExpression`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// Path, prefix or regular expression to match; `/` if absent.
    pub value: Option<String>,
}

/// Match on a header or a query parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpNamedMatch {
    /// Type of the match: `Exact` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// Name of the header or parameter.
    pub name: String,
    /// Value to match.
    pub value: String,
}

/// Backend of a rule, with its weight and filters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpBackendRef {
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
    /// Filters of requests to the backend.
    pub filters: Vec<HttpRouteFilter>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Specification of a [`ReferenceGrant`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReferenceGrantSpec {
    /// Kinds and namespaces of objects that may refer to the targets.
    pub from: Vec<ReferenceGrantFrom>,
    /// Objects of the grant's namespace that may be referred to.
    pub to: Vec<ReferenceGrantTo>,
}

/// Objects that a ReferenceGrant permits to refer to objects of its namespace, by kind and namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReferenceGrantFrom {
    /// API group of the objects.
    pub group: String,
    /// Kind of the objects.
    pub kind: String,
    /// Namespace of the objects.
    pub namespace: String,
}

/// Objects of the grant's namespace that others may refer to, by kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReferenceGrantTo {
    /// API group of the objects; empty for the core group.
    pub group: String,
    /// Kind of the objects.
    pub kind: String,
    /// Name of the object; all objects of the kind if absent.
    pub name: Option<String>,
}
