//! Settings of the DNS server: its upstream sockets, and its limits.

use std::{net::SocketAddr, time::Duration};

use ambit_sys::netns::Netns;
use hickory_resolver::system_conf::read_system_conf;

/// Options of the sockets from which queries are forwarded.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    /// Network namespace of the pod; `None` is the caller's.
    pub netns: Option<Netns>,
    /// Packet mark that exempts the server's own sockets from the pod's redirection.
    pub mark: Option<u32>,
    /// Upstream servers for queries whose original destination cannot be determined.
    pub fallback: Vec<SocketAddr>,
}

/// Limits of the resources that clients can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum forwarded queries in flight.
    pub relayed_queries: usize,
    /// Maximum open TCP connections; further ones wait to be accepted.
    pub connections: usize,
    /// Time after which a TCP connection without a complete query is closed.
    pub idle_timeout: Duration,
    /// Timeout of one attempt before the next upstream server is tried.
    pub attempt_timeout: Duration,
    /// Timeout of a forwarded query in total, shorter than clients wait.
    pub total_timeout: Duration,
    /// Time without a query after which a draining socket is closed.
    pub retransmit_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            relayed_queries: 256,
            connections: 64,
            idle_timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_millis(1500),
            total_timeout: Duration::from_millis(4500),
            retransmit_interval: Duration::from_secs(1),
        }
    }
}

/// Reads the servers in the proxy's own `/etc/resolv.conf`.
pub fn system_dns_servers() -> Vec<SocketAddr> {
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
