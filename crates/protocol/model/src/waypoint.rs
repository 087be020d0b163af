//! What a waypoint is told besides the records of workloads and services: its own settings, the services that
//! it serves, and their routes. Policies are in [`crate::HttpPolicy`].

use std::{fmt, str::FromStr};

use arcstr::ArcStr;

use crate::{NamespacedHostname, ParseNameError};

/// The name of the `Gateway` object that a waypoint is made from. Written `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GatewayName {
    /// Its namespace.
    pub namespace: ArcStr,
    /// Its name.
    pub name: ArcStr,
}

impl GatewayName {
    /// Builds a name from its parts.
    pub fn new(namespace: impl Into<ArcStr>, name: impl Into<ArcStr>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for GatewayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for GatewayName {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self::new(namespace, name))
            }
            _ => Err(ParseNameError::new(text, "<namespace>/<name>")),
        }
    }
}

/// The settings of one waypoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaypointGateway {
    /// Whose settings these are.
    pub gateway: GatewayName,
    /// The form of paths that policies and routes see, and that is forwarded.
    pub path_normalization: PathNormalization,
    /// How many addresses at the end of `x-forwarded-for` were added by proxies in front of the mesh that
    /// are trusted (`numTrustedProxies`); the remote address is the one before them.
    pub trusted_proxies: u32,
    /// Whether applications are told the caller in `x-forwarded-client-cert`
    /// (`ambient.istio.io/xfcc-include-client-identity`).
    pub client_identity_header: bool,
}

/// How paths are normalized before anything looks at them (Istio's `pathNormalization`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathNormalization {
    /// Not at all.
    None,
    /// RFC 3986: dot segments are resolved, percent-encoded unreserved characters are decoded, backslashes
    /// are slashes.
    #[default]
    Base,
    /// As `Base`, and adjacent slashes are merged.
    MergeSlashes,
    /// As `MergeSlashes`, with percent-encoded slashes and backslashes decoded first.
    DecodeAndMergeSlashes,
}

/// Memory that one regular expression of a route may take, in bytes.
pub const MAX_EXPRESSION: usize = 1 << 18;

/// A service that a waypoint serves: bound to it, or with an endpoint that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaypointService {
    /// Its name in WDS.
    pub service: NamespacedHostname,
    /// The routes of its ports, oldest first and then by name. Without any the service leads to itself.
    pub routes: Vec<HttpRoute>,
}

/// The name of a route object. Written `Kind/namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteName {
    /// For instance `HTTPRoute`.
    pub kind: ArcStr,
    /// Its namespace.
    pub namespace: ArcStr,
    /// Its name.
    pub name: ArcStr,
}

impl fmt::Display for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

/// A route as it concerns one service (Gateway API's HTTPRoute with a Service as parent).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRoute {
    /// The object.
    pub name: RouteName,
    /// The service's ports that it concerns; all of them if empty.
    pub ports: Vec<u16>,
    /// Its rules, in their order.
    pub rules: Vec<HttpRouteRule>,
}

/// One rule of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRouteRule {
    /// Any one suffices; none at all matches every request.
    pub matches: Vec<HttpRouteMatch>,
    /// Where the requests go, by weight. None, or a total weight of zero: requests are answered with 500.
    pub backends: Vec<HttpBackend>,
    /// A part of the rule that is not supported: requests that match are answered with 500 and this reason.
    pub unsupported: Option<ArcStr>,
}

/// All parts that are given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRouteMatch {
    /// The normalized path, without the query.
    pub path: Option<HttpPathMatch>,
    /// The method.
    pub method: Option<ArcStr>,
    /// Headers, by lower-case name; the first of several with one name counts.
    pub headers: Vec<(ArcStr, HttpValueMatch)>,
    /// Parameters of the query; the first of several with one name counts.
    pub query_params: Vec<(ArcStr, HttpValueMatch)>,
}

/// How a path is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpPathMatch {
    /// Equal.
    Exact(ArcStr),
    /// Equal, or below it segment by segment; never ends with a slash but as `/` itself.
    Prefix(ArcStr),
    /// As a whole, by a regular expression in RE2's syntax.
    Regex(ArcStr),
}

/// How a header or a parameter is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpValueMatch {
    /// Equal.
    Exact(ArcStr),
    /// As a whole, by a regular expression in RE2's syntax.
    Regex(ArcStr),
}

/// One destination of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpBackend {
    /// The service; an error if it cannot be used: its share of requests is answered with 500.
    pub service: Result<NamespacedHostname, ArcStr>,
    /// A port of the service.
    pub port: u16,
    /// Its share relative to the others.
    pub weight: u32,
}
