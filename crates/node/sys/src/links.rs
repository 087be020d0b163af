//! Finds the interfaces of a pod on which the node sees every frame.
//!
//! Kubelet's probes bypass the proxy because of their source address, and the node's rules prevent all
//! others from using it. The rules are effective only where frames pass through the node's own network
//! stack: over a veth pair whose other end is the node's, routed or on a Linux bridge. Neighbours on a
//! macvlan, an ipvlan, a hardware device or a switch such as Open vSwitch do not pass the node's
//! rules.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use crate::{
    netlink::{Attrs, Socket, attr, text, u32_ne},
    netns::Netns,
};

const RTM_GETLINK: u16 = 18;
const RTM_GETNSID: u16 = 90;
/// Length of `struct ifinfomsg`: family, padding, type, index, flags, mask of flags to change.
const IFINFOMSG_BYTES: usize = 16;
const IFINFOMSG_INDEX_OFFSET: usize = 4;
const IFINFOMSG_FLAGS_OFFSET: usize = 8;
const IFF_UP: u32 = 1;
/// Length of `struct rtgenmsg` with padding.
const RTGENMSG_BYTES: usize = 4;
/// Attribute of a namespace's number (nsid), `NETNSA_NSID`.
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// Attributes of a link, `IFLA_*`.
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
/// Attribute of the link type (such as `veth`), `IFLA_INFO_KIND`.
const IFLA_INFO_KIND: u16 = 1;
/// Index of the loopback interface, equal in every namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Interfaces of a pod except loopback, by whether the node sees their frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLinks {
    /// Names of the interfaces on which the node sees every frame.
    pub visible_on_node: Vec<String>,
    /// Other interfaces that are up: name and link type, as `ip -d link` shows it.
    pub hidden_from_node: Vec<(String, String)>,
}

/// Classifies the interfaces of `pod`, a pod on the node whose own namespace is `node`.
///
/// # Errors
/// When one of the namespaces cannot be entered or the kernel does not answer.
pub fn classify_links(pod: &Netns, node: &Netns) -> io::Result<PodLinks> {
    let (all, node_id) = pod.run(|| {
        let mut socket = Socket::open(None)?;
        let mut all = Vec::new();
        socket.dump(RTM_GETLINK, &[&[0; IFINFOMSG_BYTES]], |link| {
            all.extend(decode(link))
        })?;
        // After the links: the kernel assigns a namespace number when it first has to report it.
        Ok::<_, io::Error>((all, netns_id(&mut socket, node)?))
    })??;
    let mut found = PodLinks::default();
    for link in all.into_iter().filter(|link| link.index != LOOPBACK_INDEX) {
        let peer = link.peer_in(node_id);
        if peer
            .map(|index| passes_node_rules(node, index))
            .transpose()?
            == Some(true)
        {
            found.visible_on_node.push(link.name);
        } else if link.flags & IFF_UP != 0 {
            found.hidden_from_node.push((link.name, link.kind));
        }
    }
    Ok(found)
}

struct Link {
    index: u32,
    flags: u32,
    name: String,
    /// Link type, such as `veth`; empty for hardware devices.
    kind: String,
    peer_index: Option<u32>,
    peer_netns_id: Option<u32>,
    master_index: Option<u32>,
}

impl Link {
    /// Returns the index of the other end of a veth pair, if that end is in the namespace with this number (nsid).
    fn peer_in(&self, netns_id: Option<u32>) -> Option<u32> {
        let is_there = netns_id.is_some() && self.peer_netns_id == netns_id;
        self.peer_index.filter(|_| is_there && self.kind == "veth")
    }
}

fn decode(link: &[u8]) -> Option<Link> {
    let attributes = link.get(IFINFOMSG_BYTES..)?;
    let number = |kind| attr(attributes, kind).and_then(u32_ne);
    let kind = attr(attributes, IFLA_LINKINFO).and_then(|info| attr(info, IFLA_INFO_KIND));
    Some(Link {
        index: u32_ne(link.get(IFINFOMSG_INDEX_OFFSET..)?)?,
        flags: u32_ne(link.get(IFINFOMSG_FLAGS_OFFSET..)?)?,
        name: attr(attributes, IFLA_IFNAME).and_then(text)?.to_owned(),
        kind: kind.and_then(text).unwrap_or_default().to_owned(),
        peer_index: number(IFLA_LINK),
        peer_netns_id: number(IFLA_LINK_NETNSID),
        master_index: number(IFLA_MASTER),
    })
}

/// Returns the number (nsid) of `netns` in the calling thread's namespace; `None` if it has none.
fn netns_id(socket: &mut Socket, netns: &Netns) -> io::Result<Option<u32>> {
    let fd = u32::try_from(netns.as_fd().as_raw_fd()).unwrap_or_default();
    let request = Attrs::new().u32(NETNSA_FD, fd).into_bytes();
    let answer = socket.get(RTM_GETNSID, &[&[0; RTGENMSG_BYTES], &request])?;
    let number =
        answer.and_then(|answer| attr(answer.get(RTGENMSG_BYTES..)?, NETNSA_NSID).and_then(u32_ne));
    // Minus one: not assigned.
    Ok(number.filter(|number| *number != u32::MAX))
}

/// Whether frames from the node's interface pass the node's rules: false for a port of a device that forwards frames by
/// itself.
fn passes_node_rules(node: &Netns, index: u32) -> io::Result<bool> {
    node.run(|| {
        let mut socket = Socket::open(None)?;
        let Some(link) = get_link(&mut socket, index)? else {
            return Ok(false);
        };
        let Some(master) = link.master_index else {
            return Ok(true);
        };
        let master = get_link(&mut socket, master)?;
        Ok(master.is_some_and(|master| ["bridge", "vrf"].contains(&master.kind.as_str())))
    })?
}

fn get_link(socket: &mut Socket, index: u32) -> io::Result<Option<Link>> {
    let mut header = [0; IFINFOMSG_BYTES];
    if let Some(bytes) = header.get_mut(IFINFOMSG_INDEX_OFFSET..IFINFOMSG_INDEX_OFFSET + 4) {
        bytes.copy_from_slice(&index.to_ne_bytes());
    }
    match socket.get(RTM_GETLINK, &[&header]) {
        Ok(link) => Ok(link.and_then(|link| decode(&link))),
        // The interface was removed meanwhile.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes: Vec<u8>) {
            drop(decode(&bytes));
        }
    }
}
