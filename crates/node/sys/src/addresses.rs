//! Addresses on the interfaces of a network namespace.

use std::{io, net::IpAddr};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::{netlink, netns::Netns};

/// Maximum datagrams of one netlink dump, more than any pod's addresses need.
const MAX_DUMP_DATAGRAMS: usize = 4096;

/// Returns all addresses of the interfaces of `netns`, with IPv4-mapped IPv6 addresses as IPv4.
///
/// # Errors
/// When the namespace cannot be entered or the kernel does not respond.
pub fn addresses_in(netns: &Netns) -> io::Result<Vec<IpAddr>> {
    let found = netns.run(dump_addresses)??;
    Ok(found.into_iter().map(|address| address.ip).collect())
}

/// Address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    /// Index of the interface.
    pub(crate) interface: u32,
    /// Address, with IPv4-mapped IPv6 addresses as IPv4.
    pub(crate) ip: IpAddr,
}

/// Returns the gateways of the default routes of `netns`. On most networks a pod's gateway is the node: kubelet calls
/// the pod from that address.
///
/// # Errors
/// When the namespace cannot be entered or the kernel does not respond.
pub fn gateways_of(netns: &Netns) -> io::Result<Vec<IpAddr>> {
    const RTM_GETROUTE: u16 = 26;
    const RTA_GATEWAY: u16 = 5;
    netns.run(|| {
        let mut found = Vec::new();
        // struct rtmsg: any family, then the length of the destination.
        netlink::Socket::open(None)?.dump(RTM_GETROUTE, &[&[0; RTMSG_BYTES]], |route| {
            let is_default = route.get(1) == Some(&0);
            let attributes = route.get(RTMSG_BYTES..).unwrap_or_default();
            let gateway = netlink::attr(attributes, RTA_GATEWAY).and_then(ip);
            found.extend(gateway.filter(|_| is_default));
        })?;
        Ok(found)
    })?
}

const RTMSG_BYTES: usize = 12;

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(octets.into());
    }
    Some(<[u8; 16]>::try_from(bytes).ok()?.into())
}

/// Returns the addresses of the calling thread's namespace.
pub(crate) fn dump_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request =
        NetlinkMessage::from(RouteNetlinkMessage::GetAddress(AddressMessage::default()));
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut found = Vec::new();
    for _ in 0..MAX_DUMP_DATAGRAMS {
        let (datagram, _) = socket.recv_from_full()?;
        if collect_addresses(&datagram, &mut found)? {
            return Ok(found);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel's list of addresses has no end",
    ))
}

/// Appends the addresses in one datagram of a dump to `found`; returns whether it was the last datagram.
fn collect_addresses(mut datagram: &[u8], found: &mut Vec<InterfaceAddress>) -> io::Result<bool> {
    while !datagram.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(address)) => {
                let attributes = &address.attributes;
                let own = attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Local(ip) => Some(ip),
                    _ => None,
                });
                let either = attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Address(ip) => Some(ip),
                    _ => None,
                });
                // On a point-to-point link `Address` is the other end, `Local` this one.
                found.extend(own.or(either).map(|ip| InterfaceAddress {
                    interface: address.header.index,
                    ip: ip.to_canonical(),
                }));
            }
            _ => {}
        }
        // Messages are aligned to four bytes.
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        datagram = datagram.get(length..).unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_among_ours() {
        let here = Netns::current().unwrap();
        assert!(
            addresses_in(&here)
                .unwrap()
                .contains(&"127.0.0.1".parse().unwrap())
        );
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_datagrams_cause_no_panic_or_endless_loop(bytes: Vec<u8>) {
            drop(collect_addresses(&bytes, &mut Vec::new()));
        }
    }
}
