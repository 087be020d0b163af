//! File of the namespaces that may have mesh pods, which the plugin reads while the agent is unavailable.
//!
//! `membership.json` in the run directory: `{"version":1,"namespaces":{"<name>":<may have mesh
//! pods>}}`. Written whole and renamed into place.

use std::{collections::BTreeMap, io, path::Path};

use ambit_model::ArcStr;
use serde::Serialize;

use crate::replace::replace_file;

/// Name of the file in the run directory.
pub const FILE_NAME: &str = "membership.json";

#[derive(Serialize)]
struct MembershipFile<'a> {
    version: u32,
    namespaces: BTreeMap<&'a str, bool>,
}

/// Writes the membership file atomically. Blocks.
///
/// # Errors
/// When the directory cannot be written.
pub fn write(run_dir: &Path, namespaces: &BTreeMap<ArcStr, bool>) -> io::Result<()> {
    let namespaces = namespaces
        .iter()
        .map(|(name, mesh)| (name.as_str(), *mesh))
        .collect();
    let text = serde_json::to_vec(&MembershipFile {
        version: 1,
        namespaces,
    })?;
    replace_file(&run_dir.join(FILE_NAME), 0o644, &text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn plugin_reads_the_written_file() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &BTreeMap::from([("a".into(), true), ("b".into(), false)]),
        )
        .unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join(FILE_NAME)).unwrap(),
            r#"{"version":1,"namespaces":{"a":true,"b":false}}"#
        );
    }
}
