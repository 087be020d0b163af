//! TCP and TLS routes at waypoints: Gateway API's TCPRoute and TLSRoute with a service as parent.

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, RouteName};

/// TCPRoute or TLSRoute for one parent service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamRoute {
    /// Name of the TCPRoute or TLSRoute.
    pub name: RouteName,
    /// Ports of the service to which the route applies; all of them if empty.
    pub ports: Vec<u16>,
    /// Consumer namespace: if set, the route applies only to clients in this namespace, and replaces the routes without
    /// a consumer namespace for them.
    pub clients: Option<ArcStr>,
    /// Server names (SNI) of a TLSRoute in lower case, exact or with a leading `*.` that matches all subdomains. All
    /// connections match if empty.
    pub hostnames: Vec<ArcStr>,
    /// Weighted backends. Without a backend, or with a total weight of zero, connections are rejected.
    pub backends: Vec<StreamBackend>,
    /// Unsupported part of the route, if any. Matching connections are rejected.
    pub unsupported: Option<ArcStr>,
}

/// Backend of a TCP or TLS route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamBackend {
    /// Service of the backend. An error is the reason why it cannot be used; its share of connections is rejected.
    pub service: Result<NamespacedHostname, ArcStr>,
    /// Port of the service.
    pub port: u16,
    /// Weight relative to the other backends.
    pub weight: u32,
}
