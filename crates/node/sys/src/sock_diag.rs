//! Lists the TCP sockets of a network namespace, of all processes, through the kernel's `sock_diag` interface.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use rustix::net::netlink::SOCK_DIAG;

use crate::{
    netlink::{self, Socket},
    netns::Netns,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Length of a socket's identity (`struct inet_diag_sockid`): ports, addresses, interface and cookie.
const SOCKID_BYTES: usize = 48;
/// Length of a reply's header (`struct inet_diag_msg`): family, state, timer, retransmissions; the identity; five
/// numbers.
const DIAG_MSG_BYTES: usize = 4 + SOCKID_BYTES + 20;
const INET_DIAG_MARK: u16 = 15;
/// Maximum number of sockets that are read from one namespace.
const MAX_SOCKETS: usize = 100_000;

/// Set of TCP states whose sockets are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpStateFilter {
    /// Sockets in the state ESTABLISHED.
    Established,
    /// Sockets of connections that can still carry data in at least one direction, including half-closed ones.
    Open,
    /// Sockets of connections that may still receive a significant packet, including those whose handshake is
    /// incomplete, and those closed by both sides with data in flight.
    InUse,
    /// Sockets that listen for connections.
    Listening,
}

impl TcpStateFilter {
    fn state_mask(self) -> u32 {
        match self {
            Self::Established => 1 << 1,
            // In addition: FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT.
            Self::Open => 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8,
            // In addition: SYN_RECV, also as a mere request; LAST_ACK, CLOSING.
            Self::InUse => Self::Open.state_mask() | 1 << 3 | 1 << 12 | 1 << 9 | 1 << 11,
            Self::Listening => 1 << 10,
        }
    }
}

/// TCP socket as `sock_diag` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Local address; an IPv4-mapped IPv6 address is given as IPv4.
    pub local: SocketAddr,
    /// Remote address; an IPv4-mapped IPv6 address is given as IPv4.
    pub remote: SocketAddr,
    /// Mark of the socket (`SO_MARK`); 0 without a mark, or without the capability to read it.
    pub mark: u32,
    /// Inode number, by which the owning process can be found.
    pub inode: u64,
    family: u8,
    sockid: [u8; SOCKID_BYTES],
}

impl TcpSocket {
    /// Creates a socket as the kernel would report it, for tests.
    pub fn new(local: SocketAddr, remote: SocketAddr, mark: u32) -> Self {
        Self {
            local,
            remote,
            mark,
            inode: 0,
            family: AF_INET,
            sockid: [0; SOCKID_BYTES],
        }
    }

    /// Returns the kernel's cookie, which distinguishes this socket from earlier and later ones with the same
    /// addresses.
    pub fn cookie(&self) -> u64 {
        let cookie = self.sockid.last_chunk::<8>().copied();
        u64::from_ne_bytes(cookie.unwrap_or_default())
    }
}

/// Lists the sockets of `netns` in these TCP states.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel lacks `sock_diag`.
pub fn tcp_sockets(netns: &Netns, state: TcpStateFilter) -> io::Result<Vec<TcpSocket>> {
    netns.run(|| list_sockets(state))?
}

/// Lists the sockets of the calling thread's namespace.
pub(crate) fn list_sockets(state: TcpStateFilter) -> io::Result<Vec<TcpSocket>> {
    let mut socket = Socket::open(Some(SOCK_DIAG))?;
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let request = encode_request(family, state.state_mask(), &[0; SOCKID_BYTES]);
        let dumped = socket.dump(SOCK_DIAG_BY_FAMILY, &[&request], |payload| {
            if found.len() < MAX_SOCKETS {
                found.extend(decode_socket(payload));
            }
        });
        match dumped {
            // A kernel without IPv6 has no such sockets.
            Err(error) if family == AF_INET6 && error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(found)
}

/// Destroys a socket of the calling thread's namespace, which resets its connection.
pub(crate) fn destroy(connection: &TcpSocket) -> io::Result<()> {
    let state = TcpStateFilter::Open.state_mask();
    let request = encode_request(connection.family, state, &connection.sockid);
    Socket::open(Some(SOCK_DIAG))?
        .request(SOCK_DESTROY, 0, &[&request])
        .map(drop)
}

fn encode_request(family: u8, states: u32, id: &[u8; SOCKID_BYTES]) -> Vec<u8> {
    let mut bytes = vec![family, IPPROTO_TCP, 0, 0];
    bytes.extend_from_slice(&states.to_ne_bytes());
    bytes.extend_from_slice(id);
    bytes
}

fn decode_socket(payload: &[u8]) -> Option<TcpSocket> {
    let (head, attributes) = payload.split_at_checked(DIAG_MSG_BYTES)?;
    let family = *head.first()?;
    let id: [u8; SOCKID_BYTES] = head.get(4..4 + SOCKID_BYTES)?.try_into().ok()?;
    let port = |at: usize| -> Option<u16> {
        Some(u16::from_be_bytes(id.get(at..at + 2)?.try_into().ok()?))
    };
    let ip = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = id.get(at..at + 16)?.try_into().ok()?;
        let [a, b, c, d, ..] = bytes;
        match family {
            AF_INET => Some(IpAddr::from([a, b, c, d])),
            AF_INET6 => Some(Ipv6Addr::from(bytes).to_canonical()),
            _ => None,
        }
    };
    let inode = netlink::u32_ne(head.get(DIAG_MSG_BYTES - 4..)?)?;
    Some(TcpSocket {
        local: SocketAddr::new(ip(4)?, port(0)?),
        remote: SocketAddr::new(ip(20)?, port(2)?),
        mark: netlink::attr(attributes, INET_DIAG_MARK)
            .and_then(netlink::u32_ne)
            .unwrap_or(0),
        inode: inode.into(),
        family,
        sockid: id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes: Vec<u8>) {
            let _any = decode_socket(&bytes);
        }
    }
}
