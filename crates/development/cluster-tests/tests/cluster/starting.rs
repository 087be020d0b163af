//! Tests of pods that start in the mesh.

use ambit_cluster_tests::{Mesh, assert_nothing_in_plaintext, assert_only_tls, wait_until};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

#[test]
fn forty_pods_start_with_every_first_packet_captured() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("forty");
    let server = space.deploy_captured_server();
    // Both nodes know the server; what follows is about the pods that start.
    for node in ["n1", "n2"] {
        let client = format!("client-{node}");
        space.deploy_client(&client, Some(node));
        space.wait_for_get(&client, "http://server/", true);
    }
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    space.deploy_starting_clients(40, None);
    let mut worst: f64 = 0.0;
    for pod in space.wait_until_ready("starter", 40) {
        let event = space.wait_for_first_response(&pod);
        assert_eq!(event["retries"], 0, "{event}");
        worst = worst.max(event["first_answer_ms"].as_f64().unwrap());
    }
    eprintln!("slowest first answer of forty pods: {worst} ms");
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
}

#[test]
fn jobs_of_the_mesh_finish() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("jobs");
    let server = space.deploy_captured_server();
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    space.apply(
        &"apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  completions: 4
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: job
        image: ambit/tools:dev
        imagePullPolicy: Never
        command: [ambit-lab-tool, first-connect, 'server:9000', --marker=$MARKER]
"
        .replace("$MARKER", &space.traffic_marker()),
    );
    mesh.kubectl(&[
        "wait",
        "--namespace",
        space.name(),
        "--for=condition=Complete",
        "job/job",
        "--timeout=90s",
    ]);
    assert_nothing_in_plaintext(&wire.finish(), &[&server], &[9000]);
}

#[test]
fn stateful_pod_with_a_new_address_is_reached_by_name() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("stateful");
    space.label(Some("ambient"));
    let client = space.deploy_client("client", Some("n1"));
    space.wait_until_captured("client", true);
    space.apply(
        "apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: http, port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: db
        image: ambit/tools:dev
        imagePullPolicy: Never
        command: [ambit-lab-tool, serve, --port=8080, --quiet]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
",
    );
    let before = space.wait_until_ready("db", 2);
    space.wait_until_captured("db", true);
    let address = |pods: &[Pod]| {
        let pod = pods.iter().find(|pod| pod.name_any() == "db-0").unwrap();
        ambit_cluster_tests::address(pod)
    };
    space.wait_for_get("client", "http://db-0.db:8080/", true);
    space.delete_pod("db-0");
    wait_until("db-0 has another address", || {
        let pods = space.wait_until_ready("db", 2);
        address(&pods) != address(&before)
    });
    space.wait_until_captured("db", true);
    space.wait_for_get("client", "http://db-0.db:8080/", true);
    let wire = mesh.capture_traffic(&["GET /"]);
    space.get("client", "http://db-0.db:8080/").unwrap();
    let after = space.pods("db");
    let renewed = after.iter().find(|pod| pod.name_any() == "db-0").unwrap();
    assert_only_tls(&wire.finish(), &[&client, renewed]);
}

#[test]
fn labels_of_pods_decide_before_their_namespace() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("labels");
    let pod = |name: &str, labels: Value, annotations: Value| {
        space.create_ownerless_pod(name, None, labels, annotations);
    };
    // In a namespace outside the mesh, a pod can join by itself.
    pod(
        "volunteer",
        json!({"istio.io/dataplane-mode": "ambient"}),
        json!({}),
    );
    pod("ordinary", json!({}), json!({}));
    space.wait_until_captured("volunteer", true);
    space.wait_until_ready("ordinary", 1);
    space.wait_until_captured("ordinary", false);
    space.label(Some("ambient"));
    space.wait_until_captured("ordinary", true);
    // In one of the mesh, a pod can stay out; one with a sidecar must.
    pod(
        "refuser",
        json!({"istio.io/dataplane-mode": "none"}),
        json!({}),
    );
    pod(
        "sidecar",
        json!({}),
        json!({"sidecar.istio.io/status": "{}"}),
    );
    for app in ["refuser", "sidecar"] {
        space.wait_until_ready(app, 1);
    }
    // Pods that start after them on either node are captured: the agents have seen them.
    for node in ["n1", "n2"] {
        space.deploy_client(node, Some(node));
        space.wait_until_captured(node, true);
    }
    for app in ["refuser", "sidecar"] {
        space.wait_until_captured(app, false);
    }
}

#[test]
fn init_containers_are_captured() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("init");
    let server = space.deploy_captured_server();
    // Its node knows the server; what follows is about the pod that starts.
    space.deploy_client("client", Some("n1"));
    space.wait_for_get("client", "http://server/", true);
    let wire = mesh.capture_traffic(&[&space.traffic_marker()]);
    let tool = "image: ambit/tools:dev, imagePullPolicy: Never";
    let call = format!("'server:9000', '--marker={}'", space.traffic_marker());
    space.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: pod, labels: {{app: pod}}}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  initContainers:
  - {{name: first, {tool}, command: [ambit-lab-tool, first-connect, {call}]}}
  - {{name: sidecar, {tool}, restartPolicy: Always, command: [ambit-lab-tool, first-connect, --stay, {call}]}}
  containers:
  - {{name: tool, {tool}, command: [ambit-lab-tool, first-connect, --stay, {call}]}}
"
    ));
    let pod = space.wait_until_ready("pod", 1).remove(0);
    for container in ["first", "sidecar", "tool"] {
        let event = space.wait_for_container_event("pod", Some(container), "first-connect");
        assert_eq!(event["retries"], 0, "{container}: {event}");
    }
    let reports = wire.finish();
    assert_nothing_in_plaintext(&reports, &[&server], &[9000]);
    assert_only_tls(&reports, &[&pod, &server]);
}
