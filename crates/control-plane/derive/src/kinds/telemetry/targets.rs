//! Matches a Telemetry object's targets with services and waypoints.

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::GatewayName;

use crate::view::MeshView;

/// Whether a target is the Service or ServiceEntry of a host.
pub(crate) fn is_target_of_host(view: &MeshView, target: &ObjectKey, host: &str) -> bool {
    match target.kind {
        Kind::Service => view
            .get::<Service>(target)
            .is_some_and(|service| service.hostname(&view.config.cluster_domain) == host),
        Kind::ServiceEntry => view
            .get::<ServiceEntry>(target)
            .is_some_and(|entry| entry.hosts.iter().any(|one| one == host)),
        _ => false,
    }
}

/// Whether a target is a waypoint's Gateway or its GatewayClass.
pub(crate) fn is_target_of_gateway(
    view: &MeshView,
    target: &ObjectKey,
    gateway: &GatewayName,
) -> bool {
    match target.kind {
        Kind::Gateway => target.namespace == gateway.namespace && target.name == gateway.name,
        Kind::GatewayClass => view.gateways_of_class(&target.name).contains(gateway),
        _ => false,
    }
}
