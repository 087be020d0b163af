//! Sysctls of the calling thread's network namespace: whether an address family is enabled, and optional settings that
//! improve capture.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
};

use ambit_netplan::Family;
use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

/// Sets whether accepted sockets inherit the mark of the connection's first packet (`tcp_fwmark_accept`).
///
/// Optional (see `RedirectionSpec::mark_accepted_sockets`): where settings are read-only, as in
/// many containers, capture works without it.
pub(super) fn mark_accepted_sockets(on: bool) {
    set(FWMARK_ACCEPT, on);
}

/// Whether accepted sockets inherit marks.
pub(super) fn accepted_sockets_are_marked() -> bool {
    std::fs::read_to_string(FWMARK_ACCEPT).is_ok_and(|found| found.trim() == "1")
}

const FWMARK_ACCEPT: &str = "/proc/sys/net/ipv4/tcp_fwmark_accept";

/// Sets whether packets that belong to no socket, such as resets by a port on which nobody listens, have the mark of the
/// packet that they answer (`fwmark_reflect`). Without it a reset of the proxy's call would leave the pod, and the proxy
/// would wait for its timeout.
pub(super) fn reflect_marks(on: bool) {
    for setting in FWMARK_REFLECT {
        set(setting, on);
    }
}

/// Whether packets that belong to no socket have the mark of the packet that they answer.
pub(super) fn marks_are_reflected() -> bool {
    // A kernel without IPv6 has no setting for it.
    FWMARK_REFLECT
        .iter()
        .all(|setting| std::fs::read_to_string(setting).map_or(true, |found| found.trim() == "1"))
}

const FWMARK_REFLECT: [&str; 2] = [
    "/proc/sys/net/ipv4/fwmark_reflect",
    "/proc/sys/net/ipv6/fwmark_reflect",
];

/// Sets whether connection requests in the queue of a closing listener move to another listener of the same port, such
/// as that of a proxy's successor, instead of being reset (`tcp_migrate_req`). Optional too: Ambit's proxies hand their
/// listeners over.
pub(super) fn move_openings(on: bool) {
    set("/proc/sys/net/ipv4/tcp_migrate_req", on);
}

/// Configures connection tracking for the guards, or restores the kernel's defaults.
///
/// Connection tracking then knows only connections whose opening it has seen
/// (`nf_conntrack_tcp_loose` 0), and does not pick up others in the middle. The guards prevent a
/// bypass with either setting. But openings from a client's port are refused for as long as an
/// entry exists that a stray packet made; with this setting a neighbour cannot make such entries
/// for others. Pre-capture connections are made known one by one.
///
/// And it follows a known connection whatever sequence numbers a packet has
/// (`nf_conntrack_tcp_be_liberal` 1). Otherwise delayed packets are invalid to it, and a guard would answer
/// them with a reset that ends a sound connection. The two ends check sequence numbers themselves.
pub(super) fn track_for_the_guards(on: bool) {
    set("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", !on);
    set("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", on);
}

fn set(setting: &str, on: bool) {
    let value = if on { "1" } else { "0" };
    let is_set = std::fs::read_to_string(setting).is_ok_and(|found| found.trim() == value);
    if is_set {
        return;
    }
    let written = std::fs::write(setting, value).or_else(|first| {
        // Containers see the settings read-only, through the mount that the container runtime made.
        mount_own_proc()
            .and_then(|proc| write_below(&proc, setting, value))
            .map_err(|_| first)
    });
    if let Err(error) = written {
        tracing::debug!(%error, setting, "cannot be set");
    }
}

/// Mounts a second `/proc` that no path leads to, for namespaces whose `/proc/sys` is read-only.
fn mount_own_proc() -> io::Result<OwnedFd> {
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

/// Whether an address family is enabled in the calling thread's namespace, whose settings the kernel shows to it.
pub(super) fn family_enabled(family: Family) -> bool {
    const DISABLED: &str = "/proc/sys/net/ipv6/conf/lo/disable_ipv6";
    family == Family::V4
        || std::fs::read_to_string(DISABLED).is_ok_and(|setting| setting.trim() == "0")
}
