//! Connections to upstreams, in HBONE tunnels or in plaintext, and the pool of HTTP connections.

mod aborting;
mod error;
mod http_pool;
mod next_hop;
mod preamble;
mod stream;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ambit_codec::Forwarded;
use ambit_hbone::Pool;
use ambit_model::{DestinationLimits, Identity};
use ambit_proxy::{Dialer, Local, dial::tunnel_headers};
use ambit_sys::socket::keep_alive;

use crate::{
    applied_services::AppliedServices, config::HeaderLimits, destination::in_time, hops::Hops,
    memory::ConnectionMemory, origination::TlsUpstream, tunnel_windows::UpstreamWindows,
};

pub(crate) use aborting::{Aborting, InUse, RequestGuard};
pub(crate) use error::UpstreamError;
pub(crate) use http_pool::{Checkout, HttpKey, HttpPool, ReuseLimits, STREAM_WINDOW, StreamSlot};
pub(crate) use next_hop::Upstream;
pub(crate) use preamble::Preamble;
pub(crate) use stream::Stream;

/// Connection pools of one worker.
#[derive(Debug)]
pub(crate) struct UpstreamPools {
    dialer: Dialer,
    tunnels: Pool,
    pub(crate) http: HttpPool,
}

/// Connection to open to an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connect<'a> {
    pub(crate) upstream: &'a Upstream,
    /// The waypoint's own workload.
    pub(crate) own: &'a Local,
    /// Client address of the connection, reported to the next proxy.
    pub(crate) forwarded: &'a Forwarded,
    /// Services whose attachments have been applied, reported to the next waypoint.
    pub(crate) applied: &'a AppliedServices,
    pub(crate) options: ConnectOptions<'a>,
    /// Waypoints that the connection has passed, reported to the next one. HTTP requests carry the number in their own
    /// headers.
    pub(crate) hops: Option<Hops>,
    /// Identity that replaces the waypoint's own.
    pub(crate) identity: Option<&'a Identity>,
    /// Memory budget of the caller to which the connection is charged; `None` for the waypoint's own calls.
    pub(crate) memory: Option<&'a ConnectionMemory>,
}

/// Options of a connection to an endpoint, from the destination's policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectOptions<'a> {
    pub(crate) limits: &'a DestinationLimits,
    /// TLS that the waypoint originates.
    pub(crate) tls: Option<TlsUpstream<'a>>,
    /// PROXY header, sent before TLS.
    pub(crate) preamble: Option<&'a Preamble>,
}

/// Returns the client that tunnels name for the waypoint's own calls and for connections that callers share: the
/// waypoint's pod, without a port.
pub(crate) fn own_client(own: &Local) -> Forwarded {
    let ip = own.workload.workload_ips.first().copied();
    let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    Forwarded {
        client: SocketAddr::new(ip, 0),
        host: None,
    }
}

impl UpstreamPools {
    /// Creates empty pools.
    pub(crate) fn new(dialer: &Dialer, limits: HeaderLimits) -> Self {
        let tunnels = Pool::new(dialer.http2.clone());
        dialer.state.follow_pool(&tunnels);
        Self {
            tunnels,
            dialer: dialer.clone(),
            http: HttpPool::new(limits),
        }
    }

    /// Opens a connection under the limits of its destination's rule, and over TLS if that is configured.
    pub(crate) async fn connect(&self, connect: Connect<'_>) -> Result<Stream, UpstreamError> {
        let ConnectOptions {
            limits,
            tls,
            preamble,
        } = connect.options;
        let connecting = async {
            let mut stream = self.connect_at_all(connect).await?;
            if let Some(preamble) = preamble {
                let sent = preamble.send(&mut stream).await;
                sent.map_err(UpstreamError::Preamble)?;
            }
            match tls {
                None => Ok(stream),
                Some(tls) => Ok(Stream::Tls(Box::new(tls.begin(stream).await?))),
            }
        };
        let connected = in_time(limits.connect_timeout, connecting).await;
        connected.unwrap_or_else(|most| Err(UpstreamError::TooLong(most)))
    }

    /// Opens the connection without TLS and PROXY header.
    async fn connect_at_all(&self, connect: Connect<'_>) -> Result<Stream, UpstreamError> {
        let Connect {
            upstream,
            own,
            forwarded,
            applied,
            options,
            hops,
            identity,
            memory,
        } = connect;
        match upstream {
            Upstream::Plain(address, _) => {
                let stream = self.dialer.plain(*address).await?;
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
                let source = own_client(own).client.ip();
                let dialer = Dialer {
                    identity: identity.unwrap_or(&self.dialer.identity).clone(),
                    ..self.dialer.clone()
                };
                let windows = memory.map(|memory| UpstreamWindows::open(&dialer.http2, memory));
                let mut windows = windows.transpose()?;
                let permit = windows.as_mut().and_then(UpstreamWindows::tunnel);
                let reserve = || {
                    windows
                        .as_ref()
                        .map_or(Ok(None), UpstreamWindows::connection)
                };
                let tunnel = dialer.tunnel_within(&self.tunnels, route, source, headers, reserve);
                // Boxed, since the future of opening is much larger than the tunnel.
                let tunnel = Box::pin(tunnel).await?;
                Ok(Stream::Tunnel(Box::new(tunnel.into_io()), permit))
            }
        }
    }
}
