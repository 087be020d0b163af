//! The TCP sockets of a network namespace, of all processes, as the kernel's `sock_diag` reports them.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use rustix::net::netlink::SOCK_DIAG;

use crate::{
    netlink::{self, Socket},
    netns::Netns,
};

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const TCP: u8 = 6;
const INET: u8 = 2;
const INET6: u8 = 10;
/// Length of the socket identity: ports, addresses, interface and cookie.
const ID_BYTES: usize = 48;
/// Length of a reply's header: family, state, timer, retransmissions; the identity; five numbers.
const HEADER_BYTES: usize = 4 + ID_BYTES + 20;
const MARK: u16 = 15;
/// Maximum number of sockets that are read from one namespace.
const MAX_SOCKETS: usize = 100_000;

/// The states of sockets to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Sockets of established connections.
    Established,
    /// Connections that can still carry data in at least one direction: also half-closed ones.
    Open,
    /// Connections that may still receive a packet that matters: also those being opened from outside, and
    /// those closed by both sides with data in flight.
    InUse,
    /// Sockets that listen.
    Listening,
}

impl State {
    fn mask(self) -> u32 {
        match self {
            Self::Established => 1 << 1,
            // In addition: FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT.
            Self::Open => 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8,
            // In addition: SYN_RECV, also as a mere request; LAST_ACK, CLOSING.
            Self::InUse => Self::Open.mask() | 1 << 3 | 1 << 12 | 1 << 9 | 1 << 11,
            Self::Listening => 1 << 10,
        }
    }
}

/// TCP socket of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Canonical local address.
    pub local: SocketAddr,
    /// Canonical remote address.
    pub remote: SocketAddr,
    /// `SO_MARK`; 0 if it has none, or if we lack the capability to read it.
    pub mark: u32,
    /// Inode number, which identifies the owning process.
    pub inode: u64,
    family: u8,
    id: [u8; ID_BYTES],
}

impl TcpSocket {
    /// Creates a socket as the kernel would report it, for tests.
    pub fn new(local: SocketAddr, remote: SocketAddr, mark: u32) -> Self {
        Self {
            local,
            remote,
            mark,
            inode: 0,
            family: INET,
            id: [0; ID_BYTES],
        }
    }

    /// Returns a number that distinguishes this socket from all others with the same addresses,
    /// earlier or later.
    pub fn cookie(&self) -> u64 {
        let cookie = self.id.last_chunk::<8>().copied();
        u64::from_ne_bytes(cookie.unwrap_or_default())
    }
}

/// Lists the sockets of `netns` in this state.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel lacks `sock_diag`.
pub fn tcp_sockets(netns: &Netns, state: State) -> io::Result<Vec<TcpSocket>> {
    netns.run(|| dump(state))?
}

/// Lists the sockets of the calling thread's namespace.
pub(crate) fn dump(state: State) -> io::Result<Vec<TcpSocket>> {
    let mut socket = Socket::open(Some(SOCK_DIAG))?;
    let mut found = Vec::new();
    for family in [INET, INET6] {
        let request = request(family, state.mask(), &[0; ID_BYTES]);
        let dumped = socket.dump(BY_FAMILY, &[&request], |payload| {
            if found.len() < MAX_SOCKETS {
                found.extend(parse(payload));
            }
        });
        match dumped {
            // A kernel without IPv6 has no such sockets.
            Err(error) if family == INET6 && error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(found)
}

/// Breaks a connection of the calling thread's namespace.
pub(crate) fn destroy(connection: &TcpSocket) -> io::Result<()> {
    let state = State::Open.mask();
    let request = request(connection.family, state, &connection.id);
    Socket::open(Some(SOCK_DIAG))?
        .request(DESTROY, 0, &[&request])
        .map(drop)
}

fn request(family: u8, states: u32, id: &[u8; ID_BYTES]) -> Vec<u8> {
    let mut bytes = vec![family, TCP, 0, 0];
    bytes.extend_from_slice(&states.to_ne_bytes());
    bytes.extend_from_slice(id);
    bytes
}

fn parse(payload: &[u8]) -> Option<TcpSocket> {
    let (head, attributes) = payload.split_at_checked(HEADER_BYTES)?;
    let family = *head.first()?;
    let id: [u8; ID_BYTES] = head.get(4..4 + ID_BYTES)?.try_into().ok()?;
    let port = |at: usize| -> Option<u16> {
        Some(u16::from_be_bytes(id.get(at..at + 2)?.try_into().ok()?))
    };
    let ip = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = id.get(at..at + 16)?.try_into().ok()?;
        let [a, b, c, d, ..] = bytes;
        match family {
            INET => Some(IpAddr::from([a, b, c, d])),
            INET6 => Some(Ipv6Addr::from(bytes).to_canonical()),
            _ => None,
        }
    };
    let inode = netlink::u32_ne(head.get(HEADER_BYTES - 4..)?)?;
    Some(TcpSocket {
        local: SocketAddr::new(ip(4)?, port(0)?),
        remote: SocketAddr::new(ip(20)?, port(2)?),
        mark: netlink::attr(attributes, MARK)
            .and_then(netlink::u32_ne)
            .unwrap_or(0),
        inode: inode.into(),
        family,
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes: Vec<u8>) {
            let _any = parse(&bytes);
        }
    }
}
