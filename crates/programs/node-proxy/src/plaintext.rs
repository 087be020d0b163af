//! Inbound plaintext connections, captured on port 15006.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
};

use ambit_authz::Connection as Peer;
use ambit_codec::Authority;
use ambit_model::{FailureReason, INBOUND_PLAINTEXT_PORT};
use ambit_proxy::{
    AcceptedConnection, ConnectionDetails, ConnectionPath, ConnectionSetup, EstablishedConnection,
    LocalPod, RelayTransport, Report, TerminationReason, connection::ConnectionFailure,
    connection_table::ConnectionHandle, flow, report::format_error_chain,
};
use ambit_route::PROXY_PORTS;
use ambit_sys::socket;
use ambit_telemetry::Direction;
use tokio::net::TcpStream;

use crate::{
    admission::{self, DenialReason, record_source},
    application::{self, AppError},
    inbound::hairpin::{self, HairpinError},
    pod::{Pod, is_translated},
    refusal,
    shard::Shard,
};

/// Error of an inbound plaintext connection.
#[derive(Debug, thiserror::Error)]
enum PlaintextError {
    #[error("{0} is not an address of the pod")]
    ForeignAddress(IpAddr),
    #[error(transparent)]
    Denied(#[from] DenialReason),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Hairpin(#[from] HairpinError),
    #[error(transparent)]
    Terminated(#[from] TerminationReason),
}

impl ConnectionFailure for PlaintextError {
    fn reason(&self) -> FailureReason {
        match self {
            Self::ForeignAddress(_) | Self::Denied(_) => FailureReason::Deny,
            Self::Terminated(cut) => cut.reason(),
            Self::Hairpin(error) => error.reason(),
            Self::App(_) => FailureReason::Connect,
        }
    }

    fn policy(&self) -> Option<String> {
        match self {
            Self::Denied(denied) => denied.policy().map(ToOwned::to_owned),
            _ => None,
        }
    }
}

/// Opens one captured plaintext connection to the application or the waypoint; `None` if it was rejected.
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
    let dst = original_dst(pod, &stream, peer)?;
    if let Err(error) = separate(pod, &stream) {
        let local = pod.local_workload.current_pod(None);
        let error = format_error_chain(&error);
        flow::report_denied(
            &pod.metrics,
            Some(&local),
            (peer, dst),
            Direction::Inbound,
            &error,
        );
        return None;
    }
    let _slot = admission::acquire_setup_permit(pod, peer, dst)?;
    let Some(local) = pod.local_workload.wait_until_published().await else {
        let error = "failed to fetch information about local workload";
        flow::report_denied(&pod.metrics, None, (peer, dst), Direction::Inbound, error);
        return None;
    };
    let mut report = Report::inbound(&pod.metrics, &local, peer, dst);
    record_source(&mut report, pod, &local, peer.ip(), None);
    let who = Peer {
        source: None,
        source_ip: peer.ip(),
        destination: dst,
    };
    let shown = ConnectionDetails {
        src: peer,
        original_dst: Authority::Ip(dst),
        actual_dst: Some(dst),
        protocol: "TCP",
    };
    let mut opening = ConnectionSetup {
        report,
        tracked_connection: pod.connections().add_inbound(shown, who.clone()),
        drain_guard: open,
    };
    let listed = opening.tracked_connection.handle();
    let connecting = connect_target(&shard, &local, &who, peer, &listed);
    let connected = opening
        .tracked_connection
        .run_until_terminated(pin!(connecting))
        .await;
    match connected.unwrap_or_else(|cut| Err(cut.into())) {
        // The application's bytes count as sent by the application.
        Ok(app) => {
            if matches!(app, RelayTransport::Tunnel(_)) {
                opening.report.set_forwarded_to_waypoint(&local.workload);
            }
            Some(opening.into_established(app, stream))
        }
        Err(error) => {
            opening.report_failure(&error);
            refusal::reset_after_delay(stream).await;
            None
        }
    }
}

/// Returns the original destination of a captured connection; logs a denial and returns `None` if it is one of the
/// proxy's own ports.
fn original_dst(pod: &Pod, stream: &TcpStream, peer: SocketAddr) -> Option<SocketAddr> {
    let denied = |dst, error: &str| {
        let local = pod.local_workload.current_pod(None);
        flow::report_denied(
            &pod.metrics,
            Some(&local),
            (peer, dst),
            Direction::Inbound,
            error,
        );
    };
    match socket::original_dst(stream) {
        Ok(dst) if PROXY_PORTS.contains(&dst.port()) => {
            let error = "attempted recursive call to ourselves";
            denied(dst, error);
            None
        }
        Ok(dst) => Some(dst),
        Err(error) => {
            denied(peer, &format_error_chain(&error));
            None
        }
    }
}

/// Error of separating a connection from the proxy's own.
#[derive(Debug, thiserror::Error)]
enum SeparationError {
    /// The connection cannot be bound to its interface.
    #[error("cannot bind the connection to the interface it arrived by")]
    Bind(#[source] io::Error),
    /// BPF programs capture the pod, and the proxy does not see them.
    #[error(
        "BPF programs capture the pod, and this proxy sees no map of them below AMBIT_BPF_DIR: its call of the \
         application would come back to it"
    )]
    NoMap,
}

/// Separates a connection that BPF programs gave to the proxy from the proxy's own connections to the application, which
/// may have the same addresses and ports on loopback.
fn separate(pod: &Pod, stream: &TcpStream) -> Result<(), SeparationError> {
    if is_translated(stream, INBOUND_PLAINTEXT_PORT).map_err(SeparationError::Bind)? {
        return Ok(());
    }
    if !pod.bpf.is_prepared() {
        return Err(SeparationError::NoMap);
    }
    socket::bind_to_arrival_interface(stream).map_err(SeparationError::Bind)
}

/// Evaluates the policies, and connects to the application, or to the waypoint if the connection must pass it first.
async fn connect_target(
    shard: &Shard,
    local: &LocalPod,
    who: &Peer,
    peer: SocketAddr,
    listed: &ConnectionHandle,
) -> Result<RelayTransport, PlaintextError> {
    let (pod, dst) = (&shard.pod, who.destination);
    // The rules redirect no other connections; but one that arrives on another path would reach a
    // listener for the pod alone, or make the pod a relay.
    if !pod.owns_address(local, dst.ip()) {
        return Err(PlaintextError::ForeignAddress(dst.ip()));
    }
    match DenialReason::authorize(pod, who, listed)? {
        (local, ConnectionPath::ThroughWaypoint) => {
            let (tunnel, route) = hairpin::open_hairpin(shard, &local, who, peer, None).await?;
            listed.record_destination(route.addr, "HBONE");
            Ok(tunnel.into())
        }
        (_, ConnectionPath::Direct) => Ok(application::connect(pod, dst, Some(peer.ip()))
            .await?
            .into()),
    }
}
