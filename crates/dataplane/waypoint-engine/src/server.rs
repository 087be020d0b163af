//! Server for HBONE: accepts TLS connections, resolves caller and target of each CONNECT, and serves the tunnel as TCP
//! or HTTP.

use std::{io, net::SocketAddr, sync::Arc};

use ambit_codec::Authority;
use ambit_handover::Gate;
use ambit_hbone::{Incoming, Tunnel, TunnelIo, server, tls};
use ambit_model::{AppProtocol, Identity, canonical_socket};
use ambit_proxy::{Accepted, Listeners, Workers, flow, report::chain, tunnel_server};
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
    http::{self as l7, NotHttp},
    memory::{ConnectionMemory, Permit},
    message::Version,
    plugins,
    session::{Session, TunnelRequest},
    sniff::{Opening, Sniffed},
    target::{Target, TargetError},
    tcp,
    tunnel_windows::{self, ReceiveWindows},
    waypoint::{Shard, Waypoint},
};

/// Maximum memory of a TLS handshake in bytes: a handshake message may have 64 kB, and is buffered twice.
const HANDSHAKE_BYTES: usize = 128 << 10;

/// Reason why a CONNECT request is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error(transparent)]
    Request(#[from] server::IncomingError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Caller(#[from] CallerError),
    #[error("the routes of waypoints form a loop")]
    Circle,
    #[error("the client disconnected before the tunnel was established")]
    Gone(#[source] h2::Error),
}

impl StreamError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::Target(error) => error.status(),
            Self::Caller(_) => StatusCode::FORBIDDEN,
            Self::Circle => StatusCode::LOOP_DETECTED,
            Self::Gone(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// State of one HBONE connection, shared by its tunnels.
#[derive(Debug)]
struct Client {
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
    workers.assign(listeners.into_iter().map(|listener| {
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
    ambit_rt::spawn_essential("plugins", plugins::follow(shard.clone()));
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
                    ambit_rt::spawn("hbone server", handle(shard.clone(), accepted));
                },
            )
            .await;
    });
    Ok(())
}

/// Serves one HBONE connection to port 15008.
async fn handle(shard: Arc<Shard>, accepted: Accepted) {
    let Accepted {
        stream,
        peer,
        open: _open,
    } = accepted;
    let Ok(local) = stream.local_addr().map(canonical_socket) else {
        return;
    };
    let waypoint = shard.waypoint.clone();
    if !waypoint.published.is_known() {
        // The connection is dropped: a refused tunnel would be final, while clients of a closed connection try another
        // replica.
        let why = "the control plane has not sent the waypoint's configuration yet";
        return denied(&waypoint, (peer, local), why);
    }
    let slot = match waypoint.setups.begin(peer.ip()) {
        Ok(slot) => slot,
        Err(full) => return denied(&waypoint, (peer, local), &full.to_string()),
    };
    // Charged to the peer's address, since its identity is not verified yet.
    let unproven = waypoint.memory.connection(None, peer.ip());
    let handshake = match unproven.open(HANDSHAKE_BYTES) {
        Ok(permit) => permit,
        Err(full) => return denied(&waypoint, (peer, local), &full.to_string()),
    };
    let mut drain = waypoint.lifecycle.drain_watcher();
    let stream = match tunnel_server::agree(&waypoint.dialer, stream, &mut drain).await {
        Some(Ok(stream)) => stream,
        Some(Err(error)) => return denied(&waypoint, (peer, local), &chain(&*error)),
        None => return,
    };
    drop((slot, handshake));
    let identity = ambit_tls::peer_identity(tls::peer_certificates(&stream));
    let memory = waypoint.memory.connection(identity.as_ref(), peer.ip());
    let configured = &waypoint.config.http2;
    let settings = tunnel_windows::settings(configured, &memory);
    let mut windows = match ReceiveWindows::open(&settings, &memory) {
        Ok(windows) => windows,
        Err(full) => return denied(&waypoint, (peer, local), &full.to_string()),
    };
    let share = shard.shares.of(identity.as_ref(), peer.ip());
    let client = Arc::new(Client {
        share: share.clone(),
        shard,
        peer,
        local,
        identity,
        memory,
    });
    let serving = tunnel_server::serve(stream, &settings, drain, peer, |incoming| {
        client.shard.waypoint.record_tunnel();
        // Charged at once: a tunnel holds memory before it begins.
        let bytes = tunnel_windows::TUNNEL_COST_BYTES + headers::cost(incoming.headers());
        let Ok(opening_permit) = client.memory.open(bytes) else {
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
fn denied(waypoint: &Waypoint, ends: (SocketAddr, SocketAddr), error: &str) {
    let own = waypoint.local.now(None);
    let direction = Direction::Inbound;
    flow::denied(&waypoint.metrics, Some(&own), ends, direction, error);
}

async fn serve_tunnel(
    client: Arc<Client>,
    incoming: Incoming,
    opening_permit: Permit,
    open: OpenWork,
) {
    let finding = async {
        let authority = incoming.target()?;
        find(
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
            denied(waypoint, (client.peer, client.local), &chain(&error));
            return incoming.refuse(error.status());
        }
    };
    let session = Session::new(client.shard.clone(), found, open);
    // The tunnel's memory is charged to its caller, for whom the peer may act.
    let bytes = opening_permit.bytes();
    drop(opening_permit);
    let Ok(_held) = session.memory.open(bytes) else {
        return incoming.refuse(StatusCode::SERVICE_UNAVAILABLE);
    };
    session.learn_caller();
    let kind = Kind::of(&session);
    match kind {
        Kind::Tcp => Box::pin(tcp::serve(session, incoming)).await,
        Kind::Http | Kind::HttpOnly | Kind::Tls | Kind::Unknown => {
            let accepted = incoming.accept(HeaderMap::new());
            match accepted.map_err(StreamError::Gone) {
                Ok(tunnel) => Box::pin(serve_opened(session, tunnel, kind)).await,
                Err(error) => tracing::debug!(error = chain(&error), "a tunnel came to nothing"),
            }
        }
    }
}

/// Resolves the caller and the target of a CONNECT.
pub(crate) async fn find(
    waypoint: &Waypoint,
    identity: Option<&Identity>,
    peer: SocketAddr,
    authority: &Authority,
    headers: &HeaderMap,
) -> Result<TunnelRequest, StreamError> {
    let own = waypoint.own().await.map_err(TargetError::MeshUnknown)?;
    // A ServiceEntry may be visible only in its own namespace, wherever its waypoint is.
    let namespace = identity.map_or("", |identity| identity.namespace.as_str());
    let target = Target::find(waypoint, &own, namespace, authority).await?;
    let caller = Caller::of(headers, identity.cloned(), peer, &target)?;
    attachment_lookup::learn_sender(waypoint, &target, &caller).await;
    attachment_lookup::learn_declarations(waypoint, &target).await;
    let hops = Hops::of(headers).ok_or(StreamError::Circle)?;
    Ok(TunnelRequest {
        caller,
        target,
        hops,
    })
}

/// Protocol by which the content of a tunnel is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// HTTP, since the port declares it.
    Http,
    /// HTTP at a port with undeclared protocol, since routes, policies, JWT rules, plugins or rate limits need
    /// requests; other protocols are rejected.
    HttpOnly,
    /// Opaque TCP, forwarded unchanged.
    Tcp,
    /// TLS, routed by its SNI and forwarded unchanged.
    Tls,
    /// HTTP or opaque TCP, detected from the first bytes.
    Unknown,
}

impl Kind {
    pub(crate) fn of(session: &Session) -> Self {
        let waypoint = &session.shard.waypoint;
        let attachments = session.attachments();
        let client = session.caller.namespace();
        Self::for_client(waypoint, &session.target, &attachments, client)
    }

    /// Returns how the tunnel of a client in this namespace is served, by the declared protocol and by the routes for
    /// this namespace; with `None`, by producer routes only.
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
            AppProtocol::Unknown if target.has_http_routes(client) => Self::HttpOnly,
            AppProtocol::Unknown => {
                let needs_http = waypoint.published.need_http(attachments);
                match by_routes() {
                    // A client's consumer routes declare nothing about the service's protocol.
                    Some(kind) if !needs_http || target.stream_routes(None).is_some() => kind,
                    _ if needs_http => Self::HttpOnly,
                    _ => Self::Unknown,
                }
            }
        }
    }
}

async fn serve_opened(session: Session, tunnel: Tunnel, kind: Kind) {
    let mut io = Sniffed::new(tunnel.into_io());
    match kind {
        Kind::Unknown => tcp::serve_unknown(session, io).await,
        Kind::Tls => tcp::serve_tls(session, io).await,
        Kind::HttpOnly => serve_http_only(session, io).await,
        Kind::Http | Kind::Tcp => {
            // hyper's HTTP/1 server responds to bytes that are not HTTP.
            let version = io.declared_version().await;
            l7::serve(session, io, version).await;
        }
    }
}

/// Serves HTTP at a port with undeclared protocol, and rejects connections of other protocols.
async fn serve_http_only(session: Session, mut io: Sniffed<TunnelIo>) {
    let limit = session.shard.waypoint.config.headers_timeout;
    let opening = tokio::time::timeout(limit, io.opening()).await;
    let refused = match opening {
        Ok(Opening::Http(version)) => return l7::serve(session, io, version).await,
        // hyper either accepts the line within its limits, or responds with the reason.
        Ok(Opening::LongLine) => return l7::serve(session, io, Version::Http1).await,
        Ok(Opening::Nothing) => return,
        Ok(Opening::Other) => NotHttp::Other,
        Err(_) if io.has_bytes() => NotHttp::Slow,
        Err(_) => NotHttp::Silent,
    };
    l7::refuse_connection(&session, io, refused).await;
}
