//! Opens connections to upstreams, in HBONE tunnels or in plaintext, and pools HTTP connections.

mod error;
mod http_pool;
mod idle_memory;
mod next_hop;
mod proxy_protocol;
mod reset_on_drop;
mod stream;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ambit_codec::Forwarded;
use ambit_hbone::Pool;
use ambit_model::{DestinationLimits, Identity};
use ambit_proxy::{Dialer, LocalPod, dial::tunnel_headers};
use ambit_sys::socket::keep_alive;

use crate::{
    applied_services::AppliedServices, config::Config, destination::with_connect_timeout,
    hops::Hops, memory::ConnectionMemory, tls_origination::TlsUpstream,
    tunnel_windows::UpstreamWindows,
};

pub(crate) use error::UpstreamError;
pub(crate) use http_pool::{
    Checkout, HttpKey, HttpPool, Reuse, ReuseLimits, STREAM_WINDOW_BYTES, StreamSlot,
};
pub(crate) use idle_memory::IdleUpstreams;
pub(crate) use next_hop::Upstream;
pub(crate) use proxy_protocol::ProxyProtocolHeader;
pub(crate) use reset_on_drop::{ConnectionActivity, RequestGuard, ResetOnDropStream};
pub(crate) use stream::{ChargedAccounts, Stream};

/// Memory of one idle HTTP/1.1 connection in bytes, without its read buffer.
const IDLE_CONNECTION_BYTES: usize = 16 << 10;
/// Divisor of the memory limit: the part of it that idle HTTP/1.1 connections may use.
const IDLE_MEMORY_DIVISOR: usize = 4;
/// Lower bound of the maximum number of idle HTTP/1.1 connections of one worker.
const MIN_IDLE_CONNECTIONS: usize = 16;
/// Upper bound of the maximum number of idle HTTP/1.1 connections of one worker.
const MAX_IDLE_CONNECTIONS: usize = 4096;

/// Returns the maximum number of idle HTTP/1.1 connections of one worker. `read_buffer` is the maximum size of a
/// connection's read buffer in bytes, which it keeps after a large response.
fn max_idle_connections(memory_limit: usize, workers: usize, read_buffer: usize) -> usize {
    let bytes = memory_limit / IDLE_MEMORY_DIVISOR / workers.max(1);
    let count = bytes / read_buffer.saturating_add(IDLE_CONNECTION_BYTES);
    count.clamp(MIN_IDLE_CONNECTIONS, MAX_IDLE_CONNECTIONS)
}

/// Connection pools of one worker.
#[derive(Debug)]
pub(crate) struct UpstreamPools {
    dialer: Dialer,
    tunnels: Pool,
    pub(crate) http: HttpPool,
    /// Idle connections of all workers.
    idle: Arc<IdleUpstreams>,
}

/// Parameters of a new connection to an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectParameters<'a> {
    pub(crate) upstream: &'a Upstream,
    /// Workload record of the waypoint itself, the source of the connection.
    pub(crate) own_pod: &'a LocalPod,
    /// Address of the original client, reported to the next proxy (`Forwarded` header of the CONNECT).
    pub(crate) forwarded: &'a Forwarded,
    /// Services whose attachments this waypoint has applied, named to the next waypoint in a header of the CONNECT.
    pub(crate) applied_services: &'a AppliedServices,
    pub(crate) options: ConnectOptions<'a>,
    /// Number of waypoints that the connection has passed, sent to the next waypoint in the CONNECT; `None` for HTTP,
    /// where each request carries the number in its own headers.
    pub(crate) hops: Option<Hops>,
    /// Identity under which the connection is opened; `None` for the waypoint's own.
    pub(crate) identity: Option<&'a Identity>,
    /// Memory budget of the caller to which the connection is charged; `None` for the waypoint's own calls.
    pub(crate) memory: Option<&'a ConnectionMemory>,
}

/// Options of a connection that the destination's `DestinationRule` or `BackendTLSPolicy` sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectOptions<'a> {
    pub(crate) limits: &'a DestinationLimits,
    /// TLS settings, if the waypoint originates TLS to the endpoint.
    pub(crate) tls: Option<TlsUpstream<'a>>,
    /// PROXY protocol header, sent before TLS.
    pub(crate) preamble: Option<&'a ProxyProtocolHeader>,
}

/// Returns the client address that tunnels report when they carry the waypoint's own calls or are shared by several
/// callers: the address of the waypoint's pod, without a port.
pub(crate) fn forwarded_for_waypoint(own: &LocalPod) -> Forwarded {
    let ip = own.workload.workload_ips.first().copied();
    let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    Forwarded {
        client: SocketAddr::new(ip, 0),
        host: None,
    }
}

impl UpstreamPools {
    /// Creates the empty connection pools of a worker.
    pub(crate) fn new(dialer: &Dialer, config: &Config, idle: &Arc<IdleUpstreams>) -> Self {
        let tunnels = Pool::new(dialer.http2_settings.clone());
        dialer.state.close_departed_connections(&tunnels);
        let headers = config.headers;
        let max_idle = max_idle_connections(config.memory_limit, config.workers, headers.bytes);
        let http = HttpPool::new(headers, max_idle);
        idle.add(&http, &tunnels);
        Self {
            tunnels,
            dialer: dialer.clone(),
            http,
            idle: idle.clone(),
        }
    }

    /// Opens a connection: applies the connect timeout of the destination's rule, sends the PROXY protocol header, and
    /// performs the TLS handshake where they are configured.
    pub(crate) async fn connect(
        &self,
        connect: ConnectParameters<'_>,
    ) -> Result<Stream, UpstreamError> {
        let ConnectOptions {
            limits,
            tls,
            preamble,
        } = connect.options;
        let connecting = async {
            let mut stream = self.connect_transport(connect).await?;
            if let Some(preamble) = preamble {
                let sent = preamble.send(&mut stream).await;
                sent.map_err(UpstreamError::ProxyProtocol)?;
            }
            match tls {
                None => Ok(stream),
                Some(tls) => Ok(Stream::Tls(Box::new(tls.handshake(stream).await?))),
            }
        };
        let connected = with_connect_timeout(limits.connect_timeout, connecting).await;
        connected.unwrap_or_else(|most| Err(UpstreamError::ConnectTimeout(most)))
    }

    /// Opens the TCP connection or HBONE tunnel, without PROXY protocol header and TLS.
    async fn connect_transport(
        &self,
        connect: ConnectParameters<'_>,
    ) -> Result<Stream, UpstreamError> {
        let ConnectParameters {
            upstream,
            own_pod: own,
            forwarded,
            applied_services: applied,
            options,
            hops,
            identity,
            memory,
        } = connect;
        match upstream {
            Upstream::Plain(address, _) => {
                let stream = self.dialer.connect_plain(*address).await?;
                if let Some(of) = &options.limits.keepalive
                    && let Err(error) = keep_alive(&stream, of.time, of.interval, of.probes)
                {
                    tracing::debug!(%address, %error, "a connection is not probed");
                }
                Ok(Stream::Plain(stream))
            }
            Upstream::Tunnel(route) => {
                let mut headers = tunnel_headers(own, forwarded);
                if let Some(hops) = hops {
                    hops.write(&mut headers, upstream.is_waypoint());
                }
                applied.write(&mut headers);
                let source = forwarded_for_waypoint(own).client.ip();
                let dialer = Dialer {
                    identity: identity.unwrap_or(&self.dialer.identity).clone(),
                    ..self.dialer.clone()
                };
                let mut windows = match memory {
                    Some(memory) => {
                        let settings = &dialer.http2_settings;
                        Some(self.idle.charge_tunnel(settings, memory).await?)
                    }
                    None => None,
                };
                let permit = windows
                    .as_mut()
                    .and_then(UpstreamWindows::take_tunnel_permit);
                let reserve = || {
                    windows
                        .as_ref()
                        .map_or(Ok(None), UpstreamWindows::reserve_connection)
                };
                let tunnel = dialer.open_tunnel_with_reservation(
                    &self.tunnels,
                    route,
                    source,
                    headers,
                    reserve,
                );
                // Boxed, since the future of opening is much larger than the tunnel.
                let tunnel = Box::pin(tunnel).await?;
                Ok(Stream::Tunnel(Box::new(tunnel.into_io()), permit))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_idle_connections_follows_the_memory_limit() {
        const MIB: usize = 1 << 20;
        for (memory_limit, workers, expected) in [
            (4096 * MIB, 2, 4096),
            (1024 * MIB, 2, 1638),
            (1024 * MIB, 8, 409),
            (0, 0, 16),
        ] {
            let count = max_idle_connections(memory_limit, workers, 64 << 10);
            assert_eq!(count, expected, "{memory_limit}, {workers}");
        }
    }
}
