//! Tests of enrolling and unenrolling pods: new ones before their first packet, running ones under
//! open connections.

use std::net::SocketAddr;

use ambit_system_tests::{
    CLIENT_AND_SERVER, FlowKind, FlowReport, GetOutcome, LogSource, Mesh, Options, PrimaryCni,
    assert_only_tls, find_pod, options, wait_until,
};

/// Returns manifests of pods on both nodes whose program connects to the server at once.
fn pods_connecting_at_start(count: usize) -> String {
    (0..count)
        .map(|n| {
            format!(
                "---
apiVersion: v1
kind: Pod
metadata: {{name: eager-{n}, namespace: shop, labels: {{app: eager}}}}
spec:
  serviceAccountName: eager
  nodeName: node-1
  restartPolicy: Never
  containers:
  - name: main
    image: none
    command: [$LAB_TOOL, get, \"http://server.shop/first-packet-{n}\", --timeout, \"20000\"]
"
            )
        })
        .collect()
}

#[test]
fn first_packet_of_every_new_pod_is_captured() {
    const PODS: usize = 20;
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let wire = mesh.capture_between_nodes(&["first-packet", "plain-marker"]);
    mesh.apply("eager", &pods_connecting_at_start(PODS));
    let status = mesh.wait_for_status("every eager pod has had its answer", |status| {
        let done = status.pods.iter().filter(|p| p.name.starts_with("eager-"));
        done.filter(|pod| pod.phase == "Succeeded").count() == PODS
    });
    let mut addresses = vec![mesh.ip("shop/server")];
    addresses.extend(
        status
            .pods
            .iter()
            .filter(|p| p.name.starts_with("eager-"))
            .flat_map(|p| p.ips.clone()),
    );
    assert_eq!(addresses.len(), PODS + 1);
    assert_only_tls(&wire.finish(), &addresses);
}

#[test]
fn init_containers_are_captured_from_their_first_packet() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let wire = mesh.capture_between_nodes(&["said-by-init", "plain-marker"]);
    mesh.apply(
        "init",
        "apiVersion: v1
kind: Pod
metadata: {name: with-init, namespace: shop}
spec:
  nodeName: node-1
  restartPolicy: Never
  initContainers:
  - {name: first, image: none, command: [$LAB_TOOL, get, 'http://server.shop/said-by-init']}
  containers:
  - {name: main, image: none, command: [$LAB_TOOL, sleep]}
",
    );
    mesh.wait_for_status("the pod runs: its init container has succeeded", |status| {
        find_pod(status, "shop/with-init").is_some_and(|pod| pod.ready)
    });
    let ends = [mesh.ip("shop/with-init"), mesh.ip("shop/server")];
    let traffic = wire.finish();
    assert_only_tls(&traffic, &ends);
    // The response came from this pod.
    let reports = traffic.reports();
    let own = |report: &FlowReport| report.client == ends[0] && report.kind == FlowKind::Hbone;
    assert!(reports.iter().any(own), "{reports:#?}");
}

#[test]
fn pod_joins_while_its_init_container_runs() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    mesh.apply(
        "init",
        "apiVersion: v1
kind: Pod
metadata: {name: with-init, namespace: legacy}
spec:
  nodeName: node-1
  initContainers:
  - {name: first, image: none, command: [$LAB_TOOL, get, --every, '100', 'http://server.shop/']}
  containers:
  - {name: main, image: none, command: [$LAB_TOOL, sleep]}
",
    );
    let log_source = LogSource::Pod {
        pod: "legacy/with-init".into(),
        container: Some("first".into()),
    };
    let answers = || {
        let log = mesh
            .client()
            .log_text(log_source.clone())
            .unwrap_or_default();
        log.lines().filter(|line| line.starts_with("200")).count()
    };
    wait_until("the init container is answered", || answers() > 0);
    mesh.label("legacy", "ambient");
    mesh.wait_until_captured("legacy/with-init", true);
    let from_now = answers();
    wait_until("connections from before have ended", || {
        answers() > from_now + 1
    });
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    let from_now = answers();
    wait_until("it goes on being answered", || answers() > from_now + 2);
    let ends = [mesh.ip("legacy/with-init"), mesh.ip("shop/server")];
    assert_only_tls(&wire.finish(), &ends);
}

#[test]
fn running_namespace_joins_and_leaves_and_breaks_no_connection() {
    let mesh = Mesh::up(&CLIENT_AND_SERVER.replace("istio.io/dataplane-mode: ambient", "team: a"));
    let (client, server) = (mesh.ip("shop/client"), mesh.ip("shop/server"));
    let echo = SocketAddr::new(server, 9000);
    let mut before = mesh.dial("shop/client", echo).unwrap();
    before.exchange_line("open before the label").unwrap();

    mesh.label("shop", "ambient");
    mesh.wait_until_captured("shop/client", true);
    mesh.wait_until_captured("shop/server", true);
    before.exchange_line("still the same connection").unwrap();

    mesh.wait_until_only_tls("shop/client", echo);
    let wire = mesh.capture_between_nodes(&["inside the mesh"]);
    let mut inside = mesh.dial("shop/client", echo).unwrap();
    inside.exchange_line("inside the mesh").unwrap();
    assert_only_tls(&wire.finish(), &[client, server]);

    mesh.label("shop", "none");
    mesh.wait_until_captured("shop/client", false);
    mesh.wait_until_captured("shop/server", false);
    inside.exchange_line("still in its tunnel").unwrap();
    before.exchange_line("and the oldest goes on").unwrap();

    let wire = mesh.capture_between_nodes(&[]);
    mesh.dial("shop/client", echo)
        .unwrap()
        .exchange_line("direct")
        .unwrap();
    let reports = wire.finish().reports();
    let direct = reports
        .iter()
        .find(|r| r.server == echo && r.client == client);
    assert!(
        direct.is_some_and(|flow| flow.kind == FlowKind::Plaintext),
        "{reports:#?}"
    );

    // Otherwise the client's proxy might use its earlier state.
    mesh.wait_until_protocol_known("node-1", "shop/server", "TCP");
    mesh.label("shop", "ambient");
    mesh.wait_until_captured("shop/client", true);
    mesh.wait_until_captured("shop/server", true);
    mesh.wait_until_only_tls("shop/client", echo);
    let wire = mesh.capture_between_nodes(&["again"]);
    mesh.dial("shop/client", echo)
        .unwrap()
        .exchange_line("again")
        .unwrap();
    assert_only_tls(&wire.finish(), &[client, server]);
}

#[test]
fn pods_may_opt_out_and_host_network_pods_are_never_captured() {
    let manifests = format!(
        "{CLIENT_AND_SERVER}---
apiVersion: v1
kind: Pod
metadata: {{name: stays-out, namespace: shop, labels: {{istio.io/dataplane-mode: none}}}}
spec: {{nodeName: node-1, containers: [{{name: main, image: none, command: [$LAB_TOOL, sleep]}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: on-the-node, namespace: shop}}
spec: {{nodeName: node-1, hostNetwork: true, containers: [{{name: main, image: none, command: [$LAB_TOOL, sleep]}}]}}
"
    );
    let mesh = Mesh::up(&manifests);
    mesh.wait_until_captured("shop/client", true);
    for pod in ["shop/stays-out", "shop/on-the-node"] {
        assert!(!mesh.pod(pod).captured, "{pod}");
    }
    assert_eq!(
        mesh.run("shop/stays-out", &["nft", "list", "ruleset"])
            .trim(),
        ""
    );
}

/// Returns the manifest of a pod in a node's host network.
fn host_network_pod(node: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: on-the-node, namespace: legacy}}
spec: {{nodeName: {node}, hostNetwork: true, containers: [{{name: main, image: none, command: [$LAB_TOOL, sleep]}}]}}
"
    )
}

#[test]
fn node_namespace_gets_only_the_probe_rules() {
    let manifests = format!("{CLIENT_AND_SERVER}{}", host_network_pod("node-2"));
    let rules = |mesh: &Mesh| {
        let output = mesh
            .client()
            .output("legacy/on-the-node", &["nft", "list", "tables"])
            .unwrap();
        assert_eq!(output.code, 0, "{output:?}");
        let mut tables: Vec<_> = output.stdout.lines().map(str::to_owned).collect();
        tables.sort();
        tables
    };
    let bare = Mesh::up_with(
        &manifests,
        Options {
            mesh: false,
            ..options()
        },
    );
    let without = rules(&bare);
    drop(bare);
    let mesh = Mesh::up(&manifests);
    let with = rules(&mesh);
    let mut added: Vec<_> = with
        .iter()
        .filter(|table| !without.contains(table))
        .collect();
    added.sort();
    assert_eq!(
        added,
        ["table bridge ambit-probes", "table inet ambit-probes"],
        "{with:?} against {without:?}"
    );
    let table = mesh
        .client()
        .output(
            "legacy/on-the-node",
            &["nft", "list", "table", "inet", "ambit-probes"],
        )
        .unwrap()
        .stdout;
    let verdicts = table.lines().filter(|line| line.contains("snat")).count();
    assert!(verdicts <= 2 && table.contains("169.254.7.127"), "{table}");
    assert!(!table.contains("redirect"), "{table}");
    let routes = mesh
        .client()
        .output("legacy/on-the-node", &["ip", "rule"])
        .unwrap()
        .stdout;
    assert_eq!(
        routes.lines().count(),
        3,
        "policy routing is the pod's business: {routes}"
    );
}

#[test]
fn capture_works_after_other_primary_plugins_and_node_filters_hold() {
    for primary_cni in [PrimaryCni::Bridge, PrimaryCni::Ptp, PrimaryCni::Macvlan] {
        // macvlan pods of different nodes share no link in the lab: one node suffices.
        let manifests = CLIENT_AND_SERVER.replace("node-2", "node-1") + &host_network_pod("node-1");
        let mesh = Mesh::up_with(
            &manifests,
            Options {
                primary_cni,
                nodes: 1,
                ..options()
            },
        );
        let url = format!("http://{}:8080/", mesh.ip("shop/server"));
        let source = mesh.ip("shop/client").to_string();
        // On macvlan a TCP probe ends at the node proxy, so that readiness does not imply that the
        // server listens.
        let answer = mesh.wait_for_get("shop/client", &url, true);
        assert!(answer.body.contains(&source), "{primary_cni:?}: {answer:?}");
        let identity = "spiffe://cluster.local/ns/shop/sa/client";
        wait_until(&format!("{primary_cni:?}: {identity} is logged"), || {
            mesh.access_log().contains(identity)
        });
        if primary_cni == PrimaryCni::Ptp {
            assert_node_filters_enforced(&mesh, &url);
        }
    }
}

/// Checks that a simulated NetworkPolicy engine, which drops packets by pod address in the node's forward path, still
/// blocks requests.
fn assert_node_filters_enforced(mesh: &Mesh, url: &str) {
    let nft = |command: &str| mesh.run("legacy/on-the-node", &["nft", command]);
    nft("add table inet netpol");
    nft("add chain inet netpol forward { type filter hook forward priority 0; }");
    nft(&format!(
        "add rule inet netpol forward ip saddr {} drop",
        mesh.ip("shop/client")
    ));
    // New connections are dropped; so are the packets of the pooled tunnel.
    let dropped = mesh.get("shop/client", url);
    assert_eq!(dropped.get_outcome(), GetOutcome::TimedOut, "{dropped:?}");
    nft("delete table inet netpol");
    mesh.wait_for_get("shop/client", url, true);
}

#[test]
fn deleted_pod_leaves_no_capture_behind() {
    let mesh = Mesh::up(&format!(
        "{CLIENT_AND_SERVER}{}",
        host_network_pod("node-1")
    ));
    mesh.apply(
        "visitor",
        "apiVersion: v1
kind: Pod
metadata: {name: visitor, namespace: shop}
spec:
  nodeName: node-1
  containers:
  - name: main
    image: none
    command: [$LAB_TOOL, serve, --port, '8080', --name, visitor]
    readinessProbe: {tcpSocket: {port: 8080}}
",
    );
    mesh.wait_until_captured("shop/visitor", true);
    let netns = mesh.run(
        "shop/visitor",
        &["stat", "-Lc", "%d:%i", "/proc/self/ns/net"],
    );
    let address = mesh.ip("shop/visitor").to_string();
    // Traces of a pod: descriptors of its namespace in any process of the lab, its exemption for
    // probes, its proxy.
    let on_node = |command: &str| {
        let output = mesh
            .client()
            .output("legacy/on-the-node", &["sh", "-c", command]);
        output.unwrap().stdout
    };
    let traces = || {
        let held = on_node("stat -Lc %d:%i /proc/[0-9]*/fd/* 2>/dev/null");
        let exempt = on_node("nft list table inet ambit-probes");
        let served = mesh.proxy_dump("node-1")["workloadState"].to_string();
        [
            held.lines().any(|line| line == netns.trim()),
            exempt
                .split([' ', ',', '"', '\n'])
                .any(|word| word == address),
            served.contains("\"visitor\""),
        ]
    };
    assert_eq!(traces(), [true; 3], "namespace held, probes exempt, served");
    mesh.remove("visitor");
    mesh.wait_for_status("the pod is gone", |status| {
        find_pod(status, "shop/visitor").is_none()
    });
    wait_until("nothing of the pod is left", || traces() == [false; 3]);
    mesh.get("shop/client", "http://server.shop/").ok();
}
