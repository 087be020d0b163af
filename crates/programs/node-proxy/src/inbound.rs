//! Inbound tunnels: TLS, CONNECT, authorization, and the connection to the application or the waypoint.

pub(crate) mod hairpin;

use std::{net::SocketAddr, pin::pin, sync::Arc};

use ambit_authz::Connection as Peer;
use ambit_codec::{Authority, Forwarded, ProxyHeader};
use ambit_hbone::{IncomingRequest, refusal, server::IncomingRequestError, tls};
use ambit_model::{FailureReason, Identity, canonical_socket_address};
use ambit_proxy::{
    AcceptedConnection, ConnectionDetails, ConnectionPath, ConnectionSetup, EstablishedConnection,
    LocalPod, RelayTransport, Report, TerminationReason,
    connection::{ConnectionFailure, serve_connection},
    connection_table::ConnectionHandle,
    dial::BAGGAGE_HEADER,
    flow,
    in_flight::{SetupLimitReached, SetupPermit},
    report::format_error_chain,
    tunnel_server,
};
use ambit_route::{ConnectTarget, InboundError, InboundRequest, InboundRoute};
use ambit_rt::OpenWork;
use ambit_sys::socket::{self, Tuning};
use ambit_telemetry::Direction;
use http::{HeaderMap, HeaderName, StatusCode};
use tokio::net::TcpStream;

use crate::{
    admission::{self, DenialReason, record_source},
    application::{self, AppError},
    pod::Pod,
    shard::Shard,
};
use hairpin::HairpinError;

const FORWARDED_NETWORK: HeaderName = HeaderName::from_static("x-forwarded-network");

/// Error of an inbound tunnel.
#[derive(Debug, thiserror::Error)]
enum TunnelError {
    #[error(transparent)]
    Request(#[from] IncomingRequestError),
    #[error("failed to fetch information about local workload")]
    UnknownWorkload,
    #[error(transparent)]
    Route(#[from] InboundError),
    #[error(transparent)]
    Denied(#[from] DenialReason),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Hairpin(#[from] HairpinError),
    #[error("the client disconnected before the tunnel was established")]
    ClientGone(#[source] h2::Error),
    #[error(transparent)]
    Terminated(#[from] TerminationReason),
    #[error(transparent)]
    SetupLimitReached(#[from] SetupLimitReached),
}

impl ConnectionFailure for TunnelError {
    fn reason(&self) -> FailureReason {
        match self {
            Self::Denied(_) => FailureReason::Deny,
            Self::Terminated(cut) => cut.reason(),
            Self::ClientGone(_) => FailureReason::H2Failure,
            Self::Hairpin(error) => error.reason(),
            Self::Request(_)
            | Self::UnknownWorkload
            | Self::Route(_)
            | Self::SetupLimitReached(_)
            | Self::App(_) => FailureReason::Connect,
        }
    }

    fn policy(&self) -> Option<String> {
        match self {
            Self::Denied(denied) => denied.policy().map(ToOwned::to_owned),
            _ => None,
        }
    }
}

impl TunnelError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::Denied(_)
            | Self::Terminated(
                TerminationReason::PolicyChange
                | TerminationReason::MissingPolicy
                | TerminationReason::WaypointRuleMayApply,
            ) => StatusCode::UNAUTHORIZED,
            Self::Hairpin(error) => error.status(),
            Self::Route(error) => {
                StatusCode::from_u16(error.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
            }
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// State of one inbound HBONE connection, shared by its tunnels.
struct TunnelClient {
    shard: Arc<Shard>,
    peer: SocketAddr,
    local: SocketAddr,
    identity: Option<Identity>,
}

/// Serves one HBONE connection that was accepted on port 15008.
pub(crate) async fn handle_connection(shard: Arc<Shard>, accepted: AcceptedConnection) {
    let AcceptedConnection {
        stream,
        peer,
        drain_guard: _open,
    } = accepted;
    let Ok(local) = stream.local_addr().map(canonical_socket_address) else {
        return;
    };
    let pod = &shard.pod;
    let Some(slot) = admission::acquire_setup_permit(pod, peer, local) else {
        return;
    };
    if pod.is_on_this_node(peer.ip()) {
        let near = Tuning {
            is_local: true,
            ..Tuning::default()
        };
        // Fails only if the peer has disconnected, which the handshake detects.
        let _gone = socket::apply_tuning(&stream, &near);
    }
    let mut drain = pod.drain_watcher();
    let stream = match tunnel_server::accept_tls(&pod.dialer, stream, &mut drain).await {
        Some(Ok(stream)) => stream,
        Some(Err(error)) => {
            return record_denied_connection(pod, (peer, local), &format_error_chain(&*error));
        }
        None => return,
    };
    drop(slot);
    let identity = ambit_tls::peer_identity(tls::peer_certificates(&stream));
    let settings = pod.config.http2.clone();
    let client = Arc::new(TunnelClient {
        shard,
        peer,
        local,
        identity,
    });
    let serving = tunnel_server::serve(stream, &settings, None, drain, peer, |incoming| {
        let open = client.shard.pod.drain_watcher().open_work();
        let established = establish_tunnel(client.clone(), incoming, open);
        ambit_rt::spawn("inbound connection", serve_connection(established));
    });
    serving.await;
}

/// Logs and counts an HBONE connection that failed before its client was authenticated.
fn record_denied_connection(pod: &Pod, (peer, local): (SocketAddr, SocketAddr), error: &str) {
    let own = pod.local_workload.current_pod(None);
    flow::report_denied(
        &pod.metrics,
        Some(&own),
        (peer, local),
        Direction::Inbound,
        error,
    );
}

/// Authorizes the connection that a tunnel carries and opens it to the pod; `None` if the tunnel was rejected.
async fn establish_tunnel(
    client: Arc<TunnelClient>,
    mut incoming: IncomingRequest,
    open: OpenWork,
) -> Option<EstablishedConnection> {
    let pod = &client.shard.pod;
    let early = prepare_tunnel(&client, incoming.target());
    let early = incoming.run_until_cancelled(pin!(early)).await;
    let PreparedTunnel {
        request,
        local,
        setup_permit: _slot,
    } = match early.unwrap_or_else(|gone| Err(TunnelError::ClientGone(gone))) {
        Ok(early) => early,
        Err(error) => {
            record_denied_connection(
                pod,
                (client.peer, client.local),
                &format_error_chain(&error),
            );
            incoming.refuse(error.status());
            return None;
        }
    };
    let report = build_report(&client, &incoming, &local, &request);
    let TunnelRequest { authority, route } = request;
    let who = Peer {
        source: client.identity.clone(),
        source_ip: client.peer.ip(),
        destination: route.authorized_destination,
    };
    let shown = ConnectionDetails {
        src: client.peer,
        original_dst: authority,
        actual_dst: Some(route.addr),
        protocol: "HBONE",
    };
    let mut opening = ConnectionSetup {
        report,
        tracked_connection: pod.connections().add_inbound(shown, who.clone()),
        drain_guard: open,
    };
    let listed = opening.tracked_connection.handle();
    let headers = incoming.headers().clone();
    let reaching = pin!(connect_target(&client, &route, &who, &listed, &headers));
    let reaching = incoming.run_until_cancelled(reaching);
    let reached = opening
        .tracked_connection
        .run_until_terminated(pin!(reaching))
        .await;
    let reached = reached.unwrap_or_else(|cut| Ok(Err(cut.into())));
    let error = match reached.unwrap_or_else(|gone| Err(TunnelError::ClientGone(gone))) {
        Ok(app) => {
            if matches!(app, RelayTransport::Tunnel(_)) {
                opening.report.set_forwarded_to_waypoint(&local.workload);
            }
            match incoming.accept(response_headers(pod, &local)) {
                Ok(tunnel) => return Some(opening.into_established(app, tunnel)),
                Err(error) => {
                    opening.report_failure(&TunnelError::ClientGone(error));
                    return None;
                }
            }
        }
        Err(error) => error,
    };
    opening.report_failure(&error);
    incoming.refuse_with(error.status(), refusal_headers(pod, &local, &who, &error));
    None
}

/// Returns the header lines of a response that rejects a tunnel: the names of the denying policies, only for the
/// workload's own waypoint. Other peers do not learn which policies a workload has.
fn refusal_headers(pod: &Pod, local: &LocalPod, who: &Peer, error: &TunnelError) -> HeaderMap {
    let attached = local.workload.endpoint_waypoint.as_ref();
    let is_waypoint = |peer| attached.is_some_and(|one| one.identities.contains(peer));
    match error {
        TunnelError::Denied(denied) if who.source.as_ref().is_some_and(is_waypoint) => {
            let policies = denied.policies(pod, local, who);
            refusal::header_with_policies(policies.iter().map(String::as_str))
        }
        _ => HeaderMap::new(),
    }
}

struct TunnelRequest {
    authority: Authority,
    route: InboundRoute,
}

struct PreparedTunnel {
    request: TunnelRequest,
    local: Arc<LocalPod>,
    setup_permit: SetupPermit,
}

/// Validates a CONNECT request, before the pod's policies are evaluated: setup limit, the pod's record and the
/// authority.
async fn prepare_tunnel(
    client: &TunnelClient,
    target: Result<Authority, IncomingRequestError>,
) -> Result<PreparedTunnel, TunnelError> {
    let pod = &client.shard.pod;
    let authority = target?;
    let slot = admission::acquire_counted_permit(pod, client.peer)?;
    let target = match &authority {
        Authority::Ip(addr) => ConnectTarget::Addr(*addr),
        Authority::Host { host, port } => ConnectTarget::Host {
            hostname: host.clone(),
            port: *port,
        },
    };
    let local = pod.local_workload.wait_until_published().await;
    let local = local.ok_or(TunnelError::UnknownWorkload)?;
    let request = InboundRequest {
        local_workload: &local.workload,
        local_ip: client.local.ip(),
        target: &target,
        localhost_app_tunnel: pod.config.localhost_app_tunnel,
    };
    let route = pod.state.inbound(&request).await?;
    Ok(PreparedTunnel {
        request: TunnelRequest { authority, route },
        local,
        setup_permit: slot,
    })
}

/// Evaluates the policies, and connects to the application, or to the waypoint if the connection must pass it first.
async fn connect_target(
    client: &TunnelClient,
    route: &InboundRoute,
    who: &Peer,
    listed: &ConnectionHandle,
    headers: &HeaderMap,
) -> Result<RelayTransport, TunnelError> {
    let TunnelClient { shard, peer, .. } = client;
    match DenialReason::authorize(&shard.pod, who, listed)? {
        (local, ConnectionPath::ThroughWaypoint) => {
            let (tunnel, route) =
                hairpin::open_hairpin(shard, &local, who, *peer, Some(headers)).await?;
            listed.record_destination(route.addr, "HBONE");
            Ok(tunnel.into())
        }
        (_, ConnectionPath::Direct) => Ok(connect_app(client, route).await?.into()),
    }
}

async fn connect_app(client: &TunnelClient, route: &InboundRoute) -> Result<TcpStream, AppError> {
    let pod = &client.shard.pod;
    let source = route.proxy_header.is_none().then(|| client.peer.ip());
    let mut app = application::connect(pod, route.addr, source).await?;
    if let Some(header) = &route.proxy_header {
        let header = ProxyHeader {
            source: client.peer,
            destination: header.dst,
            identity: client.identity.as_ref().map(ToString::to_string),
        };
        application::send_proxy_header(&mut app, route.addr, &header).await?;
    }
    Ok(app)
}

fn response_headers(pod: &Pod, local: &LocalPod) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if pod.config.response_baggage
        && let Some(baggage) = &local.baggage
    {
        headers.insert(BAGGAGE_HEADER, baggage.clone());
    }
    headers
}

/// Creates the access log report of a tunnel that is not accepted yet.
fn build_report(
    client: &TunnelClient,
    incoming: &IncomingRequest,
    local: &LocalPod,
    request: &TunnelRequest,
) -> Report {
    let pod = &client.shard.pod;
    let mut report = Report::inbound(&pod.metrics, local, client.peer, client.local);
    report.set_tunnel(client.local, request.authority.to_string().into());
    report.set_mutual_tls_identities(client.identity.as_ref(), Some(pod.identity()));
    record_peer(&mut report, client, incoming, local);
    let port = request.route.authorized_destination.port();
    record_service(&mut report, pod, local, incoming.headers(), port);
    report
}

/// Records the client's workload in the report by its address, unless the client is in another network.
fn record_peer(
    report: &mut Report,
    client: &TunnelClient,
    incoming: &IncomingRequest,
    local: &LocalPod,
) {
    let foreign = incoming
        .headers()
        .get(FORWARDED_NETWORK)
        .is_some_and(|network| {
            !network
                .as_bytes()
                .eq_ignore_ascii_case(local.workload.network.as_bytes())
        });
    if !foreign {
        let identity = client.identity.as_ref();
        record_source(report, &client.shard.pod, local, client.peer.ip(), identity);
    }
}

/// Records the destination service in the report: the one that the caller names (`Forwarded`) if the pod belongs to it,
/// otherwise the one with this port.
fn record_service(
    report: &mut Report,
    pod: &Pod,
    local: &LocalPod,
    headers: &HeaderMap,
    port: u16,
) {
    let named_host = headers
        .get(http::header::FORWARDED)
        .and_then(|value| Forwarded::parse(value.as_bytes()).ok())
        .and_then(|forwarded| forwarded.host);
    let table = pod.state.table();
    if let Some(service) = table.inbound_service(&local.workload, named_host.as_deref(), port) {
        report.set_service(service);
    }
}
