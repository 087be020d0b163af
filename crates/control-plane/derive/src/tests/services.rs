//! Records of Services and ServiceEntries.

use ambit_k8s_api::Kind;
use ambit_model::{AppProtocol, HealthPolicy, IpFamilies, LbMode, LbScope, NamespacedHostname};

use super::*;
use crate::objects::service::app_protocol;

const CART_RECORD_NAME: &str = "shop/cart.shop.svc.cluster.local";

fn service_with(spec: &str) -> String {
    CART_SERVICE.replace(
        "  selector: {app: cart}",
        &format!("  selector: {{app: cart}}\n  {spec}"),
    )
}

#[test]
fn a_service_is_its_addresses_and_ports() {
    let mesh = TestMesh::from_yaml(CART_SERVICE);
    let service = mesh.service(CART_RECORD_NAME);
    assert_eq!(service.vips[0].to_string(), "/10.96.0.9");
    assert_eq!((service.ports[&80], service.canonical), (0, true));
    assert_eq!(
        (service.load_balancing.clone(), service.ip_families),
        (None, None)
    );
}

#[test]
fn headless_services_have_no_address_and_external_names_no_record() {
    let headless = CART_SERVICE.replace("10.96.0.9", "None");
    assert!(
        TestMesh::from_yaml(&headless)
            .service(CART_RECORD_NAME)
            .vips
            .is_empty()
    );
    let mut mesh = TestMesh::from_yaml(CART_SERVICE);
    let changed = mesh.apply(&service_with("type: ExternalName"));
    assert_eq!(changed, [format!("-{CART_RECORD_NAME}")]);
}

#[test]
fn session_affinity_is_passed_on() {
    let affine = |spec: &str| {
        TestMesh::from_yaml(&service_with(spec))
            .service(CART_RECORD_NAME)
            .session_affinity
    };
    assert!(affine("sessionAffinity: ClientIP"));
    assert!(!affine("sessionAffinity: None"));
}

#[test]
fn load_balancing_follows_policy_distribution_and_readiness() {
    use LbScope::{Network, Node, Region, Subzone, Zone};
    for (spec, mode, scopes) in [
        ("internalTrafficPolicy: Local", LbMode::Strict, vec![Node]),
        (
            "internalTrafficPolicy: Local\n  trafficDistribution: PreferClose",
            LbMode::Strict,
            vec![Node],
        ),
        (
            "trafficDistribution: PreferClose",
            LbMode::Failover,
            vec![Network, Region, Zone],
        ),
        (
            "trafficDistribution: PreferSameZone",
            LbMode::Failover,
            vec![Network, Region, Zone],
        ),
        (
            "trafficDistribution: prefersamenode",
            LbMode::Failover,
            vec![Network, Region, Zone, Subzone, Node],
        ),
    ] {
        let mesh = TestMesh::from_yaml(&service_with(spec));
        let lb = mesh
            .service(CART_RECORD_NAME)
            .load_balancing
            .clone()
            .unwrap();
        assert_eq!(
            (lb.mode, lb.routing_preferences, lb.health_policy),
            (mode, scopes, HealthPolicy::OnlyHealthy),
            "{spec}"
        );
    }
    let mesh = TestMesh::from_yaml(&service_with("publishNotReadyAddresses: true"));
    assert_eq!(
        mesh.service(CART_RECORD_NAME)
            .load_balancing
            .as_ref()
            .unwrap()
            .health_policy,
        HealthPolicy::AllowAll
    );
    let mesh = TestMesh::from_yaml(&service_with("trafficDistribution: Nearby"));
    assert_eq!(mesh.service(CART_RECORD_NAME).load_balancing, None);
    assert!(
        mesh.problems()[0].contains("spec.trafficDistribution"),
        "{:?}",
        mesh.problems()
    );
}

#[test]
fn a_namespace_sets_the_distribution_of_services_that_set_none() {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {networking.istio.io/traffic-distribution: PreferClose}}\n";
    let own = CART_SERVICE.replace("name: cart,", "name: own,").replace(
        "namespace: shop}",
        "namespace: shop, annotations: {networking.istio.io/traffic-distribution: PreferSameNode}}",
    );
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_SERVICE, &own]));
    assert_eq!(mesh.apply(namespace), [CART_RECORD_NAME]);
    let scopes = |mesh: &TestMesh, name: &str| {
        mesh.service(name)
            .load_balancing
            .as_ref()
            .map_or(0, |lb| lb.routing_preferences.len())
    };
    assert_eq!(
        (
            scopes(&mesh, CART_RECORD_NAME),
            scopes(&mesh, "shop/own.shop.svc.cluster.local")
        ),
        (3, 5)
    );
    assert_eq!(mesh.delete(Kind::Namespace, "", "shop"), [CART_RECORD_NAME]);
    assert_eq!(scopes(&mesh, CART_RECORD_NAME), 0);
}

#[test]
fn families_are_published() {
    for (families, expected) in [
        ("[IPv4]", Some(IpFamilies::Ipv4)),
        ("[IPv6]", Some(IpFamilies::Ipv6)),
        ("[IPv6, IPv4]", Some(IpFamilies::Dual)),
        ("[]", None),
    ] {
        let mesh = TestMesh::from_yaml(&service_with(&format!("ipFamilies: {families}")));
        assert_eq!(mesh.service(CART_RECORD_NAME).ip_families, expected);
    }
}

#[test]
fn what_ports_speak() {
    for (declared, name, number, expected) in [
        (Some("kubernetes.io/h2c"), "", 80, AppProtocol::Http2),
        (Some("kubernetes.io/wss"), "http-x", 80, AppProtocol::Tls),
        (Some("GRPC"), "", 80, AppProtocol::Grpc),
        (Some("example.com/own"), "http", 80, AppProtocol::Unknown),
        (None, "http-web", 80, AppProtocol::Http11),
        (None, "http2", 80, AppProtocol::Http2),
        (None, "grpc-web-x", 80, AppProtocol::Grpc),
        (None, "https", 443, AppProtocol::Tls),
        (None, "redis-main", 1, AppProtocol::Tcp),
        (None, "", 3306, AppProtocol::Tcp),
        (None, "web", 3306, AppProtocol::Tcp),
        (None, "dns-tcp", 53, AppProtocol::Tcp),
        (None, "web", 80, AppProtocol::Unknown),
    ] {
        assert_eq!(
            app_protocol(declared, name, number),
            expected,
            "{declared:?} {name:?} {number}"
        );
    }
}

#[test]
fn bad_services_are_refused_with_the_field() {
    for (from, to, field) in [
        ("10.96.0.9]", "10.96.0.x]", "spec.clusterIPs[0]"),
        ("port: 80", "port: 70000", "spec.ports[0].port"),
        (
            "targetPort: web",
            "targetPort: -1",
            "spec.ports[0].targetPort",
        ),
        ("ports: [{", "ports: [{port: 80}, {", "spec.ports[1].port"),
        (
            "selector:",
            "ipFamilies: [IPv5]\n  selector:",
            "spec.ipFamilies",
        ),
    ] {
        let mut mesh = TestMesh::from_yaml(CART_SERVICE);
        assert!(CART_SERVICE.contains(from));
        assert_eq!(
            mesh.apply(&CART_SERVICE.replace(from, to)),
            Vec::<String>::new(),
            "{to}"
        );
        assert!(
            mesh.problems()[0].starts_with(&format!("Service shop/cart: {field}: ")),
            "{:?}",
            mesh.problems()
        );
        assert_eq!(mesh.service(CART_RECORD_NAME).ports[&80], 0);
    }
}

const SERVICE_ENTRY: &str = r#"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ext, namespace: shop, creationTimestamp: "2026-01-02T00:00:00Z"}
spec:
  hosts: [api.example.com]
  addresses: [203.0.113.1, 203.0.114.7/24]
  ports: [{number: 443, name: tls, protocol: TLS}, {number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  resolution: STATIC
  endpoints:
  - {address: 198.51.100.1, ports: {tls: 8443}, serviceAccount: api}
  - {address: backup.example.com, weight: 2}
"#;

/// MeshConfig by which ServiceEntries are visible in all namespaces by default.
const EXPORT_ALL_CONFIG: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'defaultServiceExportTo: [\"*\"]'}
";

#[test]
fn a_service_entry_is_a_service_with_endpoints() {
    let mesh = TestMesh::from_yaml(&join_documents(&[EXPORT_ALL_CONFIG, SERVICE_ENTRY]));
    let service = mesh.service("shop/api.example.com");
    assert_eq!(service.vips[0].to_string(), "/203.0.113.1");
    assert_eq!(service.cidr_vips[0].cidr.to_string(), "203.0.114.0/24");
    assert_eq!(
        (service.ports[&443], service.ports[&80], service.canonical),
        (443, 8080, true)
    );
    let uid = "c1/networking.istio.io/ServiceEntry/shop/ext/198.51.100.1";
    let ports = &mesh.workloads[uid].services[&NamespacedHostname::new("shop", "api.example.com")];
    assert_eq!((ports[&443], ports[&80]), (8443, 8080));
    let backup = &mesh.workloads["c1/networking.istio.io/ServiceEntry/shop/ext/backup.example.com"];
    assert_eq!(
        (backup.hostname.as_str(), backup.capacity),
        ("backup.example.com", 2)
    );
}

#[test]
fn resolution_none_passes_through_and_dns_resolves_the_host() {
    let text = SERVICE_ENTRY.replace("STATIC", "NONE");
    let lb = TestMesh::from_yaml(&text)
        .service("shop/api.example.com")
        .load_balancing
        .clone()
        .unwrap();
    assert_eq!(
        (lb.mode, lb.health_policy),
        (LbMode::Passthrough, HealthPolicy::AllowAll)
    );
    let (head, _) = SERVICE_ENTRY.split_once("  endpoints:").unwrap();
    let dns = head
        .replace("STATIC", "DNS")
        .replace("[api.example.com]", "[API.example.com, \"*.example.org\"]");
    let mesh = TestMesh::from_yaml(&dns);
    let uids: Vec<_> = mesh.workloads.keys().cloned().collect();
    assert_eq!(
        uids,
        ["c1/networking.istio.io/ServiceEntry/shop/ext/api.example.com"]
    );
    assert_eq!(mesh.workloads[&uids[0]].hostname, "api.example.com");
    assert_eq!(mesh.services.len(), 2);
}

#[test]
fn pods_and_workload_entries_can_be_selected() {
    let (head, _) = SERVICE_ENTRY.split_once("  endpoints:").unwrap();
    let selecting = format!("{head}  workloadSelector: {{labels: {{app: cart}}}}\n");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &selecting]));
    let name = NamespacedHostname::new("shop", "api.example.com");
    assert_eq!(mesh.pod("cart-1").services[&name][&80], 8080);
    mesh.delete(Kind::ServiceEntry, "shop", "ext");
    assert!(mesh.pod("cart-1").services.is_empty());
}

#[test]
fn of_several_that_declare_a_host_one_wins() {
    let younger = SERVICE_ENTRY
        .replace("name: ext", "name: younger")
        .replace("2026-01-02", "2026-01-03");
    let elsewhere = SERVICE_ENTRY
        .replace("namespace: shop", "namespace: other")
        .replace("2026-01-02", "2026-01-01");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        EXPORT_ALL_CONFIG,
        &younger,
        SERVICE_ENTRY,
        &elsewhere,
    ]));
    assert_eq!(mesh.service("shop/api.example.com").name, "ext");
    assert!(
        !mesh.service("shop/api.example.com").canonical,
        "the oldest of all namespaces is canonical"
    );
    assert!(mesh.service("other/api.example.com").canonical);
    assert!(
        !mesh.workloads.keys().any(|uid| uid.contains("/younger/")),
        "{:?}",
        mesh.workloads.keys()
    );
    // The winner goes: the next one takes over, endpoints included.
    mesh.delete(Kind::ServiceEntry, "shop", "ext");
    assert_eq!(mesh.service("shop/api.example.com").name, "younger");
    assert!(mesh.workloads.keys().any(|uid| uid.contains("/younger/")));
    mesh.delete(Kind::ServiceEntry, "other", "ext");
    assert!(mesh.service("shop/api.example.com").canonical);
    // A Kubernetes service goes before every entry.
    let squatter = SERVICE_ENTRY.replace("api.example.com", "cart.shop.svc.cluster.local");
    let mut mesh = TestMesh::from_yaml(&squatter);
    assert_eq!(mesh.service(CART_RECORD_NAME).name, "ext");
    mesh.apply(CART_SERVICE);
    assert_eq!(mesh.service(CART_RECORD_NAME).name, "cart");
    assert!(mesh.workloads.is_empty());
}

#[test]
fn bad_entries_are_refused_with_the_field() {
    for (from, to, field) in [
        ("[api.example.com]", "[]", "spec.hosts"),
        ("[api.example.com]", "[a/b]", "spec.hosts[0]"),
        ("203.0.113.1,", "203.0.113.1/40,", "spec.addresses[0]"),
        ("number: 443", "number: 0", "spec.ports[0].number"),
        ("number: 443", "number: 80", "spec.ports[1].number"),
        (
            "targetPort: 8080",
            "targetPort: 70000",
            "spec.ports[1].targetPort",
        ),
        (
            "address: 198.51.100.1",
            "address: unix:///x",
            "spec.endpoints[0].address",
        ),
        ("{tls: 8443}", "{tls: 99999}", "spec.endpoints[0].ports.tls"),
        (
            "address: backup.example.com",
            "address: 198.51.100.1",
            "spec.endpoints[1].address",
        ),
        (
            "resolution: STATIC",
            "workloadSelector: {labels: {a: b}}",
            "spec.endpoints",
        ),
    ] {
        let mut mesh = TestMesh::from_yaml(SERVICE_ENTRY);
        assert!(SERVICE_ENTRY.contains(from), "{from}");
        assert_eq!(
            mesh.apply(&SERVICE_ENTRY.replace(from, to)),
            Vec::<String>::new(),
            "{to}"
        );
        assert!(
            mesh.problems()[0].starts_with(&format!("ServiceEntry shop/ext: {field}: ")),
            "{to}: {:?}",
            mesh.problems()
        );
        assert_eq!(mesh.workloads.len(), 2);
    }
}
