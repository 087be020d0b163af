//! Reads the agent's membership file while the agent itself is unavailable.
//!
//! The agent writes `membership.json` to its run directory, and a copy to disk for the time between
//! a boot and its own start. Pods of a namespace that the file records as outside of the mesh start
//! at once, so that an unavailable agent delays only mesh pods. All other pods wait: those of a
//! namespace inside, or of one that is not listed, and all pods if the file is missing or invalid.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

/// Name of the file in the agent's run directory.
const FILE_NAME: &str = "membership.json";

#[derive(Deserialize)]
struct MembershipFile {
    version: u32,
    /// Whether each namespace may have mesh pods: by its own label, or by pods that opt in.
    namespaces: BTreeMap<String, bool>,
}

/// Returns whether pods of `namespace` may belong to the mesh; `None` if no file lists the namespace. The file `copy`
/// is read if the one in `run_dir` is missing.
pub(crate) fn recorded_membership(
    run_dir: &Path,
    copy: Option<&Path>,
    namespace: &str,
) -> Option<bool> {
    let snapshot = read_file(&run_dir.join(FILE_NAME)).or_else(|| read_file(copy?))?;
    snapshot.namespaces.get(namespace).copied()
}

fn read_file(path: &Path) -> Option<MembershipFile> {
    let snapshot: MembershipFile = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (snapshot.version == 1).then_some(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_namespaces_do_not_count_as_outside() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(recorded_membership(dir.path(), None, "a"), None);
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
            fs::write(dir.path().join(FILE_NAME), text).unwrap();
            assert_eq!(
                recorded_membership(dir.path(), None, "a"),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn copy_is_read_if_the_file_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        fs::write(&copy, r#"{"version":1,"namespaces":{"a":false,"b":false}}"#).unwrap();
        assert_eq!(
            recorded_membership(dir.path(), Some(&copy), "a"),
            Some(false)
        );
        let newer = r#"{"version":1,"namespaces":{"a":true}}"#;
        fs::write(dir.path().join(FILE_NAME), newer).unwrap();
        assert_eq!(
            recorded_membership(dir.path(), Some(&copy), "a"),
            Some(true)
        );
        assert_eq!(recorded_membership(dir.path(), Some(&copy), "b"), None);
    }
}
