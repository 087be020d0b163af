//! Network namespaces, and running code inside them.

use std::{
    cell::RefCell,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Path of the calling thread's network namespace.
const THREAD_NETNS_PATH: &str = "/proc/thread-self/ns/net";

thread_local! {
    /// Home namespace of the thread, as set by [`Netns::remember_home_netns`]. It is `None` while the thread is in
    /// another namespace, so that a nested [`Netns::run`] returns to the enclosing one.
    static HOME_NETNS: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// Identity of a network namespace, equal for all descriptors of the same namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsId {
    /// Device number of the namespace file system (`nsfs`).
    pub dev: u64,
    /// Inode number of the namespace.
    pub ino: u64,
}

/// Open descriptor of a network namespace. Cheap to clone; the namespace exists at least as long as a clone does.
#[derive(Clone, Debug)]
pub struct Netns {
    fd: Arc<OwnedFd>,
    id: NetnsId,
}

impl Netns {
    /// Opens the namespace at `path` (`/run/netns/x`, `/proc/1/ns/net`).
    ///
    /// # Errors
    /// The error of opening or examining the path.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_fd(File::open(path)?.into())
    }

    /// Checks that a descriptor, for instance one received over a socket, is a network namespace, and takes it over.
    ///
    /// # Errors
    /// When the descriptor cannot be examined, or is not a namespace at all.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        // Magic of nsfs (linux/magic.h): a peer may have passed any descriptor.
        const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;
        if rustix::fs::fstatfs(&fd)?.f_type != NSFS_MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptor is not a namespace",
            ));
        }
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Self {
            fd: Arc::new(fd),
            id: NetnsId {
                dev: stat.st_dev,
                ino: stat.st_ino,
            },
        })
    }

    /// Opens the network namespace of the calling thread.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn current() -> io::Result<Self> {
        Self::open(THREAD_NETNS_PATH)
    }

    /// Remembers the calling thread's namespace for [`Self::run`] to return to, so that threads that often enter pods
    /// need not open it each time. Such a thread must enter namespaces by [`Self::run`] alone.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn remember_home_netns() -> io::Result<()> {
        HOME_NETNS.set(Some(File::open(THREAD_NETNS_PATH)?));
        Ok(())
    }

    /// Returns the namespace's identity.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Runs `work` with the calling thread inside the namespace, and returns the thread to its own.
    ///
    /// Sockets made inside stay there. `work` must not block for long, nor spawn threads that rely on the
    /// namespace they start in. When the thread cannot be returned, the process aborts: a worker left in a
    /// pod's namespace would open every later socket in the wrong place.
    ///
    /// # Errors
    /// When the namespace cannot be entered; `work` has not run then.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let remembered = HOME_NETNS.take();
        let stays = remembered.is_some();
        let home = match remembered {
            Some(home) => home,
            None => File::open(THREAD_NETNS_PATH)?,
        };
        let mut back = ReturnGuard {
            home: Some(home),
            remembers_home: stays,
            is_in_other_netns: false,
        };
        enter_netns(self.fd.as_fd())?;
        back.is_in_other_netns = true;
        let out = work();
        drop(back);
        Ok(out)
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PartialEq for Netns {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Netns {}

fn enter_netns(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(
        fd,
        Some(LinkNameSpaceType::Network),
    )?)
}

struct ReturnGuard {
    home: Option<File>,
    /// Whether `home` is remembered again for the next [`Netns::run`] after the return.
    remembers_home: bool,
    /// Whether the thread is in another namespace than `home`.
    is_in_other_netns: bool,
}

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        if self.is_in_other_netns
            && let Err(error) = enter_netns(home.as_fd())
        {
            tracing::error!(%error, "cannot return to the home network namespace");
            std::process::abort();
        }
        if self.remembers_home {
            HOME_NETNS.set(Some(home));
        }
    }
}

/// Creates a network namespace for a test, on a thread that ends at once.
#[cfg(test)]
pub(crate) fn new_for_test() -> Netns {
    let make = || {
        #[expect(
            deprecated,
            reason = "its successor is unsafe only for descriptor tables"
        )]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).unwrap();
        Netns::current().unwrap()
    };
    std::thread::spawn(make).join().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_namespace_is_itself() {
        let here = Netns::current().unwrap();
        assert_eq!(here, Netns::open("/proc/self/ns/net").unwrap());
    }

    #[test]
    fn thread_with_a_remembered_namespace_returns_there() {
        std::thread::spawn(|| {
            Netns::remember_home_netns().unwrap();
            let home = Netns::current().unwrap();
            let [outer, inner] = [(); 2].map(|()| new_for_test());
            for _ in 0..2 {
                let seen = outer.run(|| {
                    let within = inner.run(|| Netns::current().unwrap()).unwrap();
                    (within, Netns::current().unwrap())
                });
                assert_eq!(seen.unwrap(), (inner.clone(), outer.clone()));
                assert_eq!(Netns::current().unwrap(), home);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_plain_file_is_not_a_namespace() {
        let file: OwnedFd = File::open("/proc/self/status").unwrap().into();
        assert_eq!(
            Netns::from_fd(file).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
