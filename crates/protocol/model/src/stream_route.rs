//! Routes of connections at waypoints: Gateway API's TCPRoute and TLSRoute with a service as parent.

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, RouteName};

/// A route as it concerns one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamRoute {
    /// Name of the TCPRoute or TLSRoute.
    pub name: RouteName,
    /// The service's ports that it concerns; all of them if empty.
    pub ports: Vec<u16>,
    /// Of a consumer's route: the namespace of the clients that it is for. For them it takes the place of routes for
    /// all clients.
    pub clients: Option<ArcStr>,
    /// Of TLS: the server names that it is for, in lower case: exact ones, and those that begin with `*.`, which stand
    /// for all names below. All connections if empty.
    pub hostnames: Vec<ArcStr>,
    /// Where the connections go, by weight. None, or a total weight of zero: they are refused.
    pub backends: Vec<StreamBackend>,
    /// A part of the route that is not supported: connections that it is for are refused.
    pub unsupported: Option<ArcStr>,
}

/// One destination of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamBackend {
    /// The service; an error if it cannot be used: its share of connections is refused.
    pub service: Result<NamespacedHostname, ArcStr>,
    /// A port of the service.
    pub port: u16,
    /// Its share relative to the others.
    pub weight: u32,
}
