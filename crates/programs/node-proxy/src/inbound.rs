//! Tunnels to the pod: TLS, CONNECT, authorization, the application.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use ambit_authz::{Connection as Peer, Why};
use ambit_codec::{Authority, Forwarded, ProxyHeader};
use ambit_hbone::{
    Incoming, RelayError, Tunnel, relay_tunnel,
    server::{self, IncomingError},
    tls,
};
use ambit_model::{Identity, Reason, canonical_socket};
use ambit_route::{ConnectTarget, InboundError, InboundRequest, InboundRoute};
use ambit_sys::socket::{self, SocketError, Tuning};
use ambit_telemetry::{Direction, log_denied};
use ambit_tls::PeerRole;
use http::{HeaderMap, HeaderName, StatusCode};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use crate::{
    connections::{Cut, Shown, Tracked},
    outbound::CONNECT_TIMEOUT,
    pod::{Local, Pod},
    report::{Report, chain},
    shard::{Accepted, Shard},
    under_way::{Full, Place},
};

/// How long a connection that is cut goes on, for its tunnels' resets to be sent.
const LAST_RESETS: Duration = Duration::from_millis(500);

const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
const FORWARDED_NETWORK: HeaderName = HeaderName::from_static("x-forwarded-network");

/// A connection that policies do not allow.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    #[error("connection closed due to policy rejection: explicitly denied by: {0}")]
    By(String),
    #[error("connection closed due to policy rejection: allow policies exist, but none allowed")]
    NoneAllowed,
    #[error("connection closed due to policy rejection: policy {0} of the workload is not known")]
    Missing(String),
    #[error("connection closed due to policy rejection: policy {policy} is not understood: {why}")]
    NotUnderstood { policy: String, why: String },
    #[error("the workload is gone")]
    Gone,
}

impl Denied {
    /// Asks the policies about a connection that is on the pod's list. The pod's record, which names
    /// policies too, is the one of now: a change before is seen here, and one after by the list. Returns
    /// the record.
    pub(crate) fn check(pod: &Pod, peer: &Peer) -> Result<Arc<Local>, Self> {
        let local = pod.local(None);
        if !local.is_known {
            return Err(Self::Gone);
        }
        let decision = pod.proxy.state.authorize(&local.workload, peer);
        for dry in &decision.dry_run {
            tracing::info!(target: "rbac", pod = %pod.name, policy = ?dry, "dry-run policy matches");
        }
        if pod.proxy.config.authz_policy_info_logging {
            tracing::info!(
                target: "rbac",
                pod = %pod.name,
                allowed = decision.allowed,
                policy = decision.decided_by.as_ref().map(ToString::to_string),
                "decided"
            );
        }
        if decision.allowed {
            return Ok(local);
        }
        Err(match (decision.why, decision.decided_by) {
            (Why::NotUnderstood(why), Some(policy)) => Self::NotUnderstood {
                policy: policy.to_string(),
                why: why.to_string(),
            },
            (Why::MissingPolicy(name), _) => Self::Missing(name.to_string()),
            (_, Some(policy)) => Self::By(policy.to_string()),
            (_, None) => Self::NoneAllowed,
        })
    }
}

/// The application could not be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("connection failed: {addr}")]
    Connect {
        addr: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("connection failed: {addr} did not answer within {limit:?}")]
    Timeout { addr: SocketAddr, limit: Duration },
    #[error("cannot send the PROXY header to {addr}")]
    ProxyHeader {
        addr: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// A tunnel to the pod that failed.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Request(#[from] IncomingError),
    #[error("failed to fetch information about local workload")]
    UnknownWorkload,
    #[error(transparent)]
    Route(#[from] InboundError),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    App(#[from] AppError),
    #[error("everything to this pod has to come through its waypoint")]
    NotFromWaypoint,
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error("the client went away before the tunnel stood")]
    ClientGone(#[source] h2::Error),
    #[error(transparent)]
    Cut(#[from] Cut),
    #[error(transparent)]
    Full(#[from] Full),
}

impl StreamError {
    fn reason(&self) -> Reason {
        match self {
            Self::Denied(_) => Reason::Deny,
            Self::Relay(error) => error.reason(),
            Self::Cut(cut) => cut.reason(),
            Self::ClientGone(_) => Reason::H2Failure,
            Self::Request(_)
            | Self::UnknownWorkload
            | Self::Route(_)
            | Self::NotFromWaypoint
            | Self::Full(_)
            | Self::App(_) => Reason::Connect,
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::Denied(_) | Self::NotFromWaypoint => StatusCode::UNAUTHORIZED,
            Self::Cut(Cut::Policy | Cut::MissingPolicy) => StatusCode::UNAUTHORIZED,
            Self::Route(error) => {
                StatusCode::from_u16(error.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
            }
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// What all tunnels of one connection have in common.
struct Client {
    shard: Arc<Shard>,
    peer: SocketAddr,
    local: SocketAddr,
    identity: Option<Identity>,
}

/// Serves one connection to 15008.
pub(crate) async fn handle(accepted: Accepted) {
    let Accepted {
        shard,
        stream,
        peer,
        _open,
    } = accepted;
    let Ok(local) = stream.local_addr().map(canonical_socket) else {
        return;
    };
    let place = match shard.pod.under_way.begin(peer.ip()) {
        Ok(place) => place,
        Err(full) => return note_full(&shard.pod, peer, local, full),
    };
    if shard.pod.is_near(peer.ip()) {
        let near = Tuning {
            near: true,
            ..Tuning::default()
        };
        // Fails only when the peer is gone, which the handshake finds out.
        let _gone = socket::tune(&stream, &near);
    }
    let mut drain = shard.pod.drain_watcher();
    let stream = tokio::select! {
        stream = Box::pin(agree(&shard.pod, stream)) => stream,
        () = drain.cut() => return,
    };
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => {
            log_denied(peer, local, Direction::Inbound, &chain(&*error));
            return;
        }
    };
    drop(place);
    let identity = ambit_tls::peer_identity(tls::peer_certificates(&stream));
    let settings = &shard.pod.proxy.config.http2;
    let client = Arc::new(Client {
        shard: shard.clone(),
        peer,
        local,
        identity,
    });
    let mut draining = drain.clone();
    let graceful = async move {
        draining.started().await;
    };
    let serving = server::serve(stream, settings, graceful, |incoming| {
        let open = client.shard.pod.drain_watcher().open_work();
        ambit_rt::spawn(
            "inbound connection",
            serve_tunnel(client.clone(), incoming, open),
        );
    });
    let mut serving = pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        // The tunnels are cut too: this is to tell their peers.
        () = drain.cut() => timeout(LAST_RESETS, serving).await.unwrap_or(Ok(())),
    };
    if let Err(error) = served {
        tracing::debug!(%peer, error = chain(&error), "an HBONE connection to the pod ended");
    }
}

async fn agree(
    pod: &Pod,
    stream: TcpStream,
) -> Result<tls::TlsStream, Box<dyn std::error::Error + Send + Sync>> {
    let certificate = pod.proxy.certificates.get(&pod.identity).await?;
    let config = certificate.server_config()?;
    let limit = pod.proxy.config.http2.handshake_timeout;
    let mut stream = tls::accept(stream, config, limit).await?;
    let chain = tls::peer_certificates(&stream);
    if let Some(revocation) = certificate.revocation(PeerRole::Client, chain) {
        tls::end_when_revoked(&mut stream, revocation);
    }
    Ok(stream)
}

struct Established {
    app: TcpStream,
    tunnel: Tunnel,
    report: Report,
    tracked: Tracked,
    _open: ambit_rt::OpenWork,
}

async fn serve_tunnel(client: Arc<Client>, incoming: Incoming, open: ambit_rt::OpenWork) {
    let Some(mut established) = Box::pin(set_up(client, incoming, open)).await else {
        return;
    };
    let Established {
        app,
        tunnel,
        report,
        tracked,
        ..
    } = &mut established;
    let result = tracked
        .unless_cut(pin!(relay_tunnel(app, tunnel, &*report)))
        .await;
    let error = match result {
        Ok(Ok(())) => return socket::end_in_order(app),
        Ok(Err(error)) => StreamError::from(error),
        Err(cut) => StreamError::from(cut),
    };
    report.failed(&error, error.reason());
    tunnel.reset();
}

async fn set_up(
    client: Arc<Client>,
    mut incoming: Incoming,
    open: ambit_rt::OpenWork,
) -> Option<Established> {
    let pod = &client.shard.pod;
    let early = early(&client, incoming.target());
    let early = incoming.unless_gone(pin!(early)).await;
    let Early {
        request,
        local,
        place: _place,
    } = match early.unwrap_or_else(|gone| Err(StreamError::ClientGone(gone))) {
        Ok(early) => early,
        Err(error) => {
            log_denied(
                client.peer,
                client.local,
                Direction::Inbound,
                &chain(&error),
            );
            incoming.refuse(error.status());
            return None;
        }
    };
    let mut report = Report::inbound(&pod.proxy.metrics, &local, client.peer, client.local);
    report.tunnel(client.local, request.authority.as_str().into());
    report.mutual_tls(client.identity.as_ref(), Some(&pod.identity));
    note_peer(&mut report, &client, &incoming, &local);
    let authorize = request.route.authorize;
    let who = Peer {
        source: client.identity.clone(),
        source_ip: client.peer.ip(),
        destination: authorize,
    };
    note_service(
        &mut report,
        pod,
        &local,
        incoming.headers(),
        authorize.port(),
    );
    let shown = Shown {
        src: client.peer,
        original_dst: request.authority,
        actual_dst: request.route.addr.to_string(),
        protocol: "HBONE",
    };
    let mut tracked = pod.connections.inbound(shown, who.clone());
    let connecting = pin!(reach_app(&client, &request.route, &who));
    let connecting = incoming.unless_gone(connecting);
    let connected = tracked.unless_cut(pin!(connecting)).await;
    let connected =
        connected.map(|given| given.unwrap_or_else(|gone| Err(StreamError::ClientGone(gone))));
    let error: StreamError = match connected {
        Ok(Ok(app)) => match incoming.accept(answer(&client, &local)) {
            Ok(tunnel) => {
                report.opened();
                return Some(Established {
                    app,
                    tunnel,
                    report,
                    tracked,
                    _open: open,
                });
            }
            Err(error) => {
                let error = StreamError::ClientGone(error);
                report.failed(&error, error.reason());
                return None;
            }
        },
        Ok(Err(error)) => error,
        Err(cut) => cut.into(),
    };
    report.failed(&error, error.reason());
    incoming.refuse(error.status());
    None
}

struct Request {
    authority: String,
    route: InboundRoute,
}

struct Early {
    request: Request,
    local: Arc<Local>,
    place: Place,
}

/// What can be said of a request before the pod's policies are asked.
async fn early(
    client: &Client,
    target: Result<Authority, IncomingError>,
) -> Result<Early, StreamError> {
    let pod = &client.shard.pod;
    let authority = target?;
    let place = pod.under_way.begin(client.peer.ip()).inspect_err(|full| {
        pod.proxy.metrics.setup_refused(full.limit());
    })?;
    let text = authority.to_string();
    let target = match authority {
        Authority::Ip(addr) => ConnectTarget::Addr(addr),
        Authority::Host { host, port } => ConnectTarget::Host {
            hostname: host,
            port,
        },
    };
    let local = pod
        .known_local()
        .await
        .ok_or(StreamError::UnknownWorkload)?;
    let request = InboundRequest {
        local: &local.workload,
        local_ip: client.local.ip(),
        target: &target,
        localhost_app_tunnel: pod.proxy.config.localhost_app_tunnel,
    };
    let route = pod.proxy.state.inbound(&request).await?;
    Ok(Early {
        request: Request {
            authority: text,
            route,
        },
        local,
        place,
    })
}

/// A connection was refused because too much is under way.
pub(crate) fn note_full(pod: &Pod, peer: SocketAddr, local: SocketAddr, full: Full) {
    pod.proxy.metrics.setup_refused(full.limit());
    log_denied(peer, local, Direction::Inbound, &chain(&full));
}

async fn reach_app(
    client: &Client,
    route: &InboundRoute,
    who: &Peer,
) -> Result<TcpStream, StreamError> {
    let pod = &client.shard.pod;
    let local = Denied::check(pod, who)?;
    // The sender's own proxy knows the waypoint and would have gone through it.
    if must_come_from_waypoint(pod, &local, client.identity.as_ref(), route.authorize) {
        return Err(StreamError::NotFromWaypoint);
    }
    let source = route.proxy_header.is_none().then(|| client.peer.ip());
    let mut app = connect_app(pod, route.addr, source).await?;
    if let Some(header) = &route.proxy_header {
        let header = ProxyHeader {
            source: client.peer,
            destination: header.dst,
            identity: client.identity.as_ref().map(ToString::to_string),
        };
        let sent = timeout(CONNECT_TIMEOUT, app.write_all(&header.encode())).await;
        let addr = route.addr;
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(source)) => return Err(AppError::ProxyHeader { addr, source }.into()),
            Err(_elapsed) => {
                return Err(AppError::Timeout {
                    addr,
                    limit: CONNECT_TIMEOUT,
                }
                .into());
            }
        }
    }
    Ok(app)
}

fn must_come_from_waypoint(
    pod: &Pod,
    local: &Local,
    identity: Option<&Identity>,
    dst: SocketAddr,
) -> bool {
    let table = pod.proxy.state.table();
    !matches!(
        table.hairpin(&local.workload, identity, dst, &mut rand::rng()),
        Ok(None)
    )
}

/// Connects to the pod's application, from the client's own address where that is possible.
pub(crate) async fn connect_app(
    pod: &Pod,
    addr: SocketAddr,
    client: Option<IpAddr>,
) -> Result<TcpStream, AppError> {
    let source = client.filter(|client| pod.spoofs && *client != addr.ip());
    let socket = socket::outbound(Some(&pod.netns), addr, &pod.app_spec(source))?;
    match timeout(CONNECT_TIMEOUT, socket.connect(addr)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(source)) => Err(AppError::Connect { addr, source }),
        Err(_elapsed) => Err(AppError::Timeout {
            addr,
            limit: CONNECT_TIMEOUT,
        }),
    }
}

fn answer(client: &Client, local: &Local) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if client.shard.pod.proxy.config.response_baggage
        && let Some(baggage) = &local.baggage
    {
        headers.insert(BAGGAGE, baggage.clone());
    }
    headers
}

/// Who is calling, by its address, unless it says that it is on another network.
fn note_peer(report: &mut Report, client: &Client, incoming: &Incoming, local: &Local) {
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
        note_source(report, &client.shard.pod, local, client.peer.ip(), identity);
    }
}

/// Looks the caller up by its address.
pub(crate) fn note_source(
    report: &mut Report,
    pod: &Pod,
    local: &Local,
    ip: IpAddr,
    proven: Option<&Identity>,
) {
    let network = &local.workload.network;
    let found = pod.proxy.state.table().workload_by_ip(network, ip).cloned();
    if let Some(workload) = found {
        report.source(&workload.to_model(), proven);
    }
}

/// The service a connection is for: the one named by the caller if the pod is in it, else the one
/// the port belongs to.
fn note_service(report: &mut Report, pod: &Pod, local: &Local, headers: &HeaderMap, port: u16) {
    let said = headers
        .get(http::header::FORWARDED)
        .and_then(|value| Forwarded::parse(value.as_bytes()).ok())
        .and_then(|forwarded| forwarded.host);
    let table = pod.proxy.state.table();
    if let Some(service) = table.inbound_service(&local.workload, said.as_deref(), port) {
        report.service(service);
    }
}

#[cfg(test)]
mod tests;
