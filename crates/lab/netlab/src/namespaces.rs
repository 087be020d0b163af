//! Creation of namespaces: a network namespace for a node or pod, or a private set of namespaces for a process.

use std::{fs, io, thread};

use ambit_sys::netns::Netns;
use rustix::thread::UnshareFlags;

/// Creates an empty network namespace, with loopback down.
///
/// # Errors
/// When the caller may not create one (`EPERM`: neither root nor inside a user namespace), or no thread can be started.
pub fn new_netns() -> io::Result<Netns> {
    // In a new thread, so that the caller's namespace does not change; the descriptor holds the namespace.
    let made = thread::Builder::new().name("new-netns".into()).spawn(|| {
        unshare(UnshareFlags::NEWNET)?;
        Netns::current()
    })?;
    made.join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that makes a namespace died")))
}

/// Whether [`isolate`] creates a user namespace. Network, mount, PID, UTS (host name) and IPC namespaces are always
/// created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Create a user namespace only if the caller lacks the privileges to create the other namespaces.
    AsNeeded,
    /// Create a user namespace in any case, in which the caller is root.
    UserNamespace,
}

/// Privileges of the process after [`isolate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolatedPrivileges {
    /// The privileges of the caller, without a user namespace.
    AsRoot,
    /// The process is root of a new user namespace that maps only the caller's user and group.
    InUserNamespace,
}

/// Moves the calling process into new namespaces. Its next child is process 1 of the new PID namespace: when that
/// process dies, the kernel kills all other processes in the namespace.
///
/// Must be called while the process has a single thread.
///
/// # Errors
/// When the kernel refuses (user namespaces are disabled, or the process has several threads).
pub fn isolate(isolation: Isolation) -> io::Result<IsolatedPrivileges> {
    let own = UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWIPC;
    if isolation == Isolation::AsNeeded {
        match unshare(own) {
            Ok(()) => return Ok(IsolatedPrivileges::AsRoot),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare(own | UnshareFlags::NEWUSER)?;
    // Without this the kernel refuses the group map to a caller without privileges outside.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {} 1", uid.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", gid.as_raw()))?;
    Ok(IsolatedPrivileges::InUserNamespace)
}

#[expect(
    deprecated,
    reason = "rustix marks it unsafe because of UnshareFlags::FILES, which no caller here passes"
)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    Ok(rustix::thread::unshare(flags)?)
}
