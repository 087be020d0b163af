//! Settings of a waypoint, and the services that it serves, which it receives besides the records of workloads and
//! services. Their routes are in [`crate::HttpRoute`] and [`crate::StreamRoute`], policies in [`crate::HttpPolicy`].

use std::{collections::BTreeSet, fmt, net::IpAddr, str::FromStr};

use arcstr::ArcStr;
use ipnet::IpNet;
use serde::Serialize;

use crate::{HttpRoute, NamespacedHostname, ParseNameError, StreamRoute};

/// The name of the `Gateway` object that a waypoint is made from. Written `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GatewayName {
    /// Namespace of the Gateway.
    pub namespace: ArcStr,
    /// Name of the Gateway.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointGateway {
    /// Whose settings these are.
    pub gateway: GatewayName,
    /// The form of paths that policies and routes see, and that is forwarded.
    pub path_normalization: PathNormalization,
    /// How many addresses at the end of `x-forwarded-for` were added by proxies in front of the mesh that
    /// are trusted (`numTrustedProxies`); the remote address is the one before them.
    pub trusted_proxies: u32,
    /// Whether applications receive the caller in `x-forwarded-client-cert`
    /// (`ambient.istio.io/xfcc-include-client-identity`).
    pub client_identity_header: bool,
    /// Addresses of the API server and of nodes, which are not called for what objects name.
    pub cluster_addresses: BTreeSet<IpAddr>,
    /// Addresses that are called although they are of a kind that is not, by the administrator's settings.
    pub allowed_addresses: Vec<IpNet>,
    /// Whether attachments of services apply to requests to the services alone, and not to those to their pods.
    pub services_alone: bool,
}

/// How paths are normalized before anything looks at them (Istio's `pathNormalization`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
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

/// A service that a waypoint serves: bound to it, or with an endpoint that is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointService {
    /// Its name in WDS.
    pub service: NamespacedHostname,
    /// The routes of its ports, oldest first and then by name. Without any, requests go to the service itself.
    pub routes: Vec<HttpRoute>,
    /// Where connections go on ports without routes of requests, oldest first and then by name.
    pub tcp_routes: Vec<StreamRoute>,
    /// The same by server names, before `tcp_routes`.
    pub tls_routes: Vec<StreamRoute>,
    /// Its name is a wildcard, of which each call names the host: the waypoint resolves that one.
    pub resolves_hosts: bool,
    /// Pods of other namespaces to which the attachments of the service apply, where they are its endpoints: their
    /// namespaces let it.
    pub grantors: Vec<PodGrant>,
}

/// Lets attachments of a service of another namespace apply to requests to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGrant {
    /// The namespace of the pods.
    pub namespace: ArcStr,
    /// The pod; all of the namespace if empty.
    pub pod: ArcStr,
}
