//! Queries of the BPF programs that are attached to a cgroup: `BPF_PROG_QUERY` of bpf(2).
//!
//! A program that is attached beside others (`BPF_F_ALLOW_MULTI`, or a link) switches off those of the cgroups above
//! that were attached to be overridden (`BPF_F_ALLOW_OVERRIDE`), without an error. They must be looked for before it is
//! attached. Libraries offer this query for device programs only, so that this crate calls the kernel itself:
//! its one call is the only `unsafe` code of the workspace.
#![deny(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
};

use nix::libc;

/// Command of bpf(2) that reports the programs of an attachment point (`enum bpf_cmd`).
const BPF_PROG_QUERY: libc::c_long = 16;
/// Flag of the query for the programs that run, those of the cgroups above included.
const BPF_F_QUERY_EFFECTIVE: u32 = 1;
/// Flag of programs that those of cgroups below replace.
const BPF_F_ALLOW_OVERRIDE: u32 = 1;
/// Flag of programs that run beside those of cgroups below.
const BPF_F_ALLOW_MULTI: u32 = 2;

/// Number of 32-bit words that the kernel receives. They are more than any kernel's attributes have, since the kernel
/// writes fields that later versions have added, such as the revision of a cgroup's programs. Words that a kernel does not
/// know must be zero.
const WORDS: usize = 64;
// Fields of the query in `union bpf_attr`, as indices of words.
const TARGET: usize = 0;
const ATTACH_TYPE: usize = 1;
const QUERY_FLAGS: usize = 2;
const ATTACH_FLAGS: usize = 3;
const PROGRAM_COUNT: usize = 6;

/// Attributes of bpf(2), aligned as the kernel's.
#[repr(C, align(8))]
struct Attributes([u32; WORDS]);

/// Hook of a cgroup that programs are attached to, with its number in `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    /// Events of TCP sockets.
    SockOps = 3,
    /// Calls of `connect` with IPv4 addresses.
    Connect4 = 10,
    /// Calls of `connect` with IPv6 addresses.
    Connect6 = 11,
}

/// Programs that are attached to a hook of one cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Number of the programs.
    pub count: u32,
    /// Whether a program of a cgroup below replaces them.
    pub is_overridable: bool,
}

/// Returns the programs that are attached to the cgroup itself.
///
/// # Errors
/// When the directory is not that of a cgroup of version 2, the process lacks `CAP_NET_ADMIN`, or the kernel has no such
/// hook.
pub fn attached(cgroup: impl AsFd, hook: Hook) -> io::Result<Attached> {
    let Attributes(reply) = query(cgroup, hook, 0)?;
    let count = reply[PROGRAM_COUNT];
    let flags = reply[ATTACH_FLAGS];
    Ok(Attached {
        count,
        is_overridable: count > 0
            && flags & (BPF_F_ALLOW_OVERRIDE | BPF_F_ALLOW_MULTI) == BPF_F_ALLOW_OVERRIDE,
    })
}

/// Returns the number of programs that run for processes of the cgroup, those of the cgroups above included.
///
/// # Errors
/// Like [`attached`].
pub fn effective_count(cgroup: impl AsFd, hook: Hook) -> io::Result<u32> {
    let Attributes(reply) = query(cgroup, hook, BPF_F_QUERY_EFFECTIVE)?;
    Ok(reply[PROGRAM_COUNT])
}

#[expect(
    unsafe_code,
    reason = "no library has a safe call of this query for cgroups"
)]
fn query(cgroup: impl AsFd, hook: Hook, flags: u32) -> io::Result<Attributes> {
    let cgroup = cgroup.as_fd();
    let mut attributes = Attributes([0; WORDS]);
    attributes.0[TARGET] = cgroup.as_raw_fd().cast_unsigned();
    attributes.0[ATTACH_TYPE] = hook as u32;
    attributes.0[QUERY_FLAGS] = flags;
    // SAFETY: the kernel reads and writes the attributes within the size that it receives, and they outlive the call. The
    // pointers among the query's fields are zero, so that it follows none. The descriptor is open during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_QUERY,
            &raw mut attributes,
            size_of::<Attributes>(),
        )
    };
    match result {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
    }
}
