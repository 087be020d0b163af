//! Follows files: reads them at the start and after each change.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration, time::SystemTime};

/// Interval at which a file is checked. Comparing device, inode, size and time also detects changes of Kubernetes
/// volumes, which swap a symbolic link.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Calls `load` now and after each change of a file, its appearance and disappearance included. Never ends.
pub(crate) async fn follow(path: &Path, mut load: impl FnMut()) {
    let mut last = None;
    loop {
        let seen = Some(Signature::of(path));
        if seen != last {
            last = seen;
            load();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The file's signature, by which changes are detected.
#[derive(Debug, PartialEq, Eq)]
struct Signature(Option<(u64, u64, u64, Option<SystemTime>)>);

impl Signature {
    fn of(path: &Path) -> Self {
        Self(
            fs::metadata(path)
                .ok()
                .map(|meta| (meta.dev(), meta.ino(), meta.len(), meta.modified().ok())),
        )
    }
}
