//! Routes of HTTP requests at waypoints: Gateway API's HTTPRoute with a service as parent, and Istio's VirtualService.

use std::time::Duration;

use arcstr::ArcStr;
use serde::{Serialize, Serializer};

use crate::{NamespacedHostname, RouteName, json};

/// Maximum memory of one compiled regular expression of a route, in bytes.
pub const MAX_COMPILED_REGEX_BYTES: usize = 1 << 18;

/// Headers that no route may change: hop-by-hop headers, message framing, host, and client identity. Only
/// [`HttpRewrite`] changes the host.
const RESERVED_HEADERS: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
];

/// Prefixes of header names that only proxies of the mesh may set: client identity and routing controls.
const MESH_HEADER_PREFIXES: &[&str] = &["x-ambit-", "x-envoy-", "x-forwarded-client-cert"];

/// Headers in which TLS-terminating proxies forward the client certificate (RFC 9440).
const CLIENT_CERT_HEADERS: &[&str] = &["client-cert", "client-cert-chain"];

/// Prefix of the names of session-persistence headers, which clients may send although they begin with `x-ambit-`.
const SESSION_HEADER_PREFIX: &str = "x-ambit-session-";

/// Whether only proxies of the mesh may set this header. Underscores count as hyphens, since CGI-style applications
/// cannot tell them apart.
pub fn is_mesh_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let folded = lower.replace('_', "-");
    let mut beginnings = MESH_HEADER_PREFIXES.iter();
    CLIENT_CERT_HEADERS.contains(&folded.as_str())
        || !lower.starts_with(SESSION_HEADER_PREFIX)
            && beginnings.any(|begin| folded.starts_with(begin))
}

/// Whether routes must not change this header. Underscores count as hyphens, since CGI-style applications do not
/// distinguish them.
pub fn is_reserved_header(name: &str) -> bool {
    let folded = name.replace('_', "-");
    let mut reserved = RESERVED_HEADERS.iter();
    is_mesh_header(name) || reserved.any(|one| one.eq_ignore_ascii_case(&folded))
}

/// HTTPRoute, GRPCRoute or VirtualService for one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRoute {
    /// Name of the HTTPRoute, GRPCRoute or VirtualService.
    pub name: RouteName,
    /// Ports of the service to which the route applies; all of them if empty.
    pub ports: Vec<u16>,
    /// Rules in the order of the object.
    pub rules: Vec<HttpRouteRule>,
    /// Consumer namespace: if set, the route applies only to clients in this namespace, and replaces the routes without
    /// a consumer namespace for them.
    pub clients: Option<ArcStr>,
    /// Whether the first rule that matches applies, in the order of routes and rules, as in VirtualServices. If not,
    /// the most specific match applies, as in HTTPRoutes.
    pub first_match: bool,
    /// Whether the service's owner wrote the route although it applies only to clients of one namespace. True for
    /// VirtualService rules with a `sourceNamespace`, false for consumer routes (GAMMA).
    pub of_service: bool,
}

/// Rule of an HTTP route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteRule {
    /// Name of the rule, for access logs.
    pub name: Option<ArcStr>,
    /// Matches, of which one must apply; every request matches if empty.
    pub matches: Vec<HttpRouteMatch>,
    /// Filters for requests and responses.
    pub filters: Vec<HttpFilter>,
    /// Weighted backends. Without a backend, or with a total weight of zero, the response is 500.
    pub backends: Vec<HttpBackend>,
    /// Request and backend-request timeouts.
    pub timeouts: HttpTimeouts,
    /// Retry policy; `None` applies the mesh's default.
    pub retry: Option<HttpRetry>,
    /// Session persistence, which sends a client's requests to one endpoint.
    pub session: Option<HttpSession>,
    /// Unsupported part of the rule, if any. Matching requests get a 500 response with this reason.
    pub unsupported: Option<ArcStr>,
}

/// Session persistence: where the session token is stored, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpSession {
    /// Name of the cookie or header; header names are in lower case.
    pub name: ArcStr,
    /// Whether the token is in a header instead of a cookie.
    pub is_header: bool,
    /// Whether the cookie outlives the client's session (`Permanent`).
    pub is_permanent: bool,
    /// Maximum lifetime of the session.
    #[serde(serialize_with = "json::optional_duration")]
    pub absolute_timeout: Option<Duration>,
    /// Lifetime of the session without requests.
    #[serde(serialize_with = "json::optional_duration")]
    pub idle_timeout: Option<Duration>,
}

/// Match on attributes of a request. All attributes that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteMatch {
    /// Match on the normalized path without the query.
    pub path: Option<HttpPathMatch>,
    /// Method of the request.
    pub method: Option<ArcStr>,
    /// Matches on headers by lower-case name. Of several entries with one name, the first applies.
    pub headers: Vec<(ArcStr, HttpValueMatch)>,
    /// Matches on query parameters. Of several entries with one name, the first applies.
    pub query_params: Vec<(ArcStr, HttpValueMatch)>,
    /// Headers that the request must not have with a matching value, by lower-case name. Only VirtualServices set them.
    pub without_headers: Vec<(ArcStr, HttpValueMatch)>,
}

/// Path match of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpPathMatch {
    /// Path that the request's path must equal.
    Exact(ArcStr),
    /// Prefix of whole path segments. Has no trailing slash, except `/` itself.
    Prefix(ArcStr),
    /// RE2 regular expression that must match the whole value.
    Regex(ArcStr),
    /// Prefix of the path that may end within a segment, as in VirtualServices.
    TextPrefix(ArcStr),
}

/// Match on the value of a header or query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpValueMatch {
    /// Text that the value must equal.
    Exact(ArcStr),
    /// RE2 regular expression that must match the whole value.
    Regex(ArcStr),
}

/// Backend of a route rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpBackend {
    /// Service of the backend. An error is the reason why it cannot be used; its share of requests gets a 500 response.
    pub service: Result<NamespacedHostname, ArcStr>,
    /// Port of the service.
    pub port: u16,
    /// Subset of the service's endpoints; all of them if `None`.
    pub subset: Option<ArcStr>,
    /// Weight relative to the other backends.
    pub weight: u32,
    /// Filters for this backend's requests and responses, applied after the rule's filters.
    pub filters: Vec<HttpFilter>,
}

/// Filter of requests or responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpFilter {
    /// Changes of request headers.
    RequestHeaders(HeaderChanges),
    /// Changes of response headers.
    ResponseHeaders(HeaderChanges),
    /// Redirect response to the client.
    Redirect(HttpRedirect),
    /// Rewrite of the request's host or path.
    Rewrite(HttpRewrite),
    /// Request mirroring to a service whose responses are discarded. A rule may have several mirrors.
    Mirror(HttpMirror),
    /// CORS policy of the response.
    Cors(HttpCors),
    /// Fault injection: delays and aborts.
    Fault(HttpFault),
}

/// Faults of [`HttpFilter::Fault`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpFault {
    /// Delay, and the fraction of requests that is delayed.
    #[serde(serialize_with = "delay")]
    pub delay: Option<(Duration, RequestFraction)>,
    /// Response status of aborted requests, and the fraction of requests that is aborted, after any delay.
    pub abort: Option<(FaultStatus, RequestFraction)>,
}

/// Serializes a fault delay and its fraction of requests.
fn delay<S: Serializer>(
    of: &Option<(Duration, RequestFraction)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let of = of.map(|(duration, share)| (format!("{duration:?}"), share));
    of.serialize(serializer)
}

/// Status of an injected response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum FaultStatus {
    /// HTTP status, 200 to 599.
    Http(u16),
    /// gRPC status, 0 to 16.
    Grpc(u8),
}

/// Fraction of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestFraction {
    /// Numerator of the fraction.
    pub numerator: u32,
    /// Denominator of the fraction, not zero.
    pub denominator: u32,
}

/// Changes of headers by lower-case name. [Reserved](is_reserved_header) headers are never among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderChanges {
    /// Headers to set, replacing existing values.
    pub set: Vec<(ArcStr, ArcStr)>,
    /// Headers to append to existing values.
    pub add: Vec<(ArcStr, ArcStr)>,
    /// Headers to remove.
    pub remove: Vec<ArcStr>,
}

/// Replacement of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PathChange {
    /// Replacement of the full path.
    Full(ArcStr),
    /// Replacement of the prefix that the rule matched.
    Prefix(ArcStr),
    /// Replacement of the text prefix that the rule matched, or of the full path if the rule matched no prefix, as in
    /// VirtualServices.
    Matched(ArcStr),
}

/// Redirect of [`HttpFilter::Redirect`]. Parts that are `None` stay as in the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRedirect {
    /// Scheme of the new location, `http` or `https`.
    pub scheme: Option<ArcStr>,
    /// Host of the new location.
    pub hostname: Option<ArcStr>,
    /// Port of the new location; `None` is the scheme's default port if `scheme` is set, else the service's port.
    pub port: Option<u16>,
    /// Path of the new location.
    pub path: Option<PathChange>,
    /// Response status: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Rewrite of [`HttpFilter::Rewrite`]. Parts that are `None` stay as in the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRewrite {
    /// Host that the backend receives.
    pub hostname: Option<ArcStr>,
    /// Path that the backend receives.
    pub path: Option<PathChange>,
}

/// Timeouts of a route rule; `None` means no timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpTimeouts {
    /// Timeout for the whole request, up to the last byte of the response.
    #[serde(serialize_with = "json::optional_duration")]
    pub request: Option<Duration>,
    /// Timeout for one attempt, up to the response headers.
    #[serde(serialize_with = "json::optional_duration")]
    pub backend_request: Option<Duration>,
}

/// Mirror of [`HttpFilter::Mirror`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpMirror {
    /// Service that receives mirrored requests.
    pub service: NamespacedHostname,
    /// Port of the service.
    pub port: u16,
    /// Numerator of the mirrored fraction of requests.
    pub numerator: u32,
    /// Denominator of the fraction, not zero.
    pub denominator: u32,
}

/// Settings of [`HttpFilter::Cors`]. A list that contains `*` contains nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpCors {
    /// Allowed origins, `scheme://host` with an optional port. A host may begin with `*`, which matches one or more
    /// labels.
    pub allow_origins: Vec<ArcStr>,
    /// Whether requests may carry credentials.
    pub allow_credentials: bool,
    /// Allowed methods besides the CORS-safelisted ones.
    pub allow_methods: Vec<ArcStr>,
    /// Allowed request headers besides the CORS-safelisted ones.
    pub allow_headers: Vec<ArcStr>,
    /// Exposed response headers besides the CORS-safelisted ones.
    pub expose_headers: Vec<ArcStr>,
    /// Maximum age of a cached preflight response, in seconds.
    pub max_age: u32,
}

/// Retry policy for all methods: a request is retried if no response arrives, or one with a status in `codes`. Requests
/// whose bodies exceed the replay buffer are not retried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRetry {
    /// Retriable response statuses, 400 to 599.
    pub codes: Vec<u16>,
    /// Maximum number of retries.
    pub attempts: u32,
    /// Minimum delay before each retry; a short random delay if `None`.
    #[serde(serialize_with = "json::optional_duration")]
    pub backoff: Option<Duration>,
}
