//! Brings up the loopback interface of a pod's namespace.

use std::io;

use crate::{netlink::Socket, netns::Netns};

const RTM_NEWLINK: u16 = 16;
/// Index of the loopback interface, equal in every namespace.
const LOOPBACK_INDEX: u32 = 1;
const IFF_UP: u32 = 1;

/// Brings the loopback interface up.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel refuses.
pub fn bring_up(netns: &Netns) -> io::Result<()> {
    // struct ifinfomsg: family, padding, type, index, flags, which of the flags.
    let mut header = vec![0; 4];
    for field in [LOOPBACK_INDEX, IFF_UP, IFF_UP] {
        header.extend_from_slice(&field.to_ne_bytes());
    }
    netns.run(|| Socket::open(None)?.request(RTM_NEWLINK, 0, &[&header]))?
}
