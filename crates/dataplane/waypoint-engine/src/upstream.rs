//! Connections to upstreams, in HBONE tunnels or in plaintext, and the pool of HTTP connections.

mod aborting;
mod http_pool;
mod preamble;
mod stream;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ambit_codec::Forwarded;
use ambit_egress::Forbidden;
use ambit_hbone::Pool;
use ambit_model::{ArcStr, DestinationLimits, Identity, NamespacedHostname};
use ambit_proxy::{
    Dialer, Local, ResolveError,
    dial::{ConnectError, tunnel_headers},
};
use ambit_route::{HboneRoute, Route, RouteError, WorkloadRef};
use ambit_sys::socket::keep_alive;

use crate::{
    applied_services::AppliedServices,
    config::HeaderLimits,
    destination::in_time,
    hops::Hops,
    memory::{ConnectionMemory, Exhausted},
    names::TooManyLookups,
    origination::{OriginationError, TlsUpstream},
    tunnel_windows::UpstreamWindows,
};

pub(crate) use aborting::{Aborting, InUse, RequestGuard};
pub(crate) use http_pool::{Checkout, HttpKey, HttpPool, Keep, STREAM_WINDOW, StreamSlot};
pub(crate) use preamble::Preamble;
pub(crate) use stream::Stream;

/// Connection pools of one worker.
#[derive(Debug)]
pub(crate) struct UpstreamPools {
    dialer: Dialer,
    tunnels: Pool,
    pub(crate) http: HttpPool,
}

/// Why an upstream cannot be connected to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("destinations in other networks are not supported by this waypoint")]
    OtherNetwork,
    #[error("connecting took longer than the DestinationRule allows: {0:?}")]
    TooLong(std::time::Duration),
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error(
        "{host} resolves to {ip}, an address of the mesh, which is not called by a wildcard's hosts"
    )]
    OfMesh { host: ArcStr, ip: IpAddr },
    #[error(
        "{host} resolves to {ip}, the address of a pod: an endpoint with a tunnel of its own is no pod of another name"
    )]
    TunnelToPod { host: ArcStr, ip: IpAddr },
    #[error(transparent)]
    Tls(#[from] OriginationError),
    #[error(transparent)]
    Lookups(#[from] TooManyLookups),
    #[error("no room for a tunnel to the endpoint")]
    Memory(#[from] Exhausted),
    #[error("the connection ended before the header of the PROXY protocol was sent")]
    Preamble(#[source] std::io::Error),
}

/// Connection to open to an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connect<'a> {
    pub(crate) upstream: &'a Upstream,
    /// The waypoint's own workload.
    pub(crate) own: &'a Local,
    /// Client of the connection, for the next proxy.
    pub(crate) forwarded: &'a Forwarded,
    /// Services whose attachments have been applied, for the next waypoint.
    pub(crate) applied: &'a AppliedServices,
    pub(crate) options: ConnectOptions<'a>,
    /// Waypoints that the connection has passed, for the next one. HTTP requests carry them themselves.
    pub(crate) hops: Option<Hops>,
    /// Identity instead of the waypoint's own.
    pub(crate) identity: Option<&'a Identity>,
    /// Memory of the caller that is charged; calls of the waypoint's own have none.
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

/// The host that a connection goes to: an endpoint, or a waypoint in front of it.
#[derive(Clone, Debug)]
pub(crate) enum Upstream {
    /// Plaintext TCP; the workload, if the address is one of the mesh's records.
    Plain(SocketAddr, Option<WorkloadRef>),
    /// HBONE tunnel to the endpoint or to its waypoint.
    Tunnel(Box<HboneRoute>),
}

impl Upstream {
    /// Services whose attachments have been applied to a request to `called`, for the waypoint that is next; none unless
    /// a waypoint is next.
    pub(crate) fn applied_services(&self, called: Option<&NamespacedHostname>) -> AppliedServices {
        let Self::Tunnel(route) = self else {
            return AppliedServices::default();
        };
        if !self.is_waypoint() {
            return AppliedServices::default();
        }
        let chosen = route.service.as_ref();
        let chosen = chosen.map(|service| service.namespaced_hostname());
        AppliedServices::naming(called.cloned().into_iter().chain(chosen))
    }

    /// Returns the upstream of a route that needs no DNS.
    pub(crate) fn known(route: Route) -> Result<Self, UpstreamError> {
        match route {
            Route::Plain(plain) => Ok(Self::Plain(plain.addr, Some(plain.workload))),
            Route::Hbone(hbone) => Ok(Self::Tunnel(Box::new(hbone))),
            Route::Passthrough { dst, .. } => Ok(Self::Plain(dst, None)),
            Route::DoubleHbone { .. } | Route::NeedsDns(_) => Err(UpstreamError::OtherNetwork),
        }
    }

    /// The address that is connected to: the endpoint's, or that of a waypoint before it.
    pub(crate) fn next_hop(&self) -> SocketAddr {
        match self {
            Self::Plain(address, _) => *address,
            Self::Tunnel(route) => route.addr,
        }
    }

    /// Returns the endpoint's address, for reports and for avoiding it after a failure.
    pub(crate) fn endpoint(&self) -> SocketAddr {
        match self {
            Self::Plain(address, _) => *address,
            Self::Tunnel(route) => route.authority.parse().unwrap_or(route.addr),
        }
    }
}

impl Upstream {
    /// Whether a waypoint is at the other end, and not the endpoint.
    pub(crate) fn is_waypoint(&self) -> bool {
        matches!(self, Self::Tunnel(route) if route.waypoint.is_some())
    }

    /// The workload at the other end: the endpoint, or a waypoint before it.
    pub(crate) fn workload(&self) -> Option<&WorkloadRef> {
        match self {
            Self::Plain(_, workload) => workload.as_ref(),
            Self::Tunnel(route) => Some(&route.workload),
        }
    }
}

/// Client that tunnels name for calls of the waypoint's own and on connections that callers share: its pod, at no port.
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

    /// Opens the connection without TLS.
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
                // Opening takes much more room than what is made of it.
                let tunnel = Box::pin(tunnel).await?;
                Ok(Stream::Tunnel(Box::new(tunnel.into_io()), permit))
            }
        }
    }
}
