//! Ownership of addresses: entries may not take addresses of other namespaces' pods and Services.

use ambit_k8s_api::Kind;
use ambit_model::{ArcStr, NetworkMode, Protocol};

use super::*;

/// Returns a ServiceEntry in another namespace than the pod and the Service of these tests.
fn entry_yaml(fields: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: claim, namespace: evil}}\nspec: {{hosts: [claim.example.com], resolution: STATIC, ports: [{{number: 80, name: http}}], {fields}}}\n"
    )
}

fn vips(mesh: &TestMesh) -> Vec<String> {
    let service = mesh.service("evil/claim.example.com");
    let one = service.vips.iter().map(ToString::to_string);
    let wide = service.cidr_vips.iter().map(|vip| vip.cidr.to_string());
    one.chain(wide).collect()
}

#[test]
fn addresses_of_other_namespaces_are_not_published() {
    for (addresses, left, owner) in [
        ("[10.96.0.9, 192.0.2.1]", "/192.0.2.1", "Service shop/cart"),
        ("[10.1.2.3, 192.0.2.1]", "/192.0.2.1", "Pod shop/cart-1"),
        ("[\"fd00::3\", 192.0.2.1]", "/192.0.2.1", "Pod shop/cart-1"),
        ("[10.1.0.0/16, 192.0.2.1]", "/192.0.2.1", "Pod shop/cart-1"),
        ("[0.0.0.0/0, 192.0.2.1]", "/192.0.2.1", "Pod shop/cart-1"),
        (
            "[\"::ffff:10.1.2.3\", 192.0.2.1]",
            "/192.0.2.1",
            "Pod shop/cart-1",
        ),
    ] {
        let mesh = TestMesh::from_yaml(&join_documents(&[
            CART_POD,
            CART_SERVICE,
            &entry_yaml(&format!("addresses: {addresses}")),
        ]));
        assert_eq!(vips(&mesh), [left], "{addresses}");
        let problem = &mesh.problems()[0];
        assert!(
            problem.starts_with("ServiceEntry evil/claim: spec.addresses[0]: ")
                && problem.contains(owner)
                && problem.ends_with("it is not published"),
            "{problem}"
        );
    }
}

#[test]
fn addresses_of_nobody_are_published() {
    for addresses in ["[192.0.2.1]", "[192.0.2.0/24]", "[\"2001:db8::/64\"]"] {
        let mesh = TestMesh::from_yaml(&join_documents(&[
            CART_POD,
            CART_SERVICE,
            &entry_yaml(&format!("addresses: {addresses}")),
        ]));
        assert_eq!(vips(&mesh).len(), 1, "{addresses}");
        assert!(mesh.problems().is_empty(), "{:?}", mesh.problems());
    }
}

#[test]
fn an_address_of_a_service_or_pod_is_never_an_entrys() {
    for namespace in ["evil", "shop", "istio-system"] {
        for address in ["10.96.0.9", "10.96.0.9/32", "10.1.2.3", "\"fd00::3\""] {
            let entry = entry_yaml(&format!("addresses: [{address}]"));
            let entry = entry.replace("namespace: evil", &format!("namespace: {namespace}"));
            let mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, CART_SERVICE, &entry]));
            let service = mesh.service(&format!("{namespace}/claim.example.com"));
            assert!(service.vips.is_empty() && service.cidr_vips.is_empty());
            let problems = mesh.problems();
            assert!(problems[0].ends_with("it is not published"), "{problems:?}");
        }
    }
}

#[test]
fn prefix_excludes_services_and_pods_with_a_problem() {
    for (addresses, resolution) in [
        ("[10.96.0.0/12]", "STATIC"),
        ("[10.0.0.0/8]", "NONE"),
        ("[0.0.0.0/0]", "NONE"),
        ("[\"fd00::/8\"]", "NONE"),
    ] {
        let entry = entry_yaml(&format!("addresses: {addresses}")).replace("STATIC", resolution);
        let mesh = TestMesh::from_yaml(&join_documents(&[CART_POD, CART_SERVICE, &entry]));
        assert_eq!(vips(&mesh).len(), 1, "{addresses}");
        let problems = mesh.problems();
        assert_eq!(problems.len(), 1, "{addresses}");
        assert!(problems[0].ends_with("these are reached as themselves"));
    }
}

#[test]
fn an_address_is_lost_and_won_with_its_owner() {
    let mut mesh = TestMesh::from_yaml(&entry_yaml("addresses: [10.1.2.3]"));
    assert_eq!(vips(&mesh).len(), 1);
    let pod = "c1//Pod/shop/cart-1";
    assert_eq!(mesh.apply(CART_POD), [pod, "evil/claim.example.com"]);
    assert_eq!(vips(&mesh), Vec::<String>::new());
    assert_eq!(mesh.problems().len(), 1);
    mesh.apply(&cart_pod(&[("phase: Running", "phase: Failed")]));
    assert_eq!(vips(&mesh).len(), 1);
    assert!(mesh.problems().is_empty());
    mesh.apply(CART_POD);
    mesh.delete(ambit_k8s_api::Kind::ServiceEntry, "evil", "claim");
    assert!(mesh.problems().is_empty(), "{:?}", mesh.problems());
}

#[test]
fn an_endpoint_with_a_pods_address_leaves_the_address_to_the_pod() {
    let entry = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: evil}\nspec: {address: 10.1.2.3}\n";
    let inline = entry_yaml("endpoints: [{address: 10.1.2.3}]");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[entry, &inline]));
    let modes = |mesh: &TestMesh| -> Vec<NetworkMode> {
        let all = mesh.workloads.values();
        let evil = all.filter(|workload| workload.namespace == "evil");
        evil.map(|workload| workload.network_mode).collect()
    };
    assert_eq!(modes(&mesh), [NetworkMode::Standard; 2]);
    mesh.apply(CART_POD);
    assert_eq!(modes(&mesh), [NetworkMode::HostNetwork; 2]);
    assert_eq!(mesh.pod("cart-1").network_mode, NetworkMode::Standard);
    assert_eq!(mesh.problems().len(), 2, "{:?}", mesh.problems());
    // Elsewhere the same address is another one.
    let elsewhere = entry.replace("10.1.2.3}", "10.1.2.3, network: far}");
    mesh.apply(&elsewhere);
    assert_eq!(mesh.problems().len(), 1, "{:?}", mesh.problems());
}

#[test]
fn endpoint_with_the_address_of_a_pod_has_no_tunnel() {
    let tunnel = "labels: {networking.istio.io/tunnel: http}";
    let entry = |address: &str| {
        let endpoint = format!("endpoints: [{{address: {address}, {tunnel}}}]");
        join_documents(&[
            &entry_yaml(&endpoint),
            &format!(
                "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: w, namespace: evil, {tunnel}}}\nspec: {{address: {address}}}\n"
            ),
        ])
    };
    let protocols = |mesh: &TestMesh| {
        let all = mesh.workloads.values();
        let written = all.filter(|one| one.namespace == "evil");
        written
            .map(|one| (one.protocol, one.native_tunnel))
            .collect::<Vec<_>>()
    };
    for address in ["10.1.2.3", "\"fd00::3\"", "\"::ffff:10.1.2.3\""] {
        let mut mesh = TestMesh::from_yaml(&entry(address));
        let native = [(Protocol::Hbone, true); 2];
        assert_eq!(protocols(&mesh), native, "{address}: nobody's");
        mesh.apply(CART_POD);
        let plain = [(Protocol::Tcp, false); 2];
        assert_eq!(protocols(&mesh), plain, "{address}: the pod's");
        mesh.delete(Kind::Pod, "shop", "cart-1");
        assert_eq!(protocols(&mesh), native, "{address}: nobody's again");
    }
}

#[test]
fn entries_do_not_lend_identities_of_other_namespaces() {
    let foreign = "spiffe://cluster.local/ns/shop/sa/cart";
    let (own, other_mesh) = (
        "spiffe://cluster.local/ns/NS/sa/vm",
        "spiffe://other.mesh/ns/shop/sa/cart",
    );
    for (namespace, is_published) in [("evil", false), ("shop", true), ("istio-system", true)] {
        let own = own.replace("NS", namespace);
        let names = format!(
            "subjectAltNames: [\"{foreign}\", \"{own}\", \"{other_mesh}\", api.example.com]"
        );
        let entry =
            entry_yaml(&names).replace("namespace: evil", &format!("namespace: {namespace}"));
        let mesh = TestMesh::from_yaml(&entry);
        let service = mesh.service(&format!("{namespace}/claim.example.com"));
        let published = &service.subject_alt_names;
        assert_eq!(
            published.contains(&ArcStr::from(foreign)),
            is_published,
            "{namespace}"
        );
        for kept in [own.as_str(), other_mesh, "api.example.com"] {
            assert!(
                published.contains(&ArcStr::from(kept)),
                "{namespace} {kept}"
            );
        }
        let problems = mesh.problems();
        let is_noted = problems.iter().any(|problem| {
            problem.contains("spec.subjectAltNames[0]") && problem.contains(foreign)
        });
        assert_eq!(is_noted, !is_published, "{namespace}: {problems:?}");
    }
}
