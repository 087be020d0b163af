//! File watcher, which calls back at the start and after each change of a file.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration, time::SystemTime};

/// Interval at which a watched file is checked. Comparing device, inode, size and time also detects changes of
/// Kubernetes volumes, which swap a symbolic link.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Calls `load` now and after each change of a file, including its creation and removal. Never returns.
pub(crate) async fn watch_file(path: &Path, mut load: impl FnMut()) {
    let mut last = None;
    loop {
        let seen = Some(FileSignature::of(path));
        if seen != last {
            last = seen;
            load();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Signature of a file by which changes are detected: device, inode, size and modification time; `None` if the file
/// does not exist.
#[derive(Debug, PartialEq, Eq)]
struct FileSignature(Option<(u64, u64, u64, Option<SystemTime>)>);

impl FileSignature {
    fn of(path: &Path) -> Self {
        Self(
            fs::metadata(path)
                .ok()
                .map(|meta| (meta.dev(), meta.ino(), meta.len(), meta.modified().ok())),
        )
    }
}
