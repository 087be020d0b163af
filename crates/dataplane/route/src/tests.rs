//! Builders of records that the routing tests share.

mod endpoint_waypoint;
mod inbound;
mod outbound;
mod prefixes;
mod state;

use std::net::SocketAddr;

use ambit_model::{
    ArcStr, EndpointWaypoint, GatewayAddress, GatewayDestination, Identity, LbMode, LoadBalancing,
    NamespacedHostname, PortMap, Protocol, Service, Workload, WorkloadStatus,
};
use rand::{SeedableRng, rngs::SmallRng};

use super::*;

fn rng() -> SmallRng {
    SmallRng::seed_from_u64(7)
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn host(namespace: &str, name: &str) -> NamespacedHostname {
    NamespacedHostname::new(namespace, format!("{name}.{namespace}.svc.cluster.local"))
}

/// Builds a pod of namespace `ns` on node `local`.
fn pod(name: &str, ips: &[&str]) -> Workload {
    Workload {
        uid: format!("Kubernetes//Pod/ns/{name}").into(),
        name: name.into(),
        namespace: "ns".into(),
        service_account: format!("sa-{name}").into(),
        workload_ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        protocol: Protocol::Hbone,
        node: "local".into(),
        ..Workload::default()
    }
}

fn in_service(mut workload: Workload, service: &str, ports: &[(u16, u16)]) -> Workload {
    workload.services.insert(
        host("ns", service),
        ports.iter().copied().collect::<PortMap>(),
    );
    workload
}

fn unhealthy(workload: Workload) -> Workload {
    Workload {
        status: WorkloadStatus::Unhealthy,
        ..workload
    }
}

/// Builds a service of namespace `ns`.
fn service(name: &str, vips: &[&str], ports: &[(u16, u16)]) -> Service {
    service_in("ns", name, vips, ports)
}

fn service_in(namespace: &str, name: &str, vips: &[&str], ports: &[(u16, u16)]) -> Service {
    let (cidr_vips, vips): (Vec<&str>, Vec<&str>) = vips.iter().partition(|vip| {
        vip.rsplit('/')
            .next()
            .is_some_and(|last| last.parse::<u8>().is_ok())
    });
    Service {
        name: name.into(),
        namespace: namespace.into(),
        hostname: host(namespace, name).hostname,
        vips: vips.iter().map(|vip| vip.parse().unwrap()).collect(),
        cidr_vips: cidr_vips
            .iter()
            .map(|vip| {
                let (network, cidr) = vip.split_once('/').unwrap();
                ambit_model::CidrVip {
                    network: network.into(),
                    cidr: cidr.parse().unwrap(),
                }
            })
            .collect(),
        ports: ports.iter().copied().collect(),
        canonical: true,
        ..Service::default()
    }
}

fn with_lb_mode(mut service: Service, mode: LbMode) -> Service {
    service
        .load_balancing
        .get_or_insert_with(LoadBalancing::default)
        .mode = mode;
    service
}

fn gateway(destination: &str, port: u16) -> GatewayAddress {
    GatewayAddress {
        destination: destination.parse::<GatewayDestination>().unwrap(),
        hbone_mtls_port: port,
    }
}

fn new_endpoint_waypoint(
    waypoint: &str,
    identities: &[Identity],
    enforce: bool,
) -> EndpointWaypoint {
    EndpointWaypoint {
        waypoint: gateway(waypoint, 15008),
        identities: identities.to_vec(),
        enforce,
        refuse: false,
        for_services: true,
        rules: None,
    }
}

/// Builds a pod of the waypoint's service.
fn waypoint_pod(name: &str, ip: &str) -> Workload {
    in_service(
        Workload {
            service_account: text("waypoint"),
            ..pod(name, &[ip])
        },
        "waypoint",
        &[(15008, 15008)],
    )
}

fn waypoint_service() -> Service {
    service("waypoint", &["/10.96.0.100"], &[(15008, 15008)])
}

fn identity(account: &str) -> Identity {
    Identity::new("cluster.local", "ns", account)
}

fn table(workloads: Vec<Workload>, services: Vec<Service>) -> MeshTable {
    let mut table = MeshTable::new(TableConfig {
        node: "local".into(),
        ..TableConfig::default()
    });
    for workload in workloads {
        table.insert_workload(&workload);
    }
    for service in services {
        table.insert_service(service);
    }
    table
}

/// Builds the workload that opens connections in the tests of outbound routes.
fn client() -> Workload {
    pod("client", &["10.0.0.1", "fd00::1"])
}

fn route_from_client(table: &MeshTable, dst: &str) -> Result<Route, RouteError> {
    table.outbound(&client(), addr(dst), &mut rng())
}

fn hbone_route(table: &MeshTable, dst: &str) -> HboneRoute {
    match route_from_client(table, dst) {
        Ok(Route::Hbone(route)) => route,
        other => panic!("not a tunnel: {other:?}"),
    }
}

fn text(name: &str) -> ArcStr {
    name.into()
}
