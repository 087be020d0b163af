//! Each invalid manifest in `bad/` yields the problem in its first line, and a valid manifest beside it is published.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use ambit_derive::{Index, MeshConfig, PodDirectory};

const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: good, namespace: shop}\nstatus: {phase: Running, podIP: 10.0.0.1}\n";

#[test]
fn every_bad_manifest_gives_the_message_it_promises() {
    let bad = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bad");
    let mut failures = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(bad).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let promised = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("# problem: "));
        let promised = promised.unwrap_or_else(|| panic!("{} promises nothing", path.display()));
        let problems = problems(&path.file_name().unwrap().to_string_lossy(), &text);
        let [problem] = problems.as_slice() else {
            failures.push(format!("{}: not one problem: {problems:?}", path.display()));
            continue;
        };
        if !problem.contains(promised) {
            failures.push(format!(
                "{}\n promised: {promised}\n      got: {problem}",
                path.display()
            ));
        }
        count += 1;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 10);
}

/// Returns the problems of a manifest, and asserts that a valid manifest beside it is published.
fn problems(name: &str, text: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), text).unwrap();
    std::fs::write(dir.path().join("good.yaml"), GOOD).unwrap();
    let snapshot = ambit_manifests::read_snapshot(&[dir.path()]).unwrap();
    let mut index = Index::new(MeshConfig::default());
    let mut pods = PodDirectory::default();
    for (object, origin) in snapshot.objects.values() {
        index.apply(object, Some(&origin.to_string()), &mut pods);
    }
    let published = index.flush().workloads;
    assert!(
        published
            .iter()
            .any(|(uid, _)| uid == "Kubernetes//Pod/shop/good"),
        "{published:?}"
    );
    let unread = snapshot.problems.iter().map(ToString::to_string);
    unread
        .chain(index.problems().map(ToString::to_string))
        .collect()
}
