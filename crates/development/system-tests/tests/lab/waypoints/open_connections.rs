//! Tests of connections that were opened before their server got a waypoint, which continue until a layer 7 rule could
//! apply to them.

use std::net::SocketAddr;

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, Mesh, idle_pod, wait_until, wait_until_via_waypoint,
};

const DENY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-echo-for-client, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]
    to: [{operation: {ports: ['9000']}}]
";

/// Returns the number of layer 7 rules of the server's waypoint that the server's node proxy knows.
fn known_rule_count(mesh: &Mesh) -> Option<usize> {
    let dump = mesh.proxy_dump("node-2");
    let workloads = dump.pointer("/workloads")?.as_array()?;
    let is_server = |one: &&serde_json::Value| {
        one.pointer("/namespace").and_then(|text| text.as_str()) == Some("shop")
            && one.pointer("/name").and_then(|text| text.as_str()) == Some("server")
    };
    let server = workloads.iter().find(is_server)?;
    let rules = server.pointer("/endpointWaypoint/rules")?.as_array()?;
    Some(rules.len())
}

#[test]
fn older_connections_end_when_a_rule_could_apply() {
    let other = idle_pod("shop/other", "node-1", "app: other");
    let mesh = Mesh::up(&format!("{CLIENT_AND_SERVER}{other}"));
    for pod in ["shop/client", "shop/other", "shop/server"] {
        mesh.wait_until_captured(pod, true);
    }
    let server = mesh.ip("shop/server");
    let echo = SocketAddr::new(server, 9000);
    let web = SocketAddr::new(server, 8080);
    let mut concerned = mesh.dial("shop/client", echo).unwrap();
    let mut of_other = mesh.dial("shop/other", echo).unwrap();
    let mut kept = mesh.dial("shop/client", web).unwrap();
    for connection in [&mut concerned, &mut of_other] {
        connection.exchange_line("before").unwrap();
    }
    // A request whose end is sent last.
    kept.send_raw(b"GET / HTTP/1.1\r\nHost: server\r\n", |_| true)
        .unwrap();

    mesh.apply("gateway", GATEWAY);
    wait_until("the waypoint is known to have no rules", || {
        known_rule_count(&mesh) == Some(0)
    });
    mesh.wait_for_status("the waypoint serves", |status| {
        let mut pods = status.pods.iter();
        pods.any(|pod| pod.name.starts_with("waypoint-") && pod.ready)
    });
    let through = mesh.ip("shop/waypoint").to_string();
    wait_until_via_waypoint(&mesh, &through, "shop/client", &format!("http://{web}/"));
    for connection in [&mut concerned, &mut of_other] {
        connection.exchange_line("no rule").unwrap();
    }
    kept.send_raw(b"X-Still: open\r\n", |_| true).unwrap();

    mesh.apply("policy", DENY);
    wait_until("the rule is known", || known_rule_count(&mesh) == Some(1));
    concerned.wait_until_closed();
    of_other.exchange_line("another caller").unwrap();
    let answer = kept.send_raw(b"\r\n", |answer| answer.contains("called by "));
    assert!(answer.unwrap().starts_with("HTTP/1.1 200"), "another port");
}
