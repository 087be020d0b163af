//! Tests of flow events: connections and denials as they happen, only for permitted readers.

use ambit_system_tests::{
    CLIENT_AND_SERVER, ExpectedOutcome, Mesh, wait_until, wait_until_via_waypoint, with_waypoint,
};
use ambit_testkit::wait_until_within;
use std::{net::SocketAddr, time::Duration};

const CLIENT_IDENTITY: &str = "cluster.local/ns/shop/sa/client";
const SERVER_IDENTITY: &str = "cluster.local/ns/shop/sa/server";
const DENY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: not-legacy, namespace: shop}
spec:
  selector: {matchLabels: {app: server}}
  action: DENY
  rules: [{from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/client]}}]}]
";

#[test]
fn flow_events_show_both_sides_and_denials_with_policy() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    mesh.wait_until_protocol_known("node-1", "shop/server", "HBONE");
    let mut flows = mesh.flows(2, &[]);
    mesh.get("shop/client", "http://server.shop/");
    let (client, server) = (
        format!("spiffe://{CLIENT_IDENTITY}"),
        format!("spiffe://{SERVER_IDENTITY}"),
    );
    for (side, node) in [("source", "node-1"), ("destination", "node-2")] {
        let common = [
            ("/reporter/kind", side),
            ("/reporter/node", node),
            ("/source/workload", "client"),
            ("/source/namespace", "shop"),
            ("/source/identity", &client),
            ("/destination/workload", "server"),
            ("/destination/identity", &server),
            ("/transport", "hbone"),
            ("/waypoint", "none"),
        ];
        let opened = flows.wait_for_flow(&[&common[..], &[("/event", "opened")]].concat());
        let number = opened["connection"].to_string();
        let closed = [("/event", "closed"), ("/connection", &number)];
        let closed = flows.wait_for_flow(&[&common[..], &closed].concat());
        for bytes in ["bytesToServer", "bytesToClient"] {
            assert!(closed[bytes].as_u64() > Some(20), "{bytes} of {closed:#}");
        }
    }

    // From outside of the mesh, until a policy denies it.
    mesh.wait_for_get("legacy/client", "http://server.shop/", true);
    let plaintext = [
        ("/source/workload", "client"),
        ("/source/namespace", "legacy"),
        ("/source/identity", "none"),
        ("/transport", "plaintext"),
        ("/reporter/kind", "destination"),
    ];
    flows.wait_for_flow(&[&plaintext[..], &[("/event", "closed")]].concat());
    let mut denied = mesh.flows(2, &["--denied", "--to", "shop/server", "-n", "legacy"]);
    mesh.apply("policy", DENY);
    let denial = ExpectedOutcome::Denial("shop/not-legacy");
    mesh.wait_for_get("legacy/client", "http://server.shop/", denial);
    let refused = [
        ("/event", "refused"),
        ("/refusal/policy", "shop/not-legacy"),
    ];
    let refused = [&plaintext[..], &refused].concat();
    flows.wait_for_flow(&refused);
    denied.wait_for_flow(&refused);
    // Only the requested events.
    mesh.get("shop/client", "http://server.shop/");
    flows.wait_for_flow(&[("/source/identity", &client), ("/event", "closed")]);
    let others = denied.collect_for(Duration::ZERO);
    assert!(
        others.iter().all(|event| event["event"] == "refused"),
        "{others:#?}"
    );
    // There is no reader any more.
    drop((flows, denied));
    wait_until("the proxies count no readers", || {
        mesh.proxy_metrics("node-2")
            .contains("ambit_flow_readers 0")
    });
}

/// Checks that a reader that stops reading costs its proxies only a bounded queue, which they free when they drop the
/// reader. Connections continue.
#[test]
fn stopped_reader_is_dropped_and_resumes() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    mesh.wait_until_protocol_known("node-1", "shop/server", "HBONE");
    let echo = SocketAddr::new(mesh.ip("shop/server"), 9000);
    let talk = || {
        let mut connection = mesh.dial("shop/client", echo).unwrap();
        connection.exchange_line("hello").unwrap();
    };
    let mut stopped = mesh.flows(2, &[]);
    stopped.stop();
    let dropped = |node: &str| {
        let metrics = mesh.proxy_metrics(node);
        !metrics.contains("\nambit_flow_readers_dropped_total 0\n")
    };
    wait_until_within(Duration::from_secs(120), "both proxies drop it", || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| talk()));
            }
        });
        dropped("node-1") && dropped("node-2")
    });
    for node in ["node-1", "node-2"] {
        let readers = "\nambit_flow_readers 0\n";
        assert!(mesh.proxy_metrics(node).contains(readers), "{node}");
    }
    let mut other = mesh.flows(2, &["--for", "60s"]);
    talk();
    other.wait_for_flow(&[("/event", "opened"), ("/reporter/node", "node-2")]);
    stopped.resume();
    wait_until("the stopped one reads again", || {
        mesh.get("legacy/client", "http://server.shop/");
        let events = stopped.collect_for(Duration::from_millis(200));
        events
            .iter()
            .any(|event| event["source"]["namespace"] == "legacy")
    });
}

#[test]
fn flow_events_show_requests_with_route_status_and_policy() {
    let (mesh, _) = with_waypoint(ROUTED);
    let mut flows = mesh.flows(3, &[]);
    wait_until("the route is followed", || {
        let answer = mesh.get("shop/client", "http://app.shop/gone");
        answer.body.contains("404")
    });
    let request = [
        ("/reporter/kind", "waypoint"),
        ("/source/workload", "client"),
        (
            "/source/identity",
            "spiffe://cluster.local/ns/shop/sa/client",
        ),
        ("/service/name", "app"),
        ("/waypoint", "shop/waypoint"),
        ("/request/method", "GET"),
    ];
    mesh.get("shop/client", "http://app.shop/open?token=hunter2");
    let seen = flows.wait_for_flow(
        &[
            &request[..],
            &[
                ("/event", "request"),
                ("/request/path", "/open"),
                ("/request/status", "200"),
                ("/request/route", "HTTPRoute/shop/app"),
                ("/destination/workload", "server"),
            ],
        ]
        .concat(),
    );
    assert!(!seen.to_string().contains("hunter2"), "{seen:#}");
    mesh.get("shop/client", "http://app.shop/closed");
    flows.wait_for_flow(
        &[
            &request[..],
            &[
                ("/event", "refused"),
                ("/request/path", "/closed"),
                ("/request/status", "403"),
                ("/refusal/policy", "shop/closed"),
            ],
        ]
        .concat(),
    );
    mesh.get("shop/client", "http://app.shop/gone");
    flows.wait_for_flow(
        &[
            &request[..],
            &[("/event", "request"), ("/request/status", "404")],
        ]
        .concat(),
    );
    // The client's node proxy reports the chosen waypoint; a connection that bypasses the waypoint
    // is reported on its hairpin.
    flows.wait_for_flow(&[
        ("/reporter/kind", "source"),
        ("/reporter/node", "node-1"),
        ("/service/name", "app"),
        ("/waypoint", "shop/waypoint"),
        ("/event", "closed"),
    ]);
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    mesh.get("legacy/client", &direct);
    flows.wait_for_flow(&[
        ("/reporter/kind", "destination"),
        ("/source/namespace", "legacy"),
        ("/transport", "plaintext"),
        ("/waypoint", "shop/waypoint"),
        ("/event", "closed"),
    ]);
    // A restarted proxy is read again.
    mesh.kill("proxy-worker", Some("node-1"));
    wait_until("events of the new proxy", || {
        mesh.get("shop/client", "http://app.shop/open");
        let events = flows.collect_for(Duration::from_millis(100));
        events.iter().any(|event| {
            event["reporter"]["node"] == "node-1" && event["reporter"]["kind"] == "source"
        })
    });
}

const ROUTED: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app, namespace: shop}
spec:
  parentRefs: [{group: \"\", kind: Service, name: app}]
  rules:
  - matches: [{path: {value: /open}}, {path: {value: /closed}}]
    backendRefs: [{name: app, port: 80}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: app}]
  action: DENY
  rules: [{to: [{operation: {paths: [/closed]}}]}]
";

#[test]
fn suggested_policies_allow_exactly_the_observed_traffic() {
    let (mesh, address) = with_waypoint(ROUTED);
    let url = |path: &str| format!("http://app.shop{path}");
    wait_until_via_waypoint(&mesh, &address, "shop/client", &url("/open"));
    let mut flows = mesh.flows(3, &["-n", "shop"]);
    for _ in 0..3 {
        assert!(mesh.get("shop/client", &url("/open")).succeeded());
    }
    // Denied requests, which need not continue.
    let refused = mesh.get("shop/client", &url("/closed"));
    assert!(refused.body.contains("403"), "{refused:?}");
    let refusal = flows.wait_for_flow(&[("/event", "refused"), ("/request/path", "/closed")]);
    let mut seen = flows.collect_for(Duration::from_millis(500));
    seen.push(refusal);
    let lines: Vec<_> = seen.iter().map(ToString::to_string).collect();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("flows.json");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let file = file.to_str().unwrap();
    let suggested = mesh.ambit(&["policy", "suggest", "--file", file, "--paths"]);
    assert_eq!(suggested.code, 0, "{}", suggested.stdout);
    let policies = suggested.stdout;
    for part in [
        "app-requests",
        "/open",
        "no rule: shop/client -> shop/app was refused",
    ] {
        assert!(policies.contains(part), "{part} in {policies}");
    }
    assert!(!policies.contains("- /closed"), "{policies}");

    // The policies are rehearsed on observed traffic, and deny none of it; then they are applied.
    let written = directory.path().join("policies.yaml");
    std::fs::write(&written, &policies).unwrap();
    let rehearsed = mesh.ambit(&["policy", "test", written.to_str().unwrap()]);
    assert!(!rehearsed.stdout.contains("/open"), "{}", rehearsed.stdout);
    mesh.apply("suggested", &policies);
    wait_until("what was not seen is refused", || {
        mesh.get("shop/client", &url("/other")).body.contains("403")
    });
    for _ in 0..3 {
        let answer = mesh.get("shop/client", &url("/open"));
        assert!(answer.succeeded(), "{answer:?}\n{policies}");
    }
}
