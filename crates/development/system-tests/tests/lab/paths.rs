//! Tests of connectivity between pods: identity and path of each connection, and the effect of policies.

use std::net::SocketAddr;

use ambit_system_tests::{
    CLIENT_AND_SERVER, ExpectedOutcome, Mesh, assert_only_tls, options, wait_until,
};

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

/// Reason of a denial in the node proxy's access log when ALLOW policies exist, but none matches.
const NO_ALLOW_MATCHES: ExpectedOutcome<'_> =
    ExpectedOutcome::Denial("allow policies exist, but none allowed");

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
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let (client, server) = (mesh.ip("shop/client"), mesh.ip("shop/server"));
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
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
fn outside_plaintext_is_accepted_until_policy_needs_identity() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    let outsider = mesh.ip("legacy/client");
    assert!(
        mesh.get("legacy/client", &url)
            .ok()
            .contains(&outsider.to_string())
    );

    mesh.apply("strict", STRICT);
    let strict =
        ExpectedOutcome::Denial("explicitly denied by: istio-system/istio_converted_static_strict");
    mesh.wait_for_get("legacy/client", &url, strict);
    mesh.get("shop/client", &url).ok();

    mesh.remove("strict");
    mesh.wait_for_get("legacy/client", &url, true);
}

#[test]
fn captured_pod_reaches_outside_pods_in_plaintext() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let url = format!("http://{}:8080/", mesh.ip("legacy/server"));
    let answer = mesh.get("shop/client", &url);
    assert!(answer.ok().contains("legacy-server"), "{answer:?}");
    // Through its proxy, not around it.
    wait_until("the proxy has logged it", || {
        mesh.access_log().lines().any(|line| {
            let parts = [
                "src.workload=\"client\"",
                "dst.namespace=\"legacy\"",
                "\"outbound\"",
            ];
            parts.iter().all(|part| line.contains(part))
        })
    });
}

#[test]
fn policy_for_one_identity_denies_all_others() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    mesh.apply("policy", DENY_ALL_BUT_CLIENT);
    mesh.wait_for_get("legacy/client", &url, NO_ALLOW_MATCHES);
    mesh.get("shop/client", &url).ok();
}

#[test]
fn new_policy_closes_only_connections_that_it_denies() {
    let other_port = "  - {name: other, image: none, command: [$LAB_TOOL, echo, --port, \"9001\"]}\n---\n\
        apiVersion: v1\nkind: Service\n";
    let mesh = Mesh::up(&CLIENT_AND_SERVER.replacen(
        "---\napiVersion: v1\nkind: Service\n",
        other_port,
        1,
    ));
    let server = mesh.ip("shop/server");
    let [forbidden, allowed] = [9000, 9001].map(|port| SocketAddr::new(server, port));
    let clients = ["shop/client", "legacy/client"];
    let open = |address| {
        clients.map(|client| {
            let mut connection = None;
            wait_until(&format!("{client} is answered by {address}"), || {
                connection = mesh.dial(client, address).ok();
                connection
                    .as_mut()
                    .is_some_and(|echo| echo.exchange_line("hello").is_ok())
            });
            connection.unwrap()
        })
    };
    let (closed, mut kept) = (open(forbidden), open(allowed));

    mesh.apply("policy", DENY_PORT);
    for mut connection in closed {
        connection.wait_until_closed();
    }
    for client in clients {
        let url = format!("http://{server}:8080/");
        mesh.get(client, &url).ok();
    }
    for connection in &mut kept {
        connection
            .exchange_line("through the policy's coming")
            .unwrap();
    }

    mesh.remove("policy");
    for mut connection in open(forbidden) {
        connection.exchange_line("allowed again").unwrap();
    }
    for connection in &mut kept {
        connection.exchange_line("and through its going").unwrap();
    }
}

#[test]
fn malformed_manifests_change_nothing_and_are_reported() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    mesh.apply("policy", DENY_ALL_BUT_CLIENT);
    mesh.wait_for_get("legacy/client", &url, NO_ALLOW_MATCHES);
    // The same policy, now with a misspelt field: the last valid one stays in force.
    mesh.apply(
        "policy",
        &DENY_ALL_BUT_CLIENT.replace("principals", "principles"),
    );
    mesh.wait_for_status("the fault is named", |_| {
        let log = mesh.logs();
        log.contains("principles") && log.contains("only-client")
    });
    mesh.get("legacy/client", &url).assert_terminated();
    mesh.get("shop/client", &url).ok();
}

#[test]
fn ipv6_and_dual_stack_meshes_work_the_same() {
    for family in [
        ambit_system_tests::IpFamily::Ipv6,
        ambit_system_tests::IpFamily::Dual,
    ] {
        let mesh = Mesh::up_with(
            CLIENT_AND_SERVER,
            ambit_system_tests::Options {
                ip_family: family,
                ..options()
            },
        );
        let pods = [mesh.pod("shop/client"), mesh.pod("shop/server")];
        let addresses: Vec<_> = pods.iter().flat_map(|pod| pod.ips.clone()).collect();
        let wire = mesh.capture_between_nodes(&["plain-marker"]);
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
