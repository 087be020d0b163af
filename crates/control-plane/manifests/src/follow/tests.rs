//! Tests of following directories that editors, controllers and accidents change.

use std::{fs, os::unix::fs::symlink, time::Instant};

use ambit_k8s_api::{Kind, Object, ObjectKey};
use tempfile::TempDir;

use super::*;
use crate::ObjectEvent;

const DEADLINE: Duration = Duration::from_secs(20);

/// Copy of the objects, built from the reported changes.
struct MirroredObjects {
    dirs: ManifestDirs,
    nodes: std::collections::BTreeMap<String, String>,
    problems: Vec<String>,
}

impl MirroredObjects {
    fn open(dirs: &[&Path]) -> Self {
        let dirs = ManifestDirs::open(dirs.iter().map(|dir| dir.to_path_buf()).collect()).unwrap();
        Self {
            dirs,
            nodes: Default::default(),
            problems: Vec::new(),
        }
    }

    async fn apply_next_change(&mut self) {
        let change = tokio::time::timeout(DEADLINE, self.dirs.next_change()).await;
        let change = change
            .unwrap_or_else(|_| panic!("no change; known: {:?}", self.nodes))
            .unwrap();
        for event in change.events {
            match event {
                ObjectEvent::Applied {
                    object: Object::Pod(pod),
                    ..
                } => {
                    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
                    self.nodes
                        .insert(pod.metadata.name.clone().unwrap(), node.unwrap_or_default());
                }
                ObjectEvent::Applied { .. } | ObjectEvent::Invalid { .. } => {}
                ObjectEvent::Deleted(key) => {
                    self.nodes.remove(key.name.as_str());
                }
            }
        }
        self.problems = change.problems.iter().map(ToString::to_string).collect();
    }

    async fn wait_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(
                begin.elapsed() < DEADLINE,
                "{what}: {:?} {:?}",
                self.nodes,
                self.problems
            );
            self.apply_next_change().await;
        }
    }
}

fn pod(name: &str, node: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{nodeName: {node}}}\n"
    )
}

#[test]
fn directory_is_read_once() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/a.yml"), pod("a", "n1")).unwrap();
    fs::write(dir.path().join(".hidden.yaml"), pod("b", "n1")).unwrap();
    fs::write(dir.path().join("c.yaml~"), pod("c", "n1")).unwrap();
    fs::write(dir.path().join("README.md"), "# no manifest").unwrap();
    fs::write(dir.path().join("bad.yaml"), "kind: Pod\n").unwrap();
    let snapshot = read_snapshot(&[dir.path()]).unwrap();
    let keys: Vec<_> = snapshot.objects.keys().cloned().collect();
    assert_eq!(keys, [ObjectKey::new(Kind::Pod, "default", "a")]);
    assert_eq!(snapshot.problems.len(), 1);
    let expected = format!(
        "{}:1: Pod has no metadata.name",
        dir.path().join("bad.yaml").display()
    );
    assert_eq!(snapshot.problems[0].to_string(), expected);
}

#[test]
fn missing_directory_is_reported() {
    let error = read_snapshot(&["/nonexistent/manifests"]).unwrap_err();
    assert!(
        error.to_string().contains("/nonexistent/manifests"),
        "{error}"
    );
}

#[tokio::test]
async fn empty_directory_is_reported_at_once() {
    let dir = TempDir::new().unwrap();
    let mut reader = MirroredObjects::open(&[dir.path()]);
    reader.apply_next_change().await;
    assert!(reader.nodes.is_empty() && reader.problems.is_empty());
}

#[tokio::test]
async fn writing_renaming_and_removing_are_followed() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    let mut reader = MirroredObjects::open(&[dir.path()]);
    fs::write(&file, pod("a", "n1")).unwrap();
    reader
        .wait_until("written", |r| {
            r.nodes.get("a").is_some_and(|node| node == "n1")
        })
        .await;
    // Editors write another file, then rename it over the first.
    fs::write(
        dir.path().join(".a.yaml.swp"),
        pod("a", "n2") + &pod("b", "n2"),
    )
    .unwrap();
    fs::rename(dir.path().join(".a.yaml.swp"), &file).unwrap();
    reader
        .wait_until("renamed over", |r| {
            r.nodes.len() == 2 && r.nodes["a"] == "n2"
        })
        .await;
    // A new directory.
    fs::create_dir(dir.path().join("more")).unwrap();
    fs::write(dir.path().join("more/c.yaml"), pod("c", "n1")).unwrap();
    reader
        .wait_until("in a new directory", |r| r.nodes.contains_key("c"))
        .await;
    fs::remove_file(&file).unwrap();
    reader
        .wait_until("removed", |r| r.nodes.keys().eq(["c"]))
        .await;
    fs::remove_dir_all(dir.path().join("more")).unwrap();
    reader
        .wait_until("directory removed", |r| r.nodes.is_empty())
        .await;
}

#[tokio::test]
async fn invalid_file_keeps_its_objects_until_corrected() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, pod("a", "n1")).unwrap();
    let mut reader = MirroredObjects::open(&[dir.path()]);
    reader
        .wait_until("written", |r| r.nodes.contains_key("a"))
        .await;
    fs::write(&file, "kind: Pod\nmetadata: {name: a\nspec: {{\n").unwrap();
    reader
        .wait_until("broken", |r| !r.problems.is_empty())
        .await;
    assert_eq!(reader.nodes["a"], "n1");
    assert!(
        reader.problems[0].contains("a.yaml:"),
        "{:?}",
        reader.problems
    );
    fs::write(&file, [0xff, 0xfe, 0x00]).unwrap();
    reader
        .wait_until("not text", |r| {
            r.problems
                .iter()
                .any(|text| text.contains("cannot be read"))
        })
        .await;
    assert_eq!(reader.nodes["a"], "n1");
    fs::write(&file, pod("a", "n3")).unwrap();
    reader
        .wait_until("corrected", |r| {
            r.nodes["a"] == "n3" && r.problems.is_empty()
        })
        .await;
}

#[tokio::test]
async fn file_truncated_before_writing_is_not_read_as_empty() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, pod("a", "n1") + &pod("b", "n1")).unwrap();
    let mut reader = MirroredObjects::open(&[dir.path()]);
    reader.wait_until("written", |r| r.nodes.len() == 2).await;
    fs::File::create(&file).unwrap();
    // Longer than the debounce delay, shorter than the delay for an empty file.
    let quiet = tokio::time::timeout(Duration::from_millis(300), reader.dirs.next_change()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    fs::write(&file, pod("a", "n2") + &pod("b", "n1")).unwrap();
    reader.apply_next_change().await;
    assert_eq!((reader.nodes.len(), reader.nodes["a"].as_str()), (2, "n2"));
}

#[tokio::test]
async fn directory_replaced_through_a_link_is_followed() {
    let dir = TempDir::new().unwrap();
    for (version, node) in [("v1", "n1"), ("v2", "n2")] {
        fs::create_dir(dir.path().join(version)).unwrap();
        fs::write(dir.path().join(version).join("a.yaml"), pod("a", node)).unwrap();
    }
    let current = dir.path().join("current");
    symlink("v1", &current).unwrap();
    let mut reader = MirroredObjects::open(&[&current]);
    reader
        .wait_until("v1", |r| r.nodes.get("a").is_some_and(|node| node == "n1"))
        .await;
    symlink("v2", dir.path().join("next")).unwrap();
    fs::rename(dir.path().join("next"), &current).unwrap();
    reader.wait_until("v2", |r| r.nodes["a"] == "n2").await;
}

#[tokio::test]
async fn deleted_directory_keeps_its_objects() {
    let dir = TempDir::new().unwrap();
    let live = dir.path().join("live");
    fs::create_dir(&live).unwrap();
    fs::write(live.join("a.yaml"), pod("a", "n1")).unwrap();
    let mut reader = MirroredObjects::open(&[&live]);
    reader
        .wait_until("read", |r| r.nodes.contains_key("a"))
        .await;
    fs::rename(&live, dir.path().join("away")).unwrap();
    reader.wait_until("away", |r| !r.problems.is_empty()).await;
    assert_eq!(reader.nodes["a"], "n1");
    fs::rename(dir.path().join("away"), &live).unwrap();
    fs::write(live.join("a.yaml"), pod("a", "n2")).unwrap();
    reader
        .wait_until("back", |r| r.problems.is_empty() && r.nodes["a"] == "n2")
        .await;
}

#[tokio::test]
async fn layers_are_merged_live() {
    let (base, live) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(base.path().join("a.yaml"), pod("a", "n1")).unwrap();
    let mut reader = MirroredObjects::open(&[base.path(), live.path()]);
    reader
        .wait_until("base", |r| {
            r.nodes.get("a").is_some_and(|node| node == "n1")
        })
        .await;
    fs::write(live.path().join("a.yaml"), pod("a", "n2")).unwrap();
    reader
        .wait_until("overlaid", |r| r.nodes["a"] == "n2")
        .await;
    fs::remove_file(live.path().join("a.yaml")).unwrap();
    reader
        .wait_until("bare again", |r| r.nodes["a"] == "n1")
        .await;
}
