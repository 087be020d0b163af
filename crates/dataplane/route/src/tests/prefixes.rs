//! Tests that prefixes of ServiceEntries do not cover addresses of Services and workloads, and that gateways are not
//! resolved by ServiceEntries of one namespace.

use ambit_model::{NetworkAddress, Visibility};

use super::*;

const PREFIXES: [&str; 4] = ["/10.0.0.0/8", "/0.0.0.0/0", "/fd00::/8", "/::/0"];

fn with_prefixes(namespace: &str, lb_mode: LbMode, waypoint: bool) -> MeshTable {
    let mut wide = with_lb_mode(
        service_in(namespace, "wide", &PREFIXES, &[(80, 8080)]),
        lb_mode,
    );
    if waypoint {
        wide.waypoint = Some(gateway("ns/waypoint.ns.svc.cluster.local", 15008));
    }
    let mut thief = pod("thief", &["192.168.0.66", "2001:db8::66"]);
    thief
        .services
        .insert(wide.namespaced_hostname(), PortMap::from_iter([(80, 8080)]));
    let victim = pod("victim", &["10.0.0.2", "fd00::2"]);
    let backend = in_service(
        pod("backend", &["10.0.0.3", "fd00::3"]),
        "web",
        &[(80, 8080)],
    );
    let web = service("web", &["/10.96.0.9", "/fd00:96::9"], &[(80, 8080)]);
    let services = vec![wide, web, waypoint_service()];
    table(
        vec![thief, victim, backend, waypoint_pod("w", "192.168.0.9")],
        services,
    )
}

#[test]
fn services_and_workloads_inside_a_prefix_are_reached_as_themselves() {
    for namespace in ["ns", "other", "istio-system"] {
        for lb_mode in [LbMode::Standard, LbMode::Passthrough] {
            for waypoint in [false, true] {
                let table = with_prefixes(namespace, lb_mode, waypoint);
                let what = format!("{namespace} {lb_mode:?} {waypoint}");
                for (dialled, expected) in [
                    ("10.0.0.2:80", "victim"),
                    ("[fd00::2]:80", "victim"),
                    ("[::ffff:10.0.0.2]:80", "victim"),
                    ("10.96.0.9:80", "backend"),
                    ("[fd00:96::9]:80", "backend"),
                ] {
                    assert_eq!(
                        hbone_route(&table, dialled).workload.name(),
                        expected,
                        "{what} {dialled}"
                    );
                }
                // What nothing has is the prefix's.
                let route = route_from_client(&table, "10.77.0.1:80").unwrap();
                let service = route.service().map(|service| service.name.clone());
                assert_eq!(service.as_deref(), Some("wide"), "{what}");
            }
        }
    }
}

#[test]
fn a_workload_has_its_address_from_the_moment_it_is_known() {
    let mut table = with_prefixes("ns", LbMode::Standard, false);
    let late = pod("late", &["10.9.9.9"]);
    let name = |table: &MeshTable| hbone_route(table, "10.9.9.9:80").workload.name().to_owned();
    assert_eq!(name(&table), "thief");
    table.insert_workload(&late);
    assert_eq!(name(&table), "late");
    table.remove_workload(&late.uid);
    assert_eq!(name(&table), "thief");
}

#[test]
fn prefix_does_not_apply_to_workloads_with_its_addresses() {
    let table = with_prefixes("ns", LbMode::Standard, false);
    let knows = |ip: &str| table.has_address(&NetworkAddress::new("", ip.parse().unwrap()));
    assert!(knows("10.0.0.2") && knows("10.96.0.9"));
    assert!(!knows("10.77.0.1") && !knows("fd00::77"));
}

#[test]
fn an_entry_of_one_namespace_is_no_gateway_of_others() {
    let at = "203.0.113.7";
    for (visibility, is_found) in [(Visibility::Namespace, false), (Visibility::Public, true)] {
        let entry = Service {
            visibility,
            ..service_in("evil", "thief", &["/203.0.113.7"], &[(15008, 15008)])
        };
        let mut thief = pod("thief", &["192.168.0.66"]);
        thief.services.insert(
            entry.namespaced_hostname(),
            PortMap::from_iter([(15008, 15008)]),
        );
        let behind = Workload {
            endpoint_waypoint: Some(new_endpoint_waypoint(
                &format!("/{at}"),
                &[identity("sa-thief")],
                true,
            )),
            ..pod("behind", &["10.0.0.2"])
        };
        let table = table(vec![thief, behind], vec![entry]);
        assert_eq!(
            route_from_client(&table, "10.0.0.2:80").is_ok(),
            is_found,
            "{visibility:?}"
        );
    }
}
