//! Records the configuration with which a pod's interface was attached, from ADD to DEL, because the primary CNI's
//! configuration may change in between. Each record is a file, which is written completely and renamed into place.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process,
};

use ambit_cni_conf::{Network, network::InvalidConf};
use serde::{Deserialize, Serialize};

/// Network configuration of the primary CNI with which a pod's interface was attached.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Attachment {
    /// Name of the configuration file, whose extension selects the format (list or single plugin).
    pub(crate) file: String,
    pub(crate) text: String,
}

/// File that stores the attachment of one interface of one container.
#[derive(Debug)]
pub(crate) struct AttachmentStore(PathBuf);

impl AttachmentStore {
    /// Returns the store for one interface of one container. The arguments are validated already: neither has a slash,
    /// and the interface has no colon.
    pub(crate) fn new(state_dir: &Path, container: &str, interface: &str) -> Self {
        Self(state_dir.join(file_name(container, interface)))
    }

    pub(crate) fn save(&self, attachment: &Attachment) -> io::Result<()> {
        if let Some(directory) = self.0.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
        }
        let temporary = self.0.with_file_name(format!("tmp.{}", process::id()));
        fs::write(&temporary, serde_json::to_vec(attachment)?)?;
        fs::rename(&temporary, &self.0).inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    /// Loads the stored attachment; `None` if there is no readable file.
    pub(crate) fn load(&self) -> Option<Attachment> {
        serde_json::from_slice(&fs::read(&self.0).ok()?).ok()
    }

    /// Removes the stored attachment. If that fails, a later GC command removes the file.
    pub(crate) fn delete(&self) {
        fs::remove_file(&self.0).ok();
    }
}

impl Attachment {
    pub(crate) fn network(&self) -> Result<Network, InvalidConf> {
        Network::parse(&self.file, &self.text)
    }
}

/// Removes all stored attachments except those in `valid`, pairs of container and interface.
pub(crate) fn collect_garbage(state_dir: &Path, valid: &[(String, String)]) {
    let keep: Vec<String> = valid
        .iter()
        .map(|(container, interface)| file_name(container, interface))
        .collect();
    for entry in fs::read_dir(state_dir).into_iter().flatten().flatten() {
        let file = entry.file_name();
        if !keep.iter().any(|name| file == name.as_str()) {
            fs::remove_file(entry.path()).ok();
        }
    }
}

fn file_name(container: &str, interface: &str) -> String {
    format!("{container}:{interface}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(text: &str) -> Attachment {
        Attachment {
            file: "10-x.conf".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn saved_attachment_is_loaded_until_removed() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("deep/state");
        let store = AttachmentStore::new(&state, "c0ffee", "eth0");
        assert!(store.load().is_none());
        store.save(&attachment("1")).unwrap();
        store.save(&attachment("2")).unwrap();
        assert_eq!(store.load().unwrap().text, "2");
        assert!(
            AttachmentStore::new(&state, "c0ffee", "eth1")
                .load()
                .is_none()
        );
        fs::write(state.join("c0ffee:eth1"), "cut sh").unwrap();
        assert!(
            AttachmentStore::new(&state, "c0ffee", "eth1")
                .load()
                .is_none()
        );
        store.delete();
        store.delete();
        assert!(store.load().is_none());
    }

    #[test]
    fn invalid_attachments_are_collected() {
        let dir = tempfile::tempdir().unwrap();
        for id in ["a", "b", "c.d"] {
            let store = AttachmentStore::new(dir.path(), id, "eth0");
            store.save(&attachment(id)).unwrap();
        }
        collect_garbage(dir.path(), &[("c.d".to_owned(), "eth0".to_owned())]);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name(), "c.d:eth0");
        collect_garbage(&dir.path().join("none"), &[]);
    }
}
