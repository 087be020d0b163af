//! Waypoints that serve the services to which routes apply.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::{ArcStr, GatewayName};

use crate::view::MeshView;

/// Returns the waypoints that serve a Service or ServiceEntry.
pub(crate) fn serving_waypoints(view: &MeshView, target: &ObjectKey) -> BTreeSet<GatewayName> {
    let of_host = |host: &ArcStr| view.waypoints_serving(target, host);
    match target.kind {
        Kind::Service => {
            let service = view.get::<Service>(target);
            let host = service.map(|one| one.hostname(&view.config.cluster_domain));
            host.iter().flat_map(of_host).collect()
        }
        _ => {
            let entry = view.get::<ServiceEntry>(target).into_iter();
            let hosts = entry.flat_map(|entry| view.owned_hosts(entry));
            hosts.flat_map(of_host).collect()
        }
    }
}
