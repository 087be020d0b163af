//! Finds connections of a pod's application that the proxy does not carry: they were opened before the pod was
//! captured, and continue in plaintext.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
};

use ambit_model::{DNS_PORT, OUTBOUND_PORT};
use ambit_netplan::{marks, probes};

use super::{TcpSocket, TcpStateFilter};
use crate::netns::Netns;
use crate::sock_diag::list_sockets;

/// The direction in which a connection was opened, seen from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Opened to the pod by another workload.
    Inbound,
    /// Opened by the pod's application to another workload.
    Outbound,
}

/// Connection of the application that the proxy does not carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnproxiedSocket {
    /// Socket of the application.
    pub socket: TcpSocket,
    /// Direction in which the connection was opened.
    pub direction: Direction,
}

/// Lists the connections in `state` that the proxy, whose sockets have `mark`, does not carry.
/// Connections within the pod, and kubelet's probes, do not count.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel lacks `sock_diag`.
pub fn unproxied_sockets(
    netns: &Netns,
    mark: u32,
    state: TcpStateFilter,
) -> io::Result<Vec<UnproxiedSocket>> {
    netns.run(|| {
        let first = without_proxied(list_sockets(state)?, mark);
        if first.is_empty() {
            return Ok(Vec::new());
        }
        // The dump is not atomic: of a connection that the proxy is just accepting, one end may be
        // missing. It is not missing twice.
        let certain: HashSet<u64> = first.iter().map(TcpSocket::cookie).collect();
        let second = without_proxied(list_sockets(state)?, mark);
        let listening = list_sockets(TcpStateFilter::Listening)?;
        let ephemeral = ephemeral_ports();
        Ok(second
            .into_iter()
            .filter(|socket| certain.contains(&socket.cookie()))
            .map(|socket| UnproxiedSocket {
                direction: direction_of(&socket, &listening, ephemeral),
                socket,
            })
            .collect())
    })?
}

/// Returns the sockets that are neither the proxy's nor connected to a socket of the proxy, which is recognized by its
/// packet mark.
fn without_proxied(all: Vec<TcpSocket>, mark: u32) -> Vec<TcpSocket> {
    // Both ends of a connection that BPF programs gave to the proxy, also once one of them is closed.
    let is_captured = |socket: &TcpSocket| socket.mark & marks::MASK == marks::OUTBOUND;
    // Both ends are in the pod: the other one is the proxy's, whatever its mark (see `redirection/bpf.rs`).
    let within: HashSet<_> = all.iter().map(|s| (s.remote, s.local)).collect();
    let (proxy, app): (Vec<_>, Vec<_>) = all.into_iter().partition(|socket| socket.mark == mark);
    // Accepted by the proxy from the application, whose end is addressed to another pod.
    let from: HashSet<SocketAddr> = proxy
        .iter()
        .filter(|socket| [OUTBOUND_PORT, DNS_PORT].contains(&socket.local.port()))
        .map(|socket| socket.remote)
        .collect();
    let probe = |ip: IpAddr| ip == probes::V4 || ip == probes::V6;
    app.into_iter()
        .filter(|socket| {
            let TcpSocket { local, remote, .. } = socket;
            local.ip() != remote.ip()
                && !local.ip().is_loopback()
                && !probe(remote.ip())
                && !is_captured(socket)
                && !from.contains(local)
                && !within.contains(&(*local, *remote))
        })
        .collect()
}

/// Determines the direction of a connection from its local port: applications connect from ports of the ephemeral
/// range, unless the port has a listener. A server may have closed its listener and continue to serve its open
/// connections.
fn direction_of(socket: &TcpSocket, listening: &[TcpSocket], ephemeral: (u16, u16)) -> Direction {
    let port = socket.local.port();
    let is_listening = listening.iter().any(|listener| {
        let ip = listener.local.ip();
        listener.local.port() == port && (ip.is_unspecified() || ip == socket.local.ip())
    });
    if is_listening || port < ephemeral.0 || port > ephemeral.1 {
        Direction::Inbound
    } else {
        Direction::Outbound
    }
}

/// Returns the ephemeral port range of the calling thread's namespace.
fn ephemeral_ports() -> (u16, u16) {
    const DEFAULT_EPHEMERAL_PORTS: (u16, u16) = (32768, 60999);
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range = text.ok().and_then(|text| {
        let mut ends = text.split_ascii_whitespace().map(str::parse);
        Some((ends.next()?.ok()?, ends.next()?.ok()?))
    });
    range.unwrap_or(DEFAULT_EPHEMERAL_PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: u32 = 0x539;

    fn socket(local: &str, remote: &str, mark: u32) -> TcpSocket {
        TcpSocket::new(local.parse().unwrap(), remote.parse().unwrap(), mark)
    }

    #[test]
    fn connections_of_the_proxy_are_not_plaintext() {
        let plaintext = [
            socket("10.0.0.1:5000", "10.0.0.9:80", 0),
            socket("10.0.0.1:8080", "10.0.0.9:4000", 0),
        ];
        let carried = [
            // From the application, with the proxy's accepted end; its tunnel.
            socket("10.0.0.1:5001", "10.0.0.9:80", 0),
            socket("127.0.0.1:15001", "10.0.0.1:5001", MARK),
            socket("10.0.0.1:6000", "10.0.0.9:15008", MARK),
            // A DNS query.
            socket("10.0.0.1:5004", "10.0.0.10:53", 0),
            socket("127.0.0.1:15053", "10.0.0.1:5004", MARK),
            // From the proxy to the application, with the client's address.
            socket("10.0.0.1:8080", "10.0.0.9:4001", 0),
            socket("10.0.0.9:4001", "10.0.0.1:8080", MARK),
            socket("10.0.0.1:15008", "10.0.0.9:7000", MARK),
            // The same under capture by BPF programs.
            socket("10.0.0.1:5005", "10.0.0.9:80", marks::OUTBOUND),
            socket("10.0.0.9:80", "10.0.0.1:5005", marks::OUTBOUND),
            // The application has closed its end.
            socket("10.0.0.9:80", "10.0.0.1:5006", marks::OUTBOUND),
            socket("10.0.0.1:8080", "10.0.0.9:4002", marks::SPOOFED),
            socket("10.0.0.9:4002", "10.0.0.1:8080", marks::SPOOFED),
        ];
        let nobodys = [
            socket("127.0.0.1:5002", "127.0.0.1:9000", 0),
            socket("10.0.0.1:5003", "10.0.0.1:9000", 0),
            socket("10.0.0.1:9000", "10.0.0.1:5003", 0),
            socket("10.0.0.1:8080", "169.254.7.127:4000", 0),
        ];
        let all = plaintext.iter().chain(&carried).chain(&nobodys).cloned();
        assert_eq!(without_proxied(all.collect(), MARK), plaintext);
    }

    #[test]
    fn connections_from_unused_ephemeral_ports_are_outbound() {
        let range = (32768, 60999);
        let listening = [
            socket("0.0.0.0:40000", "0.0.0.0:0", 0),
            socket("[::]:40001", "[::]:0", 0),
            socket("127.0.0.1:40002", "0.0.0.0:0", 0),
        ];
        let of = |local: &str| direction_of(&socket(local, "10.0.0.9:7", 0), &listening, range);
        for (local, expected) in [
            ("10.0.0.1:8080", Direction::Inbound),
            ("10.0.0.1:40000", Direction::Inbound),
            ("10.0.0.1:40001", Direction::Inbound),
            ("10.0.0.1:40002", Direction::Outbound),
            ("[fd00::1]:40003", Direction::Outbound),
            ("10.0.0.1:61000", Direction::Inbound),
        ] {
            assert_eq!(of(local), expected, "{local}");
        }
    }
}
