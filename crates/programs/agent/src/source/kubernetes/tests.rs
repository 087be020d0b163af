//! Tests the source against an API server in memory, and its pure part alone.

use ambit_testkit::ApiServer;
use kube::Config;
use serde_json::{Value, json};

use super::*;
use crate::source::RedirectionStatus;

const PODS: &str = "/api/v1/pods";
const NAMESPACES: &str = "/api/v1/namespaces";

fn object(name: &str, node: &str, ip: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}"),
            "annotations": {"ambient.istio.io/redirection": "enabled", "big": "x".repeat(1000)},
            "managedFields": [{"fieldsV1": {"f:x": {}}}]},
        "spec": {"nodeName": node, "serviceAccountName": "sa", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
    })
}

fn server() -> ApiServer {
    let server = ApiServer::start();
    server.put(
        NAMESPACES,
        json!({"metadata": {"name": "shop", "labels": {"mode": "ambient", "other": "x"}}}),
    );
    server.put(PODS, object("here", "n1", "10.0.0.1"));
    server.put(PODS, object("there", "n2", "10.0.0.2"));
    server
}

fn source(server: &ApiServer, dir: &Path) -> KubernetesSource {
    let config = Config::new(server.url().parse().unwrap());
    let client = ambit_kube_kit::client::from_config(config, "test").unwrap();
    KubernetesSource::new(client, "n1", BTreeSet::from(["mode".to_owned()]), dir)
}

async fn events_until(
    source: &mut KubernetesSource,
    last: impl Fn(&SourceEvent) -> bool,
) -> Vec<String> {
    let mut sent = Vec::new();
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), source.next());
        for event in next.await.expect("another event").unwrap() {
            sent.push(match &event {
                SourceEvent::Pod(view) => format!("pod {} {:?}", view.name.name, view.addresses),
                SourceEvent::PodGone(uid) => format!("gone {uid}"),
                SourceEvent::Namespace(name, labels) => format!("namespace {name} {labels:?}"),
                SourceEvent::NamespaceGone(name) => format!("namespace gone {name}"),
                SourceEvent::Recorded(_) => continue,
                SourceEvent::Synced => "synced".to_owned(),
            });
            if last(&event) {
                sent.sort();
                return sent;
            }
        }
    }
}

#[tokio::test]
async fn pods_of_this_node_and_the_labels_that_matter_are_sent() {
    let (server, dir) = (server(), tempfile::tempdir().unwrap());
    let mut source = source(&server, dir.path());
    let synced = |event: &SourceEvent| *event == SourceEvent::Synced;
    assert_eq!(
        events_until(&mut source, synced).await,
        [
            "namespace shop {\"mode\": \"ambient\"}",
            "pod here [10.0.0.1]",
            "synced"
        ]
    );
    assert_eq!(source.outdated_reason(), None);
    server.put(PODS, object("new", "n1", "10.0.0.3"));
    server.delete(PODS, "shop", "here");
    let gone = |event: &SourceEvent| matches!(event, SourceEvent::PodGone(_));
    assert_eq!(
        events_until(&mut source, gone).await,
        ["gone uid-here", "pod new [10.0.0.3]"]
    );
}

#[tokio::test]
async fn agent_starts_from_last_known_state_without_the_api_server() {
    let (server, dir) = (server(), tempfile::tempdir().unwrap());
    let synced = |event: &SourceEvent| *event == SourceEvent::Synced;
    let mut first = source(&server, dir.path());
    events_until(&mut first, synced).await;
    drop(first);

    server.set_unavailable(true);
    let mut second = source(&server, dir.path());
    assert_eq!(
        events_until(&mut second, synced).await,
        [
            "namespace shop {\"mode\": \"ambient\"}",
            "pod here [10.0.0.1]",
            "synced"
        ]
    );
    assert!(second.outdated_reason().is_some());
    server.delete(PODS, "shop", "here");
    server.put(PODS, object("new", "n1", "10.0.0.3"));
    server.set_unavailable(false);
    let gone = |event: &SourceEvent| matches!(event, SourceEvent::PodGone(_));
    let sent = events_until(&mut second, gone).await;
    assert!(sent.contains(&"gone uid-here".to_owned()), "{sent:?}");
    assert!(sent.contains(&"pod new [10.0.0.3]".to_owned()), "{sent:?}");
    assert!(!sent.contains(&"synced".to_owned()), "once");
}

fn pod(uid: &str, ip: &str) -> PodView {
    PodView {
        uid: uid.into(),
        addresses: ip.parse().into_iter().collect(),
        reported: RedirectionStatus::None,
        ..PodView::default()
    }
}

fn applied_event(uid: &str, ip: &str) -> WatchEvent<PodView> {
    let id = ObjectId {
        namespace: "shop".into(),
        name: uid.into(),
        uid: uid.into(),
    };
    WatchEvent::Object(id, pod(uid, ip))
}

#[test]
fn restored_state_does_not_replace_newer_events() {
    let mut before = LastKnown::default();
    for uid in ["a", "b"] {
        before.pods.insert(uid.into(), pod(uid, "10.0.0.1"));
    }
    let mut progress = WatchProgress::new(Some(before));
    assert!(progress.can_restore_earlier());
    progress.on_pod_event(applied_event("a", "10.0.0.9"));
    let recalled = progress.on_pod_event(WatchEvent::Unavailable("gone".to_owned()));
    assert_eq!(
        recalled,
        [SourceEvent::Pod(pod("b", "10.0.0.1")), SourceEvent::Synced]
    );
    assert!(!progress.can_restore_earlier());
    // A listing without it means that it has gone.
    progress.on_pod_event(applied_event("a", "10.0.0.9"));
    assert_eq!(
        progress.on_pod_event(WatchEvent::ListCompleted),
        [SourceEvent::PodGone("b".into())]
    );
    assert_eq!(progress.watch_error.as_deref(), Some("gone"));
    assert_eq!(progress.on_namespace_event(WatchEvent::ListCompleted), []);
    assert_eq!(progress.watch_error, None);
}

#[test]
fn without_a_file_no_state_is_restored() {
    let mut progress = WatchProgress::new(None);
    assert_eq!(
        progress.on_pod_event(WatchEvent::Unavailable("gone".to_owned())),
        []
    );
    assert_eq!(progress.on_pod_event(WatchEvent::ListCompleted), []);
    assert!(!progress.is_synced());
    assert_eq!(
        progress.on_namespace_event(WatchEvent::ListCompleted),
        [SourceEvent::Synced]
    );
}
