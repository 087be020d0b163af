//! Connection tracking: looks up the original destination of a redirected datagram, deletes translations, and registers
//! connections that it has not seen open (pre-capture ones, and those of another proxy to the application). Blocks for
//! microseconds.

pub(crate) mod pre_capture;
mod spoofed;

use std::{
    collections::BTreeSet,
    fs, io,
    net::{IpAddr, SocketAddr},
};

use rustix::{io::Errno, net::netlink};

use crate::{
    addresses::addresses_in,
    netlink::{Attrs, Socket, attr},
    netns::Netns,
};

pub(crate) use spoofed::track_proxy_connections;

const CTNETLINK_SUBSYSTEM: u16 = 1 << 8;
const IPCTNL_MSG_CT_GET: u16 = CTNETLINK_SUBSYSTEM | 1;
const IPCTNL_MSG_CT_DELETE: u16 = CTNETLINK_SUBSYSTEM | 2;
/// Netlink attributes of a conntrack entry's tuples, in the original direction and in the reply direction.
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
/// Length of `struct nfgenmsg`, which precedes the attributes of every message.
const NFGENMSG_BYTES: usize = 4;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_TCP: u8 = 6;
/// Size of the receive buffer in bytes; a conntrack entry takes a few hundred.
const BUFFER_BYTES: usize = 4096;

/// Returns the original destination of a datagram that was redirected from `client` to `listener`;
/// `None` when connection tracking does not know it.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel cannot be queried.
pub fn original_destination(
    netns: Option<&Netns>,
    client: SocketAddr,
    listener: SocketAddr,
) -> io::Result<Option<SocketAddr>> {
    // Replies go from the listener to the client: the tuple of the reply direction.
    let tuple = Tuple {
        source: listener,
        destination: client,
    };
    let ask = || {
        let mut socket = Socket::with_buffer(Some(netlink::NETFILTER), BUFFER_BYTES)?;
        let found = socket.get(
            IPCTNL_MSG_CT_GET,
            &[
                &tuple.nfgenmsg(),
                &tuple.udp_attrs(CTA_TUPLE_REPLY).into_bytes(),
            ],
        )?;
        Ok(found.and_then(|entry| {
            let original = Tuple::decode(attr(entry.get(NFGENMSG_BYTES..)?, CTA_TUPLE_ORIG)?)?;
            Some(original.destination)
        }))
    };
    match netns {
        Some(netns) => netns.run(ask)?,
        None => ask(),
    }
}

/// Selects the UDP sockets of a pod whose conntrack entries are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpSocketSelection {
    /// Selects closed sockets: a new socket may get the same port.
    Closed,
    /// Selects all sockets, open and closed.
    All,
}

/// Deletes the conntrack entries of datagrams that were redirected to `listener`, so that later datagrams go to their
/// original destination. `asked` lists source ports that sent DNS queries to the proxy. A pod that has ended has no
/// addresses, so nothing is deleted. Each entry is deleted by its tuple: listing them would make the kernel scan the
/// entries of all namespaces, a tenth of a second for each pod on a node with many connections.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel refuses.
pub fn delete_redirected_entries(
    netns: &Netns,
    listener: SocketAddr,
    asked: &[u16],
    sockets: UdpSocketSelection,
) -> io::Result<()> {
    let ours = |ip: &IpAddr| ip.is_ipv4() == listener.is_ipv4() && !ip.is_loopback();
    let clients: Vec<IpAddr> = addresses_in(netns)?.into_iter().filter(ours).collect();
    netns.run(|| {
        let open = open_udp_ports()?;
        let mut ports: BTreeSet<u16> = asked.iter().copied().collect();
        match sockets {
            UdpSocketSelection::Closed => ports.retain(|port| !open.contains(port)),
            UdpSocketSelection::All => ports.extend(open),
        }
        if ports.is_empty() || clients.is_empty() {
            return Ok(());
        }
        let mut socket = Socket::with_buffer(Some(netlink::NETFILTER), BUFFER_BYTES)?;
        for (ip, port) in clients
            .iter()
            .flat_map(|ip| ports.iter().map(move |port| (*ip, *port)))
        {
            let reply = Tuple {
                source: listener,
                destination: SocketAddr::new(ip, port),
            };
            let tuple = reply.udp_attrs(CTA_TUPLE_REPLY).into_bytes();
            match socket.request(IPCTNL_MSG_CT_DELETE, 0, &[&reply.nfgenmsg(), &tuple]) {
                // The port has sent no query, or only to another resolver.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                result => result?,
            }
        }
        Ok(())
    })?
}

/// Returns the local ports of the UDP sockets of the calling thread's namespace, of both families:
/// an IPv6 socket may use IPv4.
fn open_udp_ports() -> io::Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for file in ["udp", "udp6"] {
        match fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
            Ok(table) => ports.extend(table.lines().filter_map(parse_local_port)),
            // The kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ports)
}

/// Parses the local port in a line of `/proc/net/udp`: ` 123: 0100007F:0035 00000000:0000 07 ...`.
fn parse_local_port(line: &str) -> Option<u16> {
    let (_, port) = line.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
    u16::from_str_radix(port, 16).ok()
}

fn nfgenmsg_of(ip: IpAddr) -> [u8; 4] {
    let family = if ip.is_ipv4() { AF_INET } else { AF_INET6 };
    [family, 0, 0, 0]
}

/// Netlink message type and attributes (`CTA_*`) that create the conntrack entry of an established connection.
const IPCTNL_MSG_CT_NEW: u16 = CTNETLINK_SUBSYSTEM;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
/// Status of a connection in use: `IPS_SEEN_REPLY`, `IPS_ASSURED`, `IPS_CONFIRMED`.
const IN_USE_STATUS_BITS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// Conntrack state of established connections, `TCP_CONNTRACK_ESTABLISHED`.
const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
/// Flag `IP_CT_TCP_FLAG_BE_LIBERAL`: the entry has not seen the connection from its beginning, or
/// sees one direction only, and must not check sequence numbers.
const IP_CT_TCP_FLAG_BE_LIBERAL: u8 = 0x08;
/// Timeout of an established connection, the kernel's default of five days.
const ESTABLISHED_TIMEOUT_SECONDS: u32 = 5 * 24 * 3600;

/// Returns the attributes of an established TCP connection's entry, except its addresses.
fn in_use_status_attrs() -> Attrs {
    Attrs::raw(&liberal_tcp_attrs(Some(TCP_CONNTRACK_ESTABLISHED)).into_bytes())
        .u32_be(CTA_STATUS, IN_USE_STATUS_BITS)
        .u32_be(CTA_TIMEOUT, ESTABLISHED_TIMEOUT_SECONDS)
}

fn liberal_tcp_attrs(state: Option<u8>) -> Attrs {
    let flags = [IP_CT_TCP_FLAG_BE_LIBERAL, IP_CT_TCP_FLAG_BE_LIBERAL];
    let tcp = Attrs::new().bytes(4, &flags).bytes(5, &flags);
    let tcp = match state {
        Some(state) => tcp.bytes(1, &[state]),
        None => tcp,
    };
    Attrs::new().nest(CTA_PROTOINFO, &Attrs::new().nest(1, &tcp))
}

/// Source and destination of one direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Tuple {
    fn nfgenmsg(&self) -> [u8; 4] {
        nfgenmsg_of(self.source.ip())
    }

    /// Encodes the tuple as attributes of a UDP flow.
    fn udp_attrs(&self, direction: u16) -> Attrs {
        self.attrs_of(IPPROTO_UDP, direction)
    }

    fn attrs_of(&self, protocol: u8, direction: u16) -> Attrs {
        let address = |attrs: Attrs, v4: u16, ip: IpAddr| match ip {
            IpAddr::V4(ip) => attrs.bytes(v4, &ip.octets()),
            IpAddr::V6(ip) => attrs.bytes(v4 + 2, &ip.octets()),
        };
        let addresses = address(Attrs::new(), 1, self.source.ip());
        let addresses = address(addresses, 2, self.destination.ip());
        let ports = Attrs::new()
            .bytes(1, &[protocol])
            .bytes(2, &self.source.port().to_be_bytes())
            .bytes(3, &self.destination.port().to_be_bytes());
        let tuple = Attrs::new().nest(1, &addresses).nest(2, &ports);
        Attrs::new().nest(direction, &tuple)
    }

    /// Decodes the tuple of a UDP flow; `None` for other protocols.
    fn decode(tuple: &[u8]) -> Option<Self> {
        let (addresses, ports) = (attr(tuple, 1)?, attr(tuple, 2)?);
        if attr(ports, 1)? != [IPPROTO_UDP] {
            return None;
        }
        let port = |kind| Some(u16::from_be_bytes(attr(ports, kind)?.try_into().ok()?));
        Some(Self {
            source: SocketAddr::new(decode_address(addresses, 1)?, port(2)?),
            destination: SocketAddr::new(decode_address(addresses, 2)?, port(3)?),
        })
    }
}

fn decode_address(attrs: &[u8], v4: u16) -> Option<IpAddr> {
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
    fn the_local_port_of_a_socket_is_read() {
        let v4 =
            "  617: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0";
        let v6 =
            "  9: 00000000000000000000000000000000:E0AB 00000000000000000000000000000000:0000 07";
        let head = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";
        let ports = [v4, v6, head, ""].map(parse_local_port);
        assert_eq!(ports, [Some(53), Some(0xe0ab), None, None]);
    }

    #[test]
    fn tuples_decode_as_they_were_encoded() {
        for (source, destination) in [
            ("127.0.0.1:15053", "10.0.0.1:40000"),
            ("[::1]:15053", "[fd00::1]:40000"),
        ] {
            let tuple = Tuple {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            };
            let bytes = tuple.udp_attrs(CTA_TUPLE_REPLY).into_bytes();
            assert_eq!(
                Tuple::decode(attr(&bytes, CTA_TUPLE_REPLY).unwrap()),
                Some(tuple)
            );
        }
    }
}
