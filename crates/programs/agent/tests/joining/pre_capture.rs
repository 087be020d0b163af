//! Tests that pre-capture connections are closed if the pod should have waited for its capture, and only then.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use ambit_netlab::Namespace;
use serde_json::json;

use crate::{
    Cluster, NAMESPACES, PODS, REDIRECTION,
    system::{
        node::{Pod, until},
        proxy::FakeProxy,
    },
};

const CREATED_AT: &str = "2026-01-01T10:00:00Z";

/// Client socket and server socket of one TCP connection.
struct ConnectionPair(TcpStream, TcpStream);

impl ConnectionPair {
    fn open(client: &Namespace, server: &Namespace, ip: &str) -> Self {
        Self::open_at(client, server, ip, 0)
    }

    fn open_at(client: &Namespace, server: &Namespace, ip: &str, port: u16) -> Self {
        let listener = server
            .run_inside(|| TcpListener::bind((ip, port)))
            .unwrap()
            .unwrap();
        let to = listener.local_addr().unwrap();
        let near = client
            .run_inside(|| TcpStream::connect(to))
            .unwrap()
            .unwrap();
        // A server that goes on listening: its port is one by which connections come in.
        let (far, _) = listener.accept().unwrap();
        std::mem::forget(listener);
        for end in [&near, &far] {
            end.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        Self(near, far)
    }

    fn exchange_bytes(&mut self) -> std::io::Result<()> {
        let Self(near, far) = self;
        near.write_all(b"hello")?;
        far.read_exact(&mut [0; 5])?;
        far.write_all(b"hello")?;
        near.read_exact(&mut [0; 5])
    }

    #[track_caller]
    fn wait_until_closed(&mut self) {
        for end in [&mut self.0, &mut self.1] {
            let error = end.read(&mut [0]).unwrap_err();
            let reset = [ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted];
            assert!(reset.contains(&error.kind()), "{error}");
        }
    }
}

/// Connections of a pod that are opened before its capture.
struct OpenConnections {
    outbound: ConnectionPair,
    inbound: ConnectionPair,
    /// Connection from the node to the probe port of the pod.
    from_node: ConnectionPair,
    from_node_other_port: ConnectionPair,
    within_pod: ConnectionPair,
}

impl OpenConnections {
    /// Opens all connections of `pod`; `peer` is another pod of the node.
    fn open(cluster: &Cluster, pod: &Pod, peer: &Pod) -> Self {
        let node = &cluster.node.namespace;
        let run = |namespace: &Namespace, words: &[&str]| {
            let output = namespace.run(words[0], &words[1..]).unwrap();
            assert!(output.status.success(), "{words:?}: {output:?}");
        };
        run(node, &["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        for one in [pod, peer] {
            let (subnet, _) = one.ip.rsplit_once('.').unwrap();
            let gateway = format!("{subnet}.1");
            run(
                &one.namespace,
                &["ip", "route", "add", "default", "via", &gateway],
            );
        }
        let of_peer = &peer.namespace;
        Self {
            outbound: ConnectionPair::open(&pod.namespace, of_peer, &peer.ip),
            inbound: ConnectionPair::open(of_peer, &pod.namespace, &pod.ip),
            from_node: ConnectionPair::open_at(node, &pod.namespace, &pod.ip, 8080),
            from_node_other_port: ConnectionPair::open(node, &pod.namespace, &pod.ip),
            within_pod: ConnectionPair::open(&pod.namespace, &pod.namespace, &pod.ip),
        }
    }

    #[track_caller]
    fn assert_all_open(&mut self) {
        for pair in [
            &mut self.outbound,
            &mut self.inbound,
            &mut self.from_node,
            &mut self.from_node_other_port,
            &mut self.within_pod,
        ] {
            pair.exchange_bytes().unwrap();
        }
    }

    #[track_caller]
    fn wait_until_closed(&mut self) {
        self.outbound.wait_until_closed();
        self.inbound.wait_until_closed();
        self.from_node_other_port.wait_until_closed();
        // A probe that was under way, and what never leaves the pod.
        self.from_node.exchange_bytes().unwrap();
        self.within_pod.exchange_bytes().unwrap();
    }
}

impl Cluster {
    fn closed_connections_metric(&self) -> Option<String> {
        let (_, metrics) = self.node.http_get("127.0.0.1:15014", "/metrics");
        let name = "ambit_agent_earlier_connections_total{result=\"closed\"} ";
        let mut lines = metrics.lines();
        lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
    }

    /// Publishes a running pod with the label that makes it a mesh pod; `labelled_at` is the time at which the label
    /// was set.
    fn publish_opted_in(&self, pod: &Pod, labelled_at: &str) {
        let fields = json!({"f:metadata": {"f:labels": {"f:istio.io/dataplane-mode": {}}}});
        self.server.put(
            PODS,
            json!({
                "metadata": {"namespace": "shop", "name": pod.name, "uid": pod.uid,
                    "creationTimestamp": CREATED_AT,
                    "labels": {"istio.io/dataplane-mode": "ambient"},
                    "managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "v1",
                        "time": labelled_at, "fieldsType": "FieldsV1", "fieldsV1": fields}]},
                "spec": {"nodeName": "n1", "serviceAccountName": "sa", "containers":
                    [{"name": "main", "readinessProbe": {"tcpSocket": {"port": 8080}}}]},
                "status": {"phase": "Running", "podIP": pod.ip, "podIPs": [{"ip": pod.ip}]},
            }),
        );
    }

    fn pod_outside_mesh(&self) -> Pod {
        let peer = self.node.create_pod_network("peer");
        self.server
            .put(NAMESPACES, json!({"metadata": {"name": "outside"}}));
        peer
    }
}

#[track_caller]
fn wait_until_captured(cluster: &Cluster, pod: &Pod) {
    until("captured", || {
        cluster.annotation(pod).as_deref() == Some("enabled") && pod.is_redirected()
    });
}

#[test]
fn connections_opened_after_a_boot_without_plugin_are_closed() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(true);
    let (pod, peer) = (
        cluster.node.create_pod_network("web"),
        cluster.pod_outside_mesh(),
    );
    cluster.publish_pod(&pod, true, &json!({REDIRECTION: "enabled"}));
    let mut open = OpenConnections::open(&cluster, &pod, &peer);
    open.assert_all_open();
    let _proxy = FakeProxy::start(cluster.node.zds_socket());
    cluster.start_agent();
    wait_until_captured(&cluster, &pod);
    open.wait_until_closed();
    until("counted", || {
        cluster.closed_connections_metric().as_deref() == Some("3")
    });
    until("logged", || {
        cluster.node.log().contains("closed plaintext connections")
    });
}

#[test]
fn connections_of_opted_in_pods_without_agent_are_closed() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(false);
    let _proxy = FakeProxy::start(cluster.node.zds_socket());
    cluster.start_agent();
    let record = cluster.node.path("run/last-known.json");
    until("what is known is on disk", || record.exists());
    cluster.node.kill_agent();
    let (made_so, later) = (
        cluster.node.create_pod_network("made-so"),
        cluster.node.create_pod_network("later"),
    );
    let (peer, other_peer) = (cluster.pod_outside_mesh(), cluster.pod_outside_mesh());
    let mut open = OpenConnections::open(&cluster, &made_so, &peer);
    let mut of_later = OpenConnections::open(&cluster, &later, &other_peer);
    cluster.publish_opted_in(&made_so, CREATED_AT);
    cluster.publish_opted_in(&later, "2026-01-01T10:00:01Z");
    cluster.start_agent();
    for pod in [&made_so, &later] {
        wait_until_captured(&cluster, pod);
    }
    open.wait_until_closed();
    // This one may have run before it was labelled.
    of_later.assert_all_open();
    until("counted", || {
        cluster.closed_connections_metric().as_deref() == Some("3")
    });
}

#[test]
fn connections_from_before_the_label_survive_the_next_agent() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(false);
    let (pod, peer) = (
        cluster.node.create_pod_network("web"),
        cluster.pod_outside_mesh(),
    );
    cluster.publish_pod(&pod, true, &json!({}));
    let mut open = OpenConnections::open(&cluster, &pod, &peer);
    let _proxy = FakeProxy::start(cluster.node.zds_socket());
    cluster.start_agent();
    cluster.label_namespace(true);
    wait_until_captured(&cluster, &pod);
    open.assert_all_open();
    cluster.node.kill_agent();
    cluster.start_agent();
    let captured = |cluster: &Cluster| cluster.agent_status()["captured"].as_u64() == Some(1);
    until("looked at again", || captured(&cluster));
    open.assert_all_open();
    assert_eq!(cluster.closed_connections_metric(), None);
}

#[test]
fn a_pod_taken_over_from_istios_agent_keeps_everything_but_its_rules() {
    let mut cluster = Cluster::new();
    cluster.label_namespace(true);
    let (pod, peer) = (
        cluster.node.create_pod_network("web"),
        cluster.pod_outside_mesh(),
    );
    cluster.publish_pod(&pod, true, &json!({REDIRECTION: "enabled"}));
    let mut open = OpenConnections::open(&cluster, &pod, &peer);
    let rules = "add table ip nat; add chain ip nat OUTPUT { type nat hook output priority -100; }; \
        add chain ip nat ISTIO_OUTPUT; add rule ip nat OUTPUT counter jump ISTIO_OUTPUT; \
        add rule ip nat ISTIO_OUTPUT ip daddr 10.99.0.1 tcp flags syn counter redirect to :15001; \
        add table ip mangle; add chain ip mangle ISTIO_PRERT; \
        add rule ip mangle ISTIO_PRERT meta mark and 0xfff == 0x539 counter ct mark set 0x111";
    let output = pod.namespace.run("nft", [rules]).unwrap();
    assert!(output.status.success(), "{output:?}");
    let _proxy = FakeProxy::start(cluster.node.zds_socket());
    cluster.start_agent();
    wait_until_captured(&cluster, &pod);
    assert!(!pod.rules().contains("ISTIO"), "{}", pod.rules());
    open.assert_all_open();
    assert_eq!(cluster.closed_connections_metric(), None);
    cluster.label_namespace(false);
    until("unenrolled", || cluster.annotation(&pod).is_none());
    assert!(!pod.rules().contains("ISTIO"), "{}", pod.rules());
    open.assert_all_open();
}
