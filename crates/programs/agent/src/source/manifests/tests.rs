//! Tests the events that changes of manifests result in.

use std::fs;

use super::*;
use crate::source::Labels;

struct ManifestDir {
    dir: tempfile::TempDir,
    source: ManifestSource,
}

impl ManifestDir {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let source = ManifestSource::open(vec![dir.path().to_owned()], "n1").unwrap();
        Self { dir, source }
    }

    /// Replaces a manifest file, and returns the resulting events.
    async fn write(&mut self, name: &str, text: &str) -> Vec<SourceEvent> {
        let temporary = self.dir.path().join("new.tmp");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.dir.path().join(name)).unwrap();
        self.next().await
    }

    async fn next(&mut self) -> Vec<SourceEvent> {
        let next = self.source.next();
        let within = std::time::Duration::from_secs(10);
        tokio::time::timeout(within, next)
            .await
            .expect("events")
            .expect("a source that lives")
    }
}

fn pod_manifest(uid: &str, node: &str, more: &str) -> String {
    format!(
        "kind: Pod\nmetadata: {{name: web, namespace: shop, uid: {uid}}}\n\
         spec: {{nodeName: {node}, containers: []}}\n{more}"
    )
}

#[tokio::test]
async fn initial_state_is_sent_whole_and_its_end_marked() {
    let pod = "kind: Pod\nmetadata:\n  name: web\n  namespace: shop\n  uid: AB-1\n  labels: {a: b}\n  \
        annotations: {kubernetes.io/config.hash: h}\nspec: {nodeName: n1, serviceAccountName: sa, \
        containers: []}\nstatus: {phase: Running, podIP: 10.0.0.9, podIPs: [{ip: 10.0.0.7}, {ip: \
        '::ffff:10.0.0.8'}]}\n";
    let namespace = "kind: Namespace\nmetadata: {name: shop, labels: {x: y}}\n";
    let mut dir = ManifestDir::new(&[("pod.yaml", pod), ("ns.yaml", namespace)]);
    let events = dir.next().await;
    assert_eq!(events.last(), Some(&SourceEvent::Synced));
    let labels = Labels::from([("x".into(), "y".into())]);
    assert!(events.contains(&SourceEvent::Namespace("shop".into(), labels)));
    let Some(SourceEvent::Pod(view)) = events
        .iter()
        .find(|event| matches!(event, SourceEvent::Pod(_)))
    else {
        panic!("no pod in {events:?}")
    };
    assert_eq!((&*view.uid, &*view.name.service_account), ("ab-1", "sa"));
    assert_eq!(
        view.addresses,
        ["10.0.0.7", "10.0.0.8"].map(|ip| ip.parse::<std::net::IpAddr>().unwrap())
    );
    assert_eq!(view.cgroup_alias.as_deref(), Some("h"));
    assert!(!view.host_network && !view.terminal);
    assert_eq!(view.labels["a"], "b");
}

#[tokio::test]
async fn an_empty_directory_is_complete_too() {
    assert_eq!(ManifestDir::new(&[]).next().await, [SourceEvent::Synced]);
}

#[tokio::test]
async fn pods_of_other_nodes_or_without_uid_are_not_sent() {
    let mut dir = ManifestDir::new(&[
        ("other.yaml", &pod_manifest("u1", "n2", "")),
        (
            "none.yaml",
            "kind: Pod\nmetadata: {name: x}\nspec: {nodeName: n1, containers: []}\n",
        ),
    ]);
    assert_eq!(dir.next().await, [SourceEvent::Synced]);
}

#[tokio::test]
async fn pod_that_moves_or_changes_its_uid_is_reported_gone() {
    let mut dir = ManifestDir::new(&[("pod.yaml", &pod_manifest("u1", "n1", ""))]);
    dir.next().await;
    let events = dir
        .write(
            "pod.yaml",
            &pod_manifest("u2", "n1", "status: {podIP: 10.0.0.7}\n"),
        )
        .await;
    assert_eq!(events[0], SourceEvent::PodGone("u1".into()));
    let SourceEvent::Pod(view) = &events[1] else {
        panic!("{events:?}")
    };
    assert_eq!((&*view.uid, view.addresses.len()), ("u2", 1));
    let events = dir.write("pod.yaml", &pod_manifest("u2", "n2", "")).await;
    assert_eq!(events, [SourceEvent::PodGone("u2".into())]);
    dir.write(
        "pod.yaml",
        &pod_manifest("u3", "n1", "status: {phase: Failed}\n"),
    )
    .await;
    fs::remove_file(dir.dir.path().join("pod.yaml")).unwrap();
    assert_eq!(dir.next().await, [SourceEvent::PodGone("u3".into())]);
}

#[tokio::test]
async fn broken_files_change_nothing() {
    let mut dir = ManifestDir::new(&[("pod.yaml", &pod_manifest("u1", "n1", ""))]);
    dir.next().await;
    let sent = dir.write("pod.yaml", "kind: Pod\nmetadata: [\n").await;
    assert_eq!(sent, []);
    let events = dir
        .write(
            "pod.yaml",
            &pod_manifest("u1", "n1", "status: {phase: Succeeded}\n"),
        )
        .await;
    assert!(
        matches!(&events[..], [SourceEvent::Pod(view)] if view.terminal),
        "{events:?}"
    );
}
