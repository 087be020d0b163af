//! Atomic writes of the node's files, which overwrite only the content that was read before.

use std::{
    fs, io,
    io::Read,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use ambit_cni_conf::PLUGIN_NAME;
use rustix::fs::RenameFlags;

use super::action::FileAction;

/// Prefix of temporary files, before a number; runtimes ignore such files.
const TEMPORARY_PREFIX: &str = ".ambit-cni.tmp.";

/// Error of changing a file on the node.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}{}", error_hint(source))]
pub struct FileError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn error_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            ": on this platform the directory is elsewhere; set global.platform, or cni.cniBinDir and \
             cni.cniConfDir"
        }
        io::ErrorKind::PermissionDenied => {
            ": SELinux or AppArmor may forbid it; set global.platform, or cni.seLinuxOptions"
        }
        _ => "",
    }
}

fn file_error(what: &'static str, path: &Path) -> impl Fn(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError {
        what,
        path: path.clone(),
        source,
    }
}

/// Carries out an action in `directory`. Returns false if the file has changed since it was read, so that a new plan is
/// needed.
///
/// # Errors
/// When the directory cannot be written.
pub fn perform_action(directory: &Path, action: &FileAction, mode: u32) -> Result<bool, FileError> {
    match action {
        FileAction::Remove { name } => {
            let path = directory.join(name);
            remove_if_exists(&path).map(|()| true)
        }
        FileAction::Write {
            name,
            text,
            expected,
        } => {
            let path = directory.join(name);
            replace_if_unchanged(&path, text, expected.as_deref(), mode)
                .map_err(file_error("write", &path))
        }
    }
}

/// Removes temporary files that a killed agent has left in `directory`.
pub fn remove_stale_temporaries(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(TEMPORARY_PREFIX)
        {
            fs::remove_file(entry.path()).ok();
        }
    }
}

/// Writes `text` to `path` if the file's content differs; returns whether it did.
///
/// # Errors
/// When the file cannot be written.
pub fn write_if_changed(path: &Path, text: &[u8]) -> Result<bool, FileError> {
    if fs::read(path).is_ok_and(|held| held == text) {
        return Ok(false);
    }
    let write = || {
        let temporary = TemporaryFile::create(path, 0o600)?;
        temporary.write_from(&mut &*text)?;
        temporary.rename_to(path)
    };
    write().map_err(file_error("write", path)).map(|()| true)
}

/// Replaces the plugin's executable in the directory `target` by the one in `source` if they differ; returns whether
/// they did. Running plugins keep the old file.
///
/// # Errors
/// When the source is missing, or the target cannot be written.
pub fn install_plugin(source: &Path, target: &Path) -> Result<bool, FileError> {
    let from = source.join(PLUGIN_NAME);
    let to = target.join(PLUGIN_NAME);
    let open = || Ok((fs::File::open(&from)?, fs::metadata(&from)?));
    let (mut binary, metadata) = open().map_err(file_error("read the plugin", &from))?;
    let same = has_same_bytes(&mut binary, &to).map_err(file_error("compare the plugin", &to))?;
    if same {
        return Ok(false);
    }
    let copy = || {
        let temporary = TemporaryFile::create(&to, metadata.mode() & 0o777 | 0o500)?;
        temporary.write_from(&mut fs::File::open(&from)?)?;
        temporary.rename_to(&to)
    };
    copy()
        .map_err(file_error("install the plugin as", &to))
        .map(|()| true)
}

fn has_same_bytes(a: &mut fs::File, b: &Path) -> io::Result<bool> {
    let mut b = match fs::File::open(b) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let (of_a, of_b) = (a.metadata()?, b.metadata()?);
    if of_a.len() != of_b.len() || of_b.mode() & 0o100 == 0 {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        let read = a.read(&mut left)?;
        let (left, right) = (left.get(..read), right.get_mut(..read));
        let (Some(left), Some(right)) = (left, right) else {
            return Ok(false);
        };
        if left.is_empty() {
            return Ok(true);
        }
        b.read_exact(right)?;
        if left != right {
            return Ok(false);
        }
    }
}

/// Removes a file, if it exists.
///
/// # Errors
/// When it cannot be removed.
pub fn remove_if_exists(path: &Path) -> Result<(), FileError> {
    unlink(path).map_err(file_error("remove", path))
}

fn unlink(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces a file, unless its content is not `expected` any more, so that changes by the file's owner are not lost.
fn replace_if_unchanged(
    path: &Path,
    text: &str,
    expected: Option<&str>,
    mode: u32,
) -> io::Result<bool> {
    // The target of a link is replaced, not the link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let there = fs::metadata(path).ok();
    let temporary = TemporaryFile::create(path, mode)?;
    if let Some(there) = &there {
        let permissions = fs::Permissions::from_mode(there.mode() & 0o7777);
        std::os::unix::fs::fchown(&temporary.file, Some(there.uid()), Some(there.gid()))?;
        temporary.file.set_permissions(permissions)?;
    }
    temporary.write_from(&mut text.as_bytes())?;
    let Some(expected) = expected else {
        return temporary.rename_to(path).map(|()| true);
    };
    let here = rustix::fs::CWD;
    // Exchanged, so that what was there until this very moment can be looked at.
    match rustix::fs::renameat_with(here, &temporary.path, here, path, RenameFlags::EXCHANGE) {
        Ok(()) if fs::read(&temporary.path)? == expected.as_bytes() => Ok(true),
        Ok(()) => {
            rustix::fs::renameat_with(here, &temporary.path, here, path, RenameFlags::EXCHANGE)?;
            Ok(false)
        }
        Err(rustix::io::Errno::NOENT) => Ok(false),
        // Not every file system can.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            let unchanged = fs::read(path)? == expected.as_bytes();
            if unchanged {
                temporary.rename_to(path)?;
            }
            Ok(unchanged)
        }
        Err(error) => Err(error.into()),
    }
}

/// Temporary file, to be renamed to its destination; otherwise dropping it removes it.
struct TemporaryFile {
    path: PathBuf,
    file: fs::File,
}

impl TemporaryFile {
    fn create(target: &Path, mode: u32) -> io::Result<Self> {
        let directory = target.parent().unwrap_or_else(|| Path::new("."));
        // Of this writer alone: two that shared one would put each other's content in place.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = directory.join(format!("{TEMPORARY_PREFIX}{process}.{number}"));
        unlink(&path)?;
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)?;
        // Whatever the mask of the process.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(Self { path, file })
    }

    fn write_from(&self, from: &mut impl Read) -> io::Result<()> {
        io::copy(from, &mut &self.file)?;
        self.file.sync_all()
    }

    fn rename_to(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        if let Some(directory) = path.parent() {
            fs::File::open(directory)?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests;
