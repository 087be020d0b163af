//! Follows directories live: a thread scans when inotify reports a change, and periodically in any
//! case (targets of links, network file systems and replaced directories cause no events).

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind},
};
use parking_lot::Mutex;
use tokio::sync::mpsc as changes;

use crate::{
    ManifestChange, Snapshot,
    scan::{CompletionTimes, Scanner},
    tree::ManifestTree,
};

/// Time to wait for further inotify events after an event.
const EVENT_DEBOUNCE: Duration = Duration::from_millis(10);
/// Interval of scans without events, while inotify works.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of scans without inotify.
const UNWATCHED_SCAN_INTERVAL: Duration = Duration::from_millis(200);
/// Capacity of the queue of changes; when it is full, scanning pauses.
const QUEUE_CAPACITY: usize = 16;

/// Reason why directories of manifests cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The list of directories is empty.
    #[error("no directory of manifests is given")]
    NoDirectory,
    /// A directory of the list cannot be read.
    #[error("cannot read the manifests directory {path}: give an existing directory")]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The scanning thread could not be started.
    #[error("cannot start the thread that follows the manifests")]
    Thread(#[source] io::Error),
}

/// Reads directories once; later ones are merged over earlier ones.
pub fn read_snapshot<P: AsRef<Path>>(directories: &[P]) -> Result<Snapshot, OpenError> {
    let layers: Vec<_> = directories
        .iter()
        .map(|path| path.as_ref().to_owned())
        .collect();
    check_directories(&layers)?;
    let mut tree = ManifestTree::default();
    Scanner::new(layers).scan(&mut tree, true, &CompletionTimes::new());
    Ok(tree.snapshot())
}

/// Directories of manifests that are followed until this value is dropped.
#[derive(Debug)]
pub struct ManifestDirs {
    changes: changes::Receiver<ManifestChange>,
    scanner_commands: mpsc::SyncSender<ScannerCommand>,
}

#[derive(Debug)]
enum ScannerCommand {
    Scan,
    Stop,
}

impl ManifestDirs {
    /// Starts to follow `directories`; later ones are merged over earlier ones. They must exist.
    pub fn open(directories: Vec<PathBuf>) -> Result<Self, OpenError> {
        check_directories(&directories)?;
        let (wake, woken) = mpsc::sync_channel(1);
        let (sender, changes) = changes::channel(QUEUE_CAPACITY);
        let waker = wake.clone();
        thread::Builder::new()
            .name("manifests".into())
            .spawn(move || run_scanner(directories, waker, &woken, &sender))
            .map_err(OpenError::Thread)?;
        Ok(Self {
            changes,
            scanner_commands: wake,
        })
    }

    /// Waits for the next change. The first one has every object and is immediate, even if there are none. Cancelling
    /// the future loses no change. Returns `None` only if the thread has ended.
    pub async fn next_change(&mut self) -> Option<ManifestChange> {
        self.changes.recv().await
    }
}

impl Drop for ManifestDirs {
    fn drop(&mut self) {
        self.changes.close();
        // If the queue is full, the thread is awake already; it finds the channel closed.
        let _ = self.scanner_commands.try_send(ScannerCommand::Stop);
    }
}

fn check_directories(directories: &[PathBuf]) -> Result<(), OpenError> {
    if directories.is_empty() {
        return Err(OpenError::NoDirectory);
    }
    for path in directories {
        std::fs::read_dir(path).map_err(|source| OpenError::Directory {
            path: path.clone(),
            source,
        })?;
    }
    Ok(())
}

fn run_scanner(
    directories: Vec<PathBuf>,
    commands_sender: mpsc::SyncSender<ScannerCommand>,
    commands: &mpsc::Receiver<ScannerCommand>,
    sender: &changes::Sender<ManifestChange>,
) {
    let whole = CompleteFiles::default();
    let mut watch = DirectoryWatch::new(commands_sender, whole.clone());
    let mut scanner = Scanner::new(directories);
    let mut tree = ManifestTree::default();
    let mut first = true;
    while !sender.is_closed() {
        let written = whole.take_all();
        let mut scan = scanner.scan(&mut tree, first, &written);
        if watch.set_directories(&scan.directories) {
            // Changes between the scan and the creation of the watch.
            scan = scanner.scan(&mut tree, first, &written);
        }
        let change = tree.take_change();
        if let Some(change) = change.or_else(|| first.then(ManifestChange::default)) {
            for problem in change.problems.iter() {
                tracing::debug!(%problem, "a manifest cannot be used");
            }
            if sender.blocking_send(change).is_err() {
                return;
            }
        }
        first = false;
        let every = if watch.is_active() {
            SCAN_INTERVAL
        } else {
            UNWATCHED_SCAN_INTERVAL
        };
        match commands.recv_timeout(scan.rescan_in.unwrap_or(every).min(every)) {
            Ok(ScannerCommand::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(ScannerCommand::Scan) => thread::sleep(EVENT_DEBOUNCE),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Files that their writer has closed or renamed into place, with their modification time at that moment, which reveals
/// later changes.
#[derive(Clone, Debug, Default)]
struct CompleteFiles(Arc<Mutex<CompletionTimes>>);

impl CompleteFiles {
    fn add(&self, path: &Path) {
        let meta = std::fs::metadata(path);
        if let Ok(modified) = meta.and_then(|meta| meta.modified()) {
            self.0.lock().insert(path.to_owned(), modified);
        }
    }

    fn take_all(&self) -> CompletionTimes {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The inotify instance and its watched directories.
struct DirectoryWatch {
    watcher: Option<RecommendedWatcher>,
    watched_directories: HashSet<PathBuf>,
}

impl DirectoryWatch {
    fn new(waker: mpsc::SyncSender<ScannerCommand>, whole: CompleteFiles) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else {
                return;
            };
            let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
            let is_whole = match event.kind {
                kind if kind == closed => true,
                EventKind::Modify(ModifyKind::Name(_)) => true,
                // An event of our own reading.
                EventKind::Access(_) => return,
                _ => false,
            };
            if is_whole {
                for path in &event.paths {
                    whole.add(path);
                }
            }
            // If the queue is full, a scan is due anyway.
            let _ = waker.try_send(ScannerCommand::Scan);
        });
        let watcher = watcher
            .inspect_err(
                |error| tracing::warn!(%error, "no inotify; manifests are scanned periodically"),
            )
            .ok();
        Self {
            watcher,
            watched_directories: HashSet::new(),
        }
    }

    fn is_active(&self) -> bool {
        self.watcher.is_some()
    }

    /// Replaces the watched directories by `directories`; returns whether any is new.
    fn set_directories(&mut self, directories: &[PathBuf]) -> bool {
        let Some(watcher) = &mut self.watcher else {
            return false;
        };
        let desired: HashSet<_> = directories.iter().cloned().collect();
        for path in self.watched_directories.difference(&desired) {
            // The directory was deleted, and its watch with it.
            watcher.unwatch(path).ok();
        }
        let mut any = false;
        let mut watched: HashSet<_> = self
            .watched_directories
            .intersection(&desired)
            .cloned()
            .collect();
        for path in desired.difference(&self.watched_directories) {
            match watcher.watch(path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    any = true;
                    watched.insert(path.clone());
                }
                Err(error) => tracing::debug!(path = %path.display(), %error, "cannot be watched"),
            }
        }
        self.watched_directories = watched;
        any
    }
}

#[cfg(test)]
mod tests;
