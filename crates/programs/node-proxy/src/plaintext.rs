//! Connections to the pod that came without a tunnel.

use std::{
    net::{IpAddr, SocketAddr},
    pin::pin,
};

use ambit_authz::Connection as Peer;
use ambit_codec::Forwarded;
use ambit_hbone::{RelayError, relay_plain, relay_tunnel};
use ambit_model::Reason;
use ambit_route::{OWN_PORTS, Route, RouteError};
use ambit_sys::socket;
use ambit_telemetry::{Direction, log_denied};
use tokio::net::TcpStream;

use crate::{
    connections::{Cut, Shown, Tracked},
    inbound::{AppError, Denied, connect_app, note_full, note_source},
    outbound::{Far, OutboundError, tunnel, tunnel_headers},
    report::{Report, chain},
    shard::Accepted,
};

/// A plaintext connection to the pod that failed.
#[derive(Debug, thiserror::Error)]
enum PlaintextError {
    #[error("{0} is not an address of the pod")]
    NotOurs(IpAddr),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("cannot send the connection through the pod's waypoint")]
    Waypoint(#[source] Box<OutboundError>),
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error(transparent)]
    Cut(#[from] Cut),
}

impl PlaintextError {
    fn reason(&self) -> Reason {
        match self {
            Self::NotOurs(_) | Self::Denied(_) => Reason::Deny,
            Self::Relay(error) => error.reason(),
            Self::Cut(cut) => cut.reason(),
            Self::App(_) | Self::Route(_) | Self::Waypoint(_) => Reason::Connect,
        }
    }
}

struct Established {
    client: TcpStream,
    far: Far,
    report: Report,
    tracked: Tracked,
    _open: ambit_rt::OpenWork,
}

/// Serves one captured connection.
pub(crate) async fn handle(accepted: Accepted) {
    let Some(mut established) = Box::pin(set_up(accepted)).await else {
        return;
    };
    let Established {
        client,
        far,
        report,
        tracked,
        ..
    } = &mut established;
    let result = tracked
        .unless_cut(pin!(async {
            match far {
                // The application is the first of the two: what it sends is "from the app".
                Far::Plain(app) => relay_plain(app, client, &*report).await,
                Far::Tunnel(tunnel) => relay_tunnel(client, tunnel, &*report).await,
                Far::Inner(inner) => inner.relay(client, &*report).await,
            }
        }))
        .await;
    let error = match result {
        Ok(Ok(())) => return far.end_in_order(client),
        Ok(Err(error)) => PlaintextError::from(error),
        Err(cut) => PlaintextError::from(cut),
    };
    report.failed(&error, error.reason());
    far.reset();
}

async fn set_up(accepted: Accepted) -> Option<Established> {
    let Accepted {
        shard,
        stream,
        peer,
        _open,
    } = accepted;
    let pod = &shard.pod;
    let dst = match socket::original_dst(&stream) {
        Ok(dst) if OWN_PORTS.contains(&dst.port()) => {
            log_denied(
                peer,
                dst,
                Direction::Inbound,
                "attempted recursive call to ourselves",
            );
            return None;
        }
        Ok(dst) => dst,
        Err(error) => {
            log_denied(peer, peer, Direction::Inbound, &chain(&error));
            return None;
        }
    };
    let _place = match pod.under_way.begin(peer.ip()) {
        Ok(place) => place,
        Err(full) => {
            note_full(pod, peer, dst, full);
            return None;
        }
    };
    let Some(local) = pod.known_local().await else {
        let error = "failed to fetch information about local workload";
        log_denied(peer, dst, Direction::Inbound, error);
        return None;
    };
    let mut report = Report::inbound(&pod.proxy.metrics, &local, peer, dst);
    note_source(&mut report, pod, &local, peer.ip(), None);
    let who = Peer {
        source: None,
        source_ip: peer.ip(),
        destination: dst,
    };
    let shown = Shown {
        src: peer,
        original_dst: dst.to_string(),
        actual_dst: dst.to_string(),
        protocol: "TCP",
    };
    let mut tracked = pod.connections.inbound(shown, who.clone());
    let connecting = async {
        // The rules redirect nothing else; but a connection that came by other ways would be led to
        // what listens for the pod alone, or the pod be made a relay.
        if !pod.owns(&local, dst.ip()) {
            return Err(PlaintextError::NotOurs(dst.ip()));
        }
        let local = Denied::check(pod, &who)?;
        if let Some(far) = hairpin(&shard, &local, peer, dst).await? {
            return Ok(far);
        }
        Ok(Far::Plain(connect_app(pod, dst, Some(peer.ip())).await?))
    };
    let connected = tracked.unless_cut(pin!(connecting)).await;
    let error: PlaintextError = match connected {
        Ok(Ok(far)) => {
            report.opened();
            return Some(Established {
                client: stream,
                far,
                report,
                tracked,
                _open,
            });
        }
        Ok(Err(error)) => error,
        Err(cut) => cut.into(),
    };
    report.failed(&error, error.reason());
    None
}

/// The tunnel to the pod's own waypoint, if everything has to come through it.
async fn hairpin(
    shard: &std::sync::Arc<crate::shard::Shard>,
    local: &crate::pod::Local,
    peer: SocketAddr,
    dst: SocketAddr,
) -> Result<Option<Far>, PlaintextError> {
    let route = {
        let table = shard.pod.proxy.state.table();
        table.hairpin(&local.workload, None, dst, &mut rand::rng())?
    };
    let Some(Route::Hbone(route)) = route else {
        return Ok(None);
    };
    let headers = tunnel_headers(
        local,
        Forwarded {
            client: peer,
            host: None,
        },
    );
    let tunnel = tunnel(shard, &route, dst, headers)
        .await
        .map_err(|error| PlaintextError::Waypoint(Box::new(error)))?;
    Ok(Some(Far::Tunnel(tunnel)))
}
