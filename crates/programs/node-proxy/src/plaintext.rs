//! Connections to the pod that came without a tunnel.

use std::{
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
};

use ambit_authz::Connection as Peer;
use ambit_codec::Forwarded;
use ambit_hbone::Tunnel;
use ambit_model::Reason;
use ambit_proxy::{
    Accepted, Cut, Established, Far, Local, Opening, Report, Shown,
    connection::Failure,
    dial::{ConnectError, tunnel_headers},
    report::chain,
};
use ambit_route::{OWN_PORTS, Route, RouteError};
use ambit_sys::socket;
use ambit_telemetry::{Direction, log_denied};
use tokio::net::TcpStream;

use crate::{
    admission::{self, Denied, note_source},
    application::{self, AppError},
    shard::Shard,
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
    Waypoint(#[source] ConnectError),
    #[error(transparent)]
    Cut(#[from] Cut),
}

impl Failure for PlaintextError {
    fn reason(&self) -> Reason {
        match self {
            Self::NotOurs(_) | Self::Denied(_) => Reason::Deny,
            Self::Cut(cut) => cut.reason(),
            Self::App(_) | Self::Route(_) | Self::Waypoint(_) => Reason::Connect,
        }
    }
}

/// What the client is connected to.
enum Reached {
    App(TcpStream),
    Waypoint(Tunnel),
}

/// Serves one captured connection.
pub(crate) async fn handle(shard: Arc<Shard>, accepted: Accepted) {
    let Some(mut connection) = Box::pin(open(shard, accepted)).await else {
        return;
    };
    connection.relay().await;
}

async fn open(shard: Arc<Shard>, accepted: Accepted) -> Option<Established<Far>> {
    let Accepted { stream, peer, open } = accepted;
    let pod = &shard.pod;
    let dst = original_dst(&stream, peer)?;
    let _slot = admission::slot(pod, peer, dst)?;
    let Some(local) = pod.local.known().await else {
        let error = "failed to fetch information about local workload";
        log_denied(peer, dst, Direction::Inbound, error);
        return None;
    };
    let mut report = Report::inbound(&pod.metrics, &local, peer, dst);
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
    let mut opening = Opening {
        report,
        tracked: pod.connections().inbound(shown, who.clone()),
        open,
    };
    let connecting = reach(&shard, &local, &who, peer);
    let connected = opening.tracked.unless_cut(pin!(connecting)).await;
    match connected.unwrap_or_else(|cut| Err(cut.into())) {
        // What the application sends is "from the app".
        Ok(Reached::App(app)) => Some(opening.established(app, Far::Plain(stream))),
        Ok(Reached::Waypoint(tunnel)) => Some(opening.established(stream, Far::Tunnel(tunnel))),
        Err(error) => {
            opening.failed(&error);
            None
        }
    }
}

/// Where a captured connection was going; nowhere, if that is our own port.
fn original_dst(stream: &TcpStream, peer: SocketAddr) -> Option<SocketAddr> {
    match socket::original_dst(stream) {
        Ok(dst) if OWN_PORTS.contains(&dst.port()) => {
            let error = "attempted recursive call to ourselves";
            log_denied(peer, dst, Direction::Inbound, error);
            None
        }
        Ok(dst) => Some(dst),
        Err(error) => {
            log_denied(peer, peer, Direction::Inbound, &chain(&error));
            None
        }
    }
}

/// Connects to the application, or to the waypoint that has to come first, if policies allow it.
async fn reach(
    shard: &Shard,
    local: &Local,
    who: &Peer,
    peer: SocketAddr,
) -> Result<Reached, PlaintextError> {
    let (pod, dst) = (&shard.pod, who.destination);
    // The rules redirect nothing else; but a connection that came by other ways would be led to
    // what listens for the pod alone, or the pod be made a relay.
    if !pod.owns(local, dst.ip()) {
        return Err(PlaintextError::NotOurs(dst.ip()));
    }
    let local = Denied::check(pod, who)?;
    if let Some(tunnel) = hairpin(shard, &local, peer, dst).await? {
        return Ok(Reached::Waypoint(tunnel));
    }
    let app = application::connect(pod, dst, Some(peer.ip())).await?;
    Ok(Reached::App(app))
}

/// The tunnel to the pod's own waypoint, if everything has to come through it.
async fn hairpin(
    shard: &Shard,
    local: &Local,
    client: SocketAddr,
    dst: SocketAddr,
) -> Result<Option<Tunnel>, PlaintextError> {
    let Shard { pod, pool } = shard;
    let route = {
        let table = pod.state.table();
        table.hairpin(&local.workload, None, dst, &mut rand::rng())?
    };
    let Some(Route::Hbone(route)) = route else {
        return Ok(None);
    };
    let headers = tunnel_headers(local, &Forwarded { client, host: None });
    let tunnel = pod.dialer.tunnel(pool, &route, dst.ip(), headers).await;
    tunnel.map(Some).map_err(PlaintextError::Waypoint)
}
