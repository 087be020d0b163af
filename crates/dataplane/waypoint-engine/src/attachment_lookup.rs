//! Finds the attachments (policies, tokens, limits, plugins) for the target of a tunnel. The attachments of a pod are
//! those of the services that forward to it according to the waypoint's view of the mesh. The protocol that these
//! services declare for the requested port is found in the same way.

use std::net::{IpAddr, SocketAddr};

use ambit_l7::authz::ServicePort;
use ambit_model::{
    AppProtocol, GatewayAddress, GatewayDestination, NamespacedHostname, NetworkAddress, Service,
};
use ambit_route::{MeshTable, WorkloadRef};

use crate::{
    applied_services::AppliedServices,
    attachments::Attachments,
    caller::Caller,
    target::{Target, UNKNOWN_ADDRESS},
    waypoint::Waypoint,
};

/// Finds the attachments (policies, tokens, limits, plugins) that apply to a caller's requests to a target.
pub(crate) fn find(waypoint: &Waypoint, target: &Target, caller: &Caller) -> Attachments {
    match target {
        Target::Service {
            served, address, ..
        } => service_attachments(waypoint, &served.name, address.port(), caller),
        Target::Pod { workload, address } => Attachments::for_pod(
            *address,
            workload_service_ports(waypoint, workload, *address, caller),
        ),
    }
}

/// Finds the attachments of requests to a port of a service. Requests to a headless service have the attachments of its
/// endpoints: clients connect to the endpoints' addresses, unless they send the service's name to the waypoint.
pub(crate) fn service_attachments(
    waypoint: &Waypoint,
    service: &NamespacedHostname,
    port: u16,
    caller: &Caller,
) -> Attachments {
    let own = ServicePort {
        service: service.clone(),
        address: SocketAddr::new(UNKNOWN_ADDRESS, port),
    };
    let mut ports = vec![own];
    for (workload, address) in headless_endpoints(waypoint, service, port) {
        for mut other in workload_service_ports(waypoint, &workload, address, caller) {
            // All endpoints of a service without an address have the same attachments.
            if other.address.ip() == address.ip() {
                other.address.set_ip(UNKNOWN_ADDRESS);
            }
            if !ports.contains(&other) {
                ports.push(other);
            }
        }
    }
    if ports.len() == 1 {
        return Attachments::Service {
            service: service.clone(),
            port,
        };
    }
    Attachments::for_pod(SocketAddr::new(UNKNOWN_ADDRESS, port), ports)
}

/// Whether a service has no address, so that clients connect to the addresses of its pods.
pub(crate) fn is_headless(service: &Service) -> bool {
    service.vips.is_empty() && service.cidr_vips.is_empty()
}

/// Returns the addresses of the endpoints of a headless service, with their workloads.
fn headless_endpoints(
    waypoint: &Waypoint,
    name: &NamespacedHostname,
    port: u16,
) -> Vec<(WorkloadRef, SocketAddr)> {
    let table = waypoint.state.table();
    let service = table.service(name).filter(|one| is_headless(one));
    let Some(service) =
        service.filter(|_| !waypoint.published.gateway().policies_only_for_services)
    else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for endpoint in table.endpoints(service) {
        let target = endpoint
            .ports
            .get(&port)
            .or_else(|| service.ports.get(&port));
        let workload = table.workload(&endpoint.uid);
        let Some((target, workload)) = target.zip(workload) else {
            continue;
        };
        for ip in workload.ips() {
            // An endpoint may be written by hand with a pod's address.
            let pod = table.workload_by_ip(workload.network(), *ip);
            all.push((
                pod.unwrap_or(workload).clone(),
                SocketAddr::new(*ip, *target),
            ));
        }
    }
    all
}

/// Returns the service ports that forward to a port of a pod, except those whose attachments the sending waypoint has
/// already applied.
fn workload_service_ports(
    waypoint: &Waypoint,
    workload: &WorkloadRef,
    address: SocketAddr,
    caller: &Caller,
) -> Vec<ServicePort> {
    if waypoint.published.gateway().policies_only_for_services {
        return Vec::new();
    }
    let table = waypoint.state.table();
    // The current record: that of the tunnel may be outdated.
    let workload = table.workload(workload.uid()).unwrap_or(workload);
    let sender = verified_sender(waypoint, &table, caller);
    let leading = service_ports(&table, workload, address);
    let ports = leading.into_iter().filter_map(|(name, port)| {
        let served = waypoint.published.service(name)?;
        if !served.applies_to_pod(workload) {
            return None;
        }
        let service = table.service(name);
        let is_applied = service.zip(sender).is_some_and(|(service, sender)| {
            is_applied_by_sender(service, &waypoint.address, sender, &caller.applied_services)
        });
        let vip = service.and_then(|service| service.vips.first());
        let ip = vip.map_or_else(|| address.ip(), |vip| vip.address);
        (!is_applied).then(|| ServicePort {
            service: name.clone(),
            address: SocketAddr::new(ip, port),
        })
    });
    ports.collect()
}

/// Returns the declared protocol of a tunnel's target. A service declares its own. A pod's port is TCP or TLS if all
/// services that forward to the port declare the same, else its protocol is unknown. Services in the pod's own
/// namespace that select it count even without applicable attachments. No other namespace can declare a pod's protocol.
pub(crate) fn declared_protocol(
    waypoint: &Waypoint,
    target: &Target,
    attachments: &Attachments,
) -> AppProtocol {
    let Target::Pod { workload, address } = target else {
        return target.app_protocol();
    };
    let table = waypoint.state.table();
    let workload = table.workload(workload.uid()).unwrap_or(workload);
    let of_attachments = attachments.ports();
    let of_attachments = of_attachments.filter_map(|(service, port)| Some((service?, port)));
    let mut declared = selecting_service_ports(workload, address.port())
        .chain(of_attachments)
        .map(|(service, port)| {
            let service = table.service(service);
            service.map_or(AppProtocol::Unknown, |one| one.app_protocol(port))
        });
    match declared.next() {
        Some(first @ (AppProtocol::Tcp | AppProtocol::Tls)) if declared.all(|one| one == first) => {
            first
        }
        _ => AppProtocol::Unknown,
    }
}

/// Subscribes to the services whose protocol declaration applies to a pod.
pub(crate) async fn request_protocol_declarations(waypoint: &Waypoint, target: &Target) {
    let Target::Pod { workload, address } = target else {
        return;
    };
    let services: Vec<_> = selecting_service_ports(workload, address.port())
        .map(|(service, _)| service.clone())
        .collect();
    for service in services {
        waypoint.request_service_record(&service).await;
    }
}

/// Returns the ports of services of a pod's own namespace that forward to a port of the pod.
fn selecting_service_ports(
    workload: &WorkloadRef,
    port: u16,
) -> impl Iterator<Item = (&NamespacedHostname, u16)> {
    let all = workload.service_ports(port);
    all.filter(|(service, _)| service.namespace == *workload.namespace())
}

/// Returns the service ports whose target is a port of a workload, each once. The workload's record lists the services
/// that select it; other services have hand-written endpoints (EndpointSlices, WorkloadEntries) with one of its
/// addresses, which need not be the requested one.
fn service_ports<'a>(
    table: &'a MeshTable,
    workload: &'a WorkloadRef,
    address: SocketAddr,
) -> Vec<(&'a NamespacedHostname, u16)> {
    let mut ports: Vec<_> = endpoints_sharing_addresses(table, workload, address.ip())
        .flat_map(|endpoint| endpoint.service_ports(address.port()))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Returns a workload and all hand-written endpoints that have one of its addresses.
fn endpoints_sharing_addresses<'a>(
    table: &'a MeshTable,
    workload: &'a WorkloadRef,
    requested_ip: IpAddr,
) -> impl Iterator<Item = &'a WorkloadRef> {
    // The requested address may no longer be one of the workload's.
    let dialled = (!workload.ips().contains(&requested_ip)).then_some(requested_ip);
    let all = workload.ips().iter().copied().chain(dialled);
    let others = all.flat_map(|ip| table.endpoints_at(workload.network(), ip));
    let others = others.filter(|endpoint| !endpoint.is_pod());
    std::iter::once(workload).chain(others)
}

/// Whether the sender of a tunnel has already applied the attachments of a service: it is a pod of another waypoint of
/// the service, and names the service in the header of the CONNECT.
fn is_applied_by_sender(
    service: &Service,
    own: &GatewayAddress,
    sender: &WorkloadRef,
    applied: &AppliedServices,
) -> bool {
    applied.contains(&service.namespaced_hostname())
        && other_waypoints(service, own).any(|other| is_waypoint_pod(sender, other))
}

/// Requests the record of a tunnel's sender from the control plane, if the sender may be another waypoint of a service
/// that forwards to the target.
pub(crate) async fn request_sender_record(waypoint: &Waypoint, target: &Target, caller: &Caller) {
    let Target::Pod { workload, address } = target else {
        return;
    };
    let may_be_waypoint = caller.identity.is_some() && {
        let table = waypoint.state.table();
        let ports = service_ports(&table, workload, *address);
        ports.into_iter().any(|(name, _)| {
            let service = table.service(name);
            service.is_some_and(|one| other_waypoints(one, &waypoint.address).next().is_some())
        })
    };
    if may_be_waypoint {
        let ip = caller.address.ip();
        let at = NetworkAddress::new(waypoint.config.network.clone(), ip);
        waypoint.request_record(&at).await;
    }
}

/// Returns the workload at the sender's address, if it has the sender's verified identity.
fn verified_sender<'a>(
    waypoint: &Waypoint,
    table: &'a MeshTable,
    caller: &Caller,
) -> Option<&'a WorkloadRef> {
    let identity = caller.identity.as_ref()?;
    let sender = table.workload_by_ip(&waypoint.config.network, caller.address.ip())?;
    sender.has_identity(identity).then_some(sender)
}

/// Returns the other waypoints of a service, without this waypoint.
fn other_waypoints<'a>(
    service: &'a Service,
    own: &'a GatewayAddress,
) -> impl Iterator<Item = &'a GatewayAddress> {
    let weighted = service.weighted_waypoints.iter();
    let weighted = weighted.map(|waypoint| &waypoint.destination);
    let all = service.waypoint.iter().chain(weighted);
    all.filter(|waypoint| waypoint.destination != own.destination)
}

/// Whether a pod belongs to a waypoint, as an endpoint of the waypoint's own service.
fn is_waypoint_pod(pod: &WorkloadRef, waypoint: &GatewayAddress) -> bool {
    let GatewayDestination::Hostname(name) = &waypoint.destination else {
        return false;
    };
    pod.services().any(|service| service == name)
}

#[cfg(test)]
mod tests {
    use ambit_model::{Visibility, Workload};
    use ambit_route::TableConfig;

    use super::*;

    const NETWORK: &str = "net";

    fn name(namespace: &str, name: &str) -> NamespacedHostname {
        NamespacedHostname::new(namespace, format!("{name}.{namespace}.svc.cluster.local"))
    }

    fn gateway(of: &str) -> GatewayAddress {
        GatewayAddress {
            destination: GatewayDestination::Hostname(name("shop", of)),
            hbone_mtls_port: 15008,
        }
    }

    fn workload(uid: &str, ips: &[&str], service: NamespacedHostname) -> Workload {
        Workload {
            uid: uid.into(),
            name: uid.rsplit('/').next().unwrap().into(),
            namespace: "shop".into(),
            network: NETWORK.into(),
            workload_ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            services: [(service, [(80, 8080)].into_iter().collect())].into(),
            ..Workload::default()
        }
    }

    fn service(of: &NamespacedHostname, waypoint: &str) -> Service {
        Service {
            name: of.hostname.clone(),
            namespace: of.namespace.clone(),
            hostname: of.hostname.clone(),
            visibility: Visibility::Public,
            waypoint: Some(gateway(waypoint)),
            ..Service::default()
        }
    }

    #[test]
    fn hand_written_endpoints_with_any_pod_address_count() {
        let mut table = MeshTable::new(TableConfig::default());
        let pod = workload(
            "c//Pod/shop/web",
            &["10.0.0.1", "fd00::1"],
            name("shop", "own"),
        );
        table.insert_workload(&pod);
        for (uid, ip, of) in [("four", "10.0.0.1", "four"), ("six", "fd00::1", "six")] {
            let mut written = workload(&format!("c/slice/{uid}"), &[ip], name("shop", of));
            written.network_mode = ambit_model::NetworkMode::HostNetwork;
            table.insert_workload(&written);
        }
        let pod = table.workload("c//Pod/shop/web").unwrap();
        for dialled in ["10.0.0.1:8080", "[fd00::1]:8080"] {
            let ports = service_ports(&table, pod, dialled.parse().unwrap());
            let names: Vec<_> = ports
                .iter()
                .map(|(name, _)| name.hostname.as_str())
                .collect();
            let all = ["four", "own", "six"].map(|of| name("shop", of).hostname);
            assert_eq!(names, all, "{dialled}");
        }
    }

    #[test]
    fn sender_is_trusted_only_for_services_that_it_names() {
        let mut table = MeshTable::new(TableConfig::default());
        table.insert_workload(&workload(
            "c//Pod/shop/xtra",
            &["10.0.0.5"],
            name("shop", "xtra"),
        ));
        let sender = table.workload("c//Pod/shop/xtra").unwrap();
        let (far, grip) = (name("shop", "far"), name("tenant", "grip"));
        let applied = |of: &NamespacedHostname| AppliedServices::from(of.clone());
        let own = gateway("waypoint");
        for (waypoint, applied, expected) in [
            ("xtra", applied(&far), true),
            ("xtra", applied(&grip), false),
            ("xtra", applied(&name("tenant", "far")), false),
            ("xtra", AppliedServices::default(), false),
            ("other", applied(&far), false),
            ("waypoint", applied(&far), false),
        ] {
            let is_applied = is_applied_by_sender(&service(&far, waypoint), &own, sender, &applied);
            assert_eq!(is_applied, expected, "{waypoint} {applied:?}");
        }
    }
}
