//! Outbound connections of the pod: routing, and the tunnel or plain connection to the destination.

use std::{io, net::SocketAddr, pin::pin, sync::Arc};

use ambit_codec::Forwarded;
use ambit_egress::Forbidden;
use ambit_hbone::Tunnel;
use ambit_model::{ArcStr, Reason, canonical_socket};
use ambit_proxy::{
    Accepted, Cut, End, Established, Local, Opening, Report, ResolveError, Shown,
    connection::Failure,
    connection_table::Handle,
    dial::{ConnectError, InnerError, tunnel_headers},
    flow,
    report::chain,
    resolve,
};
use ambit_route::{HboneRoute, OWN_PORTS, Route, RouteError};
use ambit_sys::socket;
use ambit_telemetry::Direction;
use http::HeaderMap;
use tokio::net::TcpStream;

use crate::{pod::Pod, redirection, refusal, shard::Shard};

/// Error of an outbound connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutboundError {
    #[error("cannot learn the original destination")]
    OriginalDst(#[source] io::Error),
    #[error("attempted recursive call to ourselves")]
    SelfCall,
    #[error(
        "nothing in the mesh's registry has the address {0}, and outboundTrafficPolicy is REGISTRY_ONLY: a ServiceEntry would name it"
    )]
    NotRegistered(SocketAddr),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Inner(#[from] InnerError),
    #[error("{0}, and the connection was made to another one (global.egress.allowedAddresses)")]
    Forbidden(#[from] Forbidden),
    #[error(transparent)]
    Cut(#[from] Cut),
}

impl OutboundError {
    /// Whether the error is temporary, so that the connection waits and retries.
    fn is_passing(&self) -> bool {
        match self {
            Self::Route(error) => error.is_passing(),
            Self::Connect(error) => error.is_passing(),
            _ => false,
        }
    }
}

impl Failure for OutboundError {
    fn reason(&self) -> Reason {
        match self {
            Self::Connect(error) => error.reason(),
            Self::Inner(error) => error.reason(),
            Self::Route(error) => error.reason(),
            Self::Cut(cut) => cut.reason(),
            Self::NotRegistered(_) | Self::Forbidden(_) => Reason::Deny,
            Self::OriginalDst(_) | Self::SelfCall | Self::Resolve(_) => Reason::Connect,
        }
    }
}

/// Serves one captured connection: [`original_dst`], [`decide`], [`dial`], and the relay of bytes.
pub(crate) async fn handle(shard: Arc<Shard>, accepted: Accepted) {
    // Setup needs much more memory than relaying: the box, dropped with this statement, frees it.
    let Some(mut connection) = Box::pin(open(shard, accepted)).await else {
        return;
    };
    connection.relay().await;
}

async fn open(shard: Arc<Shard>, accepted: Accepted) -> Option<Established> {
    let Accepted { stream, peer, open } = accepted;
    let pod = &shard.pod;
    let dst = match original_dst(&stream) {
        Ok(dst) => dst,
        Err(error) => {
            let at = stream.local_addr().map_or(peer, canonical_socket);
            let local = pod.local.now(Some(peer.ip()));
            let error = chain(&error);
            flow::denied(
                &pod.metrics,
                Some(&local),
                (peer, at),
                Direction::Outbound,
                &error,
            );
            return None;
        }
    };
    let local = pod.local.now(Some(peer.ip()));
    let mut opening = Opening {
        report: Report::outbound(&pod.metrics, &local, peer, dst),
        tracked: pod.connections().outbound(Shown {
            src: peer,
            original_dst: dst.to_string(),
            actual_dst: String::new(),
            protocol: "HBONE",
        }),
        open,
    };
    let Opening {
        report, tracked, ..
    } = &mut opening;
    let shown = tracked.handle();
    let connecting = async {
        let mut wait = pod.dialer.waits.connection();
        loop {
            let connected = connect(&shard, &local, (peer, dst), report, &shown).await;
            match connected {
                Err(error) if error.is_passing() && wait.again().await => {}
                connected => return connected,
            }
        }
    };
    let connected = tracked.unless_cut(pin!(connecting)).await;
    match connected.unwrap_or_else(|cut| Err(cut.into())) {
        Ok(far) => Some(opening.established(stream, far)),
        Err(error) => {
            opening.failed(&error);
            refusal::reset(stream).await;
            None
        }
    }
}

/// Routes the connection and connects to the destination; if that fails, to another replica.
async fn connect(
    shard: &Shard,
    local: &Local,
    (peer, dst): (SocketAddr, SocketAddr),
    report: &mut Report,
    shown: &Handle,
) -> Result<End, OutboundError> {
    let pod = &shard.pod;
    let route = decide(pod, local, dst, &[]).await?;
    describe(pod, &route, report, shown);
    match route {
        Route::Hbone(hbone) if hbone.waypoint.is_some() || hbone.service.is_some() => {
            let (tunnel, used) = to_replica(shard, local, (peer, dst), hbone).await?;
            describe(pod, &Route::Hbone(used), report, shown);
            Ok(End::Tunnel(tunnel))
        }
        route => dial(shard, local, peer, route, report).await,
    }
}

/// Returns the original destination of a captured connection. A connection to one of the proxy's own ports is an error,
/// since it would loop.
fn original_dst(stream: &TcpStream) -> Result<SocketAddr, OutboundError> {
    let dst = socket::original_dst(stream).map_err(OutboundError::OriginalDst)?;
    let local = stream.local_addr().map_err(OutboundError::OriginalDst)?;
    let to_ourselves = dst.ip().is_loopback() || dst == canonical_socket(local);
    if to_ourselves && OWN_PORTS.contains(&dst.port()) {
        return Err(OutboundError::SelfCall);
    }
    Ok(dst)
}

/// Routes the connection to an endpoint other than those in `failed`, and resolves its host name.
async fn decide(
    pod: &Pod,
    local: &Local,
    dst: SocketAddr,
    failed: &[ArcStr],
) -> Result<Route, OutboundError> {
    let route = choose(pod, local, dst, failed).await?;
    let route = resolved(pod, local, route).await?;
    redirection::check(&pod.guard, dst.ip(), &route)?;
    Ok(route)
}

/// Routes the connection to an endpoint other than those in `failed`, without resolving host names.
pub(crate) async fn choose(
    pod: &Pod,
    local: &Local,
    dst: SocketAddr,
    failed: &[ArcStr],
) -> Result<Route, OutboundError> {
    let route = pod.state.route_again(&local.workload, dst, failed).await?;
    // Also while nothing is known yet, after the start.
    if pod.config.registry_only
        && let Route::Passthrough { dst, service: None } = route
    {
        return Err(OutboundError::NotRegistered(dst));
    }
    Ok(route)
}

/// Resolves the host name of a route, if it has one.
pub(crate) async fn resolved(
    pod: &Pod,
    local: &Local,
    route: Route,
) -> Result<Route, ResolveError> {
    match route {
        Route::NeedsDns(pending) => {
            pod.metrics.on_demand_dns(&local.party, &pending.hostname);
            let ip = resolve(&pending, pod.config.ipv6_enabled).await?;
            Ok(pending.resolve(ip))
        }
        route => Ok(route),
    }
}

/// Records the route in the access log report and the connection table.
fn describe(pod: &Pod, route: &Route, report: &mut Report, shown: &Handle) {
    if let Some(service) = route.service() {
        report.service(service);
    }
    if let Some(workload) = route.workload() {
        report.destination(&workload.to_model());
    }
    match route {
        Route::Passthrough { dst, .. } => shown.connected_to(dst.to_string(), "TCP"),
        Route::Plain(plain) => shown.connected_to(plain.addr.to_string(), "TCP"),
        Route::Hbone(hbone) => {
            report.tunnel(hbone.addr, hbone.authority.as_str().into());
            report.mutual_tls(Some(pod.identity()), hbone.expected.first());
            if let Some(waypoint) = &hbone.waypoint {
                report.waypoint(waypoint);
            }
            shown.connected_to(hbone.addr.to_string(), "HBONE");
        }
        Route::DoubleHbone { outer, inner } => {
            report.tunnel(outer.addr, inner.authority.as_str().into());
            report.mutual_tls(Some(pod.identity()), None);
            shown.connected_to(outer.addr.to_string(), "HBONE");
        }
        Route::NeedsDns(_) => {}
    }
}

/// Opens the tunnel, nested tunnels or plain connection of a route.
async fn dial(
    shard: &Shard,
    local: &Local,
    peer: SocketAddr,
    route: Route,
    report: &mut Report,
) -> Result<End, OutboundError> {
    let Shard { pod, pool } = shard;
    let dialer = &pod.dialer;
    match route {
        Route::Passthrough { dst, .. } => Ok(End::Plain(dialer.plain(dst).await?)),
        Route::Plain(plain) => Ok(End::Plain(dialer.plain(plain.addr).await?)),
        Route::Hbone(hbone) => {
            let headers = headers(local, peer, &hbone);
            let tunnel = dialer.tunnel(pool, &hbone, peer.ip(), headers).await?;
            Ok(End::Tunnel(tunnel))
        }
        Route::DoubleHbone { outer, inner } => {
            let headers = headers(local, peer, &outer);
            let tunnel = dialer
                .tunnel(pool, &outer, peer.ip(), headers.clone())
                .await?;
            let (inner, far) = dialer
                .inner_tunnel(tunnel, &inner, outer.addr, headers)
                .await?;
            report.mutual_tls(Some(pod.identity()), far.as_ref());
            Ok(End::Inner(Box::new(inner)))
        }
        Route::NeedsDns(pending) => Err(ResolveError::Unresolved(pending.hostname).into()),
    }
}

/// Opens a tunnel to a pod of the waypoint, or to an endpoint of the service; if one fails, to another. Also returns
/// the route that succeeded.
async fn to_replica(
    shard: &Shard,
    local: &Local,
    (peer, dst): (SocketAddr, SocketAddr),
    route: HboneRoute,
) -> Result<(Tunnel, HboneRoute), OutboundError> {
    let Shard { pod, pool } = shard;
    let through_waypoint = route.waypoint.is_some();
    let another = |failed: Vec<ArcStr>| async move {
        match decide(pod, local, dst, &failed).await {
            Ok(Route::Hbone(route)) => {
                Some(route).filter(|route| route.waypoint.is_some() == through_waypoint)
            }
            _ => None,
        }
    };
    let headers = headers(local, peer, &route);
    let dialer = &pod.dialer;
    Ok(dialer
        .replica_tunnel(pool, route, peer.ip(), headers, another)
        .await?)
}

fn headers(local: &Local, client: SocketAddr, route: &HboneRoute) -> HeaderMap {
    let service = route.service.as_ref();
    let host = service.map(|service| service.hostname.clone());
    tunnel_headers(local, &Forwarded { client, host })
}
