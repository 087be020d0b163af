//! Tests of the table's indices under insertions, changes and removals.

use std::collections::BTreeMap;

use ambit_model::{NetworkAddress, NetworkMode, PodName, Visibility};
use proptest::{collection::vec, prelude::*};

use super::*;

fn name_at(table: &MeshTable, network: &str, ip: &str, client: &str) -> Option<String> {
    let ip = ip.parse().unwrap();
    table
        .service_by_vip(network, ip, client)
        .map(|service| format!("{}/{}", service.namespace, service.name))
}

#[test]
fn workloads_round_trip_through_the_table() {
    let workload = Workload {
        endpoint_waypoint: Some(new_endpoint_waypoint("/1.2.3.4", &[identity("w")], true)),
        waypoint: Some(gateway("ns/host", 1)),
        network_gateway: Some(gateway("net/1.2.3.4", 2)),
        authorization_policies: vec!["a/b".into()],
        ..in_service(
            pod("a", &["10.0.0.2", "fd00::2"]),
            "web",
            &[(80, 8080), (81, 1)],
        )
    };
    let table = table(vec![workload.clone()], vec![]);
    assert_eq!(table.workload(&workload.uid).unwrap().to_model(), workload);
    let odd = Workload {
        name: "other".into(),
        ..workload
    };
    let table = super::table(vec![odd.clone()], vec![]);
    assert_eq!(table.workload(&odd.uid).unwrap().to_model(), odd);
}

#[test]
fn endpoints_written_by_hand_are_found_at_the_addresses_of_pods() {
    let written = |ip: &str| Workload {
        uid: "Kubernetes/discovery.k8s.io/EndpointSlice/ns/web/1".into(),
        network_mode: NetworkMode::HostNetwork,
        ..in_service(pod("web", &[ip]), "other", &[(80, 8080), (81, 1)])
    };
    let selected = in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 8080), (82, 8080)]);
    let mut table = table(vec![selected, written("10.0.0.2")], vec![]);
    let leading = |table: &MeshTable, ip: &str| {
        let endpoints = table.endpoints_at("", ip.parse().unwrap());
        let ports = endpoints.flat_map(|endpoint| endpoint.service_ports(8080));
        let names = ports.map(|(service, port)| format!("{}:{port}", service.hostname));
        let mut names: Vec<_> = names
            .map(|name| name.split('.').next().unwrap().to_owned() + &name[name.len() - 3..])
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        leading(&table, "10.0.0.2"),
        ["other:80", "web:80", "web:82"]
    );
    // It claims no address.
    let at = table.workload_by_ip("", "10.0.0.2".parse().unwrap());
    assert!(at.unwrap().is_pod());
    table.insert_workload(&written("10.0.0.3"));
    assert_eq!(leading(&table, "10.0.0.2"), ["web:80", "web:82"]);
    assert_eq!(leading(&table, "10.0.0.3"), ["other:80"]);
    table.remove_address("Kubernetes/discovery.k8s.io/EndpointSlice/ns/web/1");
    assert!(leading(&table, "10.0.0.3").is_empty());
}

#[test]
fn pods_of_one_deployment_share_what_they_have_in_common() {
    let mut many = Vec::new();
    for number in 0..100 {
        let mut workload = in_service(pod("x", &[&format!("10.0.0.{number}")]), "web", &[(80, 80)]);
        workload.uid = format!("Kubernetes//Pod/ns/web-{number}").into();
        workload.name = format!("web-{number}").into();
        many.push(workload);
    }
    assert_eq!(table(many, vec![]).size().templates, 1);
}

#[test]
fn an_unchanged_workload_is_no_change() {
    let mut table = table(vec![pod("a", &["10.0.0.2"])], vec![]);
    assert!(
        !table
            .insert_workload(&pod("a", &["10.0.0.2"]))
            .has_changed()
    );
    let change = table.insert_workload(&pod("a", &["10.0.0.3"]));
    assert!(change.has_changed());
    assert_eq!(change.before.unwrap().ips()[0].to_string(), "10.0.0.2");
    assert!(
        table
            .workload_by_ip("", "10.0.0.2".parse().unwrap())
            .is_none()
    );
    assert!(
        table
            .workload_by_ip("", "10.0.0.3".parse().unwrap())
            .is_some()
    );
}

#[test]
fn shared_address_belongs_to_the_pod_with_tunnels() {
    let entry = Workload {
        uid: "Kubernetes/networking.istio.io/ServiceEntry/ns/x/10.0.0.2".into(),
        ..pod("entry", &["10.0.0.2"])
    };
    let plain = Workload {
        protocol: Protocol::Tcp,
        ..pod("plain", &["10.0.0.2"])
    };
    let mut table = table(vec![entry, plain, pod("tunnel", &["10.0.0.2"])], vec![]);
    let at = |table: &MeshTable| {
        let ip = "10.0.0.2".parse().unwrap();
        table
            .workload_by_ip("", ip)
            .map(|workload| workload.name().to_owned())
    };
    assert_eq!(at(&table).as_deref(), Some("tunnel"));
    table.remove_workload("Kubernetes//Pod/ns/tunnel");
    assert_eq!(at(&table).as_deref(), Some("plain"));
    table.remove_workload("Kubernetes//Pod/ns/plain");
    assert!(at(&table).is_some());
    table.remove_address("Kubernetes/networking.istio.io/ServiceEntry/ns/x/10.0.0.2");
    assert_eq!(at(&table), None);
}

#[test]
fn local_workloads_are_found_by_pod() {
    let elsewhere = Workload {
        node: "other".into(),
        ..pod("far", &["10.0.0.3"])
    };
    let mut table = table(vec![pod("a", &["10.0.0.2"]), elsewhere], vec![]);
    let find = |table: &MeshTable, name: &str| {
        table
            .local_workload(&PodName {
                name: name.into(),
                namespace: "ns".into(),
                service_account: format!("sa-{name}").into(),
            })
            .is_some()
    };
    assert!(find(&table, "a") && !find(&table, "far"));
    assert!(table.has_local_workload("ns", "sa-a") && !table.has_local_workload("ns", "sa-far"));
    table.remove_workload("Kubernetes//Pod/ns/a");
    assert!(!find(&table, "a") && !table.has_local_workload("ns", "sa-a"));
}

#[test]
fn a_shared_vip_is_the_clients_own_namespaces_then_the_canonical_one() {
    let mut first = service_in("a", "x", &["/10.96.0.1"], &[]);
    first.canonical = false;
    let mut second = service_in("b", "x", &["/10.96.0.1"], &[]);
    second.canonical = false;
    let third = service_in("c", "x", &["/10.96.0.1"], &[]);
    let mut table = table(vec![], vec![first, second, third]);
    assert_eq!(
        name_at(&table, "", "10.96.0.1", "b").as_deref(),
        Some("b/x")
    );
    assert_eq!(
        name_at(&table, "", "10.96.0.1", "other").as_deref(),
        Some("c/x")
    );
    assert!(table.remove_service(&host("c", "x")));
    assert_eq!(
        name_at(&table, "", "10.96.0.1", "other").as_deref(),
        Some("a/x")
    );
}

#[test]
fn an_invisible_service_is_not_there_for_others() {
    let hidden = |namespace: &str, vips: &[&str]| Service {
        visibility: Visibility::Namespace,
        ..service_in(namespace, "x", vips, &[])
    };
    let wide = service_in("c", "wide", &["/10.96.0.0/16"], &[]);
    let table = table(vec![], vec![hidden("a", &["/10.96.0.1"]), wide]);
    assert_eq!(
        name_at(&table, "", "10.96.0.1", "a").as_deref(),
        Some("a/x")
    );
    // For other clients the address resolves to the prefix.
    assert_eq!(
        name_at(&table, "", "10.96.0.1", "b").as_deref(),
        Some("c/wide")
    );
    let host = "x.a.svc.cluster.local";
    assert!(table.service_by_hostname(host, "a").is_some());
    assert!(table.service_by_hostname(host, "b").is_none());
}

#[test]
fn a_hostname_of_several_namespaces_is_chosen_like_an_address() {
    let named = |namespace: &str, canonical| Service {
        hostname: "api.example.com".into(),
        canonical,
        ..service_in(namespace, "api", &[], &[])
    };
    let mut table = table(
        vec![],
        vec![named("a", false), named("b", false), named("c", true)],
    );
    let by = |table: &MeshTable, client: &str| {
        table
            .service_by_hostname("api.example.com", client)
            .unwrap()
            .namespace
            .to_string()
    };
    assert_eq!((by(&table, "b"), by(&table, "z")), ("b".into(), "c".into()));
    table.remove_service(&NamespacedHostname::new("c", "api.example.com"));
    assert_eq!(by(&table, "z"), "a");
    table.config.preferred_service_namespace = Some("b".into());
    assert_eq!(by(&table, "z"), "b");
}

#[test]
fn the_longest_prefix_wins_within_a_family_and_a_network() {
    let table = table(
        vec![],
        vec![
            service_in("a", "all", &["/0.0.0.0/0"], &[]),
            service_in("a", "ten", &["/10.0.0.0/8"], &[]),
            service_in("a", "ten-one", &["/10.1.0.0/16"], &[]),
            service_in("a", "six", &["/fd00::/8"], &[]),
            service_in("a", "six-one", &["/fd01::/16"], &[]),
            service_in("a", "far", &["far/10.1.0.0/24"], &[]),
            service_in("a", "exact", &["/10.1.0.9"], &[]),
        ],
    );
    for (network, ip, name) in [
        ("", "8.8.8.8", Some("a/all")),
        ("", "10.2.0.1", Some("a/ten")),
        ("", "10.1.0.1", Some("a/ten-one")),
        ("", "10.1.0.9", Some("a/exact")),
        ("", "fd02::1", Some("a/six")),
        ("", "fd01::1", Some("a/six-one")),
        ("", "2001:db8::1", None),
        ("far", "10.1.0.1", Some("a/far")),
        ("far", "10.2.0.1", None),
    ] {
        assert_eq!(
            name_at(&table, network, ip, "z").as_deref(),
            name,
            "{network}/{ip}"
        );
    }
}

#[test]
fn the_own_namespace_beats_a_longer_prefix() {
    let table = table(
        vec![],
        vec![
            service_in("mine", "wide", &["/10.0.0.0/8"], &[]),
            service_in("other", "narrow", &["/10.1.0.0/16"], &[]),
        ],
    );
    assert_eq!(
        name_at(&table, "", "10.1.0.1", "mine").as_deref(),
        Some("mine/wide")
    );
    assert_eq!(
        name_at(&table, "", "10.1.0.1", "third").as_deref(),
        Some("other/narrow")
    );
}

#[test]
fn endpoints_that_come_before_their_service_wait_for_it() {
    let mut table = table(
        vec![
            in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 80)]),
            in_service(unhealthy(pod("b", &["10.0.0.3"])), "web", &[(80, 80)]),
        ],
        vec![],
    );
    assert!(matches!(
        route_from_client(&table, "10.96.0.9:80"),
        Ok(Route::Passthrough { .. })
    ));
    assert_eq!(table.staged_endpoints()[0].1.len(), 2);
    let web = service("web", &["/10.96.0.9"], &[(80, 80)]);
    table.insert_service(web.clone());
    assert!(table.staged_endpoints().is_empty());
    let endpoints = table.endpoints(&web);
    assert_eq!(endpoints.len(), 1);
    assert_eq!(endpoints[0].uid, "Kubernetes//Pod/ns/a");
    // An update of the service keeps them; so does its removal and return.
    table.insert_service(Service {
        canonical: false,
        ..web.clone()
    });
    assert_eq!(table.endpoints(&web).len(), 1);
    assert!(table.remove_service(&web.namespaced_hostname()));
    assert!(!table.remove_service(&web.namespaced_hostname()));
    table.insert_service(web.clone());
    assert_eq!(table.endpoints(&web).len(), 1);
}

#[test]
fn a_workload_that_falls_sick_or_leaves_the_service_is_no_endpoint() {
    let web = service("web", &["/10.96.0.9"], &[(80, 80)]);
    let healthy = in_service(pod("a", &["10.0.0.2"]), "web", &[(80, 80)]);
    let mut table = table(vec![healthy.clone()], vec![web.clone()]);
    table.insert_workload(&unhealthy(healthy.clone()));
    assert!(table.endpoints(&web).is_empty());
    table.insert_workload(&healthy);
    assert_eq!(table.endpoints(&web).len(), 1);
    table.insert_workload(&pod("a", &["10.0.0.2"]));
    assert!(table.endpoints(&web).is_empty());
}

#[test]
fn removals_match_exactly_one_workload_or_service() {
    let web = service("web", &["/10.96.0.9"], &[(80, 80)]);
    let mut table = table(vec![pod("a", &["10.0.0.2"])], vec![web.clone()]);
    for name in [
        "",
        "nonsense",
        "Kubernetes//Pod/ns/b",
        "ns/unknown",
        "ns/a/b",
    ] {
        assert!(!table.remove_address(name).has_changed(), "{name}");
    }
    assert_eq!((table.size().workloads, table.size().services), (1, 1));
    table.remove_address(&web.namespaced_hostname().to_string());
    table.remove_address("Kubernetes//Pod/ns/a");
    assert_eq!((table.size().workloads, table.size().services), (0, 0));
    assert!(!table.has_address(&NetworkAddress::new("", "10.96.0.9".parse().unwrap())));
}

// === a naive reference ===

#[derive(Clone, Debug)]
enum TableUpdate {
    Insert {
        uid: u8,
        ip: u8,
        services: Vec<u8>,
        healthy: bool,
        host_network: bool,
    },
    Remove(u8),
    InsertService {
        name: u8,
        vip: u8,
    },
    RemoveService(u8),
}

fn table_update() -> impl Strategy<Value = TableUpdate> {
    prop_oneof![
        3 => (0..6u8, 0..4u8, vec(0..3u8, 0..3), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(uid, ip, services, healthy, host_network)| {
                TableUpdate::Insert { uid, ip, services, healthy, host_network }
            }
        ),
        1 => (0..6u8).prop_map(TableUpdate::Remove),
        2 => (0..3u8, 0..3u8).prop_map(|(name, vip)| TableUpdate::InsertService { name, vip }),
        1 => (0..3u8).prop_map(TableUpdate::RemoveService),
    ]
}

fn workload_of(step: &TableUpdate) -> Option<Workload> {
    let TableUpdate::Insert {
        uid,
        ip,
        services,
        healthy,
        host_network,
    } = step
    else {
        return None;
    };
    let mut workload = pod(&format!("p{uid}"), &[&format!("10.0.0.{ip}")]);
    for service in services {
        workload = in_service(workload, &format!("s{service}"), &[(80, 80)]);
    }
    if *host_network {
        workload.network_mode = NetworkMode::HostNetwork;
    }
    Some(if *healthy {
        workload
    } else {
        unhealthy(workload)
    })
}

proptest! {
    /// Checks that after any sequence of updates the indices agree with the records.
    #[test]
    fn the_indices_follow_the_records(steps in vec(table_update(), 0..60)) {
        let mut table = table(vec![], vec![]);
        let mut workloads = BTreeMap::<String, Workload>::new();
        let mut services = BTreeMap::<NamespacedHostname, Service>::new();
        for step in &steps {
            match step {
                TableUpdate::Insert { .. } => {
                    let workload = workload_of(step).unwrap();
                    table.insert_workload(&workload);
                    workloads.insert(workload.uid.to_string(), workload);
                }
                TableUpdate::Remove(uid) => {
                    let uid = format!("Kubernetes//Pod/ns/p{uid}");
                    table.remove_workload(&uid);
                    workloads.remove(&uid);
                }
                TableUpdate::InsertService { name, vip } => {
                    let vip = format!("/10.96.0.{vip}");
                    let service = service(&format!("s{name}"), &[&vip], &[(80, 80)]);
                    table.insert_service(service.clone());
                    services.insert(service.namespaced_hostname(), service);
                }
                TableUpdate::RemoveService(name) => {
                    let name = host("ns", &format!("s{name}"));
                    table.remove_service(&name);
                    services.remove(&name);
                }
            }
        }
        prop_assert_eq!(table.size().workloads, workloads.len());
        prop_assert_eq!(table.size().services, services.len());
        for (uid, workload) in &workloads {
            prop_assert_eq!(&table.workload(uid).unwrap().to_model(), workload);
        }
        for ip in 0..4 {
            let ip: std::net::IpAddr = format!("10.0.0.{ip}").parse().unwrap();
            let expected = workloads.values().any(|workload| {
                workload.network_mode == NetworkMode::Standard && workload.workload_ips.contains(&ip)
            });
            let found = table.workload_by_ip("", ip);
            prop_assert_eq!(found.is_some(), expected);
            prop_assert!(found.is_none_or(|workload| workload.ips().contains(&ip)));
        }
        for vip in 0..3 {
            let address = format!("10.96.0.{vip}").parse().unwrap();
            let expected =
                services.values().any(|service| service.vips[0].address == address);
            prop_assert_eq!(table.service_by_vip("", address, "ns").is_some(), expected);
        }
        for (name, service) in &services {
            let mut expected: Vec<_> = workloads
                .values()
                .filter(|w| w.status == WorkloadStatus::Healthy && w.services.contains_key(name))
                .map(|workload| workload.uid.clone())
                .collect();
            let mut found: Vec<_> =
                table.endpoints(service).into_iter().map(|endpoint| endpoint.uid).collect();
            expected.sort();
            found.sort();
            prop_assert_eq!(found, expected);
        }
        for uid in workloads.keys() {
            table.remove_workload(uid);
        }
        for name in services.keys() {
            table.remove_service(name);
        }
        prop_assert!(table.services.has_consistent_indices());
    }
}

#[test]
fn endpoints_of_a_port_are_listed_whether_they_are_ready_or_not() {
    let mut unready = in_service(pod("b", &["10.1.0.2"]), "web", &[(80, 9090), (81, 9091)]);
    unready.status = WorkloadStatus::Unhealthy;
    let ready = in_service(pod("a", &["10.1.0.1"]), "web", &[(80, 0)]);
    let web = service("web", &["/10.0.0.1"], &[(80, 8080), (81, 0)]);
    let table = table(vec![ready, unready], vec![web]);
    let service = table.service(&host("ns", "web")).unwrap();
    let listed = |port| {
        let all = table.port_endpoints(service, port);
        let mut all: Vec<_> = all
            .iter()
            .map(|endpoint| (endpoint.workload.name().to_owned(), endpoint.port))
            .collect();
        all.sort();
        all
    };
    assert_eq!(listed(80), [("a".into(), 8080), ("b".into(), 9090)]);
    // A named port that one endpoint maps.
    assert_eq!(listed(81), [("b".into(), 9091)]);
}
