//! Settings of the DNS server: its upstream sockets, and its limits.

use std::{net::SocketAddr, time::Duration};

use ambit_sys::netns::Netns;
use hickory_resolver::system_conf::read_system_conf;

/// Options of the sockets on which queries are forwarded to upstream servers.
#[derive(Clone, Debug, Default)]
pub struct UpstreamSocketOptions {
    /// Network namespace of the pod; `None` uses the process's own.
    pub netns: Option<Netns>,
    /// Packet mark that exempts the server's own sockets from the pod's redirection.
    pub packet_mark: Option<u32>,
    /// Upstream servers for queries whose original destination cannot be determined.
    pub fallback_servers: Vec<SocketAddr>,
}

/// Limits on the queries and connections of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsLimits {
    /// Maximum number of waiting or forwarded queries at once.
    pub max_waiting_queries: usize,
    /// Maximum number of open TCP connections; further connections are closed at once.
    pub max_connections: usize,
    /// Time after which a TCP connection without a complete query is closed.
    pub idle_timeout: Duration,
    /// Timeout of an exchange with one upstream server before the next server is tried.
    pub attempt_timeout: Duration,
    /// Timeout of a forwarded query over all upstream servers; shorter than common clients wait.
    pub total_timeout: Duration,
    /// Time without a query after which a draining socket is closed; clients retransmit within it.
    pub retransmit_interval: Duration,
}

impl Default for DnsLimits {
    fn default() -> Self {
        Self {
            max_waiting_queries: 256,
            max_connections: 64,
            idle_timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_millis(1500),
            total_timeout: Duration::from_millis(4500),
            retransmit_interval: Duration::from_secs(1),
        }
    }
}

/// Returns the DNS servers in the proxy's own `/etc/resolv.conf`.
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
