//! What is not HTTP: judged once, by what is known of the connection, and passed through, where the routes of its
//! service say.

mod routed;
mod silence;

use std::{io, sync::Arc, time::Duration};

use ambit_codec::Forwarded;
use ambit_hbone::{Incoming, TunnelIo};
use ambit_l7::authz::{Connection, HttpDecision};
use ambit_model::{ArcStr, Balancing, DestinationLimits, HashSource, Reason};
use ambit_proxy::{Local, report::chain};
use ambit_resilience::{Outcome, Wish, hash};
use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    destination::{Held, NoWay, Port},
    http as l7,
    http::Destination,
    metered::Metered,
    origination::Toward,
    session::Session,
    sniff::Sniffed,
    upstream::{Stream, UpstreamError},
    ways,
};
use routed::{RouteError, Routed};
use silence::Silence;

/// How long the client's first bytes are waited for, where nothing says what is spoken, before the endpoint is
/// connected: it may be the one who speaks first.
const CLIENT_FIRST: Duration = Duration::from_millis(20);

/// A connection that is not passed through.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TcpError {
    #[error("{0}")]
    Denied(HttpDecision),
    #[error("{0}")]
    Unauthorized(String),
    #[error("the control plane does not name the waypoint's own pod")]
    NoOwn,
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Rule(#[from] NoWay),
}

impl TcpError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Denied(_) | Self::Unauthorized(_) => StatusCode::FORBIDDEN,
            Self::NoOwn | Self::Route(_) | Self::Upstream(_) | Self::Rule(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

/// Serves a tunnel whose content is declared: the endpoint is connected before the tunnel is accepted.
pub(crate) async fn serve(session: Session, mut incoming: Incoming) {
    let opening = std::pin::pin!(async {
        let routed = Routed::of(&session)?;
        let opened = open(&session, &routed).await?;
        Ok((routed, opened))
    });
    let opened: Result<_, TcpError> = match incoming.unless_gone(opening).await {
        Ok(opened) => opened,
        Err(error) => return tracing::debug!(error = chain(&error), "the client has gone"),
    };
    match opened {
        Ok((routed, opened)) => match incoming.accept(HeaderMap::new()) {
            Ok(tunnel) => {
                let Opened {
                    stream,
                    held,
                    asked,
                } = opened;
                let around = (&routed, held.as_ref(), asked.as_ref());
                relay(&session, around, tunnel.into_io(), stream).await;
            }
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
        let opened = open(&session, &routed).await?;
        Ok((routed, opened))
    }
    .await;
    match opened {
        Ok((routed, opened)) => {
            let Opened {
                stream,
                held,
                asked,
            } = opened;
            let around = (&routed, held.as_ref(), asked.as_ref());
            relay(&session, around, io, stream).await;
        }
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
    let Opened {
        stream,
        held,
        asked,
    } = match open(&session, &routed).await {
        Ok(opened) => opened,
        Err(error) => return log_failed(&session, &error),
    };
    if client.is_some() {
        let around = (&routed, held.as_ref(), asked.as_ref());
        return relay(&session, around, io, stream).await;
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
            drop(held);
            l7::serve(session, io, version).await;
        }
        None => {
            let around = (&routed, held.as_ref(), asked.as_ref());
            relay(&session, around, io, stream).await;
        }
    }
}

/// For what was asked for, and, where a route leads to another service, as a connection to that one. The first that
/// denies counts.
fn judge(session: &Session, routed: &Routed) -> HttpDecision {
    let connection = session.connection(routed.sni.as_deref());
    let waypoint = &session.shard.waypoint;
    let policies = waypoint.published.policies();
    let mut decision = policies.evaluate_connection(session.target.scope(), &connection);
    if let Destination::Backend(service, port) = &routed.destination
        && let Some(scope) = routed.by.scope(&waypoint.published, service)
    {
        let connection = Connection {
            destination: waypoint.address_of(service, *port),
            ..connection
        };
        let there = policies.evaluate_connection(scope, &connection);
        decision.dry_run.extend(there.dry_run);
        decision.audits.extend(there.audits);
        if decision.is_allowed() {
            decision.why = there.why;
        }
    }
    decision
}

/// Whether no other provider than the one that has admitted a connection would have to be asked about it now, for what
/// was asked for and for where a route leads it.
fn is_asked(session: &Session, routed: &Routed, by: Option<&ArcStr>) -> bool {
    let waypoint = &session.shard.waypoint;
    let policies = waypoint.published.policies();
    let connection = session.connection(routed.sni.as_deref());
    let asking = policies.asks_of_connection(session.target.scope(), &connection);
    if !l7::is_still_admitted(&asking, by) {
        return false;
    }
    let Destination::Backend(service, port) = &routed.destination else {
        return true;
    };
    let Some(scope) = routed.by.scope(&waypoint.published, service) else {
        return true;
    };
    let connection = Connection {
        destination: waypoint.address_of(service, *port),
        ..connection
    };
    let asking = policies.asks_of_connection(scope, &connection);
    l7::is_still_admitted(&asking, by)
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
async fn revoked(session: &Session, routed: &Routed, asked: Option<&ArcStr>) {
    let mut changes = session.shard.waypoint.published.watch();
    while judge(session, routed).is_allowed() && is_asked(session, routed, asked) {
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// A connection to an endpoint.
#[derive(Debug)]
struct Opened {
    stream: Stream,
    held: Option<Ruled>,
    /// The provider that has admitted it.
    asked: Option<ArcStr>,
}

/// What is counted as long as a connection lasts, where a rule is followed.
#[derive(Debug)]
struct Ruled {
    port: Arc<Port>,
    #[expect(dead_code, reason = "what it does is to be held")]
    endpoint: Held,
    #[expect(dead_code, reason = "what it does is to be held")]
    permit: Option<OwnedSemaphorePermit>,
}

/// Judges a connection, and connects it to an endpoint.
async fn open(session: &Session, routed: &Routed) -> Result<Opened, TcpError> {
    let decision = judge(session, routed);
    if !decision.is_allowed() {
        return Err(TcpError::Denied(decision));
    }
    let asked = l7::authorize_connection(session, routed.sni.as_deref()).await;
    let asked = asked.map_err(TcpError::Unauthorized)?;
    if !is_asked(session, routed, asked.as_ref()) {
        let why = "the service that its route leads to wants another provider to be asked";
        return Err(TcpError::Unauthorized(why.to_owned()));
    }
    let waypoint = &session.shard.waypoint;
    let own = waypoint.local.known().await.ok_or(TcpError::NoOwn)?;
    let port = routed.destination.ruled(session);
    let mut permit = None;
    if let Some(port) = &port {
        port.supported()?;
        permit = port.connection(waypoint.around())?;
    }
    let mut failed = Vec::new();
    let mut first = None;
    loop {
        match connect(session, &routed.destination, &own, (port.as_ref(), &failed)).await {
            Ok((stream, endpoint)) => {
                let held = port.zip(endpoint).map(|(port, endpoint)| Ruled {
                    port,
                    endpoint,
                    permit,
                });
                return Ok(Opened {
                    stream,
                    held,
                    asked,
                });
            }
            // Nothing of the connection has been sent: another endpoint may be tried, once.
            Err(Failed::At(error, Some(uid)))
                if failed.is_empty()
                    && matches!(error, UpstreamError::Connect(_) | UpstreamError::TooLong(_)) =>
            {
                tracing::debug!(workload = %uid, error = chain(&error), "trying another endpoint");
                failed.push(uid);
                first = Some(error);
            }
            Err(Failed::At(error, _)) => return Err(first.unwrap_or(error).into()),
            Err(Failed::Nowhere(error)) => {
                return Err(first.map_or_else(|| error.into(), TcpError::Upstream));
            }
        }
    }
}

/// A connection that is not there.
enum Failed {
    /// At an endpoint, if it is known which.
    At(UpstreamError, Option<ArcStr>),
    /// A rule leads to none.
    Nowhere(NoWay),
}

async fn connect(
    session: &Session,
    destination: &Destination,
    own: &Local,
    (port, failed): (Option<&Arc<Port>>, &[ArcStr]),
) -> Result<(Stream, Option<Held>), Failed> {
    let waypoint = &session.shard.waypoint;
    let given = destination.given(session).await;
    let given = given.map_err(|error| Failed::At(error, None))?;
    let rule = || {
        port.map(|port| {
            let hash = match &port.policy().balancing {
                // A connection has an address and nothing else.
                Balancing::Hash(policy) if policy.source == HashSource::SourceIp => {
                    Some(hash(session.caller.address.ip().to_string().as_bytes()))
                }
                _ => None,
            };
            let is_target = *destination == Destination::Target;
            let wish = Wish {
                hash,
                failed,
                preferred: None,
            };
            port.route(waypoint.around(), &own.workload, is_target, wish)
        })
    };
    let tls = port.and_then(|port| port.tls());
    let (way, held) = match given {
        Some(way) => (Ok(way), None),
        None => {
            let ruled = rule().transpose().map_err(Failed::Nowhere)?.flatten();
            let (route, held) = match ruled {
                Some((route, held)) => (Ok(route), Some(held)),
                None => (destination.route(session, own, failed).await, None),
            };
            let way = match route {
                Ok(route) => ways::way(route, waypoint).await,
                Err(error) => Err(error.into()),
            };
            (way, held)
        }
    };
    let way = way.map_err(|error| Failed::At(error, None))?;
    let host = destination.host(session);
    let toward = tls.filter(|_| held.is_some() || !way.leads_to_waypoint());
    let toward = toward.map(|origination| {
        let config = &waypoint.config;
        let host = &host;
        (
            Toward {
                origination,
                config,
                host,
            },
            None,
        )
    });
    let forwarded = Forwarded {
        client: session.caller.address,
        host: destination
            .service(session)
            .map(|service| service.hostname.clone()),
    };
    let limits = port.map(|port| *port.limits()).unwrap_or_default();
    let upstreams = &session.shard.upstreams;
    let passed = Some(session.passed);
    let connecting = upstreams.connect(&way, own, &forwarded, passed, (&limits, toward));
    let connected = connecting.await;
    if let Some(held) = &held {
        let outcome = match &connected {
            Ok(_) => Outcome::Connected,
            Err(_) => Outcome::Failed,
        };
        held.report(waypoint.around(), outcome);
    }
    let uid = || way.workload().map(|one| one.uid().clone());
    let stream = connected.map_err(|error| Failed::At(error, uid()))?;
    Ok((stream, held))
}

/// Ends when a rule does not allow the connection any longer.
async fn outlived(limits: &DestinationLimits) {
    match limits.max_connection_duration {
        Some(most) => tokio::time::sleep(most).await,
        None => std::future::pending().await,
    }
}

/// Copies both ways until both directions have ended, or the process ends.
async fn relay<A, B>(
    session: &Session,
    (routed, held, asked): (&Routed, Option<&Ruled>, Option<&ArcStr>),
    client: A,
    server: B,
) where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    note(session, &judge(session, routed));
    let waypoint = &session.shard.waypoint;
    let labels = session.traffic_labels_of(routed.destination.service(session));
    let metrics = waypoint.metrics.traffic().open(&labels);
    let mut drain = waypoint.lifecycle.drain_watcher();
    let limits = held.map(|held| *held.port.limits()).unwrap_or_default();
    let silence = Silence::of(limits.tcp_idle_timeout);
    let copied = {
        let mut client = Metered::new(client, |bytes| {
            silence.broken();
            metrics.received(bytes);
        });
        let mut server = Metered::new(server, |bytes| {
            silence.broken();
            metrics.sent(bytes);
        });
        tokio::select! {
            copied = tokio::io::copy_bidirectional(&mut client, &mut server) => copied,
            () = drain.cut() => Ok((0, 0)),
            () = outlived(&limits) => Ok((0, 0)),
            () = silence.too_long() => Ok((0, 0)),
            () = revoked(session, routed, asked) => Err(io::ErrorKind::PermissionDenied.into()),
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
        TcpError::Unauthorized(_) => Reason::Deny,
        TcpError::NoOwn | TcpError::Route(_) | TcpError::Upstream(_) | TcpError::Rule(_) => {
            Reason::Connect
        }
    };
    let metrics = &session.shard.waypoint.metrics;
    metrics
        .traffic()
        .series(&session.traffic_labels())
        .fail(reason);
}
