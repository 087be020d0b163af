//! Routes of HTTP requests at waypoints: Gateway API's HTTPRoute with a service as parent.

use std::{fmt, time::Duration};

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, json};

/// Memory that one regular expression of a route may take, in bytes.
pub const MAX_EXPRESSION: usize = 1 << 18;

/// Headers that no route may change: hop-by-hop headers, those that frame a message, and those that identify a caller.
/// The host is changed by [`HttpRewrite`].
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

/// Beginnings of names of headers that only proxies of the mesh set: who calls, and how requests are handled.
const MESH_HEADERS: &[&str] = &["x-ambit-", "x-envoy-", "x-forwarded-client-cert"];

/// Names of headers by which proxies that terminate TLS say who calls (RFC 9440).
const CLIENT_CERT_HEADERS: &[&str] = &["client-cert", "client-cert-chain"];

/// Beginning of the names of headers in which clients keep their sessions.
const SESSION_HEADERS: &str = "x-ambit-session-";

/// Whether only proxies of the mesh may set a header of this name. To applications that get headers as variables an
/// underscore is a hyphen.
pub fn is_mesh_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let folded = lower.replace('_', "-");
    let mut beginnings = MESH_HEADERS.iter();
    CLIENT_CERT_HEADERS.contains(&folded.as_str())
        || !lower.starts_with(SESSION_HEADERS) && beginnings.any(|begin| folded.starts_with(begin))
}

/// Whether no route may change a header of this name, or one that is the same to some applications.
pub fn is_reserved_header(name: &str) -> bool {
    let folded = name.replace('_', "-");
    let mut reserved = RESERVED_HEADERS.iter();
    is_mesh_header(name) || reserved.any(|one| one.eq_ignore_ascii_case(&folded))
}

/// The name of a route object. Written `Kind/namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteName {
    /// For instance `HTTPRoute`.
    pub kind: ArcStr,
    /// Namespace of the route.
    pub namespace: ArcStr,
    /// Name of the route.
    pub name: ArcStr,
}

impl fmt::Display for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

/// A route as it concerns one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRoute {
    /// Name of the HTTPRoute or GRPCRoute.
    pub name: RouteName,
    /// The service's ports that it concerns; all of them if empty.
    pub ports: Vec<u16>,
    /// Its rules, in their order.
    pub rules: Vec<HttpRouteRule>,
    /// Of a consumer's route: the namespace of the clients that it is for. For them it takes the place of routes for
    /// all clients.
    pub clients: Option<ArcStr>,
}

/// One rule of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteRule {
    /// Name of the rule, which logs give beside the route's.
    pub name: Option<ArcStr>,
    /// Any one suffices; none at all matches every request.
    pub matches: Vec<HttpRouteMatch>,
    /// Filters of requests and responses.
    pub filters: Vec<HttpFilter>,
    /// Where the requests go, by weight. None, or a total weight of zero: requests are answered with 500.
    pub backends: Vec<HttpBackend>,
    /// How long things may take.
    pub timeouts: HttpTimeouts,
    /// When and how often requests are sent again; as without routes if `None`.
    pub retry: Option<HttpRetry>,
    /// Session persistence: requests of a client that go to one endpoint.
    pub session: Option<HttpSession>,
    /// A part of the rule that is not supported: requests that match are answered with 500 and this reason.
    pub unsupported: Option<ArcStr>,
}

/// Session identification: the marker that the response to a client's first request set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpSession {
    /// The name of the cookie or header, the latter in lower case.
    pub name: ArcStr,
    /// A header and not a cookie.
    pub is_header: bool,
    /// Whether the client keeps the cookie when it ends.
    pub is_permanent: bool,
    /// How long it lasts at most.
    #[serde(serialize_with = "json::optional_duration")]
    pub absolute_timeout: Option<Duration>,
    /// How long it lasts without a request.
    #[serde(serialize_with = "json::optional_duration")]
    pub idle_timeout: Option<Duration>,
}

/// All parts that are given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteMatch {
    /// The normalized path, without the query.
    pub path: Option<HttpPathMatch>,
    /// Method of the request.
    pub method: Option<ArcStr>,
    /// Headers, by lower-case name; the first of several with one name counts.
    pub headers: Vec<(ArcStr, HttpValueMatch)>,
    /// Parameters of the query; the first of several with one name counts.
    pub query_params: Vec<(ArcStr, HttpValueMatch)>,
}

/// How a path is compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpPathMatch {
    /// Path that is equal.
    Exact(ArcStr),
    /// Equal, or below it segment by segment; never ends with a slash but as `/` itself.
    Prefix(ArcStr),
    /// As a whole, by a regular expression in RE2's syntax.
    Regex(ArcStr),
}

/// How a header or a parameter is compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpValueMatch {
    /// Value that is equal.
    Exact(ArcStr),
    /// As a whole, by a regular expression in RE2's syntax.
    Regex(ArcStr),
}

/// One destination of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpBackend {
    /// The service; an error if it cannot be used: its share of requests is answered with 500.
    pub service: Result<NamespacedHostname, ArcStr>,
    /// A port of the service.
    pub port: u16,
    /// The subset of its endpoints that it is; all of them if `None`.
    pub subset: Option<ArcStr>,
    /// Its share relative to the others.
    pub weight: u32,
    /// Filters of the backend's requests and responses, after those of the rule.
    pub filters: Vec<HttpFilter>,
}

/// Something that is done with requests or answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpFilter {
    /// Headers of requests.
    RequestHeaders(HeaderChanges),
    /// Headers of answers.
    ResponseHeaders(HeaderChanges),
    /// The request is answered with another address.
    Redirect(HttpRedirect),
    /// The request is sent with another host or path.
    Rewrite(HttpRewrite),
    /// The request is mirrored to another service, whose response is dropped. There may be several.
    Mirror(HttpMirror),
    /// Which scripts of other origins may read the answer.
    Cors(HttpCors),
    /// Faults injected on purpose.
    Fault(HttpFault),
}

/// Faults of [`HttpFilter::Fault`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpFault {
    /// Delay of requests, and the share of them that is delayed.
    #[serde(serialize_with = "json::delay")]
    pub delay: Option<(Duration, Share)>,
    /// Status that requests are answered with, and the share of them; after the delay.
    pub abort: Option<(FaultStatus, Share)>,
}

/// Status of an injected response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum FaultStatus {
    /// A status of HTTP, 200 to 599.
    Http(u16),
    /// A status of gRPC, 0 to 16.
    Grpc(u8),
}

/// So many of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// So many ...
    pub numerator: u32,
    /// ... of so many; not zero.
    pub denominator: u32,
}

/// Changes of headers, by lower-case name; none of them [reserved](is_reserved_header).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderChanges {
    /// In place of all lines of the name.
    pub set: Vec<(ArcStr, ArcStr)>,
    /// A line more.
    pub add: Vec<(ArcStr, ArcStr)>,
    /// All lines of the name.
    pub remove: Vec<ArcStr>,
}

/// Replacement of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PathChange {
    /// In place of all of it.
    Full(ArcStr),
    /// In place of the prefix that the rule matched.
    Prefix(ArcStr),
}

/// Redirect of [`HttpFilter::Redirect`]. Parts that are not given stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRedirect {
    /// `http` or `https`.
    pub scheme: Option<ArcStr>,
    /// Host of the new location.
    pub hostname: Option<ArcStr>,
    /// The port; that of the scheme if one is given, else that of the service.
    pub port: Option<u16>,
    /// Path of the new location.
    pub path: Option<PathChange>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Rewrite of [`HttpFilter::Rewrite`]. Parts that are not given stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRewrite {
    /// Host that the backend receives.
    pub hostname: Option<ArcStr>,
    /// Path that the backend receives.
    pub path: Option<PathChange>,
}

/// How long requests may take; for ever if `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpTimeouts {
    /// All of it, until the last byte of the answer.
    #[serde(serialize_with = "json::optional_duration")]
    pub request: Option<Duration>,
    /// One try, until the head of the answer.
    #[serde(serialize_with = "json::optional_duration")]
    pub backend_request: Option<Duration>,
}

/// Mirror of [`HttpFilter::Mirror`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpMirror {
    /// Service that gets the copies.
    pub service: NamespacedHostname,
    /// A port of the service.
    pub port: u16,
    /// Its share: so many requests ...
    pub numerator: u32,
    /// ... of so many; not zero.
    pub denominator: u32,
}

/// Settings of [`HttpFilter::Cors`]. Lists hold `*` alone, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpCors {
    /// `scheme://host` with or without a port; the host may begin with `*`, which matches one or more labels.
    pub allow_origins: Vec<ArcStr>,
    /// Whether requests may carry credentials.
    pub allow_credentials: bool,
    /// Methods besides those that are always allowed.
    pub allow_methods: Vec<ArcStr>,
    /// Headers of requests besides those that are always allowed.
    pub allow_headers: Vec<ArcStr>,
    /// Headers of answers that scripts may read besides those that they always may.
    pub expose_headers: Vec<ArcStr>,
    /// How many seconds a client may keep the answer of a preflight.
    pub max_age: u32,
}

/// When a request is sent again, whatever its method: when no answer came, and when one came with one of these
/// statuses. What was sent of its body has to be sent again too, so that requests with large ones are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRetry {
    /// Statuses, 400 to 599.
    pub codes: Vec<u16>,
    /// How often at most.
    pub attempts: u32,
    /// Least delay before each retry; short and random if `None`.
    #[serde(serialize_with = "json::optional_duration")]
    pub backoff: Option<Duration>,
}
