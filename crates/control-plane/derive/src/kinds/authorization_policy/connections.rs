//! Ports with other protocols than HTTP under a CUSTOM policy with an HTTP provider: the provider cannot check such
//! connections, so waypoints refuse them.

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::{AppProtocol, ArcStr, GatewayName, Provider, ProviderProtocol};

use crate::{
    kinds::route::ports::declared_ports, objects::targets::PolicyTargets, problem::Note,
    view::MeshView,
};

/// Maximum number of ports that a note lists.
const MAX_LISTED_PORTS: usize = 3;

/// Builds the note on ports of the policy's targets where connections are refused because the provider checks over
/// HTTP.
pub(crate) fn refused_ports_note(
    view: &MeshView,
    provider: &Provider,
    targets: &PolicyTargets,
) -> Option<Note> {
    if provider.protocol == ProviderProtocol::Grpc {
        return None;
    }
    let mut refused = refused_ports(view, targets);
    let more = refused.len().saturating_sub(MAX_LISTED_PORTS);
    refused.truncate(MAX_LISTED_PORTS);
    if refused.is_empty() {
        return None;
    }
    let mut ports = refused.join(", ");
    if more > 0 {
        ports.push_str(&format!(" and {more} more"));
    }
    let message = format!(
        "{} checks over HTTP, requests alone: connections to {ports} are refused, since they are not HTTP by \
         declaration; envoyExtAuthzGrpc checks those, too",
        provider.name
    );
    Some(Note::new("spec.provider.name", message))
}

fn refused_ports(view: &MeshView, targets: &PolicyTargets) -> Vec<String> {
    let concerned = targets.by_waypoint(view);
    let whole: Vec<&GatewayName> = concerned
        .iter()
        .filter(|(_, concerned)| concerned.targets_gateway)
        .map(|(gateway, _)| gateway)
        .collect();
    let named = targets.0.iter();
    let mut services: Vec<ObjectKey> = named
        .filter(|target| matches!(target.kind, Kind::Service | Kind::ServiceEntry))
        .cloned()
        .collect();
    if !whole.is_empty() {
        for (namespace, objects) in view.all_objects() {
            let key = |kind: Kind, name| ObjectKey::new(kind, namespace.clone(), name);
            let own = objects.all_of_kind::<Service>().keys();
            services.extend(own.map(|name| key(Kind::Service, name.clone())));
            let entries = objects.all_of_kind::<ServiceEntry>().keys();
            services.extend(entries.map(|name| key(Kind::ServiceEntry, name.clone())));
        }
    }
    services.sort_unstable();
    services.dedup();
    let ports_of = |key: ObjectKey| {
        let ports = declared_ports(view, &key).unwrap_or_default();
        let refused: Vec<String> = ports
            .into_iter()
            .filter(|(_, _, protocol)| matches!(protocol, AppProtocol::Tcp | AppProtocol::Tls))
            .map(|(_, number, _)| format!("port {number} of {key}"))
            .collect();
        let is_concerned =
            !refused.is_empty() && (targets.0.contains(&key) || is_served(view, &key, &whole));
        if is_concerned { refused } else { Vec::new() }
    };
    services.into_iter().flat_map(ports_of).collect()
}

/// Whether one of the given waypoints serves a Service or ServiceEntry.
fn is_served(view: &MeshView, key: &ObjectKey, waypoints: &[&GatewayName]) -> bool {
    let is_among = |host: &ArcStr| {
        let serving = view.waypoints_serving(key, host);
        waypoints.iter().any(|waypoint| serving.contains(*waypoint))
    };
    match key.kind {
        Kind::Service => {
            let service = view.get::<Service>(key);
            service.is_some_and(|one| is_among(&one.hostname(&view.config.cluster_domain)))
        }
        _ => {
            let entry = view.get::<ServiceEntry>(key);
            entry.is_some_and(|one| view.owned_hosts(one).any(is_among))
        }
    }
}
