//! Tests of layers, invalid documents, and objects in several files.

use serde_json::json;

use super::*;
use crate::document::{FileFormat, parse_file};

fn id(layer: usize, path: &str) -> FileId {
    FileId {
        layer,
        path: Path::new(path).into(),
    }
}

fn read_file(tree: &mut ManifestTree, layer: usize, path: &str, text: &str) {
    let id = id(layer, path);
    let parsed = parse_file(
        text,
        FileFormat::Yaml,
        layer > 0,
        &tree.known_documents(&id),
    );
    tree.set_file(&id, parsed);
}

fn pod(name: &str, node: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{nodeName: {node}}}\n"
    )
}

fn changed_keys(change: &ManifestChange) -> Vec<String> {
    change
        .events
        .iter()
        .map(|event| match event {
            ObjectEvent::Applied { object, .. } => format!("+{}", object.key()),
            ObjectEvent::Invalid { key, .. } => format!("!{key}"),
            ObjectEvent::Deleted(key) => format!("-{key}"),
        })
        .collect()
}

fn node_of(tree: &mut ManifestTree, name: &str) -> String {
    let snapshot = tree.snapshot();
    let key = ObjectKey::new(ambit_k8s_api::Kind::Pod, "default", name);
    let Object::Pod(pod) = &snapshot.objects[&key].0 else {
        panic!("not a pod")
    };
    pod.spec
        .as_ref()
        .unwrap()
        .node_name
        .clone()
        .unwrap_or_default()
}

#[test]
fn only_changes_are_reported() {
    let mut tree = ManifestTree::default();
    read_file(&mut tree, 0, "a.yaml", &(pod("a", "n1") + &pod("b", "n1")));
    assert_eq!(
        changed_keys(&tree.take_change().unwrap()),
        ["+Pod default/a", "+Pod default/b"]
    );
    assert!(tree.take_change().is_none());
    read_file(&mut tree, 0, "a.yaml", &(pod("a", "n1") + &pod("b", "n2")));
    assert_eq!(
        changed_keys(&tree.take_change().unwrap()),
        ["+Pod default/b"]
    );
    read_file(&mut tree, 0, "a.yaml", &pod("b", "n2"));
    assert_eq!(
        changed_keys(&tree.take_change().unwrap()),
        ["-Pod default/a"]
    );
    tree.remove_file(&id(0, "a.yaml"));
    assert_eq!(
        changed_keys(&tree.take_change().unwrap()),
        ["-Pod default/b"]
    );
}

#[test]
fn later_directories_are_merged_over_earlier_ones() {
    let mut tree = ManifestTree::default();
    read_file(
        &mut tree,
        1,
        "live/a.yaml",
        "kind: Pod\nmetadata: {name: a, uid: u1}\nspec: {nodeName: n2}\n",
    );
    read_file(&mut tree, 0, "a.yaml", &pod("a", "n1"));
    assert_eq!(node_of(&mut tree, "a"), "n2");
    read_file(
        &mut tree,
        1,
        "live/a.yaml",
        "kind: Pod\nmetadata: {name: a}\nspec: {nodeName: null}\n",
    );
    assert_eq!(node_of(&mut tree, "a"), "");
    tree.remove_file(&id(1, "live/a.yaml"));
    assert_eq!(node_of(&mut tree, "a"), "n1");
}

#[test]
fn overlay_alone_is_not_an_object() {
    let mut tree = ManifestTree::default();
    let overlay = "kind: Pod\nmetadata: {name: a, annotations: {ambit.io/overlay: \"true\", x: y}}\nspec: {nodeName: n3}\n";
    read_file(&mut tree, 0, "over.yaml", overlay);
    let change = tree.take_change();
    assert!(change.is_none(), "{change:?}");
    read_file(&mut tree, 0, "zz.yaml", &pod("a", "n1"));
    assert_eq!(
        changed_keys(&tree.take_change().unwrap()),
        ["+Pod default/a"]
    );
    assert_eq!(node_of(&mut tree, "a"), "n3");
    let key = ObjectKey::new(ambit_k8s_api::Kind::Pod, "default", "a");
    let snapshot = tree.snapshot();
    let annotations = snapshot.objects[&key]
        .0
        .metadata()
        .annotations
        .as_ref()
        .unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), ["x"]);
    tree.remove_file(&id(0, "zz.yaml"));
    assert_eq!(
        changed_keys(&tree.take_change().unwrap()),
        ["-Pod default/a"]
    );
}

#[test]
fn invalid_document_keeps_its_object_and_others_change() {
    let mut tree = ManifestTree::default();
    read_file(&mut tree, 0, "a.yaml", &(pod("a", "n1") + &pod("b", "n1")));
    tree.take_change();
    // The document is unreadable: its object is unknown.
    read_file(
        &mut tree,
        0,
        "a.yaml",
        &("kind: Pod\nmetadata: {name\n".to_owned() + &pod("b", "n2")),
    );
    let change = tree.take_change().unwrap();
    assert_eq!(changed_keys(&change), ["+Pod default/b"]);
    assert_eq!(change.problems.len(), 1);
    assert_eq!(node_of(&mut tree, "a"), "n1");
    // The document is readable as far as the name.
    read_file(
        &mut tree,
        0,
        "a.yaml",
        &("kind: Pod\nmetadata: {name: a}\nspec: []\n".to_owned() + &pod("b", "n2")),
    );
    let change = tree.take_change().unwrap();
    assert_eq!(changed_keys(&change), Vec::<String>::new());
    assert!(
        change.problems[0]
            .to_string()
            .starts_with("a.yaml:3: Pod default/a: spec"),
        "{}",
        change.problems[0]
    );
    assert_eq!(node_of(&mut tree, "a"), "n1");
    // Corrected.
    read_file(&mut tree, 0, "a.yaml", &(pod("a", "n9") + &pod("b", "n2")));
    let change = tree.take_change().unwrap();
    assert_eq!(changed_keys(&change), ["+Pod default/a"]);
    assert!(change.problems.is_empty());
    // An object is removed while another document is invalid except for its name: the first one is
    // deleted.
    read_file(
        &mut tree,
        0,
        "a.yaml",
        "kind: Pod\nmetadata: {name: b}\nspec: []\n",
    );
    assert_eq!(
        changed_keys(&tree.take_change().unwrap()),
        ["-Pod default/a"]
    );
    assert_eq!(node_of(&mut tree, "b"), "n2");
}

#[test]
fn duplicate_object_is_a_problem_and_the_first_applies() {
    let mut tree = ManifestTree::default();
    read_file(&mut tree, 0, "a.yaml", &pod("a", "n1"));
    read_file(&mut tree, 0, "b.yaml", &pod("a", "n2"));
    let change = tree.take_change().unwrap();
    assert_eq!(
        change.problems[0].to_string(),
        "b.yaml:2: Pod default/a: is given a second time, differently; a.yaml:2 is used"
    );
    assert_eq!(node_of(&mut tree, "a"), "n1");
    read_file(&mut tree, 0, "b.yaml", &pod("a", "n1"));
    assert!(tree.take_change().unwrap().problems.is_empty());
    // A file is renamed: its objects do not change.
    tree.remove_file(&id(0, "a.yaml"));
    assert!(tree.take_change().is_none());
}

#[test]
fn unreadable_objects_are_reported_and_removed() {
    const POLICY: &str =
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p}\n";
    let bad = format!("{POLICY}spec: {{rulez: []}}\n");
    let good = format!("{POLICY}spec: {{}}\n");
    let mut tree = ManifestTree::default();
    let mut change = |text: &str| {
        read_file(&mut tree, 0, "a.yaml", text);
        tree.take_change().map(|change| changed_keys(&change))
    };
    let is = |name: &str| Some(vec![name.to_owned()]);
    assert_eq!(change(&bad), is("!AuthorizationPolicy default/p"));
    assert_eq!(change(&bad), None);
    assert_eq!(change(&good), is("+AuthorizationPolicy default/p"));
    assert_eq!(change(&bad), Some(Vec::new()), "the last good form stays");
    assert_eq!(change(""), is("-AuthorizationPolicy default/p"));
    assert_eq!(change(&bad), is("!AuthorizationPolicy default/p"));
    assert_eq!(change(""), is("-AuthorizationPolicy default/p"));
}

#[test]
fn layers_merge_as_in_the_examples_of_rfc_7386() {
    for (target, patch, expected) in [
        (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
        (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
        (json!({"a":"b"}), json!({"a":null}), json!({})),
        (
            json!({"a":"b","b":"c"}),
            json!({"a":null}),
            json!({"b":"c"}),
        ),
        (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
        (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
        (
            json!({"a":{"b":"c"}}),
            json!({"a":{"b":"d","c":null}}),
            json!({"a":{"b":"d"}}),
        ),
        (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a":"b"}), json!(["c"]), json!(["c"])),
        (json!({"a":"foo"}), json!(null), json!(null)),
        (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
        (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
        (
            json!({}),
            json!({"a":{"bb":{"ccc":null}}}),
            json!({"a":{"bb":{}}}),
        ),
    ] {
        let mut merged = target.clone();
        json_patch::merge(&mut merged, &patch);
        assert_eq!(merged, expected, "{target} patched with {patch}");
    }
}
