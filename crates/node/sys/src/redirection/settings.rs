//! Settings of the calling thread's network namespace that capture does better with.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

/// Lets sockets accepted in this namespace inherit a mark, or no longer.
///
/// A help, not a need (see `RedirectionSpec::mark_accepted_sockets`): where settings are read-only,
/// as in many containers, things work without it.
pub(super) fn mark_accepted_sockets(on: bool) {
    set("/proc/sys/net/ipv4/tcp_fwmark_accept", on);
}

/// Lets openings that wait for a listener which closes move to another one of the same port, that of
/// a proxy's successor, instead of being refused; or no longer. A help too: proxies of ours hand the
/// listeners themselves over.
pub(super) fn move_openings(on: bool) {
    set("/proc/sys/net/ipv4/tcp_migrate_req", on);
}

/// Lets connection tracking know only connections whose opening it has seen, or again those that it
/// finds in the middle.
///
/// The guards keep openings from passing by however this is set. But an entry that a stray packet
/// made has openings from that client's port refused as long as it lasts; like this a neighbour
/// cannot make such entries for others. Packets of connections from before the capture are then
/// invalid to connection tracking, and pass.
pub(super) fn track_from_the_opening(on: bool) {
    set("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", !on);
}

fn set(setting: &str, on: bool) {
    let wanted = if on { "1" } else { "0" };
    let stands = std::fs::read_to_string(setting).is_ok_and(|found| found.trim() == wanted);
    if stands {
        return;
    }
    let written = std::fs::write(setting, wanted).or_else(|first| {
        // Containers see the settings read-only, through the mount that the runtime has made.
        proc_of_our_own()
            .and_then(|proc| write_below(&proc, setting, wanted))
            .map_err(|_| first)
    });
    if let Err(error) = written {
        tracing::debug!(%error, setting, "cannot be set");
    }
}

/// /proc once more, nowhere in the file system.
fn proc_of_our_own() -> io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

fn write_below(proc: &OwnedFd, setting: &str, value: &str) -> io::Result<()> {
    let path = setting.trim_start_matches("/proc/");
    let file = openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(file).write_all(value.as_bytes())
}
