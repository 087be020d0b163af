//! Ports on which a route has no effect: because of the port's protocol, or because another route takes precedence.
//! Waypoints decide the same in their own tables; here it is computed for the status.

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::AppProtocol;

use crate::{
    kinds::route::conditions::serving::serving_waypoints, objects::route::input::RouteInput,
    view::MeshView,
};

/// Reason why a route has no effect on a port.
#[derive(Debug)]
pub(crate) struct RouteConflict {
    /// Reason of the status condition.
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

/// Returns the reason why a route has no effect on a port of a service; `None` if it has.
pub(crate) fn find_conflict(
    view: &MeshView,
    route: &RouteInput,
    target: &ObjectKey,
    (port, protocol): (u16, AppProtocol),
) -> Option<RouteConflict> {
    let is_http = is_http(route.kind);
    let speaks = match protocol {
        AppProtocol::Http11 | AppProtocol::Http2 | AppProtocol::Grpc => Some(true),
        AppProtocol::Tcp | AppProtocol::Tls => Some(false),
        AppProtocol::Unknown => None,
    };
    if speaks.is_some_and(|speaks| speaks != is_http) {
        return Some(RouteConflict {
            reason: "UnsupportedProtocol",
            text: format!(
                "port {port} of {target} speaks {}, by its appProtocol, name or number, and {} has no effect there",
                if is_http { "no HTTP" } else { "HTTP" },
                route.kind
            ),
        });
    }
    let serving = serving_waypoints(view, target);
    let clients = |route: &RouteInput| {
        let own = &route.name.namespace;
        let mut waypoints = serving.iter();
        let is_for_all = *own == target.namespace
            || waypoints.any(|gateway| route.is_producer_route(target, gateway));
        (!is_for_all).then(|| own.clone())
    };
    let of_route = clients(route);
    let others = || {
        view.routes_of(target).filter(|other| {
            let Some(ports) = other.applicable_ports(view, target) else {
                return false;
            };
            ports.is_empty() || ports.contains(&port)
        })
    };
    let oldest = |is_rival: &dyn Fn(&RouteInput) -> bool| {
        let rivals = others().filter(|other| is_rival(other));
        rivals.min_by(|one, other| one.precedence_key().cmp(&other.precedence_key()))
    };
    let beaten = |by: &RouteInput, why: &str| RouteConflict {
        reason: "Conflicted",
        text: format!("port {port} of {target} follows {}: {why}", by.name),
    };
    if is_http {
        // The oldest decides which of the two kinds is followed.
        let first = oldest(&|other| self::is_http(other.kind) && clients(other) == of_route)?;
        let why = "HTTPRoute and GRPCRoute exclude each other, and it is older";
        return (first.kind != route.kind).then(|| beaten(first, why));
    }
    // Where it is declared what the port speaks, routes of requests have no effect themselves.
    let http = speaks.is_none().then(|| {
        oldest(&|other| {
            let of_other = clients(other);
            self::is_http(other.kind) && (of_other.is_none() || of_other == of_route)
        })
    });
    if let Some(http) = http.flatten() {
        let why = "routes of requests go before those of connections";
        return Some(beaten(http, why));
    }
    if route.kind != Kind::TCPRoute {
        return None;
    }
    let first = oldest(&|other| other.kind == route.kind && clients(other) == of_route)?;
    let why = "it is older, and of TCPRoutes one alone is followed";
    (first.name != route.name).then(|| beaten(first, why))
}

fn is_http(kind: Kind) -> bool {
    matches!(kind, Kind::HTTPRoute | Kind::GRPCRoute)
}
