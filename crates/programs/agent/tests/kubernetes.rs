//! Tests the agent's executable on a node of network namespaces, with an API server in memory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    dead_code,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "helpers of tests, shared with others"
)]

mod system {
    pub mod node;
    pub mod proxy;
}

mod joining {
    mod pre_capture;
}

use ambit_testkit::ApiServer;
use serde_json::{Value, json};
use system::{
    node::{Node, Pod, until},
    proxy::FakeProxy,
};

const PODS: &str = "/api/v1/pods";
const NAMESPACES: &str = "/api/v1/namespaces";
const EVENTS: &str = "/apis/events.k8s.io/v1/events";
const REDIRECTION: &str = "ambient.istio.io/redirection";

/// Node of network namespaces with an agent and an API server of its own.
struct Cluster {
    node: Node,
    server: ApiServer,
}

impl Cluster {
    fn new() -> Self {
        let node = Node::new();
        let listener = node
            .namespace
            .run_inside(|| std::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap()
            .unwrap();
        let server = ApiServer::start_at(listener);
        server.serve(EVENTS, "Event");
        std::fs::write(node.path("kubeconfig"), server.kubeconfig()).unwrap();
        Self { node, server }
    }

    fn start_agent(&mut self) {
        self.start_agent_at("127.0.0.1:15014", "127.0.0.1:8000");
    }

    /// Starts an agent that serves metrics and health at these addresses, beside a running one.
    fn start_agent_at(&mut self, metrics: &str, health: &str) {
        let kubeconfig = self.node.path("kubeconfig");
        self.node.start_agent_with(
            &[
                "--kubeconfig",
                kubeconfig.to_str().unwrap(),
                "--reconcile-seconds",
                "1",
                "--listen-metrics",
                metrics,
                "--listen-health",
                health,
            ],
            health,
        );
    }

    fn label_namespace(&self, ambient: bool) {
        let labels = if ambient {
            json!({"istio.io/dataplane-mode": "ambient"})
        } else {
            json!({})
        };
        self.server.put(
            NAMESPACES,
            json!({"metadata": {"name": "shop", "labels": labels}}),
        );
    }

    fn publish_pod(&self, pod: &Pod, running: bool, annotations: &Value) {
        self.update_pod_at(pod, running.then_some(&pod.ip), annotations);
    }

    fn update_pod_at(&self, pod: &Pod, ip: Option<&str>, annotations: &Value) {
        let status = ip.map_or_else(
            || json!({"phase": "Pending"}),
            |ip| json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}),
        );
        self.server.put(
            PODS,
            json!({
                "metadata": {"namespace": "shop", "name": pod.name, "uid": pod.uid,
                    "annotations": annotations},
                "spec": {"nodeName": "n1", "serviceAccountName": "sa", "containers":
                    [{"name": "main", "readinessProbe": {"tcpSocket": {"port": 8080}}}]},
                "status": status,
            }),
        );
    }

    fn annotation(&self, pod: &Pod) -> Option<String> {
        let object = self.server.get(PODS, "shop", &pod.name)?;
        let value = object["metadata"]["annotations"][REDIRECTION].as_str();
        value.map(str::to_owned)
    }

    fn agent_status(&self) -> Value {
        let (code, body) = self.node.http_get("127.0.0.1:15014", "/v1/status");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Returns the events with this reason that the agent has written.
    fn events(&self, reason: &str) -> Vec<Value> {
        let mut events = self.server.list(EVENTS);
        events.retain(|event| event["reason"] == reason);
        events
    }
}

#[test]
fn labelled_namespace_is_captured_annotated_and_released() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(false);
    let running = cluster.node.create_pod_network("running");
    cluster.publish_pod(&running, true, &json!({}));
    let proxy = FakeProxy::start(cluster.node.zds_socket());
    cluster.start_agent();
    assert_eq!(cluster.annotation(&running), None);
    cluster.label_namespace(true);
    until("annotated", || {
        cluster.annotation(&running).as_deref() == Some("enabled")
    });
    assert!(running.is_redirected() && proxy.serves(&running.uid).is_some());

    let starting = cluster.node.create_pod_network("starting");
    cluster.publish_pod(&starting, false, &json!({"kept": "yes"}));
    assert_eq!(cluster.node.post_cmdadd(&starting), (200, String::new()));
    assert!(starting.is_redirected());
    until("annotated", || {
        cluster.annotation(&starting).as_deref() == Some("enabled")
    });
    let patches: Vec<_> = cluster.server.requests();
    let patch = patches
        .iter()
        .find(|request| request.method == "PATCH")
        .unwrap();
    assert_eq!(
        patch.path.split('?').next().unwrap(),
        "/api/v1/namespaces/shop/pods/running/status"
    );

    // A pod counts again once its announcement and its probes follow its last update. The update by the pod's annotation
    // may reach the agent later, so that the pod is enrolling once more.
    until("both pods are counted", || {
        cluster.agent_status()["captured"] == 2
    });
    assert_eq!(cluster.agent_status()["node"], "n1");
    let mut body = Value::Null;
    until("the pod is captured", || {
        let path = "/v1/pods/shop/starting";
        let (code, page) = cluster.node.http_get("127.0.0.1:15014", path);
        assert_eq!(code, 200, "{page}");
        body = serde_json::from_str(&page).unwrap();
        body["state"] == "captured"
    });
    assert_eq!(
        body["netnsInode"],
        json!(starting.namespace.netns().id().ino)
    );
    assert_eq!(
        cluster
            .node
            .http_get("127.0.0.1:15014", "/v1/pods/shop/none")
            .0,
        404
    );

    cluster.label_namespace(false);
    for pod in [&running, &starting] {
        until("unenrolled", || cluster.annotation(pod).is_none());
        until("no longer served", || proxy.serves(&pod.uid).is_none());
    }
}

#[test]
fn known_pods_start_without_the_api_server() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(true);
    let (first, second) = (
        cluster.node.create_pod_network("first"),
        cluster.node.create_pod_network("second"),
    );
    for pod in [&first, &second] {
        cluster.publish_pod(pod, false, &json!({}));
    }
    let proxy = FakeProxy::start(cluster.node.zds_socket());
    cluster.start_agent();
    cluster.server.set_unavailable(true);
    until("it is noticed", || {
        cluster.agent_status()["sourceTrouble"].is_string()
    });
    assert_eq!(cluster.node.post_cmdadd(&first), (200, String::new()));
    assert!(first.is_redirected());
    // An agent that starts meanwhile knows what the one before knew, and serves the proxies.
    cluster.node.kill_agent();
    cluster.start_agent();
    until("served again", || {
        proxy.record.lock().unwrap().snapshots == 2
    });
    assert_eq!(cluster.node.post_cmdadd(&second), (200, String::new()));
    assert!(second.is_redirected());
    // Unknown: not let through, in a namespace of the mesh.
    let unknown = cluster.node.create_pod_network("unknown");
    let asked = cluster
        .node
        .plugin_request("GET", "/v1/membership?namespace=shop&pod=unknown", "");
    assert_eq!(asked.0, 503, "{}", asked.1);
    assert!(!unknown.is_redirected());
    cluster.server.set_unavailable(false);
    until("annotated", || {
        cluster.annotation(&second).as_deref() == Some("enabled")
    });
    until("it is over", || {
        cluster.agent_status()["sourceTrouble"].is_null()
    });
}

#[test]
fn new_sandbox_after_a_reboot_is_captured_despite_its_annotation() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(true);
    let pod = cluster.node.create_pod_network("web");
    let claim = json!({REDIRECTION: "enabled"});
    // The status still has the address of before.
    cluster.update_pod_at(&pod, Some("10.99.0.1"), &claim);
    let _proxy = FakeProxy::start(cluster.node.zds_socket());
    cluster.start_agent();
    until("the claim is corrected", || {
        cluster.annotation(&pod).as_deref() == Some("pending")
    });
    assert!(!pod.is_redirected());
    cluster.publish_pod(&pod, true, &json!({REDIRECTION: "pending"}));
    until("captured", || pod.is_redirected());
    until("annotated", || {
        cluster.annotation(&pod).as_deref() == Some("enabled")
    });
}

/// Compares the grants of the chart's role with the requests of this node's agent: no more and no less. Its requests at
/// termination are checked in `install/daemonset.rs`.
#[test]
fn the_agents_role_is_what_it_uses_and_it_asks_about_its_own_node() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(true);
    let pod = cluster.node.create_pod_network("web");
    cluster.publish_pod(&pod, true, &json!({}));
    cluster.start_agent();
    until("an event", || {
        !cluster.events("AmbitEnrolmentFailed").is_empty()
    });
    let _proxy = FakeProxy::start(cluster.node.zds_socket());
    until("annotated", || {
        cluster.annotation(&pod).as_deref() == Some("enabled")
    });
    let requests = cluster.server.requests();
    for request in &requests {
        let path = request.path.as_str();
        let lists_pods = path.starts_with("/api/v1/pods");
        assert!(
            !lists_pods || path.contains("fieldSelector=spec.nodeName%3Dn1"),
            "{path}"
        );
    }
    let values = ambit_install::values::ValueOverrides::default()
        .with_defaults()
        .unwrap();
    let chart = ambit_install::render::render_objects(&Default::default(), &values).unwrap();
    let difference = ambit_testkit::roles::compare(&requests, &chart, "ambit-agent");
    let elsewhere = [
        // When it ends, see above.
        "get apps/daemonsets ambit-agent",
        "get core/nodes",
        // An event that is reported again within minutes.
        "patch events.k8s.io/events",
    ];
    let mut surplus = difference.unused;
    surplus.retain(|grant| !elsewhere.contains(&grant.as_str()));
    assert_eq!((difference.missing, surplus), Default::default());
}

#[test]
fn failed_enrolment_and_its_end_are_reported_on_the_pod() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(true);
    let pod = cluster.node.create_pod_network("web");
    cluster.publish_pod(&pod, true, &json!({}));
    cluster.start_agent();
    until("an event", || {
        !cluster.events("AmbitEnrolmentFailed").is_empty()
    });
    let event = cluster.events("AmbitEnrolmentFailed").remove(0);
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["uid"], pod.uid.as_str());
    let note = event["note"].as_str().unwrap();
    assert!(
        note.contains("no node proxy") && note.contains("app=ztunnel"),
        "{note}"
    );
    let _proxy = FakeProxy::start(cluster.node.zds_socket());
    until("captured", || pod.is_redirected());
    until("an event", || !cluster.events("AmbitEnrolled").is_empty());
}

#[test]
fn two_agents_at_once_change_places_without_a_gap() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(true);
    let pods: Vec<_> = (0..6)
        .map(|n| cluster.node.create_pod_network(&format!("p{n}")))
        .collect();
    for pod in &pods {
        cluster.publish_pod(pod, false, &json!({}));
    }
    let proxy = FakeProxy::start(cluster.node.zds_socket());
    cluster.start_agent();
    assert_eq!(cluster.node.post_cmdadd(&pods[0]).0, 200);
    // The next takes the places of its sockets while the first runs; then the first ends.
    let first = cluster.node.take_agent();
    cluster.start_agent_at("127.0.0.1:25014", "127.0.0.1:28000");
    assert!(Node::terminate(first));
    for pod in &pods[1..3] {
        // The proxy has to come over first; the plugin tries again likewise.
        until("started", || cluster.node.post_cmdadd(pod).0 == 200);
    }
    for pod in &pods[3..] {
        assert_eq!(cluster.node.post_cmdadd(pod), (200, String::new()));
    }
    for pod in &pods {
        assert!(pod.is_redirected() && proxy.serves(&pod.uid).is_some());
    }
}
