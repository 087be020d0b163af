//! Tests the agent's executable on a node of network namespaces: real rules, real descriptors, a scripted proxy.
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

use std::{collections::BTreeMap, fs, io::Write as _, os::unix::net::UnixStream};

use ambit_sys::seqpacket::SeqPacket;
use ambit_testkit::{OTLP_VARIABLES, OtlpCollector};
use system::{
    node::{Node, until},
    proxy::FakeProxy,
};

#[test]
fn metrics_and_logs_reach_an_opentelemetry_collector() {
    let mut node = Node::new();
    let collector = node
        .namespace
        .run_inside(OtlpCollector::start)
        .unwrap()
        .unwrap();
    node.env = OTLP_VARIABLES.to_vec();
    node.start_agent(&[]);
    collector.wait_until_exported("ambit-agent", "istio_build", "agent started");
}

#[test]
fn running_pod_follows_the_label_of_its_namespace() {
    let mut node = Node::new();
    node.label_namespace(false);
    let pod = node.running_pod("web");
    let other = node.running_pod("out");
    node.publish_pod(
        &other,
        true,
        &BTreeMap::from([("istio.io/dataplane-mode", "none")]),
    );
    let proxy = FakeProxy::start(node.zds_socket());
    node.start_agent(&[]);
    assert_eq!((proxy.serves(&pod.uid), node.status(&pod)), (None, None));
    assert_eq!(pod.rules(), "");

    node.label_namespace(true);
    until("status is enabled", || {
        node.status(&pod).as_deref() == Some("enabled")
    });
    assert!(pod.is_redirected());
    assert_eq!(proxy.serves(&pod.uid), Some(pod.namespace.netns().id()));
    let info = proxy.record.lock().unwrap().serves[&pod.uid].1.clone();
    assert_eq!((&*info.pod.name, &*info.pod.service_account), ("web", "sa"));
    assert_eq!(
        info.addresses,
        [pod.ip.parse::<std::net::IpAddr>().unwrap()]
    );
    assert_eq!(node.exempt_addresses(), std::slice::from_ref(&pod.ip));
    assert_eq!((other.rules(), node.status(&other)), (String::new(), None));

    node.label_namespace(false);
    until("the proxy lets go", || proxy.serves(&pod.uid).is_none());
    until("probes are no longer exempt", || {
        node.exempt_addresses().is_empty()
    });
    assert!(!pod.rules().contains("redirect to"), "{}", pod.rules());
    assert_eq!(node.status(&pod), None);

    node.label_namespace(true);
    until("captured again", || {
        node.status(&pod).as_deref() == Some("enabled")
    });
    assert!(pod.is_redirected());
    node.remove_pod_manifest(&pod);
    until("gone", || {
        proxy.serves(&pod.uid).is_none() && node.exempt_addresses().is_empty()
    });
    assert_eq!(node.status(&pod), None);
}

#[test]
fn a_starting_pod_is_captured_before_the_plugin_gets_its_answer() {
    let mut node = Node::new();
    node.label_namespace(true);
    let pod = node.create_pod_network("web");
    node.publish_pod(&pod, false, &BTreeMap::new());
    let proxy = FakeProxy::start(node.zds_socket());
    node.start_agent(&[]);
    assert_eq!(
        node.plugin_request("GET", "/v1/membership?namespace=shop&pod=web", ""),
        (200, r#"{"mesh":true}"#.to_owned())
    );
    assert_eq!(node.post_cmdadd(&pod), (200, String::new()));
    assert!(pod.is_redirected());
    assert_eq!(proxy.serves(&pod.uid), Some(pod.namespace.netns().id()));
    assert_eq!(node.exempt_addresses(), std::slice::from_ref(&pod.ip));
    let (_, metrics) = node.http_get("127.0.0.1:15014", "/metrics");
    for line in [
        "istio_cni_plugin_requests_total{response_code=\"200\"} 1",
        "ztunnel_connected 1",
        "ambit_agent_pods_captured 1",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    until("status", || node.status(&pod).as_deref() == Some("enabled"));
    let membership = fs::read_to_string(node.path("run/membership.json")).unwrap();
    assert_eq!(membership, r#"{"version":1,"namespaces":{"shop":true}}"#);
    assert!(node.stop_agent(), "SIGTERM ends it well");
    assert!(pod.is_redirected(), "captured pods stay captured");
    assert!(!node.path("run/pluginevent.sock").exists() && !node.zds_socket().exists());
}

#[test]
fn a_new_sandbox_of_the_same_pod_is_captured_in_its_new_namespace() {
    let mut node = Node::new();
    node.label_namespace(true);
    let first = node.create_pod_network("web");
    node.publish_pod(&first, false, &BTreeMap::new());
    let proxy = FakeProxy::start(node.zds_socket());
    node.start_agent(&[]);
    assert_eq!(node.post_cmdadd(&first).0, 200);
    let mut second = node.create_pod_network("web");
    second.uid.clone_from(&first.uid);
    assert_eq!(node.post_cmdadd(&second), (200, String::new()));
    assert!(second.is_redirected());
    assert_eq!(
        proxy.serves(&first.uid),
        Some(second.namespace.netns().id())
    );
    assert_eq!(node.exempt_addresses(), std::slice::from_ref(&second.ip));
}

#[test]
fn an_agent_killed_and_started_again_finds_everything_as_it_was() {
    let mut node = Node::new();
    node.label_namespace(true);
    let pods: Vec<_> = (0..3)
        .map(|n| node.running_pod(&format!("web{n}")))
        .collect();
    let leaving = node.running_pod("leaving");
    let proxy = FakeProxy::start(node.zds_socket());
    node.start_agent(&[]);
    for pod in pods.iter().chain([&leaving]) {
        until("captured", || {
            node.status(pod).as_deref() == Some("enabled")
        });
    }
    node.kill_agent();
    for pod in &pods {
        assert!(pod.is_redirected() && proxy.serves(&pod.uid).is_some());
    }
    // While it is away a pod leaves the mesh, one is damaged, and one ends.
    node.publish_pod(
        &leaving,
        true,
        &BTreeMap::from([("istio.io/dataplane-mode", "none")]),
    );
    pods[0].namespace.run("nft", ["flush", "ruleset"]).unwrap();
    node.remove_pod_manifest(&pods[2]);
    node.restart_agent();
    until("rules mended", || pods[0].is_redirected());
    until("another snapshot", || {
        proxy.record.lock().unwrap().snapshots == 2
    });
    for pod in &pods[..2] {
        assert_eq!(proxy.serves(&pod.uid), Some(pod.namespace.netns().id()));
        until("status", || node.status(pod).as_deref() == Some("enabled"));
    }
    until("unenrolled", || !leaving.rules().contains("redirect to"));
    until("no longer served", || proxy.serves(&leaving.uid).is_none());
    assert_eq!(node.status(&leaving), None);
    assert_eq!(
        (proxy.serves(&pods[2].uid), node.status(&pods[2])),
        (None, None)
    );
}

#[test]
fn restarted_proxy_gets_all_pods_and_the_newest_gets_new_ones() {
    let mut node = Node::new();
    node.label_namespace(true);
    let first = node.running_pod("first");
    node.start_agent(&[]);
    let old = FakeProxy::start(node.zds_socket());
    until("served", || old.serves(&first.uid).is_some());
    let new = FakeProxy::start(node.zds_socket());
    until("served by the new one too", || {
        new.serves(&first.uid).is_some()
    });
    let second = node.running_pod("second");
    until("captured", || {
        node.status(&second).as_deref() == Some("enabled")
    });
    assert!(new.serves(&second.uid).is_some() && old.serves(&second.uid).is_none());
    drop(new);
    until("the old one catches up", || {
        old.serves(&second.uid).is_some()
    });
    node.remove_pod_manifest(&first);
    until("no longer served", || old.serves(&first.uid).is_none());
}

#[test]
fn drift_in_a_pod_and_on_the_node_is_repaired() {
    let mut node = Node::new();
    node.label_namespace(true);
    let pod = node.running_pod("web");
    let _proxy = FakeProxy::start(node.zds_socket());
    node.start_agent(&["--reconcile-seconds", "1"]);
    until("captured", || {
        node.status(&pod).as_deref() == Some("enabled")
    });
    pod.namespace.run("nft", ["flush", "ruleset"]).unwrap();
    node.namespace.run("nft", ["flush", "ruleset"]).unwrap();
    until("rules mended", || pod.is_redirected());
    until("probes exempt again", || {
        node.exempt_addresses() == std::slice::from_ref(&pod.ip)
    });
    until("it is logged", || node.log().contains("drifted"));
}

#[test]
fn proxy_refusing_a_pod_fails_only_that_call_with_its_reason() {
    let mut node = Node::new();
    node.label_namespace(true);
    let (bad, good) = (
        node.create_pod_network("bad"),
        node.create_pod_network("good"),
    );
    for pod in [&bad, &good] {
        node.publish_pod(pod, false, &BTreeMap::new());
    }
    let proxy = FakeProxy::start(node.zds_socket());
    proxy.record.lock().unwrap().failing.insert(bad.uid.clone());
    node.start_agent(&[]);
    let (status, body) = node.post_cmdadd(&bad);
    assert_eq!(status, 503);
    assert!(
        body.contains("shop/bad") && body.contains("scripted"),
        "{body}"
    );
    assert!(!bad.is_redirected(), "no rules without listeners");
    assert_eq!(node.post_cmdadd(&good).0, 200);
}

#[test]
fn nonsense_from_the_plugin_is_answered_and_changes_nothing() {
    let mut node = Node::new();
    node.label_namespace(true);
    let pod = node.create_pod_network("web");
    node.publish_pod(&pod, false, &BTreeMap::new());
    let _proxy = FakeProxy::start(node.zds_socket());
    node.start_agent(&[]);
    for body in [
        "",
        "junk",
        "{}",
        r#"{"Netns":"","PodName":"web","PodNamespace":"shop","IPs":null}"#,
        r#"{"Netns":"/x","PodName":"","PodNamespace":"shop","IPs":null}"#,
        r#"{"Netns":"/x","PodName":"web","PodNamespace":"shop","IPs":[{"Address":{"IP":"x"}}]}"#,
        r#"{"Netns":"/x","PodName":"web","PodNamespace":"shop","IPs":5}"#,
    ] {
        assert_eq!(
            node.plugin_request("POST", "/cmdadd", body).0,
            400,
            "{body}"
        );
    }
    let event = |netns: &str| {
        format!(r#"{{"Netns":"{netns}","PodName":"web","PodNamespace":"shop","IPs":null}}"#)
    };
    for (netns, expected) in [
        ("/nowhere", "/nowhere"),
        ("/etc/passwd", "not a namespace"),
        (&*node.namespace.path(), "never captured"),
    ] {
        let (status, body) = node.plugin_request("POST", "/cmdadd", &event(netns));
        assert_eq!(status, 500, "{body}");
        assert!(
            body.contains("shop/web") && body.contains(expected),
            "{body}"
        );
    }
    assert_eq!(
        node.plugin_request("POST", "/cmdadd", &"x".repeat(1 << 20))
            .0,
        413
    );
    assert_eq!(node.plugin_request("GET", "/v1/membership", "").0, 400);
    assert_eq!(node.plugin_request("POST", "/v1/membership", "").0, 405);
    assert_eq!(node.plugin_request("GET", "/else", "").0, 404);
    // Bytes that are no HTTP, and a silent peer.
    let mut raw = UnixStream::connect(node.path("run/pluginevent.sock")).unwrap();
    raw.write_all(&[0xff; 4096]).ok();
    let silent = UnixStream::connect(node.path("run/pluginevent.sock")).unwrap();
    assert_eq!(node.post_cmdadd(&pod).0, 200);
    drop(silent);
}

#[test]
fn nonsense_on_the_zds_socket_ends_that_connection_only() {
    let mut node = Node::new();
    node.label_namespace(true);
    let pod = node.running_pod("web");
    let proxy = FakeProxy::start(node.zds_socket());
    node.start_agent(&[]);
    until("captured", || {
        node.status(&pod).as_deref() == Some("enabled")
    });
    let runtime = ambit_rt::current_thread_runtime().unwrap();
    runtime.block_on(async {
        for junk in [&b"\xff\xff\xff"[..], &[0; 4000], b"\x08\x01"] {
            let connection = SeqPacket::connect(node.zds_socket()).await.unwrap();
            connection.send(junk, None).await.unwrap();
            // A good hello is answered with the snapshot; then it is the answer that is junk.
            let mut buffer = [0; 1024];
            let answered = connection.recv(&mut buffer).await;
            if junk == b"\x08\x01" {
                assert!(answered.unwrap().fd.is_some());
                connection.send(b"\xff", None).await.unwrap();
                assert_eq!(connection.recv(&mut buffer).await.unwrap().len, 0);
            } else {
                assert!(answered.is_err() || answered.is_ok_and(|end| end.len == 0));
            }
        }
    });
    let late = node.create_pod_network("late");
    node.publish_pod(&late, false, &BTreeMap::new());
    assert_eq!(node.post_cmdadd(&late).0, 200);
    assert!(proxy.serves(&late.uid).is_some() && proxy.serves(&pod.uid).is_some());
}

#[test]
fn pods_in_the_nodes_namespace_are_never_touched() {
    let mut node = Node::new();
    node.label_namespace(true);
    let pod = node.create_pod_network("host");
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: host, namespace: shop, uid: {}}}\nspec: \
         {{nodeName: n1, hostNetwork: true, containers: []}}\nstatus: {{podIP: {}}}\n",
        pod.uid, pod.ip
    );
    node.write_manifest("pod-host.yaml", &text);
    let witness = node.running_pod("witness");
    let proxy = FakeProxy::start(node.zds_socket());
    node.start_agent(&[]);
    until("others are captured", || {
        node.status(&witness).as_deref() == Some("enabled")
    });
    assert_eq!((proxy.serves(&pod.uid), pod.rules()), (None, String::new()));
    assert_eq!(node.post_cmdadd(&pod).0, 500);
}
