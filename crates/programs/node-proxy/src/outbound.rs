//! Connections from the pod: where they go, the tunnel or plain connection that takes them there.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use ambit_codec::{Forwarded, TraceParent};
use ambit_hbone::{
    DialError, PoolKey, RelayError, Tunnel, TunnelError, relay_plain, relay_tunnel, tls,
};
use ambit_model::{Identity, Reason, canonical_socket};
use ambit_route::{HboneRoute, OWN_PORTS, Route, RouteError};
use ambit_sys::socket::{self, SocketError};
use ambit_telemetry::{Direction, log_denied};
use ambit_tls::{PeerRole, WorkloadCert};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, uri::InvalidUri};
use rand::Rng;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    connections::{Cut, Shown, Tracked},
    dns::ResolveError,
    pod::{Local, Pod},
    report::{Report, chain},
    shard::{Accepted, Shard},
};

/// How long connecting may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A connection from the pod that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutboundError {
    #[error("cannot learn the original destination")]
    OriginalDst(#[source] io::Error),
    #[error("attempted recursive call to ourselves")]
    SelfCall,
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("the authority {authority:?} cannot be sent")]
    Authority {
        authority: String,
        #[source]
        source: InvalidUri,
    },
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    #[error("connection failed: {addr}")]
    Connect {
        addr: SocketAddr,
        #[source]
        source: ConnectError,
    },
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error(transparent)]
    Cut(#[from] Cut),
    #[error(transparent)]
    Inner(#[from] crate::double::InnerError),
}

/// A plain connection that could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl OutboundError {
    fn reason(&self) -> Reason {
        match self {
            Self::Tunnel(error) => error.reason(),
            Self::Route(error) => error.reason(),
            Self::Relay(error) => error.reason(),
            Self::Cut(cut) => cut.reason(),
            Self::Inner(error) => error.reason(),
            Self::OriginalDst(_)
            | Self::SelfCall
            | Self::Resolve(_)
            | Self::Authority { .. }
            | Self::Connect { .. } => Reason::Connect,
        }
    }
}

/// The far end of a connection from the pod.
pub(crate) enum Far {
    Plain(TcpStream),
    Tunnel(Tunnel),
    /// A tunnel inside a tunnel.
    Inner(Box<crate::double::Inner>),
}

impl Far {
    /// Both directions, from and to `near`, have ended: their sockets are not to be reset any more.
    pub(crate) fn end_in_order(&self, near: &TcpStream) {
        socket::end_in_order(near);
        if let Self::Plain(far) = self {
            socket::end_in_order(far);
        }
    }

    /// The connection broke, or is cut. Sockets are reset when they are dropped.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Tunnel(tunnel) => tunnel.reset(),
            Self::Inner(inner) => inner.reset(),
        }
    }
}

/// What remains of a connection once it is set up.
struct Established {
    app: TcpStream,
    far: Far,
    report: Report,
    tracked: Tracked,
    _open: ambit_rt::OpenWork,
}

/// Serves one captured connection.
pub(crate) async fn handle(accepted: Accepted) {
    // Setting up takes much more room than copying: the box gives it back.
    let Some(mut established) = Box::pin(set_up(accepted)).await else {
        return;
    };
    let Established {
        app,
        far,
        report,
        tracked,
        ..
    } = &mut established;
    let result = tracked
        .unless_cut(pin!(async {
            match far {
                Far::Plain(peer) => relay_plain(app, peer, &*report).await,
                Far::Tunnel(tunnel) => relay_tunnel(app, tunnel, &*report).await,
                Far::Inner(inner) => inner.relay(app, &*report).await,
            }
        }))
        .await;
    let error = match result {
        Ok(Ok(())) => return far.end_in_order(app),
        Ok(Err(error)) => OutboundError::from(error),
        Err(cut) => OutboundError::from(cut),
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
    let dst = match original_dst(&stream) {
        Ok(dst) => dst,
        Err(error) => {
            let at = stream.local_addr().map_or(peer, canonical_socket);
            log_denied(peer, at, Direction::Outbound, &chain(&error));
            return None;
        }
    };
    let local = pod.local(Some(peer.ip()));
    let mut report = Report::outbound(&pod.proxy.metrics, &local, peer, dst);
    let mut tracked = pod.connections.outbound(Shown {
        src: peer,
        original_dst: dst.to_string(),
        actual_dst: String::new(),
        protocol: "HBONE",
    });
    let shown = tracked.handle();
    let connecting = connect(&shard, &local, peer, dst, &mut report, &shown);
    let connected = tracked.unless_cut(pin!(connecting)).await;
    match connected {
        Ok(Ok(far)) => {
            report.opened();
            Some(Established {
                app: stream,
                far,
                report,
                tracked,
                _open,
            })
        }
        Ok(Err(error)) => {
            report.failed(&error, error.reason());
            None
        }
        Err(cut) => {
            report.failed(&cut, cut.reason());
            None
        }
    }
}

/// Where a captured connection was going. One that was made to our own port was not captured.
fn original_dst(stream: &TcpStream) -> Result<SocketAddr, OutboundError> {
    let dst = socket::original_dst(stream).map_err(OutboundError::OriginalDst)?;
    let local = stream.local_addr().map_err(OutboundError::OriginalDst)?;
    let to_ourselves = dst.ip().is_loopback() || dst == canonical_socket(local);
    if to_ourselves && OWN_PORTS.contains(&dst.port()) {
        return Err(OutboundError::SelfCall);
    }
    Ok(dst)
}

async fn connect(
    shard: &Arc<Shard>,
    local: &Local,
    peer: SocketAddr,
    dst: SocketAddr,
    report: &mut Report,
    shown: &crate::connections::Handle,
) -> Result<Far, OutboundError> {
    let pod = &shard.pod;
    let mut route = pod.proxy.state.route(&local.workload, dst).await?;
    if let Route::NeedsDns(pending) = route {
        pod.proxy
            .metrics
            .on_demand_dns(&local.party, &pending.hostname);
        let ip = crate::dns::resolve(&pod.proxy, &pending).await?;
        route = pending.resolve(ip);
    }
    if let Some(service) = route.service() {
        report.service(service);
    }
    if let Some(workload) = route.workload() {
        report.destination(&workload.to_model());
    }
    match route {
        Route::Passthrough { dst, .. } => connect_plain(pod, dst, shown).await,
        Route::Plain(plain) => connect_plain(pod, plain.addr, shown).await,
        Route::Hbone(hbone) => {
            report.tunnel(hbone.addr, hbone.authority.as_str().into());
            report.mutual_tls(Some(&pod.identity), hbone.expected.first());
            shown.connected_to(hbone.addr.to_string(), "HBONE");
            let host = hbone
                .service
                .as_ref()
                .map(|service| service.hostname.clone());
            let headers = tunnel_headers(local, Forwarded { client: peer, host });
            Ok(Far::Tunnel(tunnel(shard, &hbone, peer, headers).await?))
        }
        Route::DoubleHbone { outer, inner } => {
            report.tunnel(outer.addr, inner.authority.as_str().into());
            report.mutual_tls(Some(&pod.identity), None);
            shown.connected_to(outer.addr.to_string(), "HBONE");
            let host = outer
                .service
                .as_ref()
                .map(|service| service.hostname.clone());
            let headers = tunnel_headers(local, Forwarded { client: peer, host });
            let tunnel = tunnel(shard, &outer, peer, headers.clone()).await?;
            let (inner, far) =
                crate::double::Inner::open(pod, tunnel, &inner, outer.addr, headers).await?;
            report.mutual_tls(Some(&pod.identity), far.as_ref());
            Ok(Far::Inner(Box::new(inner)))
        }
        Route::NeedsDns(pending) => Err(ResolveError::Unresolved(pending.hostname).into()),
    }
}

async fn connect_plain(
    pod: &Pod,
    addr: SocketAddr,
    shown: &crate::connections::Handle,
) -> Result<Far, OutboundError> {
    shown.connected_to(addr.to_string(), "TCP");
    let failed = |source| OutboundError::Connect { addr, source };
    let socket = socket::outbound(Some(&pod.netns), addr, &pod.plain_spec(addr.ip()))
        .map_err(|error| failed(error.into()))?;
    match timeout(CONNECT_TIMEOUT, socket.connect(addr)).await {
        Ok(Ok(stream)) => Ok(Far::Plain(stream)),
        Ok(Err(error)) => Err(failed(error.into())),
        Err(_elapsed) => Err(failed(ConnectError::Timeout(CONNECT_TIMEOUT))),
    }
}

/// What a CONNECT says of who is calling.
pub(crate) fn tunnel_headers(local: &Local, forwarded: Forwarded) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(4);
    if let Some(baggage) = &local.baggage {
        headers.insert(BAGGAGE, baggage.clone());
    }
    if let Ok(forwarded) = HeaderValue::from_str(&forwarded.to_string()) {
        headers.insert(http::header::FORWARDED, forwarded);
    }
    let mut rng = rand::rng();
    let trace = TraceParent::from_random(rng.random(), rng.random());
    if let Ok(trace) = HeaderValue::from_str(&trace.to_string()) {
        headers.insert(TRACEPARENT, trace);
    }
    headers
}

/// A tunnel along `route`, on the worker's pool.
pub(crate) async fn tunnel(
    shard: &Arc<Shard>,
    route: &HboneRoute,
    peer: SocketAddr,
    headers: HeaderMap,
) -> Result<Tunnel, OutboundError> {
    let pod = &shard.pod;
    let authority =
        Uri::try_from(route.authority.as_str()).map_err(|source| OutboundError::Authority {
            authority: route.authority.clone(),
            source,
        })?;
    let key = Arc::new(PoolKey {
        source: pod.identity.clone(),
        expected: route.expected.to_vec(),
        destination: route.addr,
        source_ip: peer.ip(),
    });
    let dial = || dial(pod, key.clone());
    let (tunnel, _answer) = shard.pool.tunnel(&key, authority, headers, dial).await?;
    Ok(tunnel)
}

/// What a TLS client needs: the certificate of `source`, and the configuration that accepts just the
/// peers expected.
pub(crate) async fn credentials(
    pod: &Pod,
    source: &Identity,
    expected: &[Identity],
) -> Result<(Arc<WorkloadCert>, Arc<rustls::ClientConfig>), DialError> {
    let certificate =
        pod.proxy
            .certificates
            .get(source)
            .await
            .map_err(|error| DialError::Prepare {
                text: "no certificate",
                reason: error.reason(),
                source: Box::new(error),
            })?;
    let config = certificate
        .client_config(expected)
        .map_err(|error| DialError::Prepare {
            text: "the certificate cannot be used",
            reason: Reason::IdentityError,
            source: Box::new(error),
        })?;
    Ok((certificate, config))
}

async fn dial(pod: &Arc<Pod>, key: Arc<PoolKey>) -> Result<tls::TlsStream, DialError> {
    let addr = key.destination;
    let (certificate, config) = credentials(pod, &key.source, &key.expected).await?;
    let socket = socket::outbound(Some(&pod.netns), addr, &pod.outbound_spec(addr.ip())).map_err(
        |error| DialError::Prepare {
            text: "cannot make a socket in the pod",
            reason: Reason::Connect,
            source: Box::new(error),
        },
    )?;
    let http2 = &pod.proxy.config.http2;
    let limit = http2.connect_timeout;
    let stream = match timeout(limit, socket.connect(addr)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(source)) => return Err(DialError::Connect { addr, source }),
        Err(_elapsed) => return Err(DialError::Timeout { addr, limit }),
    };
    let mut stream = tls::connect(stream, config, http2.handshake_timeout)
        .await
        .map_err(|source| DialError::Tls { addr, source })?;
    let chain = tls::peer_certificates(&stream);
    if let Some(revocation) = certificate.revocation(PeerRole::Server, chain) {
        tls::end_when_revoked(&mut stream, revocation);
    }
    Ok(stream)
}
