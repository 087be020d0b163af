//! Tests of kubelet's probes of captured pods.

use std::time::Duration;

use ambit_cluster_tests::{ExpectedOutcome, Mesh, assert_throughout, is_ready, restarts};

#[test]
fn probes_of_every_kind_pass_where_only_mutual_tls_is_let_in() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("probes");
    space.label(Some("ambient"));
    space.apply(
        "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict}
spec: {mtls: {mode: STRICT}}
",
    );
    for (name, probe) in [
        ("http", "httpGet: {path: /, port: 8080}"),
        ("tcp", "tcpSocket: {port: 8081}"),
        ("grpc", "grpc: {port: 8082}"),
        ("exec", "exec: {command: ['true']}"),
    ] {
        space.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers:
  - name: tool
    image: ambit/tools:dev
    imagePullPolicy: Never
    command: [ambit-lab-tool, probe-server]
    startupProbe: {{{probe}, periodSeconds: 1, failureThreshold: 5}}
    readinessProbe: {{{probe}, periodSeconds: 1, failureThreshold: 1}}
    livenessProbe: {{{probe}, periodSeconds: 1, failureThreshold: 2}}
"
        ));
    }
    for name in ["http", "tcp", "grpc", "exec"] {
        space.wait_until_ready(name, 1);
        space.wait_until_captured(name, true);
    }
    // From outside the mesh the same port is closed: STRICT is in force.
    let outside = mesh.test_namespace("probes-outside");
    outside.deploy_client("client", Some("n2"));
    let pod = space.pods("http").remove(0);
    let url = format!("http://{}:8080/", ambit_cluster_tests::address(&pod));
    outside.wait_for_get(
        "client",
        &url,
        ExpectedOutcome::Denial("istio_converted_static_strict"),
    );
    // Kubelet continues to probe: two failures in a row, a second apart, would restart a pod.
    for name in ["http", "tcp", "grpc", "exec"] {
        assert_throughout(name, Duration::from_secs(3), || {
            let pod = space.pods(name).remove(0);
            is_ready(&pod) && restarts(&pod) == 0
        });
    }
}
