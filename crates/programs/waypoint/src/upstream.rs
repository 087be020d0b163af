//! Ways out: connections to endpoints, by tunnel or in plaintext, and the HTTP connections that are kept for
//! further requests.

mod http_pool;
mod stream;

use std::net::SocketAddr;

use ambit_codec::Forwarded;
use ambit_hbone::Pool;
use ambit_model::Reason;
use ambit_proxy::{
    Dialer, Local, ResolveError,
    dial::{ConnectError, tunnel_headers},
    resolve,
};
use ambit_route::{HboneRoute, Route, RouteError};

pub(crate) use http_pool::{Checkout, HttpKey, HttpPool};
pub(crate) use stream::Stream;

/// The ways out of one waypoint on one worker.
#[derive(Debug)]
pub(crate) struct Upstreams {
    dialer: Dialer,
    tunnels: Pool,
    pub(crate) http: HttpPool,
}

/// An endpoint that cannot be reached.
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
}

impl UpstreamError {
    /// The low-cardinality cause.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Connect(error) => error.reason(),
            Self::Route(_) | Self::Resolve(_) | Self::OtherNetwork => Reason::Connect,
        }
    }
}

/// A route whose address is known.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// As it is.
    Plain(SocketAddr),
    /// By tunnel, to the endpoint or to a waypoint of its own.
    Tunnel(Box<HboneRoute>),
}

impl Way {
    /// Finds the address of a route.
    pub(crate) async fn of(route: Route, ipv6: bool) -> Result<Self, UpstreamError> {
        let route = match route {
            Route::NeedsDns(pending) => {
                let ip = resolve(&pending, ipv6).await?;
                pending.resolve(ip)
            }
            known => known,
        };
        match route {
            Route::Plain(plain) => Ok(Self::Plain(plain.addr)),
            Route::Hbone(hbone) => Ok(Self::Tunnel(Box::new(hbone))),
            Route::Passthrough { dst, .. } => Ok(Self::Plain(dst)),
            Route::DoubleHbone { .. } | Route::NeedsDns(_) => Err(UpstreamError::OtherNetwork),
        }
    }

    /// The endpoint itself: what is to be avoided when it fails, and what is reported.
    pub(crate) fn endpoint(&self) -> SocketAddr {
        match self {
            Self::Plain(address) => *address,
            Self::Tunnel(route) => route.authority.parse().unwrap_or(route.addr),
        }
    }
}

impl Upstreams {
    /// None are connected.
    pub(crate) fn new(dialer: &Dialer) -> Self {
        Self {
            tunnels: Pool::new(dialer.http2.clone()),
            dialer: dialer.clone(),
            http: HttpPool::default(),
        }
    }

    /// A new connection for a caller.
    pub(crate) async fn connect(
        &self,
        way: &Way,
        own: &Local,
        forwarded: &Forwarded,
    ) -> Result<Stream, UpstreamError> {
        match way {
            Way::Plain(address) => {
                let stream = self.dialer.plain(*address).await?;
                Ok(Stream::Plain(stream))
            }
            Way::Tunnel(route) => {
                let headers = tunnel_headers(own, forwarded);
                let ip = own.workload.workload_ips.first().copied();
                let source = ip.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
                let tunnel = self.dialer.tunnel(&self.tunnels, route, source, headers);
                Ok(Stream::Tunnel(Box::new(tunnel.await?.into_io())))
            }
        }
    }

    /// Opens nothing new; what is open ends with its requests.
    pub(crate) fn drain(&self) {
        self.tunnels.drain();
        self.http.clear();
    }
}
