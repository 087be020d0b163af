//! The agent's membership file, for while the agent itself is away.
//!
//! The agent writes `membership.json` to its run directory, and a copy to disk for the time between a
//! boot and its own start. Pods of a namespace that the file records as outside the mesh start at once,
//! so that an agent that is away delays mesh pods only. All other pods (namespace inside, not listed, no
//! file, a file of another form) wait.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

/// The file's name in the agent's run directory.
const FILE: &str = "membership.json";

#[derive(Deserialize)]
struct Snapshot {
    version: u32,
    /// Whether the namespace may have mesh pods: by its own label, or by pods that opt in.
    namespaces: BTreeMap<String, bool>,
}

/// Whether pods of `namespace` belong to the mesh; `None` when no file has it. `copy` is read when the file itself is
/// missing.
pub(crate) fn recorded(run_dir: &Path, copy: Option<&Path>, namespace: &str) -> Option<bool> {
    let snapshot = read(&run_dir.join(FILE)).or_else(|| read(copy?))?;
    snapshot.namespaces.get(namespace).copied()
}

fn read(path: &Path) -> Option<Snapshot> {
    let snapshot: Snapshot = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (snapshot.version == 1).then_some(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_recorded_as_outside_is_outside() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(recorded(dir.path(), None, "a"), None);
        for (text, expected) in [
            (r#"{"version":1,"namespaces":{"a":false}}"#, Some(false)),
            (
                r#"{"version":1,"namespaces":{"a":true},"more":1}"#,
                Some(true),
            ),
            (r#"{"version":1,"namespaces":{"b":false}}"#, None),
            (r#"{"version":2,"namespaces":{"a":false}}"#, None),
            (r#"{"version":1,"namespaces":{"a":"#, None),
            ("", None),
        ] {
            fs::write(dir.path().join(FILE), text).unwrap();
            assert_eq!(recorded(dir.path(), None, "a"), expected, "{text}");
        }
    }

    #[test]
    fn the_copy_speaks_where_the_file_is_silent() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        fs::write(&copy, r#"{"version":1,"namespaces":{"a":false,"b":false}}"#).unwrap();
        assert_eq!(recorded(dir.path(), Some(&copy), "a"), Some(false));
        let newer = r#"{"version":1,"namespaces":{"a":true}}"#;
        fs::write(dir.path().join(FILE), newer).unwrap();
        assert_eq!(recorded(dir.path(), Some(&copy), "a"), Some(true));
        assert_eq!(recorded(dir.path(), Some(&copy), "b"), None);
    }
}
