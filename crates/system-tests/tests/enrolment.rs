//! Pods join and leave: new ones before their first packet, running ones under open connections.

use std::net::SocketAddr;

use ambit_system_tests::{
    FlowKind, Mesh, Options, PAIR, PrimaryCni, assert_only_tls, find, options,
};

/// Pods whose very first act is to call the server, on both nodes.
fn eager(count: usize) -> String {
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
    command: [$AMBIT, lab-tool, get, \"http://server.shop/first-packet-{n}\", --timeout, \"20000\"]
"
            )
        })
        .collect()
}

#[test]
fn the_first_packet_of_every_new_pod_is_captured() {
    const PODS: usize = 20;
    let mesh = Mesh::up(PAIR);
    let wire = mesh.watch(&["first-packet", "plain-marker"]);
    mesh.apply("eager", &eager(PODS));
    let status = mesh.until("every eager pod has had its answer", |status| {
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
fn a_running_namespace_joins_and_leaves_without_breaking_a_connection() {
    let mesh = Mesh::up(&PAIR.replace("istio.io/dataplane-mode: ambient", "team: a"));
    let (client, server) = (mesh.ip("shop/client"), mesh.ip("shop/server"));
    let echo = SocketAddr::new(server, 9000);
    let mut before = mesh.dial("shop/client", echo).unwrap();
    before.say("open before the label").unwrap();

    mesh.label("shop", "ambient");
    mesh.until_captured("shop/client", true);
    mesh.until_captured("shop/server", true);
    before.say("still the same connection").unwrap();

    mesh.until_only_tls("shop/client", echo);
    let wire = mesh.watch(&["inside the mesh"]);
    let mut inside = mesh.dial("shop/client", echo).unwrap();
    inside.say("inside the mesh").unwrap();
    assert_only_tls(&wire.finish(), &[client, server]);

    mesh.label("shop", "none");
    mesh.until_captured("shop/client", false);
    mesh.until_captured("shop/server", false);
    inside.say("still in its tunnel").unwrap();
    before.say("and the oldest goes on").unwrap();

    let wire = mesh.watch(&[]);
    mesh.dial("shop/client", echo)
        .unwrap()
        .say("direct")
        .unwrap();
    let reports = wire.finish().reports();
    let direct = reports
        .iter()
        .find(|r| r.server == echo && r.client == client);
    assert!(
        direct.is_some_and(|flow| flow.kind == FlowKind::Plaintext),
        "{reports:#?}"
    );

    // Else what the client's proxy knows from before may pass for what it is to hear.
    mesh.until_known_as("node-1", "shop/server", "TCP");
    mesh.label("shop", "ambient");
    mesh.until_captured("shop/client", true);
    mesh.until_captured("shop/server", true);
    mesh.until_only_tls("shop/client", echo);
    let wire = mesh.watch(&["again"]);
    mesh.dial("shop/client", echo)
        .unwrap()
        .say("again")
        .unwrap();
    assert_only_tls(&wire.finish(), &[client, server]);
}

#[test]
fn a_pod_may_stay_out_and_host_network_pods_always_do() {
    let manifests = format!(
        "{PAIR}---
apiVersion: v1
kind: Pod
metadata: {{name: stays-out, namespace: shop, labels: {{istio.io/dataplane-mode: none}}}}
spec: {{nodeName: node-1, containers: [{{name: main, image: none, command: [$AMBIT, lab-tool, sleep]}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: on-the-node, namespace: shop}}
spec: {{nodeName: node-1, hostNetwork: true, containers: [{{name: main, image: none, command: [$AMBIT, lab-tool, sleep]}}]}}
"
    );
    let mesh = Mesh::up(&manifests);
    mesh.until_captured("shop/client", true);
    for pod in ["shop/stays-out", "shop/on-the-node"] {
        assert!(!mesh.pod(pod).captured, "{pod}");
    }
    assert_eq!(
        mesh.run("shop/stays-out", &["nft", "list", "ruleset"])
            .trim(),
        ""
    );
}

#[test]
fn only_the_rules_for_probes_are_ever_added_to_the_nodes_namespace() {
    let node_pod = "---
apiVersion: v1
kind: Pod
metadata: {name: on-the-node, namespace: legacy}
spec: {nodeName: node-2, hostNetwork: true, containers: [{name: main, image: none, command: [$AMBIT, lab-tool, sleep]}]}
";
    let manifests = format!("{PAIR}{node_pod}");
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
        // macvlan pods of different nodes share no wire in the lab: one node suffices for all.
        let manifests = PAIR.replace("node-2", "node-1") + "---
apiVersion: v1
kind: Pod
metadata: {name: on-the-node, namespace: legacy}
spec: {nodeName: node-1, hostNetwork: true, containers: [{name: main, image: none, command: [$AMBIT, lab-tool, sleep]}]}
";
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
        let answer = mesh.get("shop/client", &url);
        assert!(answer.body.contains(&source), "{primary_cni:?}: {answer:?}");
        let log = mesh.access_log();
        assert!(
            log.contains("spiffe://cluster.local/ns/shop/sa/client"),
            "{primary_cni:?}: {log}"
        );
        if primary_cni == PrimaryCni::Ptp {
            filters_of_the_node_hold(&mesh, &url);
        }
    }
}

/// What a NetworkPolicy engine does: it drops by pod address in the node's forward path.
fn filters_of_the_node_hold(mesh: &Mesh, url: &str) {
    let nft = |command: &str| mesh.run("legacy/on-the-node", &["nft", command]);
    nft("add table inet netpol");
    nft("add chain inet netpol forward { type filter hook forward priority 0; }");
    nft(&format!(
        "add rule inet netpol forward ip saddr {} drop",
        mesh.ip("shop/client")
    ));
    // Openings are dropped; so is what the pooled tunnel sends.
    mesh.get("shop/client", url).refused();
    nft("delete table inet netpol");
    mesh.until_get("shop/client", url, true);
}

#[test]
fn a_pod_that_goes_takes_its_capture_along() {
    let mesh = Mesh::up(PAIR);
    mesh.apply(
        "visitor",
        "apiVersion: v1
kind: Pod
metadata: {name: visitor, namespace: shop}
spec:
  nodeName: node-1
  containers:
  - {name: main, image: none, command: [$AMBIT, lab-tool, sleep]}
",
    );
    mesh.until_captured("shop/visitor", true);
    mesh.remove("visitor");
    mesh.until("the pod is gone", |status| {
        find(status, "shop/visitor").is_none()
    });
    mesh.get("shop/client", "http://server.shop/").ok();
}
