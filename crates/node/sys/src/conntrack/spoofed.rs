//! Registers connections that another proxy opened to the pod's application with the client's address, under rules that
//! put them into no conntrack zone.
//!
//! Under Ambit's rules, the proxy's packets to the application are looked up in a conntrack zone. An earlier
//! connection has no entry in the zone: its packets would create one that clashes with the original entry, and
//! be dropped. So the connection is registered in the zone as well. From then on the kernel has two entries for
//! it: one in the zone for the proxy's packets, and the original one for the replies, which are routed by its
//! mark.

use std::io;

use ambit_netplan::marks;
use rustix::net::netlink;

use super::{
    CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_NEW, IPPROTO_TCP,
    NFGENMSG_BYTES, in_use_status_attrs, liberal_tcp_attrs,
};
use crate::netlink::{Attrs, NLM_F_CREATE, NLM_F_EXCL, Socket, attr, u32_be};

/// Attribute of the connection mark, `CTA_MARK`.
const CTA_MARK: u16 = 8;
const CTA_ZONE: u16 = 18;

/// Conntrack entry: the tuples of both directions, encoded as netlink attributes.
struct ConntrackEntry {
    family: u8,
    original: Vec<u8>,
    reply: Vec<u8>,
}

/// Registers in `zone` the connections of the calling thread's namespace with the proxy's mark and no zone. Returns
/// their number.
pub(crate) fn track_proxy_connections(zone: u16) -> io::Result<usize> {
    let mut socket = Socket::open(Some(netlink::NETFILTER))?;
    let mut entries = Vec::new();
    socket.dump(IPCTNL_MSG_CT_GET, &[&[0; NFGENMSG_BYTES]], |payload| {
        entries.extend(decode_entry(payload))
    })?;
    for entry in &entries {
        let header = [entry.family, 0, 0, 0];
        let original = Attrs::new().nest(CTA_TUPLE_ORIG, &Attrs::raw(&entry.original));
        let reply = Attrs::new().nest(CTA_TUPLE_REPLY, &Attrs::raw(&entry.reply));
        let tuples = [original.into_bytes(), reply.into_bytes()].concat();
        let liberal = liberal_tcp_attrs(None).into_bytes();
        ignore_ended(socket.request(IPCTNL_MSG_CT_NEW, 0, &[&header, &tuples, &liberal]))?;
        let zone = Attrs::new()
            .bytes(CTA_ZONE, &zone.to_be_bytes())
            .into_bytes();
        let body: [&[u8]; 4] = [&header, &tuples, &zone, &in_use_status_attrs().into_bytes()];
        match socket.request(IPCTNL_MSG_CT_NEW, NLM_F_CREATE | NLM_F_EXCL, &body) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result?,
        }
    }
    Ok(entries.len())
}

/// Converts the error that a connection has ended meanwhile to success.
fn ignore_ended(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn decode_entry(payload: &[u8]) -> Option<ConntrackEntry> {
    let entry = payload.get(NFGENMSG_BYTES..)?;
    let (original, reply) = (attr(entry, CTA_TUPLE_ORIG)?, attr(entry, CTA_TUPLE_REPLY)?);
    let mark = attr(entry, CTA_MARK).and_then(u32_be)?;
    let is_spoofed = mark & marks::MASK == marks::SPOOFED;
    let is_tcp = attr(attr(original, 2)?, 1)? == [IPPROTO_TCP];
    // `CTA_TUPLE_ZONE`, for connections whose directions differ in zone.
    let in_zone =
        attr(entry, CTA_ZONE).is_some() || attr(original, 3).is_some() || attr(reply, 3).is_some();
    (is_spoofed && is_tcp && !in_zone).then(|| ConntrackEntry {
        family: payload.first().copied().unwrap_or_default(),
        original: original.to_vec(),
        reply: reply.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes: Vec<u8>) {
            let _any = decode_entry(&bytes);
        }
    }
}
