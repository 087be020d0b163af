//! Tests that policies apply to callers through a node port, and to callers and servers in the host network, on the
//! pod's node and on another.

use ambit_cluster_tests::{GetOutcome, Mesh, TestNamespace, Waypoint, wait_until};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

const NODES: [&str; 2] = ["n1", "n2"];
/// Name of the node on which the server runs.
const SERVER_NODE: &str = "n2";

/// Server on the second node: HTTP on a port that the kubelet probes, and on port 8081 without probes. Port 8081 has
/// two NodePort Services, one for each `externalTrafficPolicy`.
const SERVER: &str = "apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: ambit/tools:dev
    imagePullPolicy: Never
    command: [ambit-lab-tool, serve, --port=8080]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, failureThreshold: 1}
  - name: admin
    image: ambit/tools:dev
    imagePullPolicy: Never
    command: [ambit-lab-tool, serve, --port=8081]
---
apiVersion: v1
kind: Service
metadata: {name: cluster}
spec: {type: NodePort, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8081}]}
---
apiVersion: v1
kind: Service
metadata: {name: local}
spec:
  type: NodePort
  externalTrafficPolicy: Local
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}]
";

/// Returns a pod in the host network in which commands run as root.
fn host_network_pod(name: &str, node: &str, args: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeName: {node}
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: tool
    image: ambit/tools:dev
    imagePullPolicy: Never
    command: [ambit-lab-tool, {args}]
"
    )
}

/// Creates callers outside the mesh on each node, a pod (`pod-n1`) and a pod in the host network (`host-n1`); returns
/// their names.
fn create_callers(outside: &TestNamespace<'_>) -> Vec<String> {
    let mut callers = Vec::new();
    for node in NODES {
        let (pod, host) = (format!("pod-{node}"), format!("host-{node}"));
        outside.deploy(&pod, 1, Some(node), &["sleep"]);
        outside.apply(&host_network_pod(&host, node, "sleep"));
        callers.extend([pod, host]);
    }
    for caller in &callers {
        outside.wait_until_ready(caller, 1);
    }
    callers
}

fn json_text(pod: &Pod, pointer: &str) -> String {
    let value = serde_json::to_value(pod).unwrap();
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("no {pointer} of {value}"))
        .to_owned()
}

/// Returns the URLs of the server: by its address, and by every node port of its Services.
fn server_urls(mesh: &Mesh, space: &TestNamespace<'_>, outside: &TestNamespace<'_>) -> Vec<String> {
    let server = space.wait_until_ready("server", 1).remove(0);
    let mut urls = vec![format!(
        "http://{}:8081/",
        json_text(&server, "/status/podIP")
    )];
    for (service, nodes) in [("cluster", &NODES[..]), ("local", &[SERVER_NODE][..])] {
        let port = mesh.kubectl(&[
            "get",
            "service",
            service,
            "--namespace",
            space.name(),
            "--output=jsonpath={.spec.ports[0].nodePort}",
        ]);
        for node in nodes {
            let host = outside
                .wait_until_ready(&format!("host-{node}"), 1)
                .remove(0);
            urls.push(format!(
                "http://{}:{}/",
                json_text(&host, "/status/hostIP"),
                port.trim()
            ));
        }
    }
    urls
}

#[test]
fn policies_hold_for_node_ports_and_for_the_host_network() {
    let mesh = Mesh::shared();
    let outside = mesh.test_namespace("node-ports-outside");
    let callers = create_callers(&outside);
    let strict = mesh.test_namespace("node-ports-strict");
    let covered = mesh.test_namespace("node-ports-covered");
    for space in [&strict, &covered] {
        space.label(Some("ambient"));
        space.apply(SERVER);
        space.deploy_client("client", Some("n1"));
        for app in ["server", "client"] {
            space.wait_until_ready(app, 1);
            space.wait_until_captured(app, true);
        }
    }
    covered.apply(&host_network_pod(
        "hosted",
        SERVER_NODE,
        "serve, --port=18081",
    ));
    covered.apply(
        "apiVersion: v1
kind: Service
metadata: {name: hosted}
spec: {selector: {app: hosted}, ports: [{name: http, port: 80, targetPort: 18081}]}
",
    );
    covered.wait_until_ready("hosted", 1);
    Waypoint::apply(&covered);
    let answers = |space: &TestNamespace<'_>, app: &str, url: &str| space.try_get(app, url).0;
    // Everything is reached before there is a policy: what is refused later is refused by it.
    for space in [&strict, &covered] {
        for url in server_urls(&mesh, space, &outside) {
            for caller in &callers {
                wait_until(&format!("{caller} reaches {url}"), || {
                    answers(&outside, caller, &url) == GetOutcome::Success
                });
            }
        }
    }
    covered.wait_for_get("client", "http://hosted/", true);

    strict.apply(
        "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict}
spec: {mtls: {mode: STRICT}}
",
    );
    covered.apply(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody}
spec:
  targetRefs: [{kind: Service, name: cluster}, {kind: Service, name: hosted}]
  action: DENY
  rules: [{}]
",
    );
    for space in [&strict, &covered] {
        for url in server_urls(&mesh, space, &outside) {
            for caller in &callers {
                let mut last = GetOutcome::Success;
                wait_until(&format!("{caller} -> {url} is refused"), || {
                    last = answers(&outside, caller, &url);
                    last != GetOutcome::Success
                });
                eprintln!("{} {caller} -> {url}: {last:?}", space.name());
            }
        }
    }
    // By the mesh's own client the one is reached still, and the other is not, whatever its network.
    let by_address = server_urls(&mesh, &strict, &outside).swap_remove(0);
    strict.wait_for_get("client", &by_address, true);
    wait_until(
        "the waypoint refuses calls to the host network's server",
        || answers(&covered, "client", "http://hosted/") == GetOutcome::HttpError,
    );
    // Kubelet goes on.
    for space in [&strict, &covered] {
        space.wait_until_ready("server", 1);
    }
}
