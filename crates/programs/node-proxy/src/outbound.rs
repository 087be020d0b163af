//! Outbound connections of the pod: routing, and the tunnel or plain connection to the destination.

use std::{io, net::SocketAddr, pin::pin, sync::Arc};

use ambit_codec::{Authority, Forwarded};
use ambit_egress::ForbiddenAddress;
use ambit_hbone::Tunnel;
use ambit_model::{ArcStr, FailureReason, OUTBOUND_PORT, canonical_socket_address};
use ambit_proxy::{
    AcceptedConnection, ConnectionDetails, ConnectionSetup, EstablishedConnection, LocalPod,
    RelayTransport, Report, ResolveError, TerminationReason,
    connection::ConnectionFailure,
    connection_table::ConnectionHandle,
    dial::{ConnectError, InnerError, tunnel_headers},
    flow,
    report::format_error_chain,
    resolve,
};
use ambit_route::{HboneRoute, PROXY_PORTS, Route, RouteError};
use ambit_sys::{redirection::bpf::CAPTURED_CONNECTION_MARK, socket};
use ambit_telemetry::Direction;
use http::HeaderMap;
use tokio::net::TcpStream;

use crate::{
    pod::{Pod, is_translated},
    redirection, refusal,
    shard::Shard,
};

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
    InnerTunnel(#[from] InnerError),
    #[error("{0}, and the connection was made to another one (global.egress.allowedAddresses)")]
    Forbidden(#[from] ForbiddenAddress),
    #[error(transparent)]
    Terminated(#[from] TerminationReason),
}

impl OutboundError {
    /// Whether the error is temporary, so that the connection waits and retries.
    fn is_transient(&self) -> bool {
        match self {
            Self::Route(error) => error.is_transient(),
            Self::Connect(error) => error.is_transient(),
            _ => false,
        }
    }
}

impl ConnectionFailure for OutboundError {
    fn reason(&self) -> FailureReason {
        match self {
            Self::Connect(error) => error.reason(),
            Self::InnerTunnel(error) => error.reason(),
            Self::Route(error) => error.reason(),
            Self::Terminated(cut) => cut.reason(),
            Self::NotRegistered(_) | Self::Forbidden(_) => FailureReason::Deny,
            Self::OriginalDst(_) | Self::SelfCall | Self::Resolve(_) => FailureReason::Connect,
        }
    }
}

/// Opens one captured connection: [`original_dst`], [`select_resolved_route`], and [`dial`]. Returns `None` if it
/// failed.
pub(crate) async fn open_connection(
    shard: Arc<Shard>,
    accepted: AcceptedConnection,
) -> Option<EstablishedConnection> {
    let AcceptedConnection {
        stream,
        peer,
        drain_guard: open,
    } = accepted;
    let pod = &shard.pod;
    mark_captured(pod, &stream);
    let dst = match original_dst(pod, &stream, peer) {
        Ok(dst) => dst,
        Err(error) => {
            let at = stream.local_addr().map_or(peer, canonical_socket_address);
            let local = pod.local_workload.current_pod(Some(peer.ip()));
            let error = format_error_chain(&error);
            flow::report_denied(
                &pod.metrics,
                Some(&local),
                (peer, at),
                Direction::Outbound,
                &error,
            );
            return None;
        }
    };
    let local = pod.local_workload.current_pod(Some(peer.ip()));
    let mut opening = ConnectionSetup {
        report: Report::outbound(&pod.metrics, &local, peer, dst),
        tracked_connection: pod.connections().add_outbound(ConnectionDetails {
            src: peer,
            original_dst: Authority::Ip(dst),
            actual_dst: None,
            protocol: "HBONE",
        }),
        drain_guard: open,
    };
    let ConnectionSetup {
        report,
        tracked_connection: tracked,
        ..
    } = &mut opening;
    let shown = tracked.handle();
    let connecting = async {
        let mut wait = pod.dialer.waypoint_waits.begin_wait();
        loop {
            let connected = connect(&shard, &local, (peer, dst), report, &shown).await;
            match connected {
                Err(error) if error.is_transient() && wait.wait_for_retry().await => {}
                connected => return connected,
            }
        }
    };
    let connected = tracked.run_until_terminated(pin!(connecting)).await;
    match connected.unwrap_or_else(|cut| Err(cut.into())) {
        Ok(far) => Some(opening.into_established(stream, far)),
        Err(error) => {
            opening.report_failure(&error);
            refusal::reset_after_delay(stream).await;
            None
        }
    }
}

/// Routes the connection and connects to the destination; if that fails, to another replica.
async fn connect(
    shard: &Shard,
    local: &LocalPod,
    (peer, dst): (SocketAddr, SocketAddr),
    report: &mut Report,
    shown: &ConnectionHandle,
) -> Result<RelayTransport, OutboundError> {
    let pod = &shard.pod;
    let route = select_resolved_route(pod, local, dst, &[]).await?;
    record_route(pod, &route, report, shown);
    match route {
        Route::Hbone(hbone) if hbone.waypoint.is_some() || hbone.service.is_some() => {
            let (tunnel, used) = connect_replica(shard, local, (peer, dst), hbone).await?;
            record_route(pod, &Route::Hbone(used), report, shown);
            Ok(RelayTransport::Tunnel(tunnel))
        }
        route => dial(shard, local, peer, route, report).await,
    }
}

/// Marks a connection that BPF programs gave to the proxy as theirs.
fn mark_captured(pod: &Pod, stream: &TcpStream) {
    if is_translated(stream, OUTBOUND_PORT).unwrap_or(false) || !pod.bpf.is_prepared() {
        return;
    }
    if let Err(error) = socket::set_mark(stream, CAPTURED_CONNECTION_MARK) {
        tracing::debug!(%error, "a captured connection keeps the proxy's mark");
    }
}

/// Returns the original destination of a captured connection. A connection to one of the proxy's own ports is an error,
/// since it would loop.
fn original_dst(
    pod: &Pod,
    stream: &TcpStream,
    peer: SocketAddr,
) -> Result<SocketAddr, OutboundError> {
    let dst = socket::original_dst(stream).map_err(OutboundError::OriginalDst)?;
    if !PROXY_PORTS.contains(&dst.port()) {
        return Ok(dst);
    }
    // Neither translated nor given to the proxy by BPF programs: these leave the destination as it is.
    let local = canonical_socket_address(stream.local_addr().map_err(OutboundError::OriginalDst)?);
    let owns = || {
        let own = pod.local_workload.current_pod(Some(peer.ip()));
        pod.owns_address(&own, local.ip())
    };
    let is_untranslated = dst == local && (dst.ip() == peer.ip() || owns());
    if dst.ip().is_loopback() || is_untranslated {
        return Err(OutboundError::SelfCall);
    }
    Ok(dst)
}

/// Selects the connection's route to an endpoint other than those in `failed`, and resolves the route's host name.
async fn select_resolved_route(
    pod: &Pod,
    local: &LocalPod,
    dst: SocketAddr,
    failed: &[ArcStr],
) -> Result<Route, OutboundError> {
    let route = select_route(pod, local, dst, failed).await?;
    let route = resolve_route(pod, local, route).await?;
    redirection::check_redirected_address(&pod.redirect_guard, dst.ip(), &route)?;
    Ok(route)
}

/// Selects the connection's route to an endpoint other than those in `failed`, without resolving host names.
pub(crate) async fn select_route(
    pod: &Pod,
    local: &LocalPod,
    dst: SocketAddr,
    failed: &[ArcStr],
) -> Result<Route, OutboundError> {
    let route = pod
        .state
        .route_excluding(&local.workload, dst, failed)
        .await?;
    // Also while nothing is known yet, after the start.
    if pod.config.registry_only
        && let Route::Passthrough { dst, service: None } = route
    {
        return Err(OutboundError::NotRegistered(dst));
    }
    Ok(route)
}

/// Resolves the host name of a route, if it has one.
pub(crate) async fn resolve_route(
    pod: &Pod,
    local: &LocalPod,
    route: Route,
) -> Result<Route, ResolveError> {
    match route {
        Route::NeedsDns(pending) => {
            pod.metrics
                .count_on_demand_dns(&local.metric_labels, &pending.hostname);
            let ip = resolve(&pending, pod.config.ipv6_enabled).await?;
            Ok(pending.resolve(ip))
        }
        route => Ok(route),
    }
}

/// Records the route in the access log report and the connection table.
fn record_route(pod: &Pod, route: &Route, report: &mut Report, handle: &ConnectionHandle) {
    if let Some(service) = route.service() {
        report.set_service(service);
    }
    if let Some(workload) = route.workload() {
        report.set_destination(&workload.to_model());
    }
    match route {
        Route::Passthrough { dst, .. } => handle.record_destination(*dst, "TCP"),
        Route::Plain(plain) => handle.record_destination(plain.addr, "TCP"),
        Route::Hbone(hbone) => {
            report.set_tunnel(hbone.addr, hbone.authority.as_str().into());
            report
                .set_mutual_tls_identities(Some(pod.identity()), hbone.expected_identities.first());
            if let Some(waypoint) = &hbone.waypoint {
                report.set_waypoint(waypoint);
            }
            handle.record_destination(hbone.addr, "HBONE");
        }
        Route::DoubleHbone { outer, inner } => {
            report.set_tunnel(outer.addr, inner.authority.as_str().into());
            report.set_mutual_tls_identities(Some(pod.identity()), None);
            handle.record_destination(outer.addr, "HBONE");
        }
        Route::NeedsDns(_) => {}
    }
}

/// Opens the tunnel, the nested tunnels or the plain connection that a route demands.
async fn dial(
    shard: &Shard,
    local: &LocalPod,
    peer: SocketAddr,
    route: Route,
    report: &mut Report,
) -> Result<RelayTransport, OutboundError> {
    let Shard { pod, pool } = shard;
    let dialer = &pod.dialer;
    match route {
        Route::Passthrough { dst, .. } => {
            Ok(RelayTransport::Plain(dialer.connect_plain(dst).await?))
        }
        Route::Plain(plain) => Ok(RelayTransport::Plain(
            dialer.connect_plain(plain.addr).await?,
        )),
        Route::Hbone(hbone) => {
            let headers = connect_headers(local, peer, &hbone);
            let tunnel = dialer.open_tunnel(pool, &hbone, peer.ip(), headers).await?;
            Ok(RelayTransport::Tunnel(tunnel))
        }
        Route::DoubleHbone { outer, inner } => {
            let headers = connect_headers(local, peer, &outer);
            let tunnel = dialer
                .open_tunnel(pool, &outer, peer.ip(), headers.clone())
                .await?;
            // Two more handshakes, for which other connections would reserve memory too.
            let opening = dialer.open_nested_tunnel(tunnel, &inner, outer.addr, headers);
            let (inner, far) = Box::pin(opening).await?;
            report.set_mutual_tls_identities(Some(pod.identity()), far.as_ref());
            Ok(RelayTransport::NestedTunnel(Box::new(inner)))
        }
        Route::NeedsDns(pending) => Err(ResolveError::Unresolved(pending.hostname).into()),
    }
}

/// Opens a tunnel to a pod of the waypoint or to an endpoint of the service; if that fails, to another one. Also
/// returns the route that succeeded.
async fn connect_replica(
    shard: &Shard,
    local: &LocalPod,
    (peer, dst): (SocketAddr, SocketAddr),
    route: HboneRoute,
) -> Result<(Tunnel, HboneRoute), OutboundError> {
    let Shard { pod, pool } = shard;
    let through_waypoint = route.waypoint.is_some();
    let another = |failed: Vec<ArcStr>| async move {
        match select_resolved_route(pod, local, dst, &failed).await {
            Ok(Route::Hbone(route)) => {
                Some(route).filter(|route| route.waypoint.is_some() == through_waypoint)
            }
            _ => None,
        }
    };
    let headers = connect_headers(local, peer, &route);
    let dialer = &pod.dialer;
    Ok(dialer
        .open_replica_tunnel(pool, route, peer.ip(), headers, another)
        .await?)
}

fn connect_headers(local: &LocalPod, client: SocketAddr, route: &HboneRoute) -> HeaderMap {
    let service = route.service.as_ref();
    let host = service.map(|service| service.hostname.clone());
    tunnel_headers(local, &Forwarded { client, host })
}
