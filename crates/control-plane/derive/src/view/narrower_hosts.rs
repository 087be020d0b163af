//! Hosts below a wildcard that another waypoint serves than the wildcard. Requests that name such a host at the wildcard's
//! address would pass by what is attached to the host, so that the wildcard's waypoint gets a record by which it refuses
//! them.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::{
    ArcStr, GatewayName, HttpRoute, HttpRouteRule, RouteName, Service, StreamRoute, Visibility,
    WaypointService,
};

use crate::view::MeshView;

impl MeshView {
    /// The waypoints that serve a wildcard above a host and not the host itself, each with the record by which it refuses
    /// requests for the host. None, if the host has no waypoint: nothing is passed by.
    pub(crate) fn refusals(
        &self,
        key: &ObjectKey,
        service: &Service,
        serving: &BTreeSet<GatewayName>,
    ) -> Vec<(GatewayName, WaypointService)> {
        if service.waypoint.is_none() && serving.is_empty() {
            return Vec::new();
        }
        let mut waypoints = BTreeSet::new();
        for wildcard in wildcards_above(&service.hostname) {
            for (key, is_public) in self.records_of(&wildcard) {
                let is_seen_with = is_public
                    || service.visibility == Visibility::Public
                    || key.namespace == service.namespace;
                if is_seen_with {
                    waypoints.extend(self.waypoints_serving(key, &wildcard));
                }
            }
        }
        let record = refusal(key, service);
        let waypoints = waypoints.difference(serving).cloned();
        waypoints.map(|gateway| (gateway, record.clone())).collect()
    }
}

/// The wildcards that cover a host, which may be a wildcard itself.
fn wildcards_above(host: &str) -> impl Iterator<Item = ArcStr> {
    let dots = host.match_indices('.').map(|(dot, _)| dot);
    let wildcards = dots.filter_map(|dot| Some(arcstr::format!("*{}", host.get(dot..)?)));
    wildcards.filter(move |wildcard| wildcard != host)
}

fn refusal(key: &ObjectKey, service: &Service) -> WaypointService {
    let kind = match key.kind {
        Kind::Service => arcstr::literal!("Service"),
        _ => arcstr::literal!("ServiceEntry"),
    };
    let name = RouteName {
        kind,
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    };
    let why = arcstr::format!(
        "{} has another waypoint than the wildcard whose address was called: call it by its own name",
        service.hostname
    );
    WaypointService {
        service: service.namespaced_hostname(),
        routes: vec![HttpRoute {
            name: name.clone(),
            rules: vec![HttpRouteRule {
                unsupported: Some(why.clone()),
                ..HttpRouteRule::default()
            }],
            ..HttpRoute::default()
        }],
        tcp_routes: vec![StreamRoute {
            name,
            unsupported: Some(why),
            ..StreamRoute::default()
        }],
        ..WaypointService::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_above_a_host_are_all_that_cover_it() {
        let of = |host: &str| wildcards_above(host).collect::<Vec<_>>();
        assert_eq!(of("a.b.com"), ["*.b.com", "*.com"]);
        assert_eq!(of("*.b.com"), ["*.com"]);
        assert!(of("com").is_empty() && of("*.com").is_empty());
    }
}
