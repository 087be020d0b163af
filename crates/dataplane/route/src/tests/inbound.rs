//! Tests of the routes of inbound tunnels.

use ambit_model::{AppTunnel, AppTunnelProtocol, WeightedWaypoint};

use super::*;

fn route_inbound_as(
    table: &MeshTable,
    local: &Workload,
    target: ConnectTarget,
) -> Result<InboundRoute, InboundError> {
    table.inbound(&InboundRequest {
        local_workload: local,
        local_ip: "10.0.0.2".parse().unwrap(),
        target: &target,
        localhost_app_tunnel: true,
    })
}

fn address_target(text: &str) -> ConnectTarget {
    ConnectTarget::Addr(addr(text))
}

fn hostname_target(hostname: &str, port: u16) -> ConnectTarget {
    ConnectTarget::Host {
        hostname: hostname.into(),
        port,
    }
}

fn local_pod() -> Workload {
    in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080)])
}

fn pod_with_app_tunnel(protocol: AppTunnelProtocol, port: Option<u16>) -> Workload {
    Workload {
        application_tunnel: Some(AppTunnel { protocol, port }),
        ..local_pod()
    }
}

#[test]
fn pods_own_address_is_served_on_the_requested_port() {
    let route = route_inbound_as(
        &table(vec![], vec![]),
        &local_pod(),
        address_target("10.0.0.2:8080"),
    )
    .unwrap();
    assert_eq!(route.addr, addr("10.0.0.2:8080"));
    assert_eq!(route.authorized_destination, route.addr);
    assert_eq!(route.proxy_header, None);
}

#[test]
fn another_address_is_a_mismatch() {
    let error = route_inbound_as(
        &table(vec![], vec![]),
        &local_pod(),
        address_target("10.0.0.3:8080"),
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "ip mismatch: 10.0.0.2 != 10.0.0.3");
    assert_eq!(error.status(), 400);
}

#[test]
fn proxys_own_ports_are_unreachable() {
    let empty = table(vec![], vec![]);
    for port in PROXY_PORTS {
        let error = route_inbound_as(
            &empty,
            &local_pod(),
            address_target(&format!("10.0.0.2:{port}")),
        )
        .unwrap_err();
        assert_eq!(
            (error.status(), error),
            (503, InboundError::ProxyPort { port })
        );
    }
    let mapped = in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 15001)]);
    let table = table(vec![], vec![service("web", &["/10.96.0.9"], &[(80, 0)])]);
    let error = route_inbound_as(
        &table,
        &mapped,
        hostname_target("web.ns.svc.cluster.local", 80),
    )
    .unwrap_err();
    assert_eq!(error, InboundError::ProxyPort { port: 15001 });
}

#[test]
fn a_hostname_is_only_resolved_to_a_port_of_this_very_pod() {
    let table = table(
        vec![],
        vec![service("web", &["/10.96.0.9"], &[(80, 9000), (81, 9001)])],
    );
    let host = "web.ns.svc.cluster.local";
    let route = route_inbound_as(&table, &local_pod(), hostname_target(host, 80)).unwrap();
    assert_eq!(route.addr, addr("10.0.0.2:8080"));
    let route = route_inbound_as(&table, &local_pod(), hostname_target(host, 81)).unwrap();
    assert_eq!(route.addr, addr("10.0.0.2:9001"));
    let error = route_inbound_as(&table, &local_pod(), hostname_target(host, 82)).unwrap_err();
    assert!(error.to_string().contains("cannot resolve port"), "{error}");
    assert_eq!(error.status(), 503);
    let error = route_inbound_as(
        &table,
        &local_pod(),
        hostname_target("gone.example.com", 80),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no service or workload for hostname gone.example.com"
    );
    assert_eq!(error.status(), 503);
}

#[test]
fn a_named_port_is_the_pods_own() {
    let table = table(
        vec![],
        vec![service("web", &["/10.96.0.9"], &[(80, 0), (81, 0)])],
    );
    let host = "web.ns.svc.cluster.local";
    assert_eq!(
        route_inbound_as(&table, &local_pod(), hostname_target(host, 80))
            .unwrap()
            .addr,
        addr("10.0.0.2:8080")
    );
    let error = route_inbound_as(&table, &local_pod(), hostname_target(host, 81)).unwrap_err();
    assert!(matches!(error, InboundError::UnknownPort { port: 81, .. }));
}

#[test]
fn application_tunnel_accepts_any_address() {
    let table = table(vec![], vec![service("web", &["/10.96.0.9"], &[(80, 80)])]);
    let plain = pod_with_app_tunnel(AppTunnelProtocol::None, None);
    let route = route_inbound_as(&table, &plain, address_target("10.96.0.9:80")).unwrap();
    assert_eq!(
        (route.addr, route.proxy_header),
        (addr("10.0.0.2:80"), None)
    );

    let plain = pod_with_app_tunnel(AppTunnelProtocol::None, Some(9999));
    let route = route_inbound_as(&table, &plain, address_target("10.96.0.9:80")).unwrap();
    assert_eq!(route.addr, addr("10.0.0.2:9999"));

    let proxied = pod_with_app_tunnel(AppTunnelProtocol::Proxy, Some(15088));
    let route = route_inbound_as(&table, &proxied, address_target("10.96.0.9:80")).unwrap();
    assert_eq!(route.addr, addr("127.0.0.1:15088"));
    assert_eq!(route.authorized_destination, addr("10.0.0.2:15088"));
    assert_eq!(
        route.proxy_header,
        Some(ProxyHeader {
            dst: addr("10.96.0.9:80")
        })
    );

    let route = route_inbound_as(
        &table,
        &proxied,
        hostname_target("web.ns.svc.cluster.local", 80),
    )
    .unwrap();
    assert_eq!(
        route.proxy_header,
        Some(ProxyHeader {
            dst: addr("10.96.0.9:80")
        })
    );
}

#[test]
fn application_tunnel_can_be_bound_to_the_pods_address() {
    let proxied = pod_with_app_tunnel(AppTunnelProtocol::Proxy, Some(15088));
    let request = InboundRequest {
        local_workload: &proxied,
        local_ip: "10.0.0.2".parse().unwrap(),
        target: &address_target("10.96.0.9:80"),
        localhost_app_tunnel: false,
    };
    let route = table(vec![], vec![]).inbound(&request).unwrap();
    assert_eq!(route.addr, addr("10.0.0.2:15088"));
}

#[test]
fn waypoint_accepts_addresses_of_its_destinations() {
    let waypoint = in_service(pod("w", &["10.0.0.2"]), "waypoint", &[(15008, 15008)]);
    let guarded = |at: &str| Service {
        waypoint: Some(gateway(at, 15008)),
        ..service("web", &["/10.96.0.9"], &[(80, 80)])
    };
    let behind = service("waypoint", &["/10.96.0.100"], &[(15008, 15008)]);
    for at_waypoint in [
        "/10.96.0.100",
        "ns/waypoint.ns.svc.cluster.local",
        "/10.0.0.2",
    ] {
        let table = table(vec![], vec![guarded(at_waypoint), behind.clone()]);
        let route = route_inbound_as(&table, &waypoint, address_target("10.96.0.9:80")).unwrap();
        assert_eq!(route.addr, addr("10.0.0.2:80"), "{at_waypoint}");
    }
    // Another workload's waypoint does not.
    let elsewhere = table(vec![], vec![guarded("/10.96.0.200"), behind.clone()]);
    assert!(route_inbound_as(&elsewhere, &waypoint, address_target("10.96.0.9:80")).is_err());

    let canary = Service {
        weighted_waypoints: vec![WeightedWaypoint {
            destination: gateway("/10.96.0.100", 15008),
            weight: 1,
        }],
        ..guarded("/10.96.0.200")
    };
    let canary = table(vec![], vec![canary, behind.clone()]);
    assert!(route_inbound_as(&canary, &waypoint, address_target("10.96.0.9:80")).is_ok());

    let guarded_pod = Workload {
        waypoint: Some(gateway("/10.96.0.100", 15008)),
        ..pod("x", &["10.0.0.5"])
    };
    let direct = table(vec![guarded_pod], vec![behind]);
    assert!(route_inbound_as(&direct, &waypoint, address_target("10.0.0.5:80")).is_ok());
}

#[test]
fn telemetry_names_the_service_that_was_meant() {
    let mut local = in_service(local_pod(), "admin", &[]);
    local = in_service(local, "named", &[(443, 8443)]);
    let table = table(
        vec![],
        vec![
            service("web", &["/10.96.0.9"], &[(80, 1)]),
            service("admin", &["/10.96.0.10"], &[(90, 9090)]),
            service("named", &["/10.96.0.11"], &[(443, 0)]),
            service("foreign", &["/10.96.0.12"], &[(80, 8080)]),
        ],
    );
    let by_port = |port| {
        table
            .inbound_service(&local, None, port)
            .map(|s| s.name.to_string())
    };
    assert_eq!(by_port(8080).as_deref(), Some("web"));
    assert_eq!(by_port(9090).as_deref(), Some("admin"));
    assert_eq!(by_port(8443).as_deref(), Some("named"));
    assert_eq!(by_port(1234), None);
    let service_named = |host| {
        table
            .inbound_service(&local, Some(host), 8080)
            .map(|s| s.name.to_string())
    };
    assert_eq!(
        service_named("admin.ns.svc.cluster.local").as_deref(),
        Some("admin")
    );
    assert_eq!(service_named("foreign.ns.svc.cluster.local"), None);
}
