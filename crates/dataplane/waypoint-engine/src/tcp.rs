//! Connections that are not HTTP: authorized once, by attributes of the connection, and forwarded unchanged to the
//! backend of their service's route.

mod error;
mod idle_timeout;
mod report;
mod routed;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use ambit_codec::Forwarded;
use ambit_hbone::{Incoming, TunnelIo};
use ambit_l7::authz::{Connection, HttpDecision, Scope};
use ambit_model::{ArcStr, Balancing, DestinationLimits, HashSource, NamespacedHostname, Reason};
use ambit_proxy::{Local, report::chain};
use ambit_resilience::{Outcome, PickRequest, hash};
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    attachments::Attachments,
    destination::{EndpointLease, NoUpstream, Port},
    http as l7,
    http::{Destination, destination_attachments},
    metered::{Metered, reset_by_client},
    origination::TlsUpstream,
    session::Session,
    sniff::{Opening, Sniffed},
    upstream::{Connect, ConnectOptions, Preamble, Stream, UpstreamError},
    upstream_lookup,
};
use error::TcpError;
use idle_timeout::IdleTimeout;
use report::{ConnectionEnd, ConnectionReport, ConnectionRoute};
use routed::Routed;

/// Timeout for the client's first bytes at a port with undeclared protocol. After it the endpoint is connected, since
/// its protocol may be server-first.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_millis(20);
/// Timeout for the rest of an HTTP/1 request line with which a connection seems to begin.
const REQUEST_LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a tunnel to a port that declares a TCP protocol: the endpoint is connected before the CONNECT is accepted.
pub(crate) async fn serve(session: Session, mut incoming: Incoming) {
    let report = ConnectionReport::of(&session);
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
                let (stream, context) = opened.into_parts();
                let client = tunnel.into_io();
                relay(&session, &report, &routed, &context, client, stream).await;
            }
            Err(error) => tracing::debug!(error = chain(&error), "the client has gone"),
        },
        Err(error) => {
            log_failed(&session, &report, &error);
            incoming.refuse(error.status());
        }
    }
}

/// Serves a tunnel whose TLS stream is routed by its SNI.
pub(crate) async fn serve_tls(mut session: Session, mut io: Sniffed<TunnelIo>) {
    match of_server_name(&session, &mut io).await {
        Ok(Some(specific)) => session = specific,
        Ok(None) => {}
        Err(error) => return log_failed(&session, &ConnectionReport::of(&session), &error),
    }
    let report = ConnectionReport::of(&session);
    let opened: Result<_, TcpError> = async {
        let routed = Routed::by_first_message(&session, &mut io).await?;
        let opened = open(&session, &routed).await?;
        Ok((routed, opened))
    }
    .await;
    match opened {
        Ok((routed, opened)) => {
            let (stream, context) = opened.into_parts();
            relay(&session, &report, &routed, &context, io, stream).await;
        }
        Err(error) => log_failed(&session, &report, &error),
    }
}

/// Returns the session for the SNI of a connection to a wildcard service, if the SNI has a more specific service.
async fn of_server_name(
    session: &Session,
    io: &mut Sniffed<TunnelIo>,
) -> Result<Option<Session>, TcpError> {
    if !session.target.is_wildcard() {
        return Ok(None);
    }
    match routed::server_name(io).await? {
        Some(name) => Ok(session.of_host(&name)?),
        None => Ok(None),
    }
}

/// Serves a tunnel to a port with undeclared protocol, for which no policy, JWT rule, plugin or rate limit needs HTTP
/// requests: as HTTP or as opaque TCP, detected from the first bytes. Server-first protocols do not wait for the
/// client's bytes.
pub(crate) async fn serve_unknown(session: Session, mut io: Sniffed<TunnelIo>) {
    let client = tokio::time::timeout(FIRST_BYTES_TIMEOUT, io.opening())
        .await
        .ok();
    if let Some(Opening::Http(version)) = client {
        return l7::serve(session, io, version).await;
    }
    if client.is_some() {
        match of_server_name(&session, &mut io).await {
            Ok(Some(specific)) => return serve_tls(specific, io).await,
            Ok(None) => {}
            Err(error) => return log_failed(&session, &ConnectionReport::of(&session), &error),
        }
    }
    let routed = Routed::undeclared();
    let report = ConnectionReport::of(&session);
    let (stream, context) = match open(&session, &routed).await {
        Ok(opened) => opened.into_parts(),
        Err(error) => return log_failed(&session, &report, &error),
    };
    if client.is_some() {
        return relay(&session, &report, &routed, &context, io, stream).await;
    }
    let mut stream = Sniffed::new(stream);
    // A server-first protocol is not HTTP.
    let (opening, is_client_first) = tokio::select! {
        biased;
        opening = decided(&mut io) => (opening, true),
        () = stream.first_bytes() => (Opening::Other, false),
    };
    if is_client_first && opening == Opening::Other {
        match of_server_name(&session, &mut io).await {
            Ok(Some(specific)) => {
                drop((stream, context));
                return serve_tls(specific, io).await;
            }
            Ok(None) => {}
            Err(error) => return log_failed(&session, &report, &error),
        }
    }
    match opening {
        // Each request chooses its own endpoint.
        Opening::Http(version) => {
            let _closing = stream.shutdown().await;
            drop(context);
            l7::serve(session, io, version).await;
        }
        Opening::LongLine | Opening::Other | Opening::Nothing => {
            relay(&session, &report, &routed, &context, io, stream).await;
        }
    }
}

/// Detects whether a connection begins with HTTP. A request line that stays incomplete until a timeout is not HTTP: the
/// client may wait for the server.
async fn decided(io: &mut Sniffed<TunnelIo>) -> Opening {
    io.first_bytes().await;
    let opening = tokio::time::timeout(REQUEST_LINE_TIMEOUT, io.opening()).await;
    opening.unwrap_or(Opening::Other)
}

/// Evaluates the policies of the target, and those of the service to which a route forwards the connection. Returns the
/// first denial.
fn evaluate_policies(session: &Session, routed: &Routed) -> HttpDecision {
    let connection = session.connection(routed.sni.as_deref());
    let waypoint = &session.shard.waypoint;
    let policies = waypoint.published.policies();
    let attachments = session.attachments();
    let mut decision = policies.evaluate_connection(attachments.scope(), &connection);
    let there = destination_attachments::find(session, &routed.destination, routed.by);
    if let Destination::Backend(service, port) = &routed.destination
        && let Some(scope) = backend_scope(session, routed, there.as_deref(), service)
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

/// Returns the scope of the policies that apply to a connection at the backend of its route.
fn backend_scope<'a>(
    session: &Session,
    routed: &Routed,
    there: Option<&'a Attachments>,
    service: &'a NamespacedHostname,
) -> Option<Scope<'a>> {
    match there {
        Some(attachments) => Some(attachments.scope()),
        None => {
            let published = &session.shard.waypoint.published;
            routed.by.scope(published, service)
        }
    }
}

/// Whether no attachment of the route's backend (JWT rule, plugin or rate limit) requires HTTP, so that the connection
/// may be forwarded as opaque bytes.
fn may_be_opaque(session: &Session, routed: &Routed) -> bool {
    destination_attachments::may_be_opaque(session, &routed.destination, routed.by)
}

/// Whether the current policies of the target and of the route's backend require no authorization provider other than
/// the one that has allowed the connection.
fn is_provider_unchanged(session: &Session, routed: &Routed, by: Option<&ArcStr>) -> bool {
    let waypoint = &session.shard.waypoint;
    let policies = waypoint.published.policies();
    let connection = session.connection(routed.sni.as_deref());
    let attachments = session.attachments();
    let required = policies.required_connection_check(attachments.scope(), &connection);
    if !l7::is_still_admitted(&required, by) {
        return false;
    }
    let Destination::Backend(service, port) = &routed.destination else {
        return true;
    };
    let there = destination_attachments::find(session, &routed.destination, routed.by);
    let Some(scope) = backend_scope(session, routed, there.as_deref(), service) else {
        return true;
    };
    let connection = Connection {
        destination: waypoint.address_of(service, *port),
        ..connection
    };
    let required = policies.required_connection_check(scope, &connection);
    l7::is_still_admitted(&required, by)
}

/// Counts denials by dry-run policies, and logs a connection that an AUDIT policy matches.
fn record_policy_effects(session: &Session, decision: &HttpDecision) {
    for dry_run in &decision.dry_run {
        let metrics = &session.shard.waypoint.http_metrics;
        metrics.dry_run_denied(&dry_run.policy);
    }
    if let Some(policy) = decision.audits.first() {
        let (caller, target) = (session.caller.address, session.target.address());
        tracing::info!(%caller, %target, %policy, "a connection is audited");
    }
}

/// Completes when changed policies no longer allow the connection.
async fn revoked(session: &Session, routed: &Routed, provider: Option<&ArcStr>) {
    let mut changes = session.shard.waypoint.published.watch();
    while evaluate_policies(session, routed).is_allowed()
        && is_provider_unchanged(session, routed, provider)
        && routed.http_object(session).is_none()
        && may_be_opaque(session, routed)
    {
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Upstream connection to an endpoint, with its leases.
#[derive(Debug)]
struct UpstreamConnection {
    stream: Stream,
    context: ConnectionContext,
}

impl UpstreamConnection {
    fn into_parts(self) -> (Stream, ConnectionContext) {
        (self.stream, self.context)
    }
}

/// Leases and authorization of an upstream connection.
#[derive(Debug)]
struct ConnectionContext {
    endpoint: SocketAddr,
    held: Option<ConnectionLease>,
    /// Authorization provider that has allowed the connection.
    provider: Option<ArcStr>,
}

/// Endpoint lease and connection permit under a `DestinationRule`, released when the connection closes.
#[derive(Debug)]
struct ConnectionLease {
    port: Arc<Port>,
    #[expect(dead_code, reason = "what it does is to be held")]
    endpoint: EndpointLease,
    #[expect(dead_code, reason = "what it does is to be held")]
    permit: Option<OwnedSemaphorePermit>,
}

/// Authorizes a connection, chooses an endpoint, and connects to it.
async fn open(session: &Session, routed: &Routed) -> Result<UpstreamConnection, TcpError> {
    let decision = evaluate_policies(session, routed);
    if !decision.is_allowed() {
        return Err(TcpError::Denied(decision));
    }
    if let Some(object) = routed.http_object(session) {
        return Err(TcpError::NotHttp(object));
    }
    if !may_be_opaque(session, routed) {
        let why = "tokens, limits or plugins are attached to the backend of its client's route, and only HTTP requests can satisfy these";
        return Err(TcpError::Unauthorized(why.to_owned()));
    }
    let provider = l7::authorize_connection(session, routed.sni.as_deref()).await;
    let provider = provider.map_err(TcpError::Unauthorized)?;
    if !is_provider_unchanged(session, routed, provider.as_ref()) {
        let why = "the backend of its route requires a check by another provider";
        return Err(TcpError::Unauthorized(why.to_owned()));
    }
    let waypoint = &session.shard.waypoint;
    let own = waypoint.local.known().await.ok_or(TcpError::NoOwn)?;
    let port = routed.destination.ruled_port(session);
    let mut permit = None;
    if let Some(port) = &port {
        port.supported()?;
        permit = port.connection(waypoint.rule_context())?;
    }
    let mut failed = Vec::new();
    let mut first = None;
    loop {
        match connect(session, &routed.destination, &own, port.as_ref(), &failed).await {
            Ok((stream, endpoint, held)) => {
                let held = port.zip(held).map(|(port, endpoint)| ConnectionLease {
                    port,
                    endpoint,
                    permit,
                });
                let context = ConnectionContext {
                    endpoint,
                    held,
                    provider,
                };
                return Ok(UpstreamConnection { stream, context });
            }
            // No bytes were sent on the connection: another endpoint may be tried, once.
            Err(ConnectFailure::At(error, Some(uid)))
                if failed.is_empty()
                    && matches!(error, UpstreamError::Connect(_) | UpstreamError::TooLong(_)) =>
            {
                tracing::debug!(workload = %uid, error = chain(&error), "trying another endpoint");
                failed.push(uid);
                first = Some(error);
            }
            Err(ConnectFailure::At(error, _)) => return Err(first.unwrap_or(error).into()),
            Err(ConnectFailure::Nowhere(error)) => {
                return Err(first.map_or_else(|| error.into(), TcpError::Upstream));
            }
        }
    }
}

/// Reason why no upstream connection was opened.
enum ConnectFailure {
    /// Failed connection attempt; with the uid of the endpoint's workload, if the endpoint is a known workload.
    At(UpstreamError, Option<ArcStr>),
    /// Destination rule that leaves no usable endpoint.
    Nowhere(NoUpstream),
}

async fn connect(
    session: &Session,
    destination: &Destination,
    own: &Local,
    port: Option<&Arc<Port>>,
    failed: &[ArcStr],
) -> Result<(Stream, SocketAddr, Option<EndpointLease>), ConnectFailure> {
    let waypoint = &session.shard.waypoint;
    let pass_through = destination.pass_through(session).await;
    let pass_through = pass_through.map_err(|error| ConnectFailure::At(error, None))?;
    let rule = || {
        port.map(|port| {
            let hash = match &port.policy().balancing {
                // Connections only have a source address to hash.
                Balancing::Hash(policy) if policy.source == HashSource::SourceIp => {
                    Some(hash(session.caller.address.ip().to_string().as_bytes()))
                }
                _ => None,
            };
            let wish = PickRequest {
                hash,
                failed,
                preferred: None,
            };
            let request = destination.backend_request(session, own, &[]);
            port.route(waypoint.rule_context(), request, wish)
        })
    };
    let tls = port.and_then(|port| port.tls());
    let (upstream, held) = match pass_through {
        Some(upstream) => (Ok(upstream), None),
        None => {
            let ruled = rule()
                .transpose()
                .map_err(ConnectFailure::Nowhere)?
                .flatten();
            let (route, held) = match ruled {
                Some((route, held)) => (Ok(route), Some(held)),
                None => (destination.route(session, own, failed).await, None),
            };
            let upstream = match route {
                Ok(route) => upstream_lookup::resolve(route, waypoint).await,
                Err(error) => Err(error.into()),
            };
            (upstream, held)
        }
    };
    let upstream = upstream.map_err(|error| ConnectFailure::At(error, None))?;
    let host = destination.host(session);
    let tls_upstream = tls.filter(|_| held.is_some() || !upstream.is_waypoint());
    let tls_upstream = tls_upstream.map(|origination| TlsUpstream {
        origination,
        config: &waypoint.config,
        host: &host,
        version: None,
    });
    let forwarded = Forwarded {
        client: session.caller.address,
        host: destination
            .service(session)
            .map(|service| service.hostname.clone()),
    };
    let limits = port.map(|port| *port.limits()).unwrap_or_default();
    let upstreams = &session.shard.upstreams;
    let applied = upstream.applied_services(session.target.service_name());
    let (client, called) = (session.caller.address, session.target.address());
    let preamble = port.and_then(|port| Preamble::of(port.policy(), &upstream, client, called));
    let connecting = upstreams.connect(Connect {
        upstream: &upstream,
        own,
        forwarded: &forwarded,
        applied: &applied,
        options: ConnectOptions {
            limits: &limits,
            tls: tls_upstream,
            preamble: preamble.as_ref(),
        },
        hops: Some(session.hops),
        identity: None,
        memory: Some(&session.memory),
    });
    let connected = connecting.await;
    if let Some(held) = &held {
        let outcome = match &connected {
            Ok(_) => Some(Outcome::Connected),
            // A lack of room in the client's budget is not the endpoint's failure.
            Err(UpstreamError::Memory(_)) => None,
            Err(_) => Some(Outcome::Failed),
        };
        if let Some(outcome) = outcome {
            held.report(waypoint.rule_context(), outcome);
        }
    }
    let uid = || upstream.workload().map(|one| one.uid().clone());
    let stream = connected.map_err(|error| ConnectFailure::At(error, uid()))?;
    Ok((stream, upstream.endpoint(), held))
}

/// Completes when the connection's maximum lifetime (`maxConnectionDuration`) has passed; never without one.
async fn lifetime_expired(limits: &DestinationLimits) {
    match limits.max_connection_duration {
        Some(most) => tokio::time::sleep(most).await,
        None => std::future::pending().await,
    }
}

/// Relays bytes in both directions until both have ended, a timeout or a policy change closes the connection, or the
/// process shuts down.
async fn relay<A, B>(
    session: &Session,
    report: &ConnectionReport,
    routed: &Routed,
    context: &ConnectionContext,
    client: A,
    server: B,
) where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let ConnectionContext {
        endpoint,
        held,
        provider,
    } = context;
    let (held, provider) = (held.as_ref(), provider.as_ref());
    let decision = evaluate_policies(session, routed);
    record_policy_effects(session, &decision);
    let waypoint = &session.shard.waypoint;
    let service = routed.destination.service(session);
    let route = ConnectionRoute {
        sni: routed.sni.as_deref(),
        endpoint: Some(*endpoint),
        service: service.as_ref(),
    };
    let labels = session.traffic_labels_of(service.clone());
    let metrics = report.series(session, &labels, route).open();
    report.opened(session, route);
    let mut drain = waypoint.lifecycle.drain_watcher();
    let limits = held.map(|held| *held.port.limits()).unwrap_or_default();
    let idle_timeout = IdleTimeout::of(limits.tcp_idle_timeout);
    let copied = {
        let (client, server) = (Mutex::new(client), Mutex::new(server));
        let (near, far) = (&client, &server);
        let mut client = Metered::new(near, |bytes| {
            idle_timeout.restart();
            metrics.received(bytes);
            report.received(bytes);
        });
        let mut server = Metered::new(far, |bytes| {
            idle_timeout.restart();
            metrics.sent(bytes);
            report.sent(bytes);
        });
        tokio::select! {
            biased;
            copied = tokio::io::copy_bidirectional(&mut client, &mut server) => copied,
            error = reset_by_client(near) => Err(error),
            () = drain.cut() => Ok((0, 0)),
            () = lifetime_expired(&limits) => Ok((0, 0)),
            () = idle_timeout.expired() => Ok((0, 0)),
            () = revoked(session, routed, provider) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    };
    let mut end = ConnectionEnd {
        audited_by: decision.audits.first().map(ToString::to_string),
        ..ConnectionEnd::default()
    };
    let reason = match &copied {
        Ok(_) => Reason::None,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let object = routed.http_object(session);
            let object = object.map(|object| TcpError::NotHttp(object).to_string());
            let decision = evaluate_policies(session, routed);
            end.is_refused = true;
            end.policy = decision.denied_by().map(ToString::to_string);
            end.termination = object.or_else(|| decision.details());
            tracing::info!(caller = %session.caller.address, "a connection is closed: a policy denies it now");
            Reason::Deny
        }
        Err(error) => {
            tracing::debug!(%error, caller = %session.caller.address, "a connection broke");
            end.termination = Some(error.to_string());
            Reason::Connect
        }
    };
    metrics.close(reason);
    report.closed(session, route, &end);
}

fn log_failed(session: &Session, report: &ConnectionReport, error: &TcpError) {
    let (caller, target) = (session.caller.address, session.target.address());
    tracing::warn!(%caller, %target, error = chain(error), "a connection is not passed through");
    let reason = match error {
        TcpError::Denied(decision) => {
            record_policy_effects(session, decision);
            Reason::Deny
        }
        TcpError::Unauthorized(_) | TcpError::NotHttp(_) => Reason::Deny,
        TcpError::NoOwn
        | TcpError::Route(_)
        | TcpError::Upstream(_)
        | TcpError::Rule(_)
        | TcpError::Misdirected(_) => Reason::Connect,
    };
    let route = ConnectionRoute::default();
    let series = report.series(session, &session.traffic_labels(), route);
    series.fail(reason);
    report.closed(session, route, &ConnectionEnd::of(error));
}
