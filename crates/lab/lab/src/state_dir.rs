//! Directories of labs: finds the running labs, and removes the directories of dead ones.

use std::{
    env, fs,
    fs::File,
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;

use crate::layout::Layout;

/// Reason why a lab's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A lab of that name is running.
    #[error("the lab {0:?} is up already; take it down first, or choose another --name")]
    AlreadyRunning(String),
    /// No lab of this name is running.
    #[error("there is no lab {0:?}; `ambit lab up DIR` makes one")]
    NotRunning(String),
    /// The name is not a valid file name.
    #[error("{0:?} cannot be a lab's name: use letters, digits and '-'")]
    BadName(String),
    /// The base directory belongs to another user.
    #[error("{0} belongs to another user; set AMBIT_LAB_DIR to a directory of your own")]
    NotLabDirectory(PathBuf),
    /// The file system returned an error.
    #[error("cannot use {path}")]
    Io {
        /// File or directory of the failed operation.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
}

/// Returns the directory under which all labs of a user are: `AMBIT_LAB_DIR`, else `/run/ambit-lab` for root, else
/// `$XDG_RUNTIME_DIR/ambit-lab`, else `/tmp/ambit-lab-UID`.
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

/// Directory of one lab, which is starting or running.
#[derive(Clone, Debug)]
pub struct StateDir {
    layout: Layout,
}

impl StateDir {
    /// Creates the directory of a new lab, after removing that of a dead lab of this name. The returned file is the
    /// lock that marks the lab as running.
    ///
    /// # Errors
    /// When a lab of this name is running, or directories cannot be created.
    pub(crate) fn create(base: &Path, name: &str) -> Result<(Self, File), StateError> {
        let path = lab_path(base, name)?;
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).recursive(true);
        builder
            .create(base)
            .map_err(|source| io_error(base, source))?;
        let owner = rustix::fs::stat(base)
            .map_err(|error| io_error(base, error.into()))?
            .st_uid;
        if owner != rustix::process::geteuid().as_raw() {
            return Err(StateError::NotLabDirectory(base.to_owned()));
        }
        let _alone = lock_base(base)?;
        if path.exists() {
            if is_alive(&path) {
                return Err(StateError::AlreadyRunning(name.to_owned()));
            }
            remove(&path)?;
        }
        builder
            .recursive(false)
            .create(&path)
            .map_err(|source| io_error(&path, source))?;
        let layout = Layout::new(path);
        let lock = lock(&layout.lock())?;
        Ok((Self { layout }, lock))
    }

    /// Returns the directory of the running lab of this name.
    ///
    /// # Errors
    /// When no such lab is running.
    pub fn find(base: &Path, name: &str) -> Result<Self, StateError> {
        let path = lab_path(base, name)?;
        if is_alive(&path) {
            return Ok(Self {
                layout: Layout::new(path),
            });
        }
        Err(StateError::NotRunning(name.to_owned()))
    }

    /// Removes the directory of a dead lab of this name, with its log.
    ///
    /// # Errors
    /// When the file system returns an error.
    pub fn discard(base: &Path, name: &str) -> Result<(), StateError> {
        Self {
            layout: Layout::new(lab_path(base, name)?),
        }
        .remove()
    }

    /// Returns the names of the running labs.
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

    pub(crate) fn from_layout(layout: Layout) -> Self {
        Self { layout }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the lab is running, by its lock.
    pub fn is_alive(&self) -> bool {
        is_alive(self.layout.root())
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.layout.root()
    }

    /// Removes the directory, unless a lab of this name is running.
    ///
    /// # Errors
    /// When the file system returns an error.
    pub fn remove(&self) -> Result<(), StateError> {
        if !self.path().exists() {
            return Ok(());
        }
        let _alone = lock_base(self.base())?;
        if self.is_alive() {
            return Ok(());
        }
        remove(self.path())
    }

    /// Removes the directory and then releases the lock, as the process that holds the lock.
    pub(crate) fn remove_own(&self, lock: File) -> Result<(), StateError> {
        let _alone = lock_base(self.base())?;
        let removed = remove(self.path());
        drop(lock);
        removed
    }

    fn base(&self) -> &Path {
        self.path().parent().unwrap_or_else(|| self.path())
    }
}

fn lab_path(base: &Path, name: &str) -> Result<PathBuf, StateError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    // The path of a socket holds 108 bytes, and those of the nodes lie below this one.
    if name.is_empty() || name.len() > 30 || !name.bytes().all(fine) {
        return Err(StateError::BadName(name.to_owned()));
    }
    Ok(base.join(name))
}

/// Whether a lab runs in this directory: its guard holds the lock and outlives the rest of the lab, and the kernel
/// releases the lock at the guard's end.
fn is_alive(path: &Path) -> bool {
    let Ok(file) = File::open(Layout::new(path).lock()) else {
        return false;
    };
    // Shared, so that two who look at once do not take each other for the lab.
    let refused = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    matches!(refused, Err(rustix::io::Errno::WOULDBLOCK))
}

/// Locks the base directory, so that only one process at a time creates or removes directories of labs. Without this
/// lock, one process could find a lab dead, a lab of the same name could start, and the first process would remove the
/// new lab's directory.
fn lock_base(base: &Path) -> Result<File, StateError> {
    lock(&base.join(".lock"))
}

/// Locks a file, after waiting for readers that check the lock and for holders of [`lock_base`].
fn lock(path: &Path) -> Result<File, StateError> {
    let open = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path);
    let file = open.map_err(|source| io_error(path, source))?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))
        .map_err(|error| io_error(path, error.into()))?;
    Ok(file)
}

fn remove(path: &Path) -> Result<(), StateError> {
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn name_is_taken_from_the_start_and_while_the_lock_is_held() {
        let base = tempfile::tempdir().unwrap();
        let (made, lock) = StateDir::create(base.path(), "a").unwrap();
        assert!(made.is_alive() && StateDir::find(base.path(), "a").is_ok());
        assert!(matches!(
            StateDir::create(base.path(), "a"),
            Err(StateError::AlreadyRunning(_))
        ));
        StateDir::discard(base.path(), "a").unwrap();
        assert_eq!(StateDir::list(base.path()), ["a"], "and is not removed");
        drop(lock);
        assert!(!made.is_alive());
        assert!(matches!(
            StateDir::find(base.path(), "a"),
            Err(StateError::NotRunning(_))
        ));
        assert!(made.path().exists(), "its log is left");
        let (again, lock) = StateDir::create(base.path(), "a").unwrap();
        again.remove_own(lock).unwrap();
        assert!(!again.path().exists());
    }

    const ROUNDS: usize = 300;

    /// Starts, ends and looks for labs of one name at the same time, on several threads.
    #[test]
    fn labs_that_start_at_once_do_not_remove_each_other() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        let made = &AtomicUsize::new(0);
        let until_enough = |work: &dyn Fn()| {
            while made.load(Ordering::Relaxed) < ROUNDS {
                work();
            }
        };
        let until_enough = &until_enough;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(move || {
                    until_enough(&|| match StateDir::create(base, "a") {
                        Ok((state, lock)) => {
                            made.fetch_add(1, Ordering::Relaxed);
                            fs::write(state.layout().options(), "{}").unwrap();
                            assert!(state.is_alive());
                            fs::read(state.layout().options()).unwrap();
                            state.remove_own(lock).unwrap();
                        }
                        Err(StateError::AlreadyRunning(_)) => {}
                        Err(error) => panic!("{error}: {error:?}"),
                    });
                });
                scope.spawn(move || {
                    until_enough(&|| {
                        StateDir::list(base);
                        StateDir::find(base, "a").ok();
                        StateDir::discard(base, "a").unwrap();
                    });
                });
            }
        });
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
