//! Workload records of pods, WorkloadEntries and EndpointSlices.

use ambit_k8s_api::{Kind, enablement::Enablement};
use ambit_model::{Locality, NamespacedHostname, NetworkMode, Protocol, WorkloadStatus};

use super::*;

const HOST: &str = "cart.shop.svc.cluster.local";

fn ports(workload: &Workload, host: &str) -> Vec<(u16, u16)> {
    let name = NamespacedHostname::new(workload.namespace.clone(), host);
    workload
        .services
        .get(&name)
        .map(|ports| ports.iter().map(|(a, b)| (*a, *b)).collect())
        .unwrap_or_default()
}

#[test]
fn a_captured_pod_is_an_hbone_workload_with_its_services() {
    let mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, CART_SERVICE]));
    let pod = mesh.pod("cart-1");
    assert_eq!(
        pod.identity().to_string(),
        "spiffe://cluster.local/ns/shop/sa/cart"
    );
    assert_eq!(pod.protocol, Protocol::Hbone);
    assert_eq!(pod.status, WorkloadStatus::Healthy);
    assert_eq!(pod.workload_ips.len(), 2);
    assert_eq!((pod.node.as_str(), pod.cluster_id.as_str()), ("n1", "c1"));
    assert_eq!(
        (pod.canonical_name.as_str(), pod.canonical_revision.as_str()),
        ("cart", "latest")
    );
    assert_eq!(ports(pod, HOST), [(80, 8080)]);
}

#[test]
fn a_pod_without_the_annotation_takes_plaintext() {
    let mesh = TestMesh::from_yaml(&cart_pod(&[(
        "redirection: enabled",
        "redirection: pending",
    )]));
    assert_eq!(mesh.pod("cart-1").protocol, Protocol::Tcp);
    let native = cart_pod(&[
        ("redirection: enabled", "x: y"),
        ("{app: cart}", "{networking.istio.io/tunnel: \"foo,http\"}"),
    ]);
    let mesh = TestMesh::from_yaml(&native);
    assert_eq!(mesh.pod("cart-1").protocol, Protocol::Hbone);
    assert!(mesh.pod("cart-1").native_tunnel);
}

#[test]
fn health_follows_readiness_and_deletion() {
    for (from, to) in [
        ("status: \"True\"", "status: \"False\""),
        (
            "  uid: u1",
            "  uid: u1\n  deletionTimestamp: \"2026-01-01T00:00:00Z\"",
        ),
        ("conditions:", "other:"),
    ] {
        let mesh = TestMesh::from_yaml(&cart_pod(&[(from, to)]));
        assert_eq!(mesh.pod("cart-1").status, WorkloadStatus::Unhealthy, "{to}");
    }
}

#[test]
fn pods_that_ended_or_have_no_address_are_no_workloads() {
    let mut mesh = TestMesh::from_yaml(CART_POD);
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(
            mesh.apply(&cart_pod(&[("Running", phase)])),
            ["-c1//Pod/shop/cart-1"]
        );
        assert_eq!(mesh.apply(CART_POD), ["c1//Pod/shop/cart-1"]);
    }
    let without = cart_pod(&[("podIPs: [{ip: 10.1.2.3}, {ip: \"fd00::3\"}]", "podIPs: []")]);
    assert_eq!(mesh.apply(&without), ["-c1//Pod/shop/cart-1"]);
    // Pending with an address is one.
    assert_eq!(
        mesh.apply(&cart_pod(&[("Running", "Pending")])),
        ["c1//Pod/shop/cart-1"]
    );
}

#[test]
fn host_network_pods_say_so() {
    let mesh = TestMesh::from_yaml(&cart_pod(&[(
        "nodeName: n1",
        "nodeName: n1\n  hostNetwork: true",
    )]));
    assert_eq!(mesh.pod("cart-1").network_mode, NetworkMode::HostNetwork);
}

#[test]
fn locality_comes_from_the_node_and_follows_it() {
    let node = |zone: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: n1, labels: {{topology.kubernetes.io/region: r, topology.kubernetes.io/zone: {zone}}}}}\n"
        )
    };
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &node("z1")]));
    let locality = |zone: &str| Locality {
        region: "r".into(),
        zone: zone.into(),
        subzone: "".into(),
    };
    assert_eq!(mesh.pod("cart-1").locality, locality("z1"));
    assert_eq!(mesh.apply(&node("z2")), ["c1//Pod/shop/cart-1"]);
    assert_eq!(mesh.pod("cart-1").locality, locality("z2"));
    mesh.delete(Kind::Node, "", "n1");
    assert!(mesh.pod("cart-1").locality.is_empty());
}

#[test]
fn the_network_is_the_root_namespaces_label() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, CART_SERVICE]));
    assert_eq!(mesh.pod("cart-1").network, "");
    let changed = mesh.apply(
        "kind: Namespace\napiVersion: v1\nmetadata: {name: istio-system, labels: {topology.istio.io/network: net1}}\n",
    );
    assert_eq!(
        changed,
        ["c1//Pod/shop/cart-1", "shop/cart.shop.svc.cluster.local"]
    );
    assert_eq!(mesh.pod("cart-1").network, "net1");
    assert_eq!(
        mesh.service("shop/cart.shop.svc.cluster.local").vips[0].to_string(),
        "net1/10.96.0.9"
    );
}

#[test]
fn workload_names_follow_the_owner() {
    let owned = |kind: &str, owner: &str, labels: &str| {
        let owner = format!(
            "  uid: u1\n  generateName: x-\n  ownerReferences: [{{apiVersion: v1, kind: {kind}, name: {owner}, uid: o, controller: true}}]"
        );
        cart_pod(&[("  uid: u1", &owner), ("{app: cart}", labels)])
    };
    for (kind, owner, labels, expected) in [
        (
            "ReplicaSet",
            "cart-6d5f8",
            "{pod-template-hash: 6d5f8}",
            "cart",
        ),
        (
            "ReplicaSet",
            "cart-abc",
            "{rollouts-pod-template-hash: abc}",
            "cart",
        ),
        ("ReplicaSet", "cart-abc", "{a: b}", "cart-abc"),
        ("Job", "report-28123456", "{a: b}", "report"),
        ("Job", "report-12", "{a: b}", "report-12"),
        ("StatefulSet", "db", "{a: b}", "db"),
        (
            "ReplicaSet",
            "cart-1",
            "{service.istio.io/workload-name: given}",
            "given",
        ),
    ] {
        let mesh = TestMesh::from_yaml(&owned(kind, owner, labels));
        assert_eq!(mesh.pod("cart-1").workload_name, expected, "{kind} {owner}");
        assert_eq!(
            mesh.pod("cart-1").canonical_name,
            expected,
            "{kind} {owner}"
        );
    }
    assert_eq!(
        TestMesh::from_yaml(CART_POD).pod("cart-1").workload_name,
        "cart-1"
    );
}

#[test]
fn canonical_names_come_from_labels() {
    let labels = "{service.istio.io/canonical-name: a, app.kubernetes.io/name: b, app: c, app.kubernetes.io/version: v2, version: v3}";
    let mesh = TestMesh::from_yaml(&cart_pod(&[("{app: cart}", labels)]));
    let pod = mesh.pod("cart-1");
    assert_eq!(
        (pod.canonical_name.as_str(), pod.canonical_revision.as_str()),
        ("a", "v2")
    );
}

#[test]
fn a_named_port_is_each_pods_own_and_udp_ones_do_not_count() {
    let service = CART_SERVICE.replace("[{name: http-web, port: 80, targetPort: web}]",
        "[{name: a, port: 80, targetPort: web}, {name: b, port: 53, targetPort: dns}, {name: c, port: 90}, {name: d, port: 91, targetPort: 9191}]");
    let mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &service]));
    assert_eq!(
        ports(mesh.pod("cart-1"), HOST),
        [(80, 8080), (90, 90), (91, 9191)]
    );
    assert_eq!(
        mesh.service("shop/cart.shop.svc.cluster.local").ports[&80],
        0
    );
}

#[test]
fn selecting_and_no_longer_selecting_changes_only_the_pods_concerned() {
    let other = cart_pod(&[
        ("cart-1", "other-1"),
        ("app: cart", "app: other"),
        ("10.1.2.3", "10.1.2.4"),
        ("fd00::3", "fd00::4"),
    ]);
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &other]));
    assert_eq!(
        mesh.apply(CART_SERVICE),
        ["c1//Pod/shop/cart-1", "shop/cart.shop.svc.cluster.local"]
    );
    assert_eq!(
        mesh.apply(&CART_SERVICE.replace("{app: cart}", "{app: other}")),
        ["c1//Pod/shop/cart-1", "c1//Pod/shop/other-1"]
    );
    assert_eq!(
        mesh.delete(Kind::Service, "shop", "cart"),
        ["c1//Pod/shop/other-1", "-shop/cart.shop.svc.cluster.local"]
    );
}

#[test]
fn a_slice_made_by_hand_names_pods_and_addresses() {
    let service = CART_SERVICE
        .replace("selector: {app: cart}", "sessionAffinity: None")
        .replace("targetPort: web", "targetPort: 8080");
    let slice = r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-x, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
endpoints:
- addresses: [10.1.2.3]
  targetRef: {kind: Pod, name: cart-1, namespace: shop, uid: u1}
- addresses: [192.0.2.1]
- addresses: [192.0.2.2]
  conditions: {ready: false}
ports: [{name: http-web, port: 9090, protocol: TCP}]
"#;
    let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, &service, slice]));
    assert_eq!(ports(mesh.pod("cart-1"), HOST), [(80, 9090)]);
    let uid = "c1/discovery.k8s.io/EndpointSlice/shop/cart-x/192.0.2.1";
    let address = &mesh.workloads[uid];
    assert_eq!(
        (address.network_mode, address.status),
        (NetworkMode::HostNetwork, WorkloadStatus::Healthy)
    );
    assert_eq!(ports(address, HOST), [(80, 9090)]);
    assert_eq!(
        mesh.workloads["c1/discovery.k8s.io/EndpointSlice/shop/cart-x/192.0.2.2"].status,
        WorkloadStatus::Unhealthy
    );
    // Another pod of the same name is not meant.
    mesh.apply(&cart_pod(&[("uid: u1", "uid: u2")]));
    assert_eq!(ports(mesh.pod("cart-1"), HOST), []);
    // The service's own selector goes before slices.
    mesh.apply(CART_SERVICE);
    assert_eq!(ports(mesh.pod("cart-1"), HOST), [(80, 8080)]);
    mesh.delete(Kind::EndpointSlice, "shop", "cart-x");
    assert!(!mesh.workloads.contains_key(uid));
}

#[test]
fn a_workload_entry_is_an_endpoint_of_what_selects_it() {
    let entry = r#"
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: shop, labels: {more: "1"}}
spec: {address: 192.0.2.7, labels: {app: cart}, ports: {http-web: 9000}, serviceAccount: vm, locality: r/z, weight: 3}
"#;
    let mesh = TestMesh::from_yaml(&join_documents(&[entry, CART_SERVICE]));
    let vm = &mesh.workloads["c1/networking.istio.io/WorkloadEntry/shop/vm"];
    assert_eq!(
        (
            vm.capacity,
            vm.service_account.as_str(),
            vm.locality.zone.as_str()
        ),
        (3, "vm", "z")
    );
    assert_eq!(
        (vm.protocol, vm.status),
        (Protocol::Tcp, WorkloadStatus::Healthy)
    );
    assert_eq!(ports(vm, HOST), [(80, 9000)]);
    let named = entry.replace("192.0.2.7", "vm.example.com");
    let mesh = TestMesh::from_yaml(&named);
    let vm = &mesh.workloads["c1/networking.istio.io/WorkloadEntry/shop/vm"];
    assert_eq!(
        (vm.workload_ips.len(), vm.hostname.as_str()),
        (0, "vm.example.com")
    );
}

#[test]
fn what_cannot_be_read_keeps_its_last_good_state_and_is_named() {
    let mut mesh = TestMesh::from_yaml(CART_POD);
    let broken = cart_pod(&[("{ip: 10.1.2.3}", "{ip: 10.1.2.300}")]);
    assert_eq!(mesh.apply(&broken), Vec::<String>::new());
    assert_eq!(mesh.pod("cart-1").workload_ips.len(), 2);
    assert_eq!(
        mesh.problems(),
        [
            "Pod shop/cart-1: status.podIPs[0].ip: \"10.1.2.300\" is not an IP address; its last good version stays in force"
        ]
    );
    mesh.apply(CART_POD);
    assert_eq!(mesh.problems(), Vec::<String>::new());
    mesh.apply(&cart_pod(&[(
        "serviceAccountName: cart",
        "serviceAccountName: a/b",
    )]));
    assert!(mesh.problems()[0].contains("spec.serviceAccountName"));
    mesh.delete(Kind::Pod, "shop", "cart-1");
    assert_eq!(mesh.problems(), Vec::<String>::new());
    assert!(mesh.workloads.is_empty());
}

#[test]
fn the_directory_of_pods_knows_who_runs_where() {
    let mut mesh = TestMesh::from_yaml(CART_POD);
    assert!(mesh.pods.is_served_on("n1", "shop", "cart"));
    assert!(!mesh.pods.is_served_on("n2", "shop", "cart"));
    assert!(!mesh.pods.is_served_on("n1", "shop", "other"));
    assert_eq!(mesh.pods.pod("shop", "cart-1").unwrap().uid, "u1");
    mesh.apply(&cart_pod(&[("nodeName: n1", "nodeName: n2")]));
    assert!(
        !mesh.pods.is_served_on("n1", "shop", "cart")
            && mesh.pods.is_served_on("n2", "shop", "cart")
    );
    mesh.apply(&cart_pod(&[("Running", "Succeeded")]));
    assert!(
        !mesh.pods.is_served_on("n1", "shop", "cart")
            && !mesh.pods.pod("shop", "cart-1").unwrap().is_live
    );
    mesh.apply(CART_POD);
    mesh.delete(Kind::Pod, "shop", "cart-1");
    assert!(
        !mesh.pods.is_served_on("n1", "shop", "cart") && mesh.pods.pod("shop", "cart-1").is_none()
    );
}

#[test]
fn a_pod_is_served_once_its_labels_or_its_namespaces_enrol_it() {
    let namespace = |labels: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: plain, labels: {{{labels}}}}}\n"
        )
    };
    let pod = |metadata: &str, spec: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: plain, {metadata}}}\n\
             spec: {{nodeName: n1, serviceAccountName: p, {spec}}}\nstatus: {{phase: Running}}\n"
        )
    };
    let ambient = "labels: {istio.io/dataplane-mode: ambient}";
    let mut mesh = TestMesh::empty();
    let mut served = |yaml: &str| {
        mesh.apply(yaml);
        mesh.pods.is_served_on("n1", "plain", "p")
    };
    for (step, yaml, expected) in [
        ("no namespace is known", pod("", ""), false),
        ("a namespace without a label", namespace(""), false),
        ("its own label", pod(ambient, ""), true),
        ("the label is gone", pod("", ""), false),
        (
            "the namespace's label",
            namespace("istio.io/dataplane-mode: ambient"),
            true,
        ),
        (
            "the pod opts out",
            pod("labels: {istio.io/dataplane-mode: none}", ""),
            false,
        ),
        (
            "the node's network",
            pod(ambient, "hostNetwork: true"),
            false,
        ),
        (
            "a sidecar",
            pod("annotations: {sidecar.istio.io/status: '{}'}", ""),
            false,
        ),
        ("nothing of its own", pod("", ""), true),
        ("the namespace's label is gone", namespace(""), false),
        // An agent with rules of its own, or one that has yet to release the pod.
        (
            "captured",
            pod("annotations: {ambient.istio.io/redirection: enabled}", ""),
            true,
        ),
        (
            "said to be captured in the node's network",
            pod(
                "annotations: {ambient.istio.io/redirection: enabled}",
                "hostNetwork: true",
            ),
            false,
        ),
    ] {
        assert_eq!(served(&yaml), expected, "{step}");
    }
    let excluding = Enablement::with_default_selectors(["plain".to_owned()], "istio-system");
    let mut mesh = TestMesh::with_config(MeshConfig {
        enablement: excluding,
        ..MeshConfig::default()
    });
    mesh.apply(&pod(
        "labels: {istio.io/dataplane-mode: ambient}, annotations: {ambient.istio.io/redirection: enabled}",
        "",
    ));
    assert!(
        !mesh.pods.is_served_on("n1", "plain", "p"),
        "an excluded namespace"
    );
}
