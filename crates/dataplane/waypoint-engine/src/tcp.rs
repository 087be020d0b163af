//! Connections that are not HTTP: authorized once, by attributes of the connection, and forwarded unchanged to the
//! backend of their service's route.

mod error;
mod idle_timeout;
mod report;
mod routed_connection;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use ambit_codec::Forwarded;
use ambit_hbone::{IncomingRequest, TunnelIo};
use ambit_l7::authz::{Connection, HttpDecision, Scope};
use ambit_model::{
    ArcStr, Balancing, DestinationLimits, FailureReason, HashSource, NamespacedHostname,
};
use ambit_proxy::{LocalPod, report::format_error_chain};
use ambit_resilience::{EndpointOutcome, PickRequest, hash};
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    attachments::Attachments,
    counting_io::{CountingIo, wait_for_client_reset},
    destination::{DestinationPort, EndpointLease, NoUpstream},
    http as l7,
    http::{Destination, destination_attachments},
    session::Session,
    sniff::{DetectedProtocol, SniffedStream},
    tls_origination::TlsUpstream,
    upstream::{ConnectOptions, ConnectParameters, ProxyProtocolHeader, Stream, UpstreamError},
    upstream_lookup,
};
use error::TcpError;
use idle_timeout::IdleTimeout;
use report::{ConnectionEnd, ConnectionReport, ConnectionRoute};
use routed_connection::RoutedConnection;

/// Timeout for the client's first bytes at a port with undeclared protocol. After it the endpoint is connected, since
/// its protocol may be server-first.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_millis(20);
/// Timeout for the rest of an HTTP/1 request line with which a connection seems to begin.
const REQUEST_LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a tunnel to a port that declares a TCP protocol: the endpoint is connected before the CONNECT is accepted.
pub(crate) async fn serve(session: Session, mut incoming: IncomingRequest) {
    let report = ConnectionReport::new(&session);
    let opening = std::pin::pin!(async {
        let routed = RoutedConnection::by_tcp_routes(&session)?;
        let opened = open_upstream(&session, &routed).await?;
        Ok((routed, opened))
    });
    let opened: Result<_, TcpError> = match incoming.run_until_cancelled(opening).await {
        Ok(opened) => opened,
        Err(error) => {
            return tracing::debug!(error = format_error_chain(&error), "the client has gone");
        }
    };
    match opened {
        Ok((routed, opened)) => match incoming.accept(HeaderMap::new()) {
            Ok(tunnel) => {
                let (stream, context) = opened.into_parts();
                let client = tunnel.into_io();
                relay(&session, &report, &routed, &context, client, stream).await;
            }
            Err(error) => {
                tracing::debug!(error = format_error_chain(&error), "the client has gone")
            }
        },
        Err(error) => {
            log_failure(&session, &report, &error);
            incoming.refuse(error.status());
        }
    }
}

/// Serves a tunnel whose TLS stream is routed by its SNI.
pub(crate) async fn serve_tls(mut session: Session, mut io: SniffedStream<TunnelIo>) {
    match session_for_server_name(&session, &mut io).await {
        Ok(Some(specific)) => session = specific,
        Ok(None) => {}
        Err(error) => return log_failure(&session, &ConnectionReport::new(&session), &error),
    }
    let report = ConnectionReport::new(&session);
    let opened: Result<_, TcpError> = async {
        let routed = RoutedConnection::by_server_name(&session, &mut io).await?;
        let opened = open_upstream(&session, &routed).await?;
        Ok((routed, opened))
    }
    .await;
    match opened {
        Ok((routed, opened)) => {
            let (stream, context) = opened.into_parts();
            relay(&session, &report, &routed, &context, io, stream).await;
        }
        Err(error) => log_failure(&session, &report, &error),
    }
}

/// Returns the session for the SNI of a connection to a wildcard service, if the SNI has a more specific service.
async fn session_for_server_name(
    session: &Session,
    io: &mut SniffedStream<TunnelIo>,
) -> Result<Option<Session>, TcpError> {
    if !session.target.is_wildcard() {
        return Ok(None);
    }
    match routed_connection::server_name(io).await? {
        Some(name) => Ok(session.for_host(&name)?),
        None => Ok(None),
    }
}

/// Serves a tunnel to a port with undeclared protocol, for which no policy, JWT rule, plugin or rate limit needs HTTP
/// requests: as HTTP or as opaque TCP, detected from the first bytes. Server-first protocols do not wait for the
/// client's bytes.
pub(crate) async fn serve_undeclared(session: Session, mut io: SniffedStream<TunnelIo>) {
    let client = tokio::time::timeout(FIRST_BYTES_TIMEOUT, io.detect_protocol())
        .await
        .ok();
    if let Some(DetectedProtocol::Http(version)) = client {
        return l7::serve(session, io, version).await;
    }
    if client.is_some() {
        match session_for_server_name(&session, &mut io).await {
            Ok(Some(specific)) => return serve_tls(specific, io).await,
            Ok(None) => {}
            Err(error) => return log_failure(&session, &ConnectionReport::new(&session), &error),
        }
    }
    let routed = RoutedConnection::for_undeclared_port();
    let report = ConnectionReport::new(&session);
    let (stream, context) = match open_upstream(&session, &routed).await {
        Ok(opened) => opened.into_parts(),
        Err(error) => return log_failure(&session, &report, &error),
    };
    if client.is_some() {
        return relay(&session, &report, &routed, &context, io, stream).await;
    }
    let mut stream = SniffedStream::new(stream);
    // A server-first protocol is not HTTP.
    let (opening, is_client_first) = tokio::select! {
        biased;
        opening = detect_protocol(&mut io) => (opening, true),
        () = stream.wait_for_first_byte() => (DetectedProtocol::Other, false),
    };
    if is_client_first && opening == DetectedProtocol::Other {
        match session_for_server_name(&session, &mut io).await {
            Ok(Some(specific)) => {
                drop((stream, context));
                return serve_tls(specific, io).await;
            }
            Ok(None) => {}
            Err(error) => return log_failure(&session, &report, &error),
        }
    }
    match opening {
        // Each request chooses its own endpoint.
        DetectedProtocol::Http(version) => {
            let _closing = stream.shutdown().await;
            drop(context);
            l7::serve(session, io, version).await;
        }
        DetectedProtocol::RequestLineTooLong
        | DetectedProtocol::Other
        | DetectedProtocol::Empty => {
            relay(&session, &report, &routed, &context, io, stream).await;
        }
    }
}

/// Detects whether a connection begins with HTTP. A request line that stays incomplete until a timeout is not HTTP: the
/// client may wait for the server.
async fn detect_protocol(io: &mut SniffedStream<TunnelIo>) -> DetectedProtocol {
    io.wait_for_first_byte().await;
    let opening = tokio::time::timeout(REQUEST_LINE_TIMEOUT, io.detect_protocol()).await;
    opening.unwrap_or(DetectedProtocol::Other)
}

/// Evaluates the policies of the target, and those of the service to which a route forwards the connection. Returns the
/// first denial.
fn evaluate_policies(session: &Session, routed: &RoutedConnection) -> HttpDecision {
    let connection = session.connection_attributes(routed.sni.as_deref());
    let waypoint = &session.shard.waypoint;
    let policies = waypoint.published.policies();
    let attachments = session.attachments();
    let mut decision = policies.evaluate_connection(attachments.scope(), &connection);
    let there = destination_attachments::find(session, &routed.destination, routed.route_owner);
    if let Destination::Backend(service, port) = &routed.destination
        && let Some(scope) = backend_scope(session, routed, there.as_deref(), service)
    {
        let connection = Connection {
            destination: waypoint.service_address(service, *port),
            ..connection
        };
        let there = policies.evaluate_connection(scope, &connection);
        decision.dry_run_denials.extend(there.dry_run_denials);
        decision
            .matched_audit_rules
            .extend(there.matched_audit_rules);
        if decision.is_allowed() {
            decision.reason = there.reason;
        }
    }
    decision
}

/// Returns the scope of the policies that apply to a connection at the backend of its route.
fn backend_scope<'a>(
    session: &Session,
    routed: &RoutedConnection,
    attachments: Option<&'a Attachments>,
    service: &'a NamespacedHostname,
) -> Option<Scope<'a>> {
    match attachments {
        Some(attachments) => Some(attachments.scope()),
        None => {
            let published = &session.shard.waypoint.published;
            routed.route_owner.scope(published, service)
        }
    }
}

/// Whether a connection may be forwarded as opaque bytes: no JWT rule, plugin or rate limit of the route's backend
/// requires HTTP.
fn may_be_opaque(session: &Session, routed: &RoutedConnection) -> bool {
    destination_attachments::may_be_opaque(session, &routed.destination, routed.route_owner)
}

/// Whether the current policies of the target and of the route's backend require no authorization provider other than
/// the one that has allowed the connection.
fn is_provider_unchanged(
    session: &Session,
    routed: &RoutedConnection,
    provider: Option<&ArcStr>,
) -> bool {
    let waypoint = &session.shard.waypoint;
    let policies = waypoint.published.policies();
    let connection = session.connection_attributes(routed.sni.as_deref());
    let attachments = session.attachments();
    let required = policies.required_connection_check(attachments.scope(), &connection);
    if !l7::is_check_satisfied(&required, provider) {
        return false;
    }
    let Destination::Backend(service, port) = &routed.destination else {
        return true;
    };
    let there = destination_attachments::find(session, &routed.destination, routed.route_owner);
    let Some(scope) = backend_scope(session, routed, there.as_deref(), service) else {
        return true;
    };
    let connection = Connection {
        destination: waypoint.service_address(service, *port),
        ..connection
    };
    let required = policies.required_connection_check(scope, &connection);
    l7::is_check_satisfied(&required, provider)
}

/// Counts denials by dry-run policies, and logs a connection that an AUDIT policy matches.
fn record_policy_effects(session: &Session, decision: &HttpDecision) {
    for dry_run in &decision.dry_run_denials {
        let metrics = &session.shard.waypoint.http_metrics;
        metrics.count_dry_run_denial(&dry_run.policy);
    }
    if let Some(policy) = decision.matched_audit_rules.first() {
        let (caller, target) = (session.caller.address, session.target.address());
        tracing::info!(%caller, %target, %policy, "a connection is audited");
    }
}

/// Completes when changed policies no longer allow the connection.
async fn wait_until_revoked(
    session: &Session,
    routed: &RoutedConnection,
    provider: Option<&ArcStr>,
) {
    let mut changes = session.shard.waypoint.published.watch();
    while evaluate_policies(session, routed).is_allowed()
        && is_provider_unchanged(session, routed, provider)
        && routed.object_requiring_http(session).is_none()
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

/// Endpoint, leases and authorization of an upstream connection.
#[derive(Debug)]
struct ConnectionContext {
    endpoint: SocketAddr,
    lease: Option<ConnectionLease>,
    /// Authorization provider that has allowed the connection.
    provider: Option<ArcStr>,
}

/// Endpoint lease and connection permit under a `DestinationRule`, released when the connection closes.
#[derive(Debug)]
struct ConnectionLease {
    port: Arc<DestinationPort>,
    #[expect(dead_code, reason = "what it does is to be held")]
    endpoint: EndpointLease,
    #[expect(dead_code, reason = "what it does is to be held")]
    permit: Option<OwnedSemaphorePermit>,
}

/// Authorizes a connection, chooses an endpoint for it, and connects to the endpoint.
async fn open_upstream(
    session: &Session,
    routed: &RoutedConnection,
) -> Result<UpstreamConnection, TcpError> {
    let decision = evaluate_policies(session, routed);
    if !decision.is_allowed() {
        return Err(TcpError::Denied(decision));
    }
    if let Some(object) = routed.object_requiring_http(session) {
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
    let own = waypoint
        .local
        .wait_until_published()
        .await
        .ok_or(TcpError::NoOwnWorkload)?;
    let port = routed.destination.destination_rule_port(session);
    let mut permit = None;
    if let Some(port) = &port {
        port.check_supported()?;
        permit = port.try_take_connection(waypoint.rule_context())?;
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
                    lease: held,
                    provider,
                };
                return Ok(UpstreamConnection { stream, context });
            }
            // No bytes were sent on the connection: another endpoint may be tried, once.
            Err(ConnectFailure::EndpointFailed(error, Some(uid)))
                if failed.is_empty()
                    && matches!(
                        error,
                        UpstreamError::Connect(_) | UpstreamError::ConnectTimeout(_)
                    ) =>
            {
                tracing::debug!(workload = %uid, error = format_error_chain(&error), "trying another endpoint");
                failed.push(uid);
                first = Some(error);
            }
            Err(ConnectFailure::EndpointFailed(error, _)) => {
                return Err(first.unwrap_or(error).into());
            }
            Err(ConnectFailure::NoUpstream(error)) => {
                return Err(first.map_or_else(|| error.into(), TcpError::Upstream));
            }
        }
    }
}

/// Reason why no upstream connection was opened.
enum ConnectFailure {
    /// Connection attempt that failed, with the uid of the endpoint's workload if the mesh knows the workload.
    EndpointFailed(UpstreamError, Option<ArcStr>),
    /// Destination for which the `DestinationRule` permits no endpoint.
    NoUpstream(NoUpstream),
}

async fn connect(
    session: &Session,
    destination: &Destination,
    own: &LocalPod,
    port: Option<&Arc<DestinationPort>>,
    failed_workloads: &[ArcStr],
) -> Result<(Stream, SocketAddr, Option<EndpointLease>), ConnectFailure> {
    let waypoint = &session.shard.waypoint;
    let pass_through = destination.pass_through(session).await;
    let pass_through = pass_through.map_err(|error| ConnectFailure::EndpointFailed(error, None))?;
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
                tried_uids: failed_workloads,
                preferred_uid: None,
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
                .map_err(ConnectFailure::NoUpstream)?
                .flatten();
            let (route, held) = match ruled {
                Some((route, held)) => (Ok(route), Some(held)),
                None => (
                    destination.route(session, own, failed_workloads).await,
                    None,
                ),
            };
            let upstream = match route {
                Ok(route) => upstream_lookup::resolve(route, waypoint).await,
                Err(error) => Err(error.into()),
            };
            (upstream, held)
        }
    };
    let upstream = upstream.map_err(|error| ConnectFailure::EndpointFailed(error, None))?;
    let host = destination.default_sni(session);
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
    let preamble = port
        .and_then(|port| ProxyProtocolHeader::for_policy(port.policy(), &upstream, client, called));
    let connecting = upstreams.connect(ConnectParameters {
        upstream: &upstream,
        own_pod: own,
        forwarded: &forwarded,
        applied_services: &applied,
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
            Ok(_) => Some(EndpointOutcome::Connected),
            // A lack of room in the client's budget is not the endpoint's failure.
            Err(UpstreamError::Memory(_)) => None,
            Err(_) => Some(EndpointOutcome::Failed),
        };
        if let Some(outcome) = outcome {
            held.report(waypoint.rule_context(), outcome);
        }
    }
    let uid = || upstream.workload().map(|one| one.uid().clone());
    let stream = connected.map_err(|error| ConnectFailure::EndpointFailed(error, uid()))?;
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
    routed: &RoutedConnection,
    context: &ConnectionContext,
    client: A,
    server: B,
) where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let ConnectionContext {
        endpoint,
        lease: held,
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
    let labels = session.traffic_labels_for(service.clone());
    let metrics = report
        .traffic_series(session, &labels, route)
        .open_connection();
    report.report_opened(session, route);
    let mut drain = waypoint.lifecycle.drain_watcher();
    let limits = held.map(|held| *held.port.limits()).unwrap_or_default();
    let idle_timeout = IdleTimeout::new(limits.tcp_idle_timeout);
    let copied = {
        let (client, server) = (Mutex::new(client), Mutex::new(server));
        let (near, far) = (&client, &server);
        let mut client = CountingIo::new(near, |bytes| {
            idle_timeout.restart();
            metrics.add_received(bytes);
            report.add_received_bytes(bytes);
        });
        let mut server = CountingIo::new(far, |bytes| {
            idle_timeout.restart();
            metrics.add_sent(bytes);
            report.add_sent_bytes(bytes);
        });
        tokio::select! {
            biased;
            copied = tokio::io::copy_bidirectional(&mut client, &mut server) => copied,
            error = wait_for_client_reset(near) => Err(error),
            () = drain.wait_until_deadline() => Ok((0, 0)),
            () = lifetime_expired(&limits) => Ok((0, 0)),
            () = idle_timeout.wait_until_expired() => Ok((0, 0)),
            () = wait_until_revoked(session, routed, provider) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    };
    let mut end = ConnectionEnd {
        audited_by: decision
            .matched_audit_rules
            .first()
            .map(ToString::to_string),
        ..ConnectionEnd::default()
    };
    let reason = match &copied {
        Ok(_) => FailureReason::None,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let object = routed.object_requiring_http(session);
            let object = object.map(|object| TcpError::NotHttp(object).to_string());
            let decision = evaluate_policies(session, routed);
            end.is_rejected = true;
            end.policy = decision.denying_policy().map(ToString::to_string);
            end.termination = object.or_else(|| decision.response_code_details());
            tracing::info!(caller = %session.caller.address, "a connection is closed: a policy denies it now");
            FailureReason::Deny
        }
        Err(error) => {
            tracing::debug!(%error, caller = %session.caller.address, "a connection broke");
            end.termination = Some(error.to_string());
            FailureReason::Connect
        }
    };
    metrics.close(reason);
    report.report_closed(session, route, &end);
}

fn log_failure(session: &Session, report: &ConnectionReport, error: &TcpError) {
    let (caller, target) = (session.caller.address, session.target.address());
    tracing::warn!(%caller, %target, error = format_error_chain(error), "a connection is not passed through");
    let reason = match error {
        TcpError::Denied(decision) => {
            record_policy_effects(session, decision);
            FailureReason::Deny
        }
        TcpError::Unauthorized(_) | TcpError::NotHttp(_) => FailureReason::Deny,
        TcpError::NoOwnWorkload
        | TcpError::Route(_)
        | TcpError::Upstream(_)
        | TcpError::DestinationRule(_)
        | TcpError::MisdirectedHost(_) => FailureReason::Connect,
    };
    let route = ConnectionRoute::default();
    let series = report.traffic_series(session, &session.traffic_labels(), route);
    series.count_failure(reason);
    report.report_closed(session, route, &ConnectionEnd::from_error(error));
}
