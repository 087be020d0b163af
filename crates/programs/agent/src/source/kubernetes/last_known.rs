//! State file with which an agent starts while the API server is unavailable: `last-known.json` in the run directory,
//! all objects that the source has sent, written atomically.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use ambit_model::ArcStr;
use ambit_zds::PodUid;
use serde::{Deserialize, Serialize};

use crate::{
    replace::replace_file,
    source::{Labels, PodView},
};

/// Name of the file in the run directory.
const FILE_NAME: &str = "last-known.json";
/// Version of the file's format; files of other versions are ignored.
const FORMAT_VERSION: u32 = 1;

/// Pods and namespaces of all events that the source has sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastKnown {
    pub(super) namespaces: BTreeMap<ArcStr, Labels>,
    pub(super) pods: BTreeMap<PodUid, PodView>,
}

#[derive(Serialize, Deserialize)]
struct FileContent<K> {
    version: u32,
    node: ArcStr,
    known: K,
}

/// Removes the state file.
pub(super) fn remove(run_dir: &Path) {
    let path = run_dir.join(FILE_NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "the file of last known objects cannot be removed");
        }
        _ => {}
    }
}

/// State file of the agent on one node, `last-known.json`.
#[derive(Debug)]
pub(super) struct LastKnownFile {
    path: PathBuf,
    node: ArcStr,
}

impl LastKnownFile {
    pub(super) fn in_dir(run_dir: &Path, node: &str) -> Self {
        Self {
            path: run_dir.join(FILE_NAME),
            node: node.into(),
        }
    }

    /// Reads the state file; `None` if it is missing, unreadable or of another node.
    pub(super) fn read(&self) -> Option<LastKnown> {
        let bytes = fs::read(&self.path).ok()?;
        match serde_json::from_slice::<FileContent<LastKnown>>(&bytes) {
            Ok(content) => (content.version == FORMAT_VERSION && content.node == self.node)
                .then_some(content.known),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "the file of last known objects cannot be read");
                None
            }
        }
    }

    pub(super) fn write(&self, known: &LastKnown) {
        if let Err(error) = self.replace_content(known) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "an agent that starts without the API server will not know the node's pods");
        }
    }

    fn replace_content(&self, known: &LastKnown) -> io::Result<()> {
        let content = FileContent {
            version: FORMAT_VERSION,
            node: self.node.clone(),
            known,
        };
        // Who may write it could have pods captured; who may read it learns their labels.
        replace_file(&self.path, 0o600, &serde_json::to_vec(&content)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_read_only_on_the_same_node() {
        let dir = tempfile::tempdir().unwrap();
        let file = LastKnownFile::in_dir(dir.path(), "n1");
        assert_eq!(file.read(), None);
        let mut known = LastKnown::default();
        let labels = Labels::from([("a".to_owned(), "b".to_owned())]);
        known.namespaces.insert("shop".into(), labels.clone());
        let pod = PodView {
            uid: "u".into(),
            addresses: vec!["fd00::1".parse().unwrap()],
            labels,
            ..PodView::default()
        };
        known.pods.insert("u".into(), pod);
        file.write(&known);
        assert_eq!(file.read(), Some(known));
        assert_eq!(LastKnownFile::in_dir(dir.path(), "n2").read(), None);
        remove(dir.path());
        assert_eq!(file.read(), None);
        remove(dir.path());
        fs::write(dir.path().join(FILE_NAME), "{").unwrap();
        assert_eq!(file.read(), None);
    }
}
