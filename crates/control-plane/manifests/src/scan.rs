//! Finds the manifest files of all layers and reads the changed ones, once they have settled.
//!
//! A file is read when its signature (device, inode, size, times) differs from the one last read and it has not been
//! written to for [`FILE_SETTLE_TIME`], or its writer is known to have finished, so that no half-written file is read.
//! A file that became empty has a longer delay, because editors truncate before they write; so has a vanished one,
//! because editors rename.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use crate::{
    document::{FileFormat, parse_file},
    tree::{FileId, ManifestTree},
};

/// Time for which a changed file must be unmodified before it is read.
const FILE_SETTLE_TIME: Duration = Duration::from_millis(30);
/// Time for which a file that held objects must be empty before its objects are removed.
const EMPTY_FILE_SETTLE_TIME: Duration = Duration::from_secs(1);
/// Time for which a file must be missing before its objects are removed.
const VANISHED_FILE_GRACE_PERIOD: Duration = Duration::from_millis(60);
/// Maximum size of a file in bytes; larger files are an error.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Maximum depth of directories; deeper ones are an error.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileSignature {
    device: u64,
    inode: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl From<&Metadata> for FileSignature {
    fn from(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// Completely written files, with their modification time when their writer had finished.
pub(crate) type CompletionTimes = HashMap<PathBuf, SystemTime>;

/// State of the files as last scanned.
#[derive(Debug)]
pub(crate) struct Scanner {
    layers: Vec<PathBuf>,
    read_signatures: HashMap<FileId, FileSignature>,
    vanished_since: HashMap<FileId, Instant>,
}

/// Result of one scan.
#[derive(Debug, Default)]
pub(crate) struct ScanResult {
    /// All directories found, to be watched by inotify.
    pub(crate) directories: Vec<PathBuf>,
    /// Delay after which to scan again, if a file has not settled yet.
    pub(crate) rescan_in: Option<Duration>,
}

impl ScanResult {
    fn request_rescan(&mut self, after: Duration) {
        let after = after.max(Duration::from_millis(5));
        self.rescan_in = Some(self.rescan_in.map_or(after, |again| again.min(after)));
    }
}

#[derive(Default)]
struct FoundFiles {
    files: BTreeMap<FileId, Metadata>,
    /// Directories that could not be listed; the files below them count as unchanged.
    unlistable_directories: Vec<FileId>,
}

impl Scanner {
    pub(crate) fn new(layers: Vec<PathBuf>) -> Self {
        Self {
            layers,
            read_signatures: HashMap::new(),
            vanished_since: HashMap::new(),
        }
    }

    /// Scans every file, and applies changes to `tree`. The first scan does not wait for files to
    /// settle.
    pub(crate) fn scan(
        &mut self,
        tree: &mut ManifestTree,
        first: bool,
        written: &CompletionTimes,
    ) -> ScanResult {
        let mut scan = ScanResult::default();
        let mut found = FoundFiles::default();
        for (layer, root) in self.layers.clone().into_iter().enumerate() {
            let id = FileId {
                layer,
                path: root.as_path().into(),
            };
            let mut seen = HashSet::new();
            match list_files(&id, 0, &mut seen, &mut found, &mut scan, tree) {
                Ok(()) => tree.clear_unreadable(&id),
                Err(error) => {
                    found.unlistable_directories.push(id.clone());
                    tree.set_unreadable(
                        &id,
                        format!("cannot be listed: {error}; what was read from it stays"),
                    );
                }
            }
        }
        for (id, meta) in &found.files {
            self.vanished_since.remove(id);
            let signature = FileSignature::from(meta);
            if self.read_signatures.get(id) == Some(&signature) {
                continue;
            }
            let is_whole = written
                .get(&*id.path)
                .is_some_and(|then| meta.modified().is_ok_and(|now| now == *then));
            let is_emptied = meta.len() == 0 && tree.holds_objects(id);
            if !first
                && (is_emptied || !is_whole)
                && let Some(wait) = time_to_settle(meta, is_emptied)
            {
                scan.request_rescan(wait);
                continue;
            }
            if !self.read_file(id, signature, tree) {
                scan.request_rescan(FILE_SETTLE_TIME);
            }
        }
        self.remove_vanished_files(&found, tree, &mut scan);
        scan
    }

    /// Reads one file into `tree`; returns false if the file changed meanwhile.
    fn read_file(
        &mut self,
        id: &FileId,
        signature: FileSignature,
        tree: &mut ManifestTree,
    ) -> bool {
        match read_text(&id.path) {
            Ok((text, after)) if after == signature => {
                let format = if id.path.extension().is_some_and(|ext| ext == "json") {
                    FileFormat::Json
                } else {
                    FileFormat::Yaml
                };
                tree.clear_unreadable(id);
                let parsed = parse_file(&text, format, id.layer > 0, &tree.known_documents(id));
                tree.set_file(id, parsed);
                self.read_signatures.insert(id.clone(), signature);
                true
            }
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => {
                tree.set_unreadable(
                    id,
                    format!("cannot be read: {error}; what was read from it stays"),
                );
                self.read_signatures.insert(id.clone(), signature);
                true
            }
        }
    }

    fn remove_vanished_files(
        &mut self,
        found: &FoundFiles,
        tree: &mut ManifestTree,
        scan: &mut ScanResult,
    ) {
        let missing: Vec<FileId> = tree
            .files()
            .chain(self.read_signatures.keys())
            .filter(|id| !found.files.contains_key(*id))
            .filter(|id| {
                !found.unlistable_directories.iter().any(|protected| {
                    protected.layer == id.layer && id.path.starts_with(&protected.path)
                })
            })
            .cloned()
            .collect();
        for id in missing {
            let since = *self
                .vanished_since
                .entry(id.clone())
                .or_insert_with(Instant::now);
            if since.elapsed() >= VANISHED_FILE_GRACE_PERIOD {
                self.vanished_since.remove(&id);
                self.read_signatures.remove(&id);
                tree.remove_file(&id);
            } else {
                scan.request_rescan(VANISHED_FILE_GRACE_PERIOD.saturating_sub(since.elapsed()));
            }
        }
    }
}

/// Returns the time until the file counts as settled; `None` if it is. A modification time in the future counts as
/// settled, since it carries no information.
fn time_to_settle(meta: &Metadata, is_emptied: bool) -> Option<Duration> {
    let age = SystemTime::now()
        .duration_since(meta.modified().ok()?)
        .ok()?;
    let settle = if is_emptied {
        EMPTY_FILE_SETTLE_TIME
    } else {
        FILE_SETTLE_TIME
    };
    settle.checked_sub(age).filter(|wait| !wait.is_zero())
}

fn list_files(
    directory: &FileId,
    depth: usize,
    visited: &mut HashSet<(u64, u64)>,
    found: &mut FoundFiles,
    scan: &mut ScanResult,
    tree: &mut ManifestTree,
) -> io::Result<()> {
    let meta = fs::metadata(&directory.path)?;
    if !visited.insert((meta.dev(), meta.ino())) {
        return Ok(());
    }
    if depth > MAX_DEPTH {
        return Err(io::Error::other("directories are nested too deeply"));
    }
    scan.directories.push(directory.path.to_path_buf());
    for entry in fs::read_dir(&directory.path)? {
        let path: Arc<Path> = entry?.path().into();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        let is_manifest = matches!(
            path.extension().and_then(|ext| ext.to_str()),
            Some("yaml" | "yml" | "json")
        );
        let id = FileId {
            layer: directory.layer,
            path: Arc::clone(&path),
        };
        // Links are followed; a dangling one counts as a missing file.
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                match list_files(&id, depth + 1, visited, found, scan, tree) {
                    Ok(()) => tree.clear_unreadable(&id),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        tree.clear_unreadable(&id)
                    }
                    Err(error) => {
                        found.unlistable_directories.push(id.clone());
                        tree.set_unreadable(
                            &id,
                            format!("cannot be listed: {error}; what was read from it stays"),
                        );
                    }
                }
            }
            Ok(meta) if meta.is_file() && is_manifest => {
                found.files.insert(id, meta);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_manifest => {
                found.unlistable_directories.push(id.clone());
                tree.set_unreadable(
                    &id,
                    format!("cannot be read: {error}; what was read from it stays"),
                );
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Returns the text of a file and its signature after reading.
fn read_text(path: &Path) -> io::Result<(String, FileSignature)> {
    let mut file = File::open(path)?;
    let mut text = String::new();
    let read = file
        .by_ref()
        .take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(io::Error::other(format!(
            "larger than {MAX_FILE_BYTES} bytes"
        )));
    }
    let signature = FileSignature::from(&file.metadata()?);
    Ok((text, signature))
}

#[cfg(test)]
mod tests;
