//! What the agent's file says while the agent itself is away.
//!
//! The agent keeps `membership.json` in its run directory. A namespace that the file knows to be
//! outside the mesh is let pass at once, so that an agent that is away holds up mesh pods only.
//! Everything else (listed as inside, not listed, no file, a file of another form) waits.

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

/// Whether pods of `namespace` belong to the mesh; `None` when the file does not tell.
pub(crate) fn recorded(run_dir: &Path, namespace: &str) -> Option<bool> {
    let bytes = fs::read(run_dir.join(FILE)).ok()?;
    let snapshot: Snapshot = serde_json::from_slice(&bytes).ok()?;
    if snapshot.version != 1 {
        return None;
    }
    snapshot.namespaces.get(namespace).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_recorded_as_outside_is_outside() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(recorded(dir.path(), "a"), None);
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
            assert_eq!(recorded(dir.path(), "a"), expected, "{text}");
        }
    }
}
