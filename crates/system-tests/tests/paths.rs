//! Who reaches whom, under which identity, over which path; and what policies change about it.

use std::net::SocketAddr;

use ambit_system_tests::{Mesh, PAIR, assert_only_tls, options};

const DENY_ALL_BUT_CLIENT: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-client, namespace: shop}
spec:
  selector: {matchLabels: {app: server}}
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]
";

const STRICT: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

const DENY_PORT: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-echo, namespace: shop}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules:
  - to: [{operation: {ports: ['9000']}}]
";

#[test]
fn traffic_between_captured_pods_is_only_tls_and_keeps_its_source() {
    let mesh = Mesh::up(PAIR);
    let (client, server) = (mesh.ip("shop/client"), mesh.ip("shop/server"));
    let wire = mesh.watch(&["plain-marker"]);
    for url in [
        format!("http://{server}:8080/"),
        "http://server.shop/".into(),
    ] {
        let answer = mesh.get("shop/client", &url);
        assert!(
            answer.ok().contains(&client.to_string()),
            "the source is lost: {answer:?}"
        );
        assert!(answer.body.contains("plain-marker"), "{answer:?}");
    }
    assert_only_tls(&wire.finish(), &[client, server]);
    let log = mesh.access_log();
    assert!(
        log.contains("src.identity=\"spiffe://cluster.local/ns/shop/sa/client\"")
            && log.contains("dst.identity=\"spiffe://cluster.local/ns/shop/sa/server\""),
        "{log}"
    );
}

#[test]
fn plaintext_from_outside_is_taken_until_a_policy_wants_an_identity() {
    let mesh = Mesh::up(PAIR);
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    let outsider = mesh.ip("legacy/client");
    assert!(
        mesh.get("legacy/client", &url)
            .ok()
            .contains(&outsider.to_string())
    );

    mesh.apply("strict", STRICT);
    mesh.until_get("legacy/client", &url, false);
    mesh.get("shop/client", &url).ok();

    mesh.remove("strict");
    mesh.until_get("legacy/client", &url, true);
}

#[test]
fn a_captured_pod_reaches_pods_outside_in_clear() {
    let mesh = Mesh::up(PAIR);
    let url = format!("http://{}:8080/", mesh.ip("legacy/server"));
    let answer = mesh.get("shop/client", &url);
    assert!(answer.ok().contains("legacy-server"), "{answer:?}");
}

#[test]
fn a_policy_for_one_identity_refuses_all_others() {
    let mesh = Mesh::up(PAIR);
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    mesh.apply("policy", DENY_ALL_BUT_CLIENT);
    mesh.until_get("legacy/client", &url, false);
    mesh.get("shop/client", &url).ok();
    // A call may have failed for another reason before the policy arrived, and logs are written
    // behind the answer: so ask until the refusal is told.
    ambit_system_tests::until("the refusal is logged", || {
        mesh.get("legacy/client", &url).refused();
        mesh.access_log().contains("allow policies exist")
    });
}

#[test]
fn a_new_policy_closes_the_connections_it_forbids_and_no_others() {
    let mesh = Mesh::up(PAIR);
    let server = mesh.ip("shop/server");
    let mut echo = mesh
        .dial("shop/client", SocketAddr::new(server, 9000))
        .unwrap();
    let mut plain = mesh
        .dial("legacy/client", SocketAddr::new(server, 9000))
        .unwrap();
    echo.say("hello").unwrap();
    plain.say("hello").unwrap();

    mesh.apply("policy", DENY_PORT);
    echo.until_closed();
    plain.until_closed();
    mesh.get("shop/client", &format!("http://{server}:8080/"))
        .ok();

    mesh.remove("policy");
    let address = SocketAddr::new(server, 9000);
    ambit_system_tests::until("the port is allowed again", || {
        mesh.dial("shop/client", address)
            .is_ok_and(|mut echo| echo.say("again").is_ok())
    });
}

#[test]
fn malformed_manifests_change_nothing_and_are_named() {
    let mesh = Mesh::up(PAIR);
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    mesh.apply("policy", DENY_ALL_BUT_CLIENT);
    mesh.until_get("legacy/client", &url, false);
    // The same policy, now with a misspelt field: the last good one stays.
    mesh.apply(
        "policy",
        &DENY_ALL_BUT_CLIENT.replace("principals", "principles"),
    );
    mesh.until("the fault is named", |_| {
        let log = mesh.logs();
        log.contains("principles") && log.contains("only-client")
    });
    mesh.get("legacy/client", &url).refused();
    mesh.get("shop/client", &url).ok();
}

#[test]
fn ipv6_and_dual_stack_meshes_work_the_same() {
    for family in [
        ambit_system_tests::IpFamily::Ipv6,
        ambit_system_tests::IpFamily::Dual,
    ] {
        let mesh = Mesh::up_with(
            PAIR,
            ambit_system_tests::Options {
                ip_family: family,
                ..options()
            },
        );
        let pods = [mesh.pod("shop/client"), mesh.pod("shop/server")];
        let addresses: Vec<_> = pods.iter().flat_map(|pod| pod.ips.clone()).collect();
        let wire = mesh.watch(&["plain-marker"]);
        for ip in &pods[1].ips {
            let url = format!("http://{}/", SocketAddr::new(*ip, 8080));
            let answer = mesh.get("shop/client", &url);
            assert!(
                pods[0]
                    .ips
                    .iter()
                    .any(|ip| answer.ok().contains(&ip.to_string())),
                "{answer:?}"
            );
        }
        mesh.get("shop/client", "http://server.shop/").ok();
        assert_only_tls(&wire.finish(), &addresses);
    }
}
