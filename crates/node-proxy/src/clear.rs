//! Connections of a pod that the proxy does not carry: those that were open before the pod was
//! captured. They go on in clear; they are listed, and closed where a setting says so.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ambit_model::OUTBOUND_PORT;
use ambit_netplan::probes;
use ambit_sys::tcp_sockets::{self, State, TcpSocket};

use crate::{connections::Shown, pod::Pod};

/// After which times the connections in clear of a new pod are closed. The agent redirects as soon as
/// the pod is served; a connection opened just before may still be in its handshake the first time.
const CLOSE_AFTER: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(10),
];

/// The connections of the pod that are in clear now.
pub(crate) fn shown(pod: &Pod) -> Vec<Shown> {
    let found = find(pod).unwrap_or_else(|error| {
        tracing::debug!(pod = %pod.name, %error, "cannot look for connections in clear");
        Vec::new()
    });
    found
        .iter()
        .map(|connection| Shown {
            src: connection.local,
            original_dst: connection.remote.to_string(),
            actual_dst: connection.remote.to_string(),
            protocol: "CLEAR",
        })
        .collect()
}

/// Closes what a pod brings along, for as long as something may come.
pub(crate) async fn close(pod: Arc<Pod>) {
    let pod = Arc::downgrade(&pod);
    for pause in CLOSE_AFTER {
        tokio::time::sleep(pause).await;
        let Some(pod) = pod.upgrade() else { return };
        let found = match find(&pod) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(pod = %pod.name, %error, "cannot look for connections in clear");
                return;
            }
        };
        for connection in found {
            let TcpSocket { local, remote, .. } = connection;
            match tcp_sockets::destroy(&pod.netns, &connection) {
                Ok(()) => {
                    tracing::info!(pod = %pod.name, %local, %remote, "closed a connection in clear")
                }
                // It has ended by itself.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(
                    pod = %pod.name, %local, %remote, %error,
                    "cannot close a connection in clear"
                ),
            }
        }
    }
}

fn find(pod: &Pod) -> io::Result<Vec<TcpSocket>> {
    let all = tcp_sockets::tcp_sockets(&pod.netns, State::Established)?;
    let mark = pod.proxy.config.packet_mark.unwrap_or_default();
    Ok(in_clear(all, mark))
}

/// Of all connections of a pod, those of its application that no socket of the proxy, told by its
/// mark, stands opposite to. What stays within the pod, and kubelet's probes, do not count.
fn in_clear(all: Vec<TcpSocket>, mark: u32) -> Vec<TcpSocket> {
    let (proxy, app): (Vec<_>, Vec<_>) = all.into_iter().partition(|socket| socket.mark == mark);
    // From the application: accepted by the proxy. To it: connected by the proxy.
    let from: HashSet<SocketAddr> = proxy
        .iter()
        .filter(|socket| socket.local.port() == OUTBOUND_PORT)
        .map(|socket| socket.remote)
        .collect();
    let to: HashSet<_> = proxy.iter().map(|s| (s.remote, s.local)).collect();
    let probe = |ip: IpAddr| ip == probes::V4 || ip == probes::V6;
    app.into_iter()
        .filter(|socket| {
            let TcpSocket { local, remote, .. } = socket;
            local.ip() != remote.ip()
                && !local.ip().is_loopback()
                && !probe(remote.ip())
                && !from.contains(local)
                && !to.contains(&(*local, *remote))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: u32 = 0x539;

    fn socket(local: &str, remote: &str, mark: u32) -> TcpSocket {
        TcpSocket::new(local.parse().unwrap(), remote.parse().unwrap(), mark)
    }

    #[test]
    fn what_the_proxy_carries_is_not_in_clear() {
        let clear = [
            socket("10.0.0.1:5000", "10.0.0.9:80", 0),
            socket("10.0.0.1:8080", "10.0.0.9:4000", 0),
        ];
        let carried = [
            // From the application, and what the proxy accepted; its tunnel.
            socket("10.0.0.1:5001", "10.0.0.9:80", 0),
            socket("127.0.0.1:15001", "10.0.0.1:5001", MARK),
            socket("10.0.0.1:6000", "10.0.0.9:15008", MARK),
            // To the application, with the client's address.
            socket("10.0.0.1:8080", "10.0.0.9:4001", 0),
            socket("10.0.0.9:4001", "10.0.0.1:8080", MARK),
            socket("10.0.0.1:15008", "10.0.0.9:7000", MARK),
        ];
        let nobodys = [
            socket("127.0.0.1:5002", "127.0.0.1:9000", 0),
            socket("10.0.0.1:5003", "10.0.0.1:9000", 0),
            socket("10.0.0.1:9000", "10.0.0.1:5003", 0),
            socket("10.0.0.1:8080", "169.254.7.127:4000", 0),
        ];
        let all = clear.iter().chain(&carried).chain(&nobodys).cloned();
        assert_eq!(in_clear(all.collect(), MARK), clear);
    }
}
