//! The directories of labs: which names are in use, by running labs or by the remains of dead ones.

use std::{
    env, fs,
    fs::File,
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;

use crate::layout::Layout;

/// Why a lab's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A lab of that name is running.
    #[error("the lab {0:?} is up already; take it down first, or choose another --name")]
    Alive(String),
    /// There is no lab of that name.
    #[error("there is no lab {0:?}; `ambit lab up DIR` makes one")]
    NotUp(String),
    /// The name is not a valid file name.
    #[error("{0:?} cannot be a lab's name: use letters, digits and '-'")]
    BadName(String),
    /// The directory belongs to another user.
    #[error("{0} belongs to another user; set AMBIT_LAB_DIR to a directory of your own")]
    Foreign(PathBuf),
    /// The file system returned an error.
    #[error("cannot use {path}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
}

/// The base directory of labs: `AMBIT_LAB_DIR`, `/run/ambit-lab` for root,
/// `$XDG_RUNTIME_DIR/ambit-lab`, or one in `/tmp`.
pub fn base_directory() -> PathBuf {
    if let Some(dir) = env::var_os("AMBIT_LAB_DIR").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return "/run/ambit-lab".into();
    }
    match env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_dir()) {
        Some(dir) => PathBuf::from(dir).join("ambit-lab"),
        None => format!("/tmp/ambit-lab-{}", uid.as_raw()).into(),
    }
}

/// The directory of a lab that is about to be started, or runs.
#[derive(Clone, Debug)]
pub struct StateDir {
    layout: Layout,
}

impl StateDir {
    /// Makes the directory of a new lab, after removing what a dead one of that name left.
    ///
    /// # Errors
    /// When such a lab runs, or directories cannot be made.
    pub fn create(base: &Path, name: &str) -> Result<Self, StateError> {
        let path = path_of(base, name)?;
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).recursive(true);
        builder
            .create(base)
            .map_err(|source| io_error(base, source))?;
        let owner = rustix::fs::stat(base)
            .map_err(|error| io_error(base, error.into()))?
            .st_uid;
        if owner != rustix::process::geteuid().as_raw() {
            return Err(StateError::Foreign(base.to_owned()));
        }
        if path.exists() {
            if is_alive(&path) {
                return Err(StateError::Alive(name.to_owned()));
            }
            remove(&path)?;
        }
        builder
            .recursive(false)
            .create(&path)
            .map_err(|source| io_error(&path, source))?;
        Ok(Self {
            layout: Layout::new(path),
        })
    }

    /// The directory of a running lab. Removes what a dead one left.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(base: &Path, name: &str) -> Result<Self, StateError> {
        let path = path_of(base, name)?;
        if is_alive(&path) {
            return Ok(Self {
                layout: Layout::new(path),
            });
        }
        if path.exists() {
            remove(&path)?;
        }
        Err(StateError::NotUp(name.to_owned()))
    }

    /// The names of the running labs.
    pub fn list(base: &Path) -> Vec<String> {
        let entries = fs::read_dir(base)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        entries
            .filter(|entry| is_alive(&entry.path()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether its lab runs.
    pub fn is_alive(&self) -> bool {
        is_alive(self.layout.root())
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        self.layout.root()
    }

    /// Removes everything; to be called only when the lab is dead.
    ///
    /// # Errors
    /// Of the file system.
    pub fn remove(&self) -> Result<(), StateError> {
        remove(self.layout.root())
    }
}

fn path_of(base: &Path, name: &str) -> Result<PathBuf, StateError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    // The path of a socket holds 108 bytes, and those of the nodes lie below this one.
    if name.is_empty() || name.len() > 30 || !name.bytes().all(fine) {
        return Err(StateError::BadName(name.to_owned()));
    }
    Ok(base.join(name))
}

/// The guard holds the lock and outlives all of its lab: the kernel drops the lock with the process,
/// however it dies.
fn is_alive(path: &Path) -> bool {
    let Ok(file) = File::open(Layout::new(path).lock()) else {
        return false;
    };
    let refused = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    matches!(refused, Err(rustix::io::Errno::WOULDBLOCK))
}

/// Takes the lock of a lab for the lifetime of the calling process.
pub(crate) fn take_lock(layout: &Layout) -> io::Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(layout.lock())?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

pub(crate) fn remove(path: &Path) -> Result<(), StateError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(path, source)),
        _ => Ok(()),
    }
}

fn io_error(path: &Path, source: io::Error) -> StateError {
    StateError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_while_the_lock_is_held_and_free_afterwards() {
        let base = tempfile::tempdir().unwrap();
        let made = StateDir::create(base.path(), "a").unwrap();
        assert!(matches!(
            StateDir::find(base.path(), "a"),
            Err(StateError::NotUp(_))
        ));
        let made_again = StateDir::create(base.path(), "a").unwrap();
        let lock = take_lock(made_again.layout()).unwrap();
        assert!(made.is_alive());
        assert!(matches!(
            StateDir::create(base.path(), "a"),
            Err(StateError::Alive(_))
        ));
        assert_eq!(StateDir::list(base.path()), ["a"]);
        drop(lock);
        assert!(!made.is_alive());
        assert!(matches!(
            StateDir::find(base.path(), "a"),
            Err(StateError::NotUp(_))
        ));
        assert!(!made.path().exists());
    }

    #[test]
    fn names_that_are_paths_are_refused() {
        let base = tempfile::tempdir().unwrap();
        for name in ["", "..", "a/b", "a b"] {
            let error = StateDir::create(base.path(), name).unwrap_err();
            assert!(matches!(error, StateError::BadName(_)), "{name:?}");
        }
    }
}
