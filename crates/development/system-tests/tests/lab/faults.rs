//! Tests in which components are killed under traffic: no packet bypasses the mesh, and everything
//! recovers by itself.

use std::{io::Write, net::SocketAddr, sync::Arc};

use ambit_lab::{LabNetns, LogSource};
use ambit_system_tests::{
    CLIENT_AND_SERVER, Client, Mesh, Options, assert_only_tls, idle_pod, options, wait_until,
};

/// Daemons that the tests kill, each with its node.
const KILLED_PROCESSES: [(&str, Option<&str>); 5] = [
    ("proxy", Some("node-1")),
    ("proxy", Some("node-2")),
    ("agent", Some("node-1")),
    ("agent", Some("node-2")),
    ("control", None),
];

fn is_responding(mesh: &Mesh) -> bool {
    mesh.get("shop/client", "http://server.shop/").succeeded()
}

#[test]
fn no_plaintext_escapes_when_any_component_is_killed() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let captured = [mesh.ip("shop/client"), mesh.ip("shop/server")];
    let before = mesh.client().status().unwrap().pods;
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    assert!(is_responding(&mesh));
    for (name, node) in KILLED_PROCESSES {
        mesh.kill(name, node);
        // Calls continue: each either fails or is encrypted.
        wait_until(
            &format!("calls work after {name} was killed on {node:?}"),
            || is_responding(&mesh),
        );
    }
    // Agent and proxy of a node at once.
    mesh.kill("agent", Some("node-2"));
    mesh.kill("proxy", Some("node-2"));
    wait_until("calls work after agent and proxy were killed", || {
        is_responding(&mesh)
    });
    assert_only_tls(&wire.finish(), &captured);
    let after = mesh.client().status().unwrap().pods;
    let uids = |pods: &[ambit_system_tests::PodStatus]| -> Vec<_> {
        pods.iter()
            .map(|pod| (pod.name.clone(), pod.uid.clone(), pod.ips.clone()))
            .collect()
    };
    assert_eq!(uids(&before), uids(&after), "pods were touched");
    assert!(
        after
            .iter()
            .flat_map(|pod| &pod.containers)
            .all(|c| c.restarts == 0),
        "{after:#?}"
    );
}

/// Checks that peers do not downgrade connections to plaintext when a node's agent returns before its proxy.
#[test]
fn peers_are_not_downgraded_when_an_agent_returns_without_its_proxy() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let server = mesh.ip("shop/server");
    let captured = [mesh.ip("shop/client"), server];
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    assert!(is_responding(&mesh));
    let proxy = mesh.suspend("proxy", Some("node-2"));
    mesh.kill("agent", Some("node-2"));
    let failures = || {
        let source = LogSource::Daemon {
            name: "agent".into(),
            node: Some("node-2".into()),
        };
        let log = mesh.client().log_text(source).unwrap();
        log.matches("no node proxy is connected").count()
    };
    // An agent writes the status of a pod after the first failure and before the next.
    wait_until("the new agent has failed to announce twice", || {
        failures() > 1
    });
    // The control plane had sent all changes before this pod.
    mesh.apply("late", &idle_pod("shop/late", "node-1", ""));
    mesh.wait_until_captured("shop/late", true);
    mesh.wait_until_protocol_known("node-1", "shop/late", "HBONE");
    let place = LabNetns::Pod("shop/client".into());
    let echo = SocketAddr::new(server, 9000);
    let mut connection = mesh.client().dial(place, echo).unwrap();
    connection.write_all(b"plain-marker").unwrap();
    drop(proxy);
    wait_until("calls work when the proxy goes on", || is_responding(&mesh));
    assert_only_tls(&wire.finish(), &captured);
}

#[test]
fn connections_do_not_need_agent_or_control_plane() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let server = mesh.ip("shop/server");
    let echo = SocketAddr::new(server, 9000);
    let mut open = mesh.dial("shop/client", echo).unwrap();
    open.exchange_line("hello").unwrap();
    let captured = [mesh.ip("shop/client"), server];
    // A killed one restarts at once, so that most of the test would find it running. One that hangs
    // keeps its sockets but does not respond, for as long as this test needs.
    let _away = [
        mesh.suspend("agent", Some("node-1")),
        mesh.suspend("agent", Some("node-2")),
        mesh.suspend("control", None),
    ];
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    for _ in 0..5 {
        open.exchange_line("still here").unwrap();
        mesh.dial("shop/client", echo)
            .unwrap()
            .exchange_line("new")
            .unwrap();
        mesh.get("shop/client", "http://server.shop/").ok();
    }
    assert_only_tls(&wire.finish(), &captured);
}

#[test]
fn new_mesh_pods_wait_for_an_unavailable_agent() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let wire = mesh.capture_between_nodes(&["late-marker"]);
    mesh.kill("agent", Some("node-1"));
    mesh.apply(
        "late",
        "apiVersion: v1
kind: Pod
metadata: {name: late, namespace: shop}
spec:
  nodeName: node-1
  serviceAccountName: client
  restartPolicy: Never
  containers:
  - {name: main, image: none, command: [$LAB_TOOL, get, 'http://server.shop/late-marker']}
",
    );
    mesh.wait_for_status("the pod has had its answer", |status| {
        ambit_system_tests::find_pod(status, "shop/late")
            .is_some_and(|pod| pod.phase == "Succeeded")
    });
    assert_only_tls(
        &wire.finish(),
        &[mesh.ip("shop/late"), mesh.ip("shop/server")],
    );
}

#[test]
fn whole_mesh_runs_for_an_unprivileged_user() {
    let mesh = Mesh::up_with(
        CLIENT_AND_SERVER,
        Options {
            user_namespace: true,
            ..options()
        },
    );
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    mesh.get("shop/client", "http://server.shop/").ok();
    assert_only_tls(
        &wire.finish(),
        &[mesh.ip("shop/client"), mesh.ip("shop/server")],
    );
}

#[test]
fn lab_of_the_same_name_may_start_at_once() {
    let base = tempfile::tempdir().unwrap();
    let manifests = tempfile::tempdir().unwrap();
    let options = Options {
        manifests: manifests.path().to_path_buf(),
        mesh: false,
        ..options()
    };
    // Repeated queries must not mistake a starting lab for a dead one.
    let (running, name, place) = (
        Arc::new(()),
        options.name.clone(),
        base.path().to_path_buf(),
    );
    let until_dropped = Arc::downgrade(&running);
    let asking = std::thread::spawn(move || {
        let mut answers = 0;
        while until_dropped.strong_count() > 0 {
            let found = Client::find(&place, &name);
            answers += usize::from(found.and_then(|client| client.status()).is_ok());
        }
        answers
    });
    for round in 0..5 {
        let state = ambit_lab::launch(base.path(), &options)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        let client = Client::new(state);
        assert!(client.status().unwrap().pods.is_empty(), "round {round}");
        client.down().unwrap();
    }
    drop(running);
    assert!(asking.join().unwrap() > 0);
}
