//! Hosts covered by a wildcard that has another waypoint. A request for such a host that is sent to the wildcard's
//! address would bypass the host's waypoint and its policies; the wildcard's waypoint therefore gets a record that
//! makes it refuse such requests.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::{
    ArcStr, GatewayName, HttpRoute, HttpRouteRule, RouteName, Service, StreamRoute, Visibility,
    WaypointService,
};

use crate::view::MeshView;

impl MeshView {
    /// Returns the waypoints that serve a wildcard covering a host and not the host itself, each with the record that
    /// makes it refuse requests for the host. Empty if the host has no waypoint, since there is none to bypass.
    pub(crate) fn wildcard_refusals(
        &self,
        key: &ObjectKey,
        service: &Service,
        serving: &BTreeSet<GatewayName>,
    ) -> Vec<(GatewayName, WaypointService)> {
        if service.waypoint.is_none() && serving.is_empty() {
            return Vec::new();
        }
        let mut waypoints = BTreeSet::new();
        for wildcard in wildcards_covering(&service.hostname) {
            for (key, is_public) in self.record_owners(&wildcard) {
                let is_seen_with = is_public
                    || service.visibility == Visibility::Public
                    || key.namespace == service.namespace;
                if is_seen_with {
                    waypoints.extend(self.waypoints_serving(key, &wildcard));
                }
            }
        }
        let record = refusal_record(key, service);
        let waypoints = waypoints.difference(serving).cloned();
        waypoints.map(|gateway| (gateway, record.clone())).collect()
    }
}

/// Returns the wildcards that cover a host, which may itself be a wildcard.
fn wildcards_covering(host: &str) -> impl Iterator<Item = ArcStr> {
    let dots = host.match_indices('.').map(|(dot, _)| dot);
    let wildcards = dots.filter_map(|dot| Some(arcstr::format!("*{}", host.get(dot..)?)));
    wildcards.filter(move |wildcard| wildcard != host)
}

fn refusal_record(key: &ObjectKey, service: &Service) -> WaypointService {
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
        let of = |host: &str| wildcards_covering(host).collect::<Vec<_>>();
        assert_eq!(of("a.b.com"), ["*.b.com", "*.com"]);
        assert_eq!(of("*.b.com"), ["*.com"]);
        assert!(of("com").is_empty() && of("*.com").is_empty());
    }
}
