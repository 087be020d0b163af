//! Tests that a node agent that hangs (suspended, its socket open) delays no pod of a namespace that it has recorded as
//! outside of the mesh. Mesh pods wait, and are captured before their first packet when the agent continues.

use std::time::{Duration, Instant};

use ambit_system_tests::{CLIENT_AND_SERVER, Mesh, assert_only_tls, find_pod};

fn caller_pod(namespace: &str, path: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: late, namespace: {namespace}}}
spec:
  nodeName: node-1
  restartPolicy: Never
  containers:
  - {{name: main, image: none, command: [$LAB_TOOL, get, 'http://server.shop/{path}']}}
"
    )
}

fn wait_until_called(mesh: &Mesh, pod: &str) {
    mesh.wait_for_status(&format!("{pod} has had its answer"), |status| {
        find_pod(status, pod).is_some_and(|pod| pod.phase == "Succeeded")
    });
}

#[test]
fn outside_pods_start_while_the_agent_hangs() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let wire = mesh.capture_between_nodes(&["of-the-mesh"]);
    let agent = mesh.suspend("agent", Some("node-1"));
    mesh.apply("inside", &caller_pod("shop", "of-the-mesh"));
    mesh.apply("outside", &caller_pod("legacy", "from-outside"));
    // The agent does not respond until this pod has started and ended. If that took as long as the
    // plugin's timeout, twenty seconds and more, the pod would have waited.
    let asked = Instant::now();
    wait_until_called(&mesh, "legacy/late");
    assert!(asked.elapsed() < Duration::from_secs(15));
    let waiting = mesh.pod("shop/late");
    assert_eq!(waiting.phase, "Pending", "{waiting:?}");
    drop(agent);
    wait_until_called(&mesh, "shop/late");
    let ends = [mesh.ip("shop/late"), mesh.ip("shop/server")];
    assert_only_tls(&wire.finish(), &ends);
}
