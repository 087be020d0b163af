//! Where a server makes its sockets, and its limits.

use std::{net::SocketAddr, time::Duration};

use ambit_sys::netns::Netns;
use hickory_resolver::system_conf::read_system_conf;

/// Sockets by which forwarded queries leave the pod.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    /// The pod's namespace; `None`: the caller's.
    pub netns: Option<Netns>,
    /// The mark by which the pod's redirection exempts the server's own sockets.
    pub mark: Option<u32>,
    /// Upstream servers for clients whose own server cannot be determined.
    pub fallback: Vec<SocketAddr>,
}

/// Limits on the cost of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Forwarded queries in flight.
    pub relayed: usize,
    /// Open TCP connections; further ones wait to be accepted.
    pub connections: usize,
    /// Idle timeout of a TCP connection without a whole query.
    pub idle: Duration,
    /// Timeout of one attempt at a server before the next.
    pub attempt: Duration,
    /// Total time for a forwarded query: less than clients wait.
    pub total: Duration,
    /// Idle time without a query until a draining socket is closed.
    pub quiet: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            relayed: 256,
            connections: 64,
            idle: Duration::from_secs(5),
            attempt: Duration::from_millis(1500),
            total: Duration::from_millis(4500),
            quiet: Duration::from_secs(1),
        }
    }
}

/// The servers of the proxy's own `/etc/resolv.conf`.
pub fn system_servers() -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    match read_system_conf() {
        Ok((config, _)) => {
            let ips = config.name_servers().iter().map(|server| server.ip);
            servers.extend(ips.map(|ip| SocketAddr::new(ip, 53)));
        }
        Err(error) => tracing::debug!(%error, "no DNS servers of the proxy's own"),
    }
    servers.dedup();
    servers
}
