//! Tests that unless all processes that hold the pods' sockets on a node are killed at once, no connection is refused,
//! no program waits for the process that started the mesh, and no data travels in plaintext.

use std::net::SocketAddr;

use ambit_lab::LogSource;
use ambit_system_tests::{
    CLIENT_AND_SERVER, ConnectionAttempts, Mesh, Replacement, assert_only_tls, find_pod, options,
    wait_until,
};

const NODES: [&str; 2] = ["node-1", "node-2"];

fn restarts(mesh: &Mesh, name: &str) -> u32 {
    let daemons = mesh.client().status().unwrap().daemons;
    let of = daemons.iter().filter(|daemon| daemon.name == name);
    of.map(|daemon| daemon.restarts).sum()
}

#[test]
fn agent_killed_repeatedly_returns_in_the_same_container() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    for number in 0..5 {
        mesh.kill("agent-worker", Some("node-1"));
        mesh.apply(
            "new",
            &format!(
                "apiVersion: v1
kind: Pod
metadata: {{name: new-{number}, namespace: shop}}
spec:
  nodeName: node-1
  restartPolicy: Never
  containers:
  - {{name: main, image: none, command: [$LAB_TOOL, first-connect, 'server.shop:9000']}}
"
            ),
        );
        mesh.wait_for_status(
            "the pod that started meanwhile has had its answer",
            |status| {
                find_pod(status, &format!("shop/new-{number}"))
                    .is_some_and(|pod| pod.phase == "Succeeded")
            },
        );
    }
    assert_eq!(restarts(&mesh, "agent"), 0);
}

/// Waits until the agent's supervisor on every node has received the node proxy's sockets this number of times.
fn wait_until_sockets_held(mesh: &Mesh, times: usize) {
    for node in NODES {
        wait_until(&format!("the agent of {node} holds the sockets"), || {
            let source = LogSource::Daemon {
                name: "agent".into(),
                node: Some(node.into()),
            };
            let log = mesh.client().log_text(source).unwrap();
            log.matches("holding for the node proxy").count() >= times
        });
    }
}

/// Kills a node proxy's supervisor that has no standby: the agent's supervisor holds its sockets as well.
#[test]
fn killed_node_proxy_without_a_standby_refuses_no_connection() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let openings = ConnectionAttempts::new(&mesh);
    openings.dial().unwrap().exchange_line("before").unwrap();
    let wire = mesh.capture_between_nodes(&["from-pod"]);
    openings.run_during(true, || {
        for round in 1..=2 {
            wait_until_sockets_held(&mesh, round);
            for node in NODES {
                mesh.kill("agent-worker", Some(node));
                mesh.kill("proxy", Some(node));
                let mut first = openings.dial().expect("nobody is refused");
                first.exchange_line("from-pod").unwrap();
                openings.wait_for_additional(5);
            }
        }
    });
    openings.assert_no_failures();
    assert_only_tls(
        &wire.finish(),
        &[mesh.ip("shop/client"), mesh.ip("shop/server")],
    );
    assert_eq!(restarts(&mesh, "agent"), 0);
}

/// Runs two rollouts of the node proxies; the second begins while the proxies of the first still drain.
#[test]
fn connections_of_draining_proxies_obey_new_policies() {
    let mut options = options();
    let drain = ("CONNECTION_TERMINATION_DEADLINE".into(), "1h".into());
    options.env.extend([drain]);
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, options);
    let server = SocketAddr::new(mesh.ip("shop/server"), 9000);
    let open = || {
        let mut connection = mesh.dial("shop/client", server).unwrap();
        connection.exchange_line("hello").unwrap();
        connection
    };
    let mut connections = vec![open()];
    for _ in 0..2 {
        for node in NODES {
            mesh.client()
                .replace("proxy", Some(node), Replacement::NewFirst)
                .unwrap();
        }
        connections.push(open());
    }
    for connection in &mut connections {
        connection.exchange_line("still there").unwrap();
    }
    mesh.apply(
        "deny",
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {ports: ['9000']}}]}]}
",
    );
    // Whichever process carries the connection, and without data on it meanwhile.
    for connection in &mut connections {
        connection.wait_until_closed();
    }
    wait_until("new connections are refused as well", || {
        mesh.dial("shop/client", server)
            .and_then(|mut connection| connection.exchange_line("hello"))
            .is_err()
    });
}

/// Checks that draining node proxies end the connections of a pod that has left the mesh. The agent is not connected to
/// these proxies; they read its record of enrolled pods.
#[test]
fn draining_proxies_end_connections_of_pods_that_leave() {
    let mut options = options();
    options.env.extend([
        ("CONNECTION_TERMINATION_DEADLINE".into(), "1h".into()),
        ("AMBIT_UNENROLLED_DRAIN".into(), "1s".into()),
    ]);
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, options);
    let server = SocketAddr::new(mesh.ip("shop/server"), 9000);
    let mut connection = mesh.dial("shop/client", server).unwrap();
    connection.exchange_line("hello").unwrap();
    for node in NODES {
        mesh.client()
            .replace("proxy", Some(node), Replacement::NewFirst)
            .unwrap();
    }
    connection.exchange_line("still there").unwrap();
    mesh.label("shop", "none");
    mesh.wait_until_captured("shop/client", false);
    connection.wait_until_closed();
}
