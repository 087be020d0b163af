//! Brings up the loopback interface of a pod's namespace.

use std::io;

use crate::{netlink::Socket, netns::Netns};

const NEW_LINK: u16 = 16;
/// Index of the loopback interface, equal in every namespace.
const LOOPBACK: u32 = 1;
const UP: u32 = 1;

/// Brings the loopback interface up.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel refuses.
pub fn bring_up(netns: &Netns) -> io::Result<()> {
    // struct ifinfomsg: family, padding, type, index, flags, which of the flags.
    let mut header = vec![0; 4];
    for field in [LOOPBACK, UP, UP] {
        header.extend_from_slice(&field.to_ne_bytes());
    }
    netns.run(|| Socket::open(None)?.request(NEW_LINK, 0, &[&header]))?
}
