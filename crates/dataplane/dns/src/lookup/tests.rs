//! Tests of every case of name resolution, on a small mesh.

use std::collections::BTreeMap;

use ambit_model::{
    HealthPolicy, IpFamilies, LoadBalancing, NamespacedHostname, NetworkAddress, Visibility,
    Workload, WorkloadStatus,
};
use ambit_route::TableConfig;

use super::*;

fn service(namespace: &str, hostname: &str, vips: &[&str]) -> Service {
    Service {
        name: hostname.split('.').next().unwrap().into(),
        namespace: namespace.into(),
        hostname: hostname.into(),
        vips: vips
            .iter()
            .map(|vip| match vip.split_once('/') {
                Some((network, ip)) => NetworkAddress::new(network, ip.parse().unwrap()),
                None => NetworkAddress::new("", vip.parse().unwrap()),
            })
            .collect(),
        ..Service::default()
    }
}

fn kubernetes_service(namespace: &str, name: &str, vips: &[&str]) -> Service {
    let canonical = true;
    let hostname = format!("{name}.{namespace}.svc.cluster.local");
    Service {
        canonical,
        ..service(namespace, &hostname, vips)
    }
}

fn stateful_set_pod(name: &str, owner: &str, service: &str, ips: &[&str]) -> Workload {
    let host = NamespacedHostname::new("shop", format!("{service}.shop.svc.cluster.local"));
    Workload {
        uid: format!("Kubernetes//Pod/shop/{name}").into(),
        name: name.into(),
        namespace: "shop".into(),
        workload_name: owner.into(),
        workload_ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        services: BTreeMap::from([(host, Default::default())]),
        ..Workload::default()
    }
}

fn mesh_table(services: Vec<Service>, workloads: &[Workload]) -> MeshTable {
    let mut table = MeshTable::new(TableConfig {
        preferred_service_namespace: Some("preferred".into()),
        ..TableConfig::default()
    });
    for service in services {
        table.insert_service(service);
    }
    for workload in workloads {
        table.insert_workload(workload);
    }
    table
}

const CLIENT: DnsClient<'static> = DnsClient {
    namespace: "shop",
    network: "",
    cluster_id: "Kubernetes",
    cluster_domain: "cluster.local",
};

/// Resolves a name; returns the alias and the sorted addresses as text, or `unknown`.
fn resolve(table: &MeshTable, client: &DnsClient<'_>, name: &str, family: AddressFamily) -> String {
    let Some(found) = resolve_name(table, client, name, family) else {
        return "unknown".into();
    };
    let mut addresses: Vec<_> = found.addresses.iter().map(ToString::to_string).collect();
    addresses.sort();
    let alias = found.alias.map(|alias| format!("{alias}: "));
    alias.unwrap_or_default() + &addresses.join(" ")
}

#[track_caller]
fn assert_resolves(table: &MeshTable, cases: &[(&str, &str)]) {
    for (name, expected) in cases {
        assert_eq!(
            resolve(table, &CLIENT, name, AddressFamily::V4),
            *expected,
            "{name}"
        );
    }
}

#[test]
fn names_are_expanded_as_kubernetes_search_list_does() {
    let table = mesh_table(
        vec![
            kubernetes_service("shop", "web", &["10.0.0.1"]),
            kubernetes_service("other", "api", &["10.0.0.2"]),
            service("shop", "example.com", &["240.240.0.1"]),
            service("shop", "single", &["240.240.0.2"]),
        ],
        &[],
    );
    assert_resolves(
        &table,
        &[
            ("web.shop.svc.cluster.local", "10.0.0.1"),
            ("web", "10.0.0.1"),
            ("web.shop", "10.0.0.1"),
            ("web.shop.svc", "10.0.0.1"),
            ("api", "unknown"),
            ("api.other", "10.0.0.2"),
            ("api.other.svc", "10.0.0.2"),
            ("api.other.svc.cluster.local", "10.0.0.2"),
            ("example.com", "240.240.0.1"),
            ("single", "240.240.0.2"),
            ("nothing.com", "unknown"),
            ("cluster.local", "unknown"),
            ("svc.cluster.local", "unknown"),
        ],
    );
}

#[test]
fn search_list_suffixes_are_removed_and_reported() {
    let table = mesh_table(
        vec![
            kubernetes_service("shop", "web", &["10.0.0.1"]),
            kubernetes_service("other", "api", &["10.0.0.2"]),
            service("shop", "example.com", &["240.240.0.1"]),
            service("shop", "*.wild.com", &["240.240.0.2"]),
        ],
        &[],
    );
    assert_resolves(
        &table,
        &[
            (
                "example.com.shop.svc.cluster.local",
                "example.com: 240.240.0.1",
            ),
            ("example.com.svc.cluster.local", "example.com: 240.240.0.1"),
            ("example.com.cluster.local", "example.com: 240.240.0.1"),
            ("example.com.other.svc.cluster.local", "unknown"),
            ("api.other.shop.svc.cluster.local", "api.other: 10.0.0.2"),
            (
                "web.shop.svc.cluster.local.shop.svc.cluster.local",
                "web.shop.svc.cluster.local: 10.0.0.1",
            ),
            ("a.wild.com.shop.svc.cluster.local", "240.240.0.2"),
        ],
    );
}

#[test]
fn narrowest_wildcard_resolves_without_exact_name() {
    let table = mesh_table(
        vec![
            service("shop", "*.example.com", &["240.240.0.1"]),
            service("shop", "*.a.example.com", &["240.240.0.2"]),
            service("shop", "www.example.com", &["240.240.0.3"]),
        ],
        &[],
    );
    assert_resolves(
        &table,
        &[
            ("www.example.com", "240.240.0.3"),
            ("x.example.com", "240.240.0.1"),
            ("x.y.example.com", "240.240.0.1"),
            ("x.a.example.com", "240.240.0.2"),
            ("a.example.com", "240.240.0.1"),
            ("example.com", "unknown"),
        ],
    );
}

#[test]
fn own_namespace_precedes_canonical_and_preferred_services() {
    let host = "api.example.com";
    let of = |namespace: &str, vip: &str| service(namespace, host, &[vip]);
    let canonical = |service| Service {
        canonical: true,
        ..service
    };
    let mut services = vec![of("first", "1.1.1.1"), of("second", "1.1.1.2")];
    assert_resolves(&mesh_table(services.clone(), &[]), &[(host, "1.1.1.1")]);
    services.push(of("preferred", "1.1.1.3"));
    assert_resolves(&mesh_table(services.clone(), &[]), &[(host, "1.1.1.3")]);
    services.push(canonical(of("fourth", "1.1.1.4")));
    assert_resolves(&mesh_table(services.clone(), &[]), &[(host, "1.1.1.4")]);
    services.push(of("shop", "1.1.1.5"));
    assert_resolves(&mesh_table(services.clone(), &[]), &[(host, "1.1.1.5")]);
    // Only among those that have addresses.
    services.pop();
    services.push(service("shop", host, &[]));
    assert_resolves(&mesh_table(services, &[]), &[(host, "1.1.1.4")]);
}

#[test]
fn private_services_of_other_namespaces_do_not_resolve() {
    let hidden = Service {
        visibility: Visibility::Namespace,
        ..kubernetes_service("other", "api", &["10.0.0.2"])
    };
    let table = mesh_table(vec![hidden], &[]);
    assert_resolves(&table, &[("api.other", "unknown")]);
    let neighbour = DnsClient {
        namespace: "other",
        ..CLIENT
    };
    let found = resolve(&table, &neighbour, "api", AddressFamily::V4);
    assert_eq!(found, "10.0.0.2");
}

#[test]
fn addresses_are_of_the_client_s_network_and_the_service_s_families() {
    let vips = ["10.0.0.1", "far/10.9.9.9", "fd00::1"];
    let with = |families| Service {
        ip_families: families,
        ..kubernetes_service("shop", "web", &vips)
    };
    let both = |families| {
        let table = mesh_table(vec![with(families)], &[]);
        [AddressFamily::V4, AddressFamily::V6].map(|family| resolve(&table, &CLIENT, "web", family))
    };
    assert_eq!(both(None), ["10.0.0.1", "fd00::1"]);
    assert_eq!(both(Some(IpFamilies::Dual)), ["10.0.0.1", "fd00::1"]);
    assert_eq!(both(Some(IpFamilies::Ipv4)), ["10.0.0.1", ""]);
    assert_eq!(both(Some(IpFamilies::Ipv6)), ["", "fd00::1"]);
    let far = DnsClient {
        network: "far",
        ..CLIENT
    };
    let table = mesh_table(vec![with(None)], &[]);
    assert_eq!(resolve(&table, &far, "web", AddressFamily::V4), "10.9.9.9");
}

#[test]
fn address_ranges_are_never_answers() {
    let mut cidr = service("shop", "range.example.com", &[]);
    cidr.cidr_vips = vec![ambit_model::CidrVip {
        network: "".into(),
        cidr: "10.0.0.0/8".parse().unwrap(),
    }];
    let table = mesh_table(vec![cidr], &[]);
    assert_resolves(&table, &[("range.example.com", "unknown")]);
}

#[test]
fn a_headless_service_is_its_endpoints() {
    let sick = Workload {
        status: WorkloadStatus::Unhealthy,
        ..stateful_set_pod("db-2", "db", "db", &["10.1.0.3"])
    };
    let abroad = Workload {
        network: "far".into(),
        ..stateful_set_pod("db-3", "db", "db", &["10.1.0.4"])
    };
    let pods = [
        stateful_set_pod("db-0", "db", "db", &["10.1.0.1", "fd00::1"]),
        stateful_set_pod("db-1", "db", "db", &["10.1.0.2"]),
        sick,
        abroad,
    ];
    let table = mesh_table(vec![kubernetes_service("shop", "db", &[])], &pods);
    assert_resolves(&table, &[("db", "10.1.0.1 10.1.0.2")]);
    assert_eq!(resolve(&table, &CLIENT, "db", AddressFamily::V6), "fd00::1");

    let unready = Service {
        load_balancing: Some(LoadBalancing {
            health_policy: HealthPolicy::AllowAll,
            ..LoadBalancing::default()
        }),
        ..kubernetes_service("shop", "db", &[])
    };
    let table = mesh_table(vec![unready], &pods);
    assert_resolves(&table, &[("db", "10.1.0.1 10.1.0.2 10.1.0.3")]);
    // Without any it is still a name of the mesh; a host outside the cluster is not.
    let table = mesh_table(
        vec![
            kubernetes_service("shop", "db", &[]),
            service("shop", "db.com", &[]),
        ],
        &[],
    );
    assert_resolves(&table, &[("db", ""), ("db.com", "unknown")]);
}

#[test]
fn a_statefulset_s_pod_is_found_by_its_name() {
    let pods = [
        stateful_set_pod("db-0", "db", "db", &["10.1.0.1"]),
        stateful_set_pod("db-7d9f-x2", "db", "db", &["10.1.0.2"]),
        stateful_set_pod("web-0", "web", "web", &["10.1.0.3"]),
    ];
    let services = vec![
        kubernetes_service("shop", "db", &[]),
        kubernetes_service("shop", "web", &["10.0.0.1"]),
    ];
    let mut table = mesh_table(services, &pods);
    assert_resolves(
        &table,
        &[
            ("db-0.db.shop.svc.cluster.local", "10.1.0.1"),
            ("db-0.db.shop.svc", "10.1.0.1"),
            ("db-0.db.shop", "10.1.0.1"),
            ("db-0.db", "10.1.0.1"),
            ("db-1.db.shop.svc.cluster.local", "unknown"),
            ("db-7d9f-x2.db.shop.svc.cluster.local", "unknown"),
            ("web-0.db.shop.svc.cluster.local", "unknown"),
            ("web-0.web.shop.svc.cluster.local", "unknown"),
        ],
    );
    // The pod keeps its name while its address changes.
    table.insert_workload(&stateful_set_pod("db-0", "db", "db", &["10.1.0.9"]));
    assert_resolves(&table, &[("db-0.db", "10.1.0.9")]);
}

#[test]
fn names_of_the_cluster_go_before_hosts_of_others() {
    // Names that an attacker might declare.
    let claims = [
        "api.other",
        "api.other.svc",
        "web",
        "web.shop",
        "db-0.db",
        "db-0.db.shop",
        "*.other",
        "*.shop",
        "*.svc",
        "*.db",
    ];
    for namespace in ["evil", "shop"] {
        let claimed = claims
            .iter()
            .map(|host| service(namespace, host, &["6.6.6.6"]));
        let services = [
            kubernetes_service("shop", "web", &["10.0.0.1"]),
            kubernetes_service("other", "api", &["10.0.0.2"]),
            kubernetes_service("shop", "db", &[]),
        ];
        let services = claimed.chain(services).collect();
        let table = mesh_table(
            services,
            &[stateful_set_pod("db-0", "db", "db", &["10.1.0.1"])],
        );
        for (name, expected) in [
            ("web", "10.0.0.1"),
            ("web.shop", "10.0.0.1"),
            ("api.other", "10.0.0.2"),
            ("api.other.svc", "10.0.0.2"),
            ("db-0.db", "10.1.0.1"),
            ("db-0.db.shop", "10.1.0.1"),
            ("db", "10.1.0.1"),
        ] {
            assert_eq!(
                resolve(&table, &CLIENT, name, AddressFamily::V4),
                expected,
                "{name}"
            );
            let searched = format!("{name}.shop.svc.cluster.local");
            let found = resolve(&table, &CLIENT, &searched, AddressFamily::V4);
            assert!(found.ends_with(expected), "{searched}: {found}");
        }
    }
}
