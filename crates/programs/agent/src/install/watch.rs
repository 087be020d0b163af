//! Watches directories for changes by inotify.

use std::{path::Path, sync::Arc};

use ambit_cni_conf::{PLUGIN_NAME, directory::is_candidate};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

use crate::membership;

/// Inotify watch on directories; ends when dropped.
#[derive(Debug)]
pub(super) struct DirectoryWatch(
    #[expect(dead_code, reason = "watches while it lives")] Option<RecommendedWatcher>,
);

impl DirectoryWatch {
    /// Starts watching; `changed` is notified of every change. Directories that cannot be watched are only polled.
    pub(super) fn new(directories: &[&Path], changed: Arc<Notify>) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| is_relevant(&event)) {
                changed.notify_one();
            }
        });
        let mut watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, "no inotify: looking now and then"))
            .ok();
        for directory in directories {
            let Some(watcher) = &mut watcher else {
                break;
            };
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                tracing::debug!(directory = %directory.display(), %error, "cannot be watched");
            }
        }
        Self(watcher)
    }
}

fn is_relevant(event: &Event) -> bool {
    // Our own reading makes access events. An overflow names no path.
    !event.kind.is_access()
        && (event.paths.is_empty()
            || event.paths.iter().any(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| {
                    name == PLUGIN_NAME || name == membership::FILE_NAME || is_candidate(name)
                })
            }))
}
