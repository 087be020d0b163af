//! Tests that no connection is refused while the node proxy dies or is replaced and pods continuously open connections.

use std::{net::SocketAddr, time::Instant};

use ambit_system_tests::{
    CLIENT_AND_SERVER, ConnectionAttempts, LogSource, Mesh, Options, Replacement, assert_only_tls,
    find_pod, options,
};

const NODES: [&str; 2] = ["node-1", "node-2"];

#[test]
fn repeatedly_killed_node_proxy_refuses_no_connection() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let openings = ConnectionAttempts::new(&mesh);
    openings.dial().unwrap().exchange_line("before").unwrap();
    let wire = mesh.capture_between_nodes(&["from-pod"]);
    let mut gaps = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| openings.run(true));
        for round in 0..4 {
            for node in NODES {
                mesh.kill("proxy-worker", Some(node));
                let killed = Instant::now();
                // The first connection after the death waits for the next worker, and is served.
                let mut first = openings.dial().expect("nobody is refused");
                first
                    .exchange_line("from-pod")
                    .unwrap_or_else(|error| panic!("round {round} {node}: {error}"));
                gaps.push(killed.elapsed());
                openings.wait_for_additional(5);
            }
        }
        openings.stop();
    });
    openings.assert_no_failures();
    assert_only_tls(
        &wire.finish(),
        &[mesh.ip("shop/client"), mesh.ip("shop/server")],
    );
    gaps.sort();
    println!("from a worker's death to the first connection served: {gaps:?}");
    let restarts: u32 = mesh
        .client()
        .status()
        .unwrap()
        .daemons
        .iter()
        .map(|daemon| daemon.restarts)
        .sum();
    assert_eq!(restarts, 0, "the processes that hold the sockets live on");
}

fn test_replacement(how: Replacement) {
    let mut options: Options = options();
    let drain = ("CONNECTION_TERMINATION_DEADLINE".into(), "60s".into());
    options.env.extend([drain]);
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, options);
    let openings = ConnectionAttempts::new(&mesh);
    let mut long = openings.dial().unwrap();
    long.exchange_line("before").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| openings.run(false));
        openings.wait_for_additional(5);
        for node in NODES {
            mesh.client().replace("proxy", Some(node), how).unwrap();
            openings.wait_for_additional(20);
            long.exchange_line("across")
                .expect("a connection lives on in the old proxy");
        }
        openings.stop();
    });
    openings.assert_no_failures();
    let log = LogSource::Daemon {
        name: "proxy".into(),
        node: None,
    };
    let text = mesh.client().log_text(log).unwrap();
    let succeeded = "the successor takes the connections";
    assert_eq!(text.matches(succeeded).count(), 2, "{text}");
    long.exchange_line("after").unwrap();
}

#[test]
fn node_proxy_rollout_breaks_no_connection() {
    test_replacement(Replacement::NewFirst);
}

#[test]
fn deleted_node_proxy_serves_until_its_successor_runs() {
    test_replacement(Replacement::OldFirst);
}

/// Returns the time in milliseconds until a program that connects when it starts gets a response: its first attempt
/// must succeed.
fn first_response_time(mesh: &Mesh, name: &str) -> f64 {
    mesh.wait_for_status("the pod has had its answer", |status| {
        find_pod(status, name).is_some_and(|pod| pod.phase == "Succeeded")
    });
    let log = LogSource::Pod {
        pod: name.to_owned(),
        container: None,
    };
    let line: serde_json::Value =
        serde_json::from_str(&mesh.client().log_text(log).unwrap()).unwrap();
    assert_eq!(line["retries"], 0, "{line}");
    line["first_answer_ms"].as_f64().unwrap()
}

/// Returns the manifest of a pod that connects when it starts, under this service account.
fn new_pod(name: &str, account: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop}}
spec:
  nodeName: node-1
  serviceAccountName: {account}
  restartPolicy: Never
  containers:
  - {{name: main, image: none, command: [$LAB_TOOL, first-connect, 'server.shop:9000']}}
"
    )
}

#[test]
fn new_pods_first_connection_attempt_succeeds() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let mut spent = Vec::new();
    for number in 0..5 {
        // A service account of its own, whose certificate was never requested before.
        let name = format!("new-{number}");
        mesh.apply("new", &new_pod(&name, &name));
        spent.push(first_response_time(&mesh, &format!("shop/{name}")));
    }
    println!("first answer of a new pod, ms: {spent:?}");
}

#[test]
fn first_connection_of_a_new_pod_does_not_wait_for_the_control_plane() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    // The node's proxy has a certificate for the account, and knows that the server is ready.
    mesh.wait_until_only_tls("shop/client", SocketAddr::new(mesh.ip("shop/server"), 9000));
    let service = mesh.service_address("server.shop", 9000);
    mesh.wait_until_echoed("shop/client", service);
    let _away = mesh.suspend("control", None);
    mesh.apply("new", &new_pod("new", "client"));
    first_response_time(&mesh, "shop/new");
}

#[test]
fn connections_from_before_the_capture_are_listed_or_closed() {
    for close in [false, true] {
        let mut options = options();
        let setting = ("AMBIT_CLOSE_CLEAR_CONNECTIONS".into(), close.to_string());
        options.env.extend([setting]);
        let mesh = Mesh::up_with(CLIENT_AND_SERVER, options);
        let server = SocketAddr::new(mesh.ip("shop/server"), 9000);
        let mut from_before = mesh.dial("legacy/client", server).unwrap();
        from_before.exchange_line("in plaintext").unwrap();
        mesh.label("legacy", "ambient");
        mesh.wait_until_captured("legacy/client", true);
        if close {
            from_before.wait_until_closed();
            continue;
        }
        from_before.exchange_line("still in plaintext").unwrap();
        let list = || {
            let dump = mesh.proxy_dump("node-1");
            let state = dump["workloadState"].as_object().unwrap().clone();
            let of = |pod: &serde_json::Value| pod["info"]["namespace"] == "legacy";
            let pod = state.values().find(|pod| of(pod)).cloned();
            pod.map_or(serde_json::Value::Null, |pod| pod["connections"].clone())
        };
        let clear = list()["clear"].clone();
        assert_eq!(clear.as_array().map(Vec::len), Some(1), "{clear}");
        assert_eq!(clear[0]["originalDst"], server.to_string());
        // The proxy carries a new connection, and does not list it among the earlier ones.
        let mut carried = mesh.dial("legacy/client", server).unwrap();
        carried.exchange_line("carried").unwrap();
        let now = list();
        assert_eq!(now["clear"], clear);
        assert_eq!(now["outbound"].as_array().map(Vec::len), Some(1), "{now}");
    }
}
