//! What connection tracking knows: of datagrams, where a redirected one was going, and how to end a
//! translation; of connections, those that a proxy before us opened to the application. Blocking, for microseconds.

mod spoofed;

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use rustix::{io::Errno, net::netlink};

use crate::{
    netlink::{Attrs, Socket, attr},
    netns::Netns,
};

pub(crate) use spoofed::make_known_in;

const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
/// `CTA_TUPLE_ORIG` and `CTA_TUPLE_REPLY`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
/// `struct nfgenmsg`, four bytes before the attributes of every message.
const GENMSG: usize = 4;
const INET: u8 = 2;
const INET6: u8 = 10;
const UDP: u8 = 17;
const TCP: u8 = 6;
/// An entry is some hundred bytes.
const BUFFER: usize = 4096;

/// Where a datagram was going that a redirection brought from `client` to `listener`; `None` when
/// connection tracking does not know of it.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel cannot be asked.
pub fn original_destination(
    netns: Option<&Netns>,
    client: SocketAddr,
    listener: SocketAddr,
) -> io::Result<Option<SocketAddr>> {
    // Answers go from the listener to the client: the tuple of the reply direction.
    let tuple = Tuple {
        source: listener,
        destination: client,
    };
    let ask = || {
        let mut socket = Socket::with_buffer(Some(netlink::NETFILTER), BUFFER)?;
        let found = socket.get(GET, &[&tuple.family(), &tuple.attrs(REPLY).into_bytes()])?;
        Ok(found.and_then(|entry| {
            let original = Tuple::read(attr(entry.get(GENMSG..)?, ORIGINAL)?)?;
            Some(original.destination)
        }))
    };
    match netns {
        Some(netns) => netns.run(ask)?,
        None => ask(),
    }
}

/// Ends the translation of datagrams that were redirected to `listener`: later ones from the same
/// sockets go where they are sent.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel refuses.
pub fn forget_redirected(netns: Option<&Netns>, listener: SocketAddr) -> io::Result<()> {
    let forget = || {
        let mut socket = Socket::open(Some(netlink::NETFILTER))?;
        let family = family_of(listener.ip());
        let mut redirected = Vec::new();
        socket.dump(GET, &[&family], |entry| {
            let reply = entry
                .get(GENMSG..)
                .and_then(|entry| Tuple::read(attr(entry, REPLY)?));
            redirected.extend(reply.filter(|reply| reply.source == listener));
        })?;
        for reply in redirected {
            let tuple = reply.attrs(REPLY).into_bytes();
            match socket.request(DELETE, 0, &[&family, &tuple]) {
                // It ended by itself.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                result => result?,
            }
        }
        Ok(())
    };
    match netns {
        Some(netns) => netns.run(forget)?,
        None => forget(),
    }
}

fn family_of(ip: IpAddr) -> [u8; 4] {
    let family = if ip.is_ipv4() { INET } else { INET6 };
    [family, 0, 0, 0]
}

/// One direction of a UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Tuple {
    fn family(&self) -> [u8; 4] {
        family_of(self.source.ip())
    }

    fn attrs(&self, direction: u16) -> Attrs {
        let address = |attrs: Attrs, v4: u16, ip: IpAddr| match ip {
            IpAddr::V4(ip) => attrs.bytes(v4, &ip.octets()),
            IpAddr::V6(ip) => attrs.bytes(v4 + 2, &ip.octets()),
        };
        let addresses = address(Attrs::new(), 1, self.source.ip());
        let addresses = address(addresses, 2, self.destination.ip());
        let ports = Attrs::new()
            .bytes(1, &[UDP])
            .bytes(2, &self.source.port().to_be_bytes())
            .bytes(3, &self.destination.port().to_be_bytes());
        let tuple = Attrs::new().nest(1, &addresses).nest(2, &ports);
        Attrs::new().nest(direction, &tuple)
    }

    /// `None` if it is of another protocol.
    fn read(tuple: &[u8]) -> Option<Self> {
        let (addresses, ports) = (attr(tuple, 1)?, attr(tuple, 2)?);
        if attr(ports, 1)? != [UDP] {
            return None;
        }
        let port = |kind| Some(u16::from_be_bytes(attr(ports, kind)?.try_into().ok()?));
        Some(Self {
            source: SocketAddr::new(address(addresses, 1)?, port(2)?),
            destination: SocketAddr::new(address(addresses, 2)?, port(3)?),
        })
    }
}

fn address(attrs: &[u8], v4: u16) -> Option<IpAddr> {
    if let Some(octets) = attr(attrs, v4) {
        return Some(<[u8; 4]>::try_from(octets).ok()?.into());
    }
    let octets = attr(attrs, v4 + 2)?;
    Some(<[u8; 16]>::try_from(octets).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_reads_as_it_was_written() {
        for (source, destination) in [
            ("127.0.0.1:15053", "10.0.0.1:40000"),
            ("[::1]:15053", "[fd00::1]:40000"),
        ] {
            let tuple = Tuple {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            };
            let bytes = tuple.attrs(REPLY).into_bytes();
            assert_eq!(Tuple::read(attr(&bytes, REPLY).unwrap()), Some(tuple));
        }
    }
}
