//! Redirects connections that bypass the pod's required waypoint to that waypoint (hairpin), in a tunnel with the pod's
//! certificate whose header lines name the original peer. The waypoint then delivers them like any others.

use std::net::SocketAddr;

use ambit_authz::Connection as Peer;
use ambit_codec::{Forwarded, ORIGINAL_PEER_HEADER, OriginalPeer};
use ambit_hbone::Tunnel;
use ambit_model::{ArcStr, FailureReason};
use ambit_proxy::{
    LocalPod, ResolveError,
    dial::{BAGGAGE_HEADER, ConnectError, tunnel_headers},
};
use ambit_route::{HboneRoute, Route, RouteError};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::InvalidHeaderValue};

use crate::{pod::Pod, shard::Shard};

const ORIGINAL_PEER: HeaderName = HeaderName::from_static(ORIGINAL_PEER_HEADER);

/// Error of redirecting a connection to the waypoint, which makes the connection fail.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HairpinError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the peer's identity cannot be sent to the waypoint as a header")]
    Identity(#[from] InvalidHeaderValue),
    #[error(
        "another pod sends this through us as its waypoint, while the workload has one itself: that would go in \
         circles"
    )]
    RoutingLoop,
}

impl HairpinError {
    pub(crate) fn reason(&self) -> FailureReason {
        match self {
            Self::Route(error) => error.reason(),
            Self::Connect(error) => error.reason(),
            Self::Resolve(_) | Self::Identity(_) | Self::RoutingLoop => FailureReason::Connect,
        }
    }

    /// Whether the error is temporary, so that the connection waits and retries.
    fn is_transient(&self) -> bool {
        match self {
            Self::Route(error) => error.is_transient(),
            Self::Connect(error) => error.is_transient(),
            _ => false,
        }
    }

    /// Returns the HTTP status of the response to the client's CONNECT request.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Connect(error) => error.status().unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
            Self::RoutingLoop => StatusCode::LOOP_DETECTED,
            Self::Route(RouteError::BypassesWaypoint { .. }) => StatusCode::FORBIDDEN,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Opens a tunnel to the pod's waypoint for a connection of the peer `who` at the address `client`. `connect_headers`
/// are the header lines of the client's CONNECT request, if it used a tunnel.
pub(crate) async fn open_hairpin(
    shard: &Shard,
    local: &LocalPod,
    who: &Peer,
    client: SocketAddr,
    connect_headers: Option<&HeaderMap>,
) -> Result<(Tunnel, HboneRoute), HairpinError> {
    if connect_headers.is_some_and(|headers| headers.contains_key(ORIGINAL_PEER)) {
        return Err(HairpinError::RoutingLoop);
    }
    let headers = hairpin_headers(local, who, client, connect_headers)?;
    let mut wait = shard.pod.dialer.waypoint_waits.begin_wait();
    loop {
        match connect(shard, local, who.destination, headers.clone()).await {
            Err(error) if error.is_transient() && wait.wait_for_retry().await => {}
            connected => return connected,
        }
    }
}

async fn connect(
    Shard { pod, pool }: &Shard,
    local: &LocalPod,
    dst: SocketAddr,
    headers: HeaderMap,
) -> Result<(Tunnel, HboneRoute), HairpinError> {
    let route = find_route(pod, local, dst, Vec::new()).await?;
    let another = |failed| async move { find_route(pod, local, dst, failed).await.ok() };
    let tunnel = pod
        .dialer
        .open_replica_tunnel(pool, route, dst.ip(), headers, another);
    Ok(tunnel.await?)
}

async fn find_route(
    pod: &Pod,
    local: &LocalPod,
    dst: SocketAddr,
    failed: Vec<ArcStr>,
) -> Result<HboneRoute, HairpinError> {
    let route = pod.state.hairpin(&local.workload, dst, &failed).await?;
    match crate::outbound::resolve_route(pod, local, route).await? {
        Route::Hbone(route) => Ok(route),
        _ => Err(RouteError::NoDestination {
            workload: local.workload.uid.clone(),
        }
        .into()),
    }
}

/// Returns the header lines of the CONNECT request to the waypoint: those of the client's request, and the address and
/// principal of the client.
fn hairpin_headers(
    local: &LocalPod,
    who: &Peer,
    client: SocketAddr,
    connect_headers: Option<&HeaderMap>,
) -> Result<HeaderMap, InvalidHeaderValue> {
    let mut headers = tunnel_headers(local, &Forwarded { client, host: None });
    match connect_headers.and_then(|connect_headers| connect_headers.get(BAGGAGE_HEADER)) {
        Some(baggage) => headers.insert(BAGGAGE_HEADER, baggage.clone()),
        None => headers.remove(BAGGAGE_HEADER),
    };
    // Without this header the waypoint would attribute the connection to the pod.
    let peer = OriginalPeer(who.source.clone()).to_string();
    headers.insert(ORIGINAL_PEER, HeaderValue::try_from(peer)?);
    Ok(headers)
}
