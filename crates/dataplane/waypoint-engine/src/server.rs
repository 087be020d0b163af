//! Server for HBONE: accepts TLS connections, resolves caller and target of each CONNECT, and serves the tunnel as TCP
//! or HTTP.

use std::{io, net::SocketAddr, sync::Arc};

use ambit_codec::Authority;
use ambit_handover::Gate;
use ambit_hbone::{IncomingRequest, Tunnel, TunnelIo, server, tls};
use ambit_model::{AppProtocol, Identity, canonical_socket_address};
use ambit_proxy::{
    AcceptedConnection, Listeners, Workers, flow, report::format_error_chain, tunnel_server,
};
use ambit_rt::OpenWork;
use ambit_telemetry::Direction;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;

use crate::{
    attachment_lookup,
    attachments::Attachments,
    caller::{Caller, CallerError},
    fair_share::FairShare,
    headers,
    hops::Hops,
    http::{self as l7, NotHttpReason},
    memory::{ConnectionMemory, MemoryPermit},
    message::Version,
    plugins,
    session::{Session, TunnelRequest},
    sniff::{DetectedProtocol, SniffedStream},
    target::{Target, TargetError},
    tcp,
    tunnel_windows::{self, ReceiveWindows},
    waypoint::{Shard, Waypoint},
};

/// Maximum memory of a TLS handshake in bytes: a handshake message may have 64 kB, and is buffered twice.
const HANDSHAKE_BYTES: usize = 128 << 10;

/// Reason why a CONNECT request is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelRejection {
    #[error(transparent)]
    Request(#[from] server::IncomingRequestError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Caller(#[from] CallerError),
    #[error("the routes of waypoints form a loop")]
    RoutingLoop,
    #[error("the client disconnected before the tunnel was established")]
    ClientDisconnected(#[source] h2::Error),
}

impl TunnelRejection {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::Target(error) => error.status(),
            Self::Caller(_) => StatusCode::FORBIDDEN,
            Self::RoutingLoop => StatusCode::LOOP_DETECTED,
            Self::ClientDisconnected(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// State of one HBONE connection of a client, shared by the tunnels in it.
#[derive(Debug)]
struct ClientConnection {
    share: FairShare,
    shard: Arc<Shard>,
    peer: SocketAddr,
    local: SocketAddr,
    identity: Option<Identity>,
    memory: ConnectionMemory,
}

/// Accepts HBONE connections from the listeners while the gate is open, until the drain begins.
pub fn serve(
    waypoint: &Arc<Waypoint>,
    workers: &Workers,
    listeners: Vec<std::net::TcpListener>,
    gate: &Gate,
) {
    workers.assign_jobs(listeners.into_iter().map(|listener| {
        let (waypoint, gate) = (waypoint.clone(), gate.clone());
        move || {
            if let Err(error) = serve_on_worker(waypoint, listener, gate) {
                tracing::error!(%error, "a worker cannot serve");
            }
        }
    }));
}

fn serve_on_worker(
    waypoint: Arc<Waypoint>,
    listener: std::net::TcpListener,
    mut gate: Gate,
) -> io::Result<()> {
    let mut listeners = Listeners::new(vec![(TcpListener::from_std(listener)?, ())]);
    let shard = Arc::new(Shard::new(waypoint));
    ambit_rt::spawn_essential("plugins", plugins::maintain_instances(shard.clone()));
    ambit_rt::spawn_essential("listeners", async move {
        let waypoint = &shard.waypoint;
        let mut drain = waypoint.lifecycle.drain_watcher();
        let name = waypoint.local.name();
        let empties_queues = || true;
        listeners
            .accept(
                name,
                &mut gate,
                &mut drain,
                empties_queues,
                |accepted, ()| {
                    ambit_rt::spawn("hbone server", serve_connection(shard.clone(), accepted));
                },
            )
            .await;
    });
    Ok(())
}

/// Serves one HBONE connection to port 15008.
async fn serve_connection(shard: Arc<Shard>, accepted: AcceptedConnection) {
    let AcceptedConnection {
        stream,
        peer,
        drain_guard: _open,
    } = accepted;
    let Ok(local) = stream.local_addr().map(canonical_socket_address) else {
        return;
    };
    let waypoint = shard.waypoint.clone();
    if !waypoint.published.is_complete() {
        // The connection is dropped: a refused tunnel would be final, while clients of a closed connection try another
        // replica.
        let why = "the control plane has not sent the waypoint's configuration yet";
        return report_denied(&waypoint, (peer, local), why);
    }
    let slot = match waypoint.setups.try_acquire(peer.ip()) {
        Ok(slot) => slot,
        Err(full) => return report_denied(&waypoint, (peer, local), &full.to_string()),
    };
    // Charged to the peer's address, since its identity is not verified yet.
    let unproven = waypoint.memory.connection(None, peer.ip());
    let handshake = match unproven.charge_tunnel(HANDSHAKE_BYTES) {
        Ok(permit) => permit,
        Err(full) => return report_denied(&waypoint, (peer, local), &full.to_string()),
    };
    let mut drain = waypoint.lifecycle.drain_watcher();
    let stream = match tunnel_server::accept_tls(&waypoint.dialer, stream, &mut drain).await {
        Some(Ok(stream)) => stream,
        Some(Err(error)) => {
            return report_denied(&waypoint, (peer, local), &format_error_chain(&*error));
        }
        None => return,
    };
    drop((slot, handshake));
    let identity = ambit_tls::peer_identity(tls::peer_certificates(&stream));
    let memory = waypoint.memory.connection(identity.as_ref(), peer.ip());
    let configured = &waypoint.config.http2;
    let settings = tunnel_windows::downstream_settings(configured, &memory);
    let (mut windows, permit) = match ReceiveWindows::charge_connection(&settings, &memory) {
        Ok(windows) => windows,
        Err(full) => return report_denied(&waypoint, (peer, local), &full.to_string()),
    };
    let share = shard.shares.for_caller(identity.as_ref(), peer.ip());
    let client = Arc::new(ClientConnection {
        share: share.clone(),
        shard,
        peer,
        local,
        identity,
        memory,
    });
    let permit = Some(Box::new(permit) as _);
    let serving = tunnel_server::serve(stream, &settings, permit, drain, peer, |incoming| {
        client.shard.waypoint.record_tunnel();
        // Charged at once: a tunnel holds memory before it begins.
        let bytes =
            tunnel_windows::TUNNEL_COST_BYTES + headers::header_memory_bytes(incoming.headers());
        let Ok(opening_permit) = client.memory.charge_tunnel(bytes) else {
            return incoming.refuse(StatusCode::SERVICE_UNAVAILABLE);
        };
        if windows
            .grow(incoming.open_streams(), &client.memory)
            .is_err()
        {
            return incoming.refuse(StatusCode::SERVICE_UNAVAILABLE);
        };
        let open = client.shard.waypoint.lifecycle.drain_watcher().open_work();
        let serving = serve_tunnel(client.clone(), incoming, opening_permit, open);
        ambit_rt::spawn("tunnel", client.share.run(serving));
    });
    share.run(serving).await;
}

/// Reports a connection or CONNECT that was rejected before its caller and target were resolved.
fn report_denied(waypoint: &Waypoint, addresses: (SocketAddr, SocketAddr), error: &str) {
    let own = waypoint.local.current_pod(None);
    let direction = Direction::Inbound;
    flow::report_denied(&waypoint.metrics, Some(&own), addresses, direction, error);
}

async fn serve_tunnel(
    client: Arc<ClientConnection>,
    incoming: IncomingRequest,
    opening_permit: MemoryPermit,
    shutdown_guard: OpenWork,
) {
    let finding = async {
        let authority = incoming.target()?;
        resolve_tunnel_request(
            &client.shard.waypoint,
            client.identity.as_ref(),
            client.peer,
            &authority,
            incoming.headers(),
        )
        .await
    };
    let found = match Box::pin(finding).await {
        Ok(found) => found,
        Err(error) => {
            let waypoint = &client.shard.waypoint;
            report_denied(
                waypoint,
                (client.peer, client.local),
                &format_error_chain(&error),
            );
            return incoming.refuse(error.status());
        }
    };
    let session = Session::new(client.shard.clone(), found, shutdown_guard);
    // The tunnel's memory is charged to its caller, for whom the peer may act.
    let bytes = opening_permit.bytes();
    drop(opening_permit);
    let Ok(_held) = session.memory.charge_tunnel(bytes) else {
        return incoming.refuse(StatusCode::SERVICE_UNAVAILABLE);
    };
    session.request_caller_record();
    let kind = TunnelProtocol::for_session(&session);
    match kind {
        TunnelProtocol::Tcp => Box::pin(tcp::serve(session, incoming)).await,
        TunnelProtocol::Http
        | TunnelProtocol::HttpRequired
        | TunnelProtocol::Tls
        | TunnelProtocol::Unknown => {
            let accepted = incoming.accept(HeaderMap::new());
            match accepted.map_err(TunnelRejection::ClientDisconnected) {
                Ok(tunnel) => Box::pin(serve_accepted_tunnel(session, tunnel, kind)).await,
                Err(error) => tracing::debug!(
                    error = format_error_chain(&error),
                    "a tunnel came to nothing"
                ),
            }
        }
    }
}

/// Resolves the caller and the target of a CONNECT.
pub(crate) async fn resolve_tunnel_request(
    waypoint: &Waypoint,
    identity: Option<&Identity>,
    peer: SocketAddr,
    authority: &Authority,
    headers: &HeaderMap,
) -> Result<TunnelRequest, TunnelRejection> {
    let own = waypoint
        .own_workload()
        .await
        .map_err(TargetError::NotReady)?;
    // A ServiceEntry may be visible only in its own namespace, wherever its waypoint is.
    let namespace = identity.map_or("", |identity| identity.namespace.as_str());
    let target = Target::find(waypoint, &own, namespace, authority).await?;
    let caller = Caller::resolve(headers, identity.cloned(), peer, &target)?;
    attachment_lookup::request_sender_record(waypoint, &target, &caller).await;
    attachment_lookup::request_protocol_declarations(waypoint, &target).await;
    let hops = Hops::from_headers(headers).ok_or(TunnelRejection::RoutingLoop)?;
    Ok(TunnelRequest {
        caller,
        target,
        hops,
    })
}

/// Protocol by which the content of a tunnel is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelProtocol {
    /// HTTP, since the port declares it.
    Http,
    /// HTTP at a port with undeclared protocol, since routes, policies, JWT rules, plugins or rate limits need
    /// requests; other protocols are rejected.
    HttpRequired,
    /// Opaque TCP, forwarded unchanged.
    Tcp,
    /// TLS, routed by its SNI and forwarded unchanged.
    Tls,
    /// HTTP or opaque TCP, detected from the first bytes.
    Unknown,
}

impl TunnelProtocol {
    pub(crate) fn for_session(session: &Session) -> Self {
        let waypoint = &session.shard.waypoint;
        let attachments = session.attachments();
        let client = session.caller.namespace();
        Self::for_client(waypoint, &session.target, &attachments, client)
    }

    /// Returns the protocol by which the tunnel of a client in this namespace is served. It depends on the declared
    /// protocol and on the routes for this namespace; with `None`, on producer routes only.
    pub(crate) fn for_client(
        waypoint: &Waypoint,
        target: &Target,
        attachments: &Attachments,
        client: Option<&str>,
    ) -> Self {
        let by_routes = || {
            let table = target.stream_routes(client)?;
            Some(if table.has_tls() {
                Self::Tls
            } else {
                Self::Tcp
            })
        };
        match attachment_lookup::declared_protocol(waypoint, target, attachments) {
            AppProtocol::Http11 | AppProtocol::Http2 | AppProtocol::Grpc => Self::Http,
            // Without a host name there is no destination.
            _ if target.resolves_hosts() => Self::Tls,
            // The SNI may select a more specific entry than the wildcard.
            AppProtocol::Tls if target.is_wildcard() => Self::Tls,
            // The first bytes of an undeclared connection may also name a host.
            AppProtocol::Tcp if target.is_wildcard() => by_routes().unwrap_or(Self::Unknown),
            AppProtocol::Tls | AppProtocol::Tcp => by_routes().unwrap_or(Self::Tcp),
            AppProtocol::Unknown if target.has_http_routes(client) => Self::HttpRequired,
            AppProtocol::Unknown => {
                let needs_http = waypoint.published.requires_http(attachments);
                match by_routes() {
                    // A client's consumer routes declare nothing about the service's protocol.
                    Some(kind) if !needs_http || target.stream_routes(None).is_some() => kind,
                    _ if needs_http => Self::HttpRequired,
                    _ => Self::Unknown,
                }
            }
        }
    }
}

async fn serve_accepted_tunnel(session: Session, tunnel: Tunnel, kind: TunnelProtocol) {
    let mut io = SniffedStream::new(tunnel.into_io());
    match kind {
        TunnelProtocol::Unknown => tcp::serve_undeclared(session, io).await,
        TunnelProtocol::Tls => tcp::serve_tls(session, io).await,
        TunnelProtocol::HttpRequired => serve_http_only(session, io).await,
        TunnelProtocol::Http | TunnelProtocol::Tcp => {
            // hyper's HTTP/1 server responds to bytes that are not HTTP.
            let version = io.declared_version().await;
            l7::serve(session, io, version).await;
        }
    }
}

/// Serves HTTP at a port with undeclared protocol, and rejects connections of other protocols.
async fn serve_http_only(session: Session, mut io: SniffedStream<TunnelIo>) {
    let limit = session.shard.waypoint.config.headers_timeout;
    let opening = tokio::time::timeout(limit, io.detect_protocol()).await;
    let refused = match opening {
        Ok(DetectedProtocol::Http(version)) => return l7::serve(session, io, version).await,
        // hyper either accepts the line within its limits, or responds with the reason.
        Ok(DetectedProtocol::RequestLineTooLong) => {
            return l7::serve(session, io, Version::Http1).await;
        }
        Ok(DetectedProtocol::Empty) => return,
        Ok(DetectedProtocol::Other) => NotHttpReason::InvalidFirstBytes,
        Err(_) if io.has_bytes() => NotHttpReason::IncompleteLine,
        Err(_) => NotHttpReason::NoBytes,
    };
    l7::refuse_connection(&session, io, refused).await;
}
