//! Tunnels to the waypoint: TLS, CONNECT, who calls and for what; then what is inside is served.

use std::{io, net::SocketAddr, sync::Arc};

use ambit_handover::Gate;
use ambit_hbone::{Incoming, Tunnel, server, tls};
use ambit_model::{AppProtocol, Identity, canonical_socket};
use ambit_proxy::{Accepted, Listeners, Workers, report::chain, tunnel_server};
use ambit_rt::OpenWork;
use ambit_telemetry::{Direction, log_denied};
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;

use crate::{
    asks::Asks,
    budget::Budgets,
    caller::{Caller, CallerError},
    circle::Passed,
    extensions::Slots,
    http as l7,
    message::Version,
    mirrors::Mirrors,
    plugins,
    session::Session,
    sniff::Sniffed,
    target::{Target, TargetError},
    tcp,
    upstream::Upstreams,
    waypoint::{Shard, Waypoint},
};

/// A tunnel that is refused.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Request(#[from] server::IncomingError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Caller(#[from] CallerError),
    #[error("the routes of waypoints lead in a circle")]
    Circle,
    #[error("the client went away before the tunnel stood")]
    Gone(#[source] h2::Error),
}

impl StreamError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::Target(error) => error.status(),
            Self::Caller(_) => StatusCode::FORBIDDEN,
            Self::Circle => StatusCode::LOOP_DETECTED,
            Self::Gone(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// What all tunnels of one connection have in common.
#[derive(Debug)]
struct Client {
    shard: Arc<Shard>,
    peer: SocketAddr,
    local: SocketAddr,
    identity: Option<Identity>,
}

/// Serves the tunnels that come to the listeners, while the gate is open, until the drain begins.
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
    let shard = Arc::new(Shard {
        upstreams: Upstreams::new(&waypoint.dialer),
        mirrors: Mirrors::default(),
        asks: Asks::default(),
        retries: Budgets::default(),
        extensions: Slots::default(),
        waypoint,
    });
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

/// Serves one connection to 15008.
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
        // A refusal of a tunnel would be final; without an answer, clients turn to another replica.
        let why = "the control plane has not said yet what to serve";
        return log_denied(peer, local, Direction::Inbound, why);
    }
    let slot = match waypoint.setups.begin(peer.ip()) {
        Ok(slot) => slot,
        Err(full) => return log_denied(peer, local, Direction::Inbound, &full.to_string()),
    };
    let mut drain = waypoint.lifecycle.drain_watcher();
    let stream = match tunnel_server::agree(&waypoint.dialer, stream, &mut drain).await {
        Some(Ok(stream)) => stream,
        Some(Err(error)) => return log_denied(peer, local, Direction::Inbound, &chain(&*error)),
        None => return,
    };
    drop(slot);
    let client = Arc::new(Client {
        shard,
        peer,
        local,
        identity: ambit_tls::peer_identity(tls::peer_certificates(&stream)),
    });
    let settings = waypoint.config.http2.clone();
    let serving = tunnel_server::serve(stream, &settings, drain, peer, |incoming| {
        let open = client.shard.waypoint.lifecycle.drain_watcher().open_work();
        ambit_rt::spawn("tunnel", serve_tunnel(client.clone(), incoming, open));
    });
    serving.await;
}

async fn serve_tunnel(client: Arc<Client>, incoming: Incoming, open: OpenWork) {
    let found = Box::pin(find(&client, &incoming));
    let found = match found.await {
        Ok(found) => found,
        Err(error) => {
            log_denied(
                client.peer,
                client.local,
                Direction::Inbound,
                &chain(&error),
            );
            return incoming.refuse(error.status());
        }
    };
    let session = Session::new(client.shard.clone(), found, open);
    session.learn_caller();
    let kind = Kind::of(&session);
    match kind {
        Kind::Tcp => Box::pin(tcp::serve(session, incoming)).await,
        Kind::Http | Kind::Tls | Kind::Unknown => {
            let accepted = incoming.accept(HeaderMap::new());
            match accepted.map_err(StreamError::Gone) {
                Ok(tunnel) => Box::pin(serve_opened(session, tunnel, kind)).await,
                Err(error) => tracing::debug!(error = chain(&error), "a tunnel came to nothing"),
            }
        }
    }
}

/// Who calls, and for what, and how many waypoints that has passed.
async fn find(
    client: &Client,
    incoming: &Incoming,
) -> Result<(Caller, Target, Passed), StreamError> {
    let authority = incoming.target()?;
    let waypoint = &client.shard.waypoint;
    let own = waypoint.own().await.map_err(TargetError::NotKnown)?;
    let target = Target::find(waypoint, &own, &authority).await?;
    let headers = incoming.headers();
    let caller = Caller::of(headers, client.identity.clone(), client.peer, &target)?;
    let passed = Passed::of(headers).ok_or(StreamError::Circle)?;
    Ok((caller, target, passed))
}

/// What is inside a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// HTTP, or nothing at all.
    Http,
    /// Whatever it is, it is passed through.
    Tcp,
    /// Its first bytes tell where it is passed through to.
    Tls,
    /// Its first bytes tell.
    Unknown,
}

impl Kind {
    fn of(session: &Session) -> Self {
        let client = session.caller.namespace();
        let target = &session.target;
        let by_routes = || {
            let table = target.stream_routes(client)?;
            Some(if table.has_tls() {
                Self::Tls
            } else {
                Self::Tcp
            })
        };
        match target.app_protocol() {
            AppProtocol::Http11 | AppProtocol::Http2 | AppProtocol::Grpc => Self::Http,
            // Without a name there is nobody to call.
            _ if target.resolves_hosts() => Self::Tls,
            AppProtocol::Tls | AppProtocol::Tcp => by_routes().unwrap_or(Self::Tcp),
            AppProtocol::Unknown if target.has_http_routes(client) => Self::Http,
            AppProtocol::Unknown => by_routes().unwrap_or_else(|| {
                if target.is_judged_as_http(&session.shard.waypoint) {
                    Self::Http
                } else {
                    Self::Unknown
                }
            }),
        }
    }
}

async fn serve_opened(session: Session, tunnel: Tunnel, kind: Kind) {
    let mut io = Sniffed::new(tunnel.into_io());
    match kind {
        Kind::Unknown => return tcp::serve_unknown(session, io).await,
        Kind::Tls => return tcp::serve_tls(session, io).await,
        Kind::Http | Kind::Tcp => {}
    }
    // What is not HTTP is answered as a bad request.
    let version = io.version().await.unwrap_or(Version::Http1);
    l7::serve(session, io, version).await;
}
