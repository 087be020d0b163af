//! What is not HTTP: judged once, by what is known of the connection, and passed through, where the routes of its
//! service say.

mod routed;

use std::{io, time::Duration};

use ambit_codec::Forwarded;
use ambit_hbone::{Incoming, TunnelIo};
use ambit_l7::authz::{Connection, HttpDecision};
use ambit_model::{ArcStr, Reason};
use ambit_proxy::{Local, report::chain};
use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use crate::{
    http as l7,
    http::Destination,
    metered::Metered,
    session::Session,
    sniff::Sniffed,
    upstream::{Stream, UpstreamError, Way},
};
use routed::{RouteError, Routed};

/// How long the client's first bytes are waited for, where nothing says what is spoken, before the endpoint is
/// connected: it may be the one who speaks first.
const CLIENT_FIRST: Duration = Duration::from_millis(20);

/// A connection that is not passed through.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TcpError {
    #[error("{0}")]
    Denied(HttpDecision),
    #[error("the control plane does not name the waypoint's own pod")]
    NoOwn,
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

impl TcpError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::NoOwn | Self::Route(_) | Self::Upstream(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Serves a tunnel whose content is declared: the endpoint is connected before the tunnel is accepted.
pub(crate) async fn serve(session: Session, mut incoming: Incoming) {
    let opening = std::pin::pin!(async {
        let routed = Routed::of(&session)?;
        let stream = open(&session, &routed).await?;
        Ok((routed, stream))
    });
    let opened: Result<_, TcpError> = match incoming.unless_gone(opening).await {
        Ok(opened) => opened,
        Err(error) => return tracing::debug!(error = chain(&error), "the client has gone"),
    };
    match opened {
        Ok((routed, stream)) => match incoming.accept(HeaderMap::new()) {
            Ok(tunnel) => relay(&session, &routed, tunnel.into_io(), stream).await,
            Err(error) => tracing::debug!(error = chain(&error), "the client has gone"),
        },
        Err(error) => {
            log_failed(&session, &error);
            incoming.refuse(error.status());
        }
    }
}

/// Serves a tunnel whose content goes where its first bytes say.
pub(crate) async fn serve_tls(session: Session, mut io: Sniffed<TunnelIo>) {
    let opened: Result<_, TcpError> = async {
        let routed = Routed::by_first_message(&session, &mut io).await?;
        let stream = open(&session, &routed).await?;
        Ok((routed, stream))
    }
    .await;
    match opened {
        Ok((routed, stream)) => relay(&session, &routed, io, stream).await,
        Err(error) => log_failed(&session, &error),
    }
}

/// Serves a tunnel of which nothing is declared, when the client's first bytes are not HTTP, or are not there: a
/// server that speaks first must not be waited for in vain.
pub(crate) async fn serve_unknown(session: Session, mut io: Sniffed<TunnelIo>) {
    let client = tokio::time::timeout(CLIENT_FIRST, io.version()).await.ok();
    if let Some(Some(version)) = client {
        return l7::serve(session, io, version).await;
    }
    let routed = Routed::straight();
    let stream = match open(&session, &routed).await {
        Ok(stream) => stream,
        Err(error) => return log_failed(&session, &error),
    };
    if client.is_some() {
        return relay(&session, &routed, io, stream).await;
    }
    let mut stream = Sniffed::new(stream);
    // Whoever speaks first tells: a server that does is not HTTP.
    let version = tokio::select! {
        biased;
        version = io.version() => version,
        () = stream.first_bytes() => None,
    };
    match version {
        // Requests choose endpoints of their own.
        Some(version) => {
            let _closing = stream.shutdown().await;
            l7::serve(session, io, version).await;
        }
        None => relay(&session, &routed, io, stream).await,
    }
}

fn judge(session: &Session, sni: Option<&str>) -> HttpDecision {
    let caller = &session.caller;
    let connection = Connection {
        source: caller.identity.as_ref(),
        source_ip: caller.address.ip(),
        remote_ip: caller.address.ip(),
        destination: session.target.address(),
        sni,
    };
    let policies = session.shard.waypoint.published.policies();
    policies.evaluate_connection(session.target.scope(), &connection)
}

/// Counts what a policy on trial would have done, and logs what is audited: once a connection.
fn note(session: &Session, decision: &HttpDecision) {
    for dry_run in &decision.dry_run {
        let metrics = &session.shard.waypoint.http_metrics;
        metrics.dry_run_denied(&dry_run.policy);
    }
    if let Some(policy) = decision.audits.first() {
        let (caller, target) = (session.caller.address, session.target.address());
        tracing::info!(%caller, %target, %policy, "a connection is audited");
    }
}

/// Ends when policies, which change, do not allow the connection any more.
async fn revoked(session: &Session, sni: Option<&str>) {
    let mut changes = session.shard.waypoint.published.watch();
    while judge(session, sni).is_allowed() {
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Judges a connection, and connects it to an endpoint.
async fn open(session: &Session, routed: &Routed) -> Result<Stream, TcpError> {
    let decision = judge(session, routed.sni.as_deref());
    if !decision.is_allowed() {
        return Err(TcpError::Denied(decision));
    }
    let waypoint = &session.shard.waypoint;
    let own = waypoint.local.known().await.ok_or(TcpError::NoOwn)?;
    let mut failed = Vec::new();
    let mut first = None;
    loop {
        match connect(session, &routed.destination, &own, &failed).await {
            Ok(stream) => return Ok(stream),
            // Nothing of the connection has been sent: another endpoint may be tried, once.
            Err((UpstreamError::Connect(error), Some(uid))) if failed.is_empty() => {
                tracing::debug!(workload = %uid, error = chain(&error), "trying another endpoint");
                failed.push(uid);
                first = Some(error);
            }
            Err((error, _)) => {
                let error = first.map_or(error, UpstreamError::Connect);
                return Err(error.into());
            }
        }
    }
}

async fn connect(
    session: &Session,
    destination: &Destination,
    own: &Local,
    failed: &[ArcStr],
) -> Result<Stream, (UpstreamError, Option<ArcStr>)> {
    let waypoint = &session.shard.waypoint;
    let way = match destination.route(session, own, failed).await {
        Ok(route) => Way::of(route, waypoint.config.ipv6).await,
        Err(error) => Err(error.into()),
    };
    let way = way.map_err(|error| (error, None))?;
    let forwarded = Forwarded {
        client: session.caller.address,
        host: destination
            .service(session)
            .map(|service| service.hostname.clone()),
    };
    let upstreams = &session.shard.upstreams;
    let connected = upstreams
        .connect(&way, own, &forwarded, Some(session.passed))
        .await;
    connected.map_err(|error| (error, way.workload().map(|one| one.uid().clone())))
}

/// Copies both ways until both directions have ended, or the process ends.
async fn relay<A, B>(session: &Session, routed: &Routed, client: A, server: B)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let sni = routed.sni.as_deref();
    note(session, &judge(session, sni));
    let waypoint = &session.shard.waypoint;
    let labels = session.traffic_labels_of(routed.destination.service(session));
    let metrics = waypoint.metrics.traffic().open(&labels);
    let mut drain = waypoint.lifecycle.drain_watcher();
    let copied = {
        let mut client = Metered::new(client, |bytes| metrics.received(bytes));
        let mut server = Metered::new(server, |bytes| metrics.sent(bytes));
        tokio::select! {
            copied = tokio::io::copy_bidirectional(&mut client, &mut server) => copied,
            () = drain.cut() => Ok((0, 0)),
            () = revoked(session, sni) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    };
    let reason = match &copied {
        Ok(_) => Reason::None,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::info!(caller = %session.caller.address, "a connection is closed: a policy denies it now");
            Reason::Deny
        }
        Err(error) => {
            tracing::debug!(%error, caller = %session.caller.address, "a connection broke");
            Reason::Connect
        }
    };
    metrics.close(reason);
}

fn log_failed(session: &Session, error: &TcpError) {
    let (caller, target) = (session.caller.address, session.target.address());
    tracing::warn!(%caller, %target, error = chain(error), "a connection is not passed through");
    let reason = match error {
        TcpError::Denied(decision) => {
            note(session, decision);
            Reason::Deny
        }
        TcpError::NoOwn | TcpError::Route(_) | TcpError::Upstream(_) => Reason::Connect,
    };
    let metrics = &session.shard.waypoint.metrics;
    metrics
        .traffic()
        .series(&session.traffic_labels())
        .fail(reason);
}
