//! Registers a pod's pre-capture connections (opened before its redirection was applied) with connection tracking. The
//! guard chains accept packets without SYN only if they belong to known connections, see `ambit_netplan::plan`.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
};

use ambit_model::{DNS_PORT, HBONE_PORT, INBOUND_PLAINTEXT_PORT, OUTBOUND_PORT, PROXY_MARK};
use ambit_netplan::marks;
use rustix::{io::Errno, net::netlink};

use super::{
    CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_NEW, IPPROTO_TCP, Tuple,
    in_use_status_attrs,
};
use crate::{
    netlink::{NLM_F_CREATE, Socket},
    sock_diag::{self, TcpSocket, TcpStateFilter},
};

/// Registers the pre-capture connections of the calling thread's namespace with connection tracking. Their sequence
/// numbers are not checked, since packets may have been missed.
pub(crate) fn track_open_connections() -> io::Result<()> {
    let connections = external_connections(&sock_diag::list_sockets(TcpStateFilter::InUse)?);
    if connections.is_empty() {
        return Ok(());
    }
    let mut socket = Socket::open(Some(netlink::NETFILTER))?;
    for (local, remote) in connections {
        let [inward, outward] = both_directions(local, remote);
        let attributes = [
            inward.attrs_of(IPPROTO_TCP, CTA_TUPLE_ORIG).into_bytes(),
            outward.attrs_of(IPPROTO_TCP, CTA_TUPLE_REPLY).into_bytes(),
            in_use_status_attrs().into_bytes(),
        ]
        .concat();
        match socket.request(
            IPCTNL_MSG_CT_NEW,
            NLM_F_CREATE,
            &[&inward.nfgenmsg(), &attributes],
        ) {
            // The connection is translated, and so known under other addresses.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result?,
        }
    }
    Ok(())
}

/// Deletes the conntrack entry of a connection of the calling thread's namespace.
pub(crate) fn delete_entry(connection: &TcpSocket) -> io::Result<()> {
    let [inward, _] = both_directions(connection.local, connection.remote);
    let attributes = inward.attrs_of(IPPROTO_TCP, CTA_TUPLE_ORIG).into_bytes();
    let mut socket = Socket::open(Some(netlink::NETFILTER))?;
    match socket.request(IPCTNL_MSG_CT_DELETE, 0, &[&inward.nfgenmsg(), &attributes]) {
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(()),
        result => result,
    }
}

fn both_directions(local: SocketAddr, remote: SocketAddr) -> [Tuple; 2] {
    [(remote, local), (local, remote)].map(|(source, destination)| Tuple {
        source,
        destination,
    })
}

/// Returns the local and remote addresses of connections whose other end is outside of this namespace, except those
/// that were redirected to the proxy.
fn external_connections(all: &[TcpSocket]) -> Vec<(SocketAddr, SocketAddr)> {
    const PROXY_PORTS: [u16; 4] = [OUTBOUND_PORT, INBOUND_PLAINTEXT_PORT, HBONE_PORT, DNS_PORT];
    let is_proxy = |s: &TcpSocket| s.mark & marks::MASK == PROXY_MARK;
    let at_proxy = |s: &TcpSocket| is_proxy(s) && PROXY_PORTS.contains(&s.local.port());
    let ends: HashSet<_> = all.iter().map(|s| (s.local, s.remote)).collect();
    // Connections that the proxy accepted from the application are addressed to others.
    let redirected: HashSet<_> = all
        .iter()
        .filter(|s| at_proxy(s))
        .map(|s| s.remote)
        .collect();
    let own = |ip: IpAddr, s: &TcpSocket| ip.is_loopback() || s.local.ip() == s.remote.ip();
    all.iter()
        .filter(|s| {
            !at_proxy(s)
                && !own(s.local.ip(), s)
                && !ends.contains(&(s.remote, s.local))
                && !redirected.contains(&s.local)
        })
        .map(|s| (s.local, s.remote))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(local: &str, remote: &str, mark: u32) -> TcpSocket {
        TcpSocket::new(local.parse().unwrap(), remote.parse().unwrap(), mark)
    }

    #[test]
    fn connections_within_the_pod_or_to_the_proxy_are_not_registered() {
        const MARK: u32 = PROXY_MARK;
        let with_others = [
            socket("10.0.0.1:8080", "10.0.0.9:4000", 0),
            socket("10.0.0.1:5000", "10.0.0.9:80", 0),
            // Tunnels of the proxy to others.
            socket("10.0.0.1:6000", "10.0.0.9:15008", MARK),
            // An application at one of the proxy's ports, opened before the capture.
            socket("10.0.0.1:15006", "10.0.0.9:4002", 0),
        ];
        let others = [
            socket("127.0.0.1:5002", "127.0.0.1:9000", 0),
            socket("10.0.0.1:5003", "10.0.0.1:9000", 0),
            socket("10.0.0.1:15008", "10.0.0.9:7000", MARK),
            // Redirected from the application to the proxy.
            socket("10.0.0.1:5001", "10.0.0.9:80", 0),
            socket("127.0.0.1:15001", "10.0.0.1:5001", MARK),
            // From the proxy to the application, with the client's address.
            socket("10.0.0.1:8080", "10.0.0.9:4001", 0),
            socket("10.0.0.9:4001", "10.0.0.1:8080", MARK),
        ];
        let all: Vec<_> = with_others.iter().chain(&others).cloned().collect();
        let expected: Vec<_> = with_others.iter().map(|s| (s.local, s.remote)).collect();
        assert_eq!(super::external_connections(&all), expected);
    }
}
