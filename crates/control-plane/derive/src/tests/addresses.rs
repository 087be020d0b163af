//! Whose an address or a host name is, and who sees an entry.

use ambit_model::{NetworkMode, Visibility};

use super::*;

/// An entry of another namespace than the pod and the Service of these tests.
fn claim(fields: &str) -> String {
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
        let mesh = TestMesh::of(&all(&[
            CART,
            SERVICE,
            &claim(&format!("addresses: {addresses}")),
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
fn addresses_of_nobody_or_of_the_own_namespace_are() {
    for addresses in ["[192.0.2.1]", "[192.0.2.0/24]", "[10.96.0.0/12]"] {
        let mesh = TestMesh::of(&all(&[
            CART,
            SERVICE,
            &claim(&format!("addresses: {addresses}")),
        ]));
        assert_eq!(vips(&mesh).len(), 1, "{addresses}");
        assert!(mesh.problems().is_empty(), "{:?}", mesh.problems());
    }
    let own = claim("addresses: [10.96.0.9]").replace("evil", "shop");
    let mesh = TestMesh::of(&all(&[CART, SERVICE, &own]));
    assert_eq!(mesh.service("shop/claim.example.com").vips.len(), 1);
    // Without load balancing, a pod inside a prefix is reached as itself.
    let passing = claim("addresses: [10.0.0.0/8]").replace("STATIC", "NONE");
    assert_eq!(vips(&TestMesh::of(&all(&[CART, &passing]))).len(), 1);
}

#[test]
fn an_address_is_lost_and_won_with_its_owner() {
    let mut mesh = TestMesh::of(&claim("addresses: [10.1.2.3]"));
    assert_eq!(vips(&mesh).len(), 1);
    let pod = "c1//Pod/shop/cart-1";
    assert_eq!(mesh.apply(CART), [pod, "evil/claim.example.com"]);
    assert_eq!(vips(&mesh), Vec::<String>::new());
    assert_eq!(mesh.problems().len(), 1);
    mesh.apply(&cart(&[("phase: Running", "phase: Failed")]));
    assert_eq!(vips(&mesh).len(), 1);
    assert!(mesh.problems().is_empty());
    mesh.apply(CART);
    mesh.delete(ambit_k8s_api::Kind::ServiceEntry, "evil", "claim");
    assert!(mesh.problems().is_empty(), "{:?}", mesh.problems());
}

#[test]
fn an_endpoint_with_a_pods_address_leaves_the_address_to_the_pod() {
    let entry = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: evil}\nspec: {address: 10.1.2.3}\n";
    let inline = claim("endpoints: [{address: 10.1.2.3}]");
    let mut mesh = TestMesh::of(&all(&[entry, &inline]));
    let modes = |mesh: &TestMesh| -> Vec<NetworkMode> {
        let all = mesh.workloads.values();
        let evil = all.filter(|workload| workload.namespace == "evil");
        evil.map(|workload| workload.network_mode).collect()
    };
    assert_eq!(modes(&mesh), [NetworkMode::Standard; 2]);
    mesh.apply(CART);
    assert_eq!(modes(&mesh), [NetworkMode::HostNetwork; 2]);
    assert_eq!(mesh.pod("cart-1").network_mode, NetworkMode::Standard);
    assert_eq!(mesh.problems().len(), 2, "{:?}", mesh.problems());
    // Elsewhere the same address is another one.
    let elsewhere = entry.replace("10.1.2.3}", "10.1.2.3, network: far}");
    mesh.apply(&elsewhere);
    assert_eq!(mesh.problems().len(), 1, "{:?}", mesh.problems());
}

#[test]
fn an_entry_is_seen_by_whom_it_is_exported_to() {
    for (export, expected, noted) in [
        ("[]", Some(Visibility::Public), false),
        ("[\"*\"]", Some(Visibility::Public), false),
        ("[., \"*\"]", Some(Visibility::Public), false),
        ("[.]", Some(Visibility::Namespace), false),
        ("[evil]", Some(Visibility::Namespace), false),
        ("[., shop]", Some(Visibility::Namespace), true),
        ("[shop]", None, true),
        ("[\"~\"]", None, false),
    ] {
        let mesh = TestMesh::of(&claim(&format!(
            "endpoints: [{{address: 192.0.2.1}}], exportTo: {export}"
        )));
        let service = mesh.services.get("evil/claim.example.com");
        assert_eq!(
            service.map(|service| service.visibility),
            expected,
            "{export}"
        );
        // Nothing outside its namespace is to choose it.
        let canonical = service.is_some_and(|service| service.canonical);
        assert_eq!(canonical, expected == Some(Visibility::Public), "{export}");
        assert_eq!(mesh.workloads.is_empty(), expected.is_none(), "{export}");
        assert_eq!(!mesh.problems().is_empty(), noted, "{:?}", mesh.problems());
    }
}

#[test]
fn names_of_other_namespaces_services_stay_in_the_namespace() {
    let visibility = |namespace: &str, host: &str| {
        let text = claim("addresses: [192.0.2.1]")
            .replace("claim.example.com", &format!("\"{host}\""))
            .replace("namespace: evil", &format!("namespace: {namespace}"));
        let mesh = TestMesh::of(&text);
        let service = mesh.service(&format!("{namespace}/{host}"));
        assert_eq!(
            service.visibility == Visibility::Namespace,
            !mesh.problems().is_empty()
        );
        service.visibility
    };
    for host in [
        "db.shop.svc.cluster.local",
        "pod-1.db.shop.svc.cluster.local",
        "db.shop.svc",
        "*.shop.svc.cluster.local",
        "*.svc.cluster.local",
        "*.cluster.local",
        "*.local",
        "*.svc",
    ] {
        assert_eq!(visibility("evil", host), Visibility::Namespace, "{host}");
        assert_eq!(
            visibility("istio-system", host),
            Visibility::Public,
            "{host}"
        );
    }
    for host in [
        "db.evil.svc.cluster.local",
        "example.com",
        "*.example.com",
        "notsvc.com",
    ] {
        assert_eq!(visibility("evil", host), Visibility::Public, "{host}");
    }
}
