//! Cookies of network namespaces, by which BPF programs know them.

// The lint reports no code of a macro of another crate, and `forbid` no exception: nix's macro has the system call.
use std::{io, os::fd::AsFd};

use nix::{libc, sys::socket::getsockopt};

/// Number that the kernel gives a network namespace, and never again to another one until it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetnsCookie(pub u64);

impl NetnsCookie {
    /// Returns the cookie of the namespace that a socket was created in.
    ///
    /// # Errors
    /// When the kernel has no such option (before 5.14), or the descriptor is no socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self(getsockopt(&socket, option::NetnsCookie)?))
    }
}

mod option {
    use super::libc;

    /// Socket option `SO_NETNS_COOKIE`.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct NetnsCookie;

    nix::getsockopt_impl!(
        NetnsCookie,
        libc::SOL_SOCKET,
        libc::SO_NETNS_COOKIE,
        u64,
        nix::sys::socket::sockopt::GetStruct<u64>
    );
}
