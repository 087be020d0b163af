//! Atomic replacement of files.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Replaces a file atomically: readers find the old content or the new one. Blocks.
///
/// `mode` sets the permissions of the new file, restricted by the process' umask.
///
/// # Errors
///
/// When the file's directory cannot be written.
pub(crate) fn replace_file(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    // Of this process alone: during a rollout two agents write.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let mut options = fs::File::options();
    let options = options.write(true).create(true).truncate(true).mode(mode);
    options.open(&temporary)?.write_all(content)?;
    fs::rename(&temporary, path)
}
