//! `POST /explain` of the admin server predicts how a connection or request would be handled: the data path's own
//! functions decide from the current state, and nothing is sent or counted.

use std::pin::Pin;

use ambit_mesh_json::explain::{EvaluatedObject, Explanation, Hop, HopKind, Peer};
use ambit_model::{GatewayAddress, Service};
use ambit_route::{HboneRoute, Route, WorkloadRef};
use ambit_rt::http::{Response, json_pretty, text};
use bytes::Bytes;
use serde::de::DeserializeOwned;

/// Handler of `POST /explain`, which receives the body of the request.
pub type ExplainHandler = Box<dyn Fn(Bytes) -> ResponseFuture + Send + Sync>;

/// Future of the response to `POST /explain`, see [`ExplainHandler`].
pub type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Parses the query in the body of a `POST /explain` request.
///
/// # Errors
///
/// Returns the error response, which repeats nothing of the query: it may hold tokens.
pub fn parse_query<T: DeserializeOwned>(body: &[u8]) -> Result<T, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let what = format!("the query is not understood: line {line}, column {column}\n");
        Box::new(text(400, what))
    })
}

/// Builds the response of `POST /explain` from an explanation.
pub fn explanation_response(explanation: &Explanation) -> Response {
    json_pretty(200, explanation)
}

/// Describes the next hop of a route; `None` while the route has an unresolved host name.
pub fn next_hop(route: &Route, sender: Peer) -> Option<Hop> {
    match route {
        Route::Passthrough { dst, .. } => Some(Hop {
            to: HopKind::OutsideMesh,
            workload: String::new(),
            node: String::new(),
            address: *dst,
            authority: dst.to_string(),
            peer: without_identity(sender),
            original: None,
        }),
        Route::Plain(plain) => Some(Hop {
            to: HopKind::Plaintext,
            workload: full_name(&plain.workload),
            node: plain.workload.node().to_string(),
            address: plain.addr,
            authority: plain.addr.to_string(),
            peer: without_identity(sender),
            original: None,
        }),
        Route::Hbone(hbone) => {
            let to = match hbone.waypoint {
                Some(_) => HopKind::Waypoint,
                None => HopKind::Tunnel,
            };
            Some(tunnel_hop(hbone, to, sender))
        }
        // What the gateway of another network does with it is not known here.
        Route::DoubleHbone { outer, .. } => Some(tunnel_hop(outer, HopKind::OutsideMesh, sender)),
        Route::NeedsDns(_) => None,
    }
}

fn tunnel_hop(hbone: &HboneRoute, to: HopKind, sender: Peer) -> Hop {
    Hop {
        to,
        workload: full_name(&hbone.workload),
        node: hbone.workload.node().to_string(),
        address: hbone.addr,
        authority: hbone.authority.clone(),
        peer: sender,
        original: None,
    }
}

fn without_identity(sender: Peer) -> Peer {
    Peer {
        identity: None,
        ..sender
    }
}

/// Returns `namespace/name` of a workload.
pub fn full_name(workload: &WorkloadRef) -> String {
    format!("{}/{}", workload.namespace(), workload.name())
}

/// Describes the waypoints of a service, with their weights if it has several; `None` if it has none.
pub fn waypoint_of(service: &Service) -> Option<String> {
    let name = |waypoint: &GatewayAddress| waypoint.destination.to_string();
    if service.weighted_waypoints.is_empty() {
        return service.waypoint.as_ref().map(name);
    }
    let all = service.weighted_waypoints.iter();
    let all: Vec<_> = all
        .map(|one| format!("{} (weight {})", name(&one.destination), one.weight))
        .collect();
    Some(all.join(", "))
}

/// Describes an evaluated policy and its result for `POST /explain`.
pub fn evaluated_policy(
    policy: impl ToString,
    action: impl std::fmt::Debug,
    is_dry_run: bool,
    matching_rule: Option<usize>,
) -> EvaluatedObject {
    let dry_run = if is_dry_run { " (dry run)" } else { "" };
    EvaluatedObject {
        object: policy.to_string(),
        effect: format!("{}{dry_run}", format!("{action:?}").to_uppercase()),
        result: match matching_rule {
            Some(rule) => format!("rule {} matches", rule + 1),
            None => "no rule matches".to_owned(),
        },
    }
}
