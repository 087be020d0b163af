//! Sends a request to an endpoint, and retries with another one if that fails.

pub(super) mod outgoing;
mod retry_permit;
pub(super) mod retrying;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ambit_model::{ArcStr, Service};
use ambit_proxy::{Local, report::chain};
use ambit_route::{BackendEndpoint, WorkloadRef};
use ambit_telemetry::http::{ResponseFlag, ResponseFlags};
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};

use super::{
    backend::{
        broken::Broken,
        destination::{Destination, NoEndpointError},
        endpoint::{self, DestinationDecision},
    },
    reply::Reply,
    send::{
        retry_permit::RetryPermit,
        retrying::{Outcome, RetryPolicy, Retrying},
    },
};
use crate::{
    destination::{EndpointLease, NoUpstream},
    hops::Hops,
    memory::{Exhausted, Permit, Use},
    message::{self, Body, Version},
    origination::TlsUpstream,
    retry_mark::RetryMark,
    session::Session,
    target::Target,
    upstream::{
        Checkout, Connect, ConnectOptions, HttpKey, Preamble, RequestGuard, ReuseLimits,
        STREAM_WINDOW, StreamSlot, Upstream, UpstreamError, own_client,
    },
};

/// Endpoint to which a request was sent, with the resources held until the response ends.
#[derive(Clone, Debug)]
pub(super) struct SelectedEndpoint {
    pub(super) endpoint: SocketAddr,
    pub(super) workload: Option<WorkloadRef>,
    pub(super) service: Option<Arc<Service>>,
    /// Host below the target's wildcard that the client has named.
    pub(super) remote: Option<ArcStr>,
    /// SAN of the endpoint's certificate, verified by TLS that the waypoint originates.
    pub(super) remote_identity: Option<ArcStr>,
    /// Leases under the destination's rule, released when the response ends.
    held: Option<Arc<(EndpointLease, Arc<DestinationDecision>)>>,
    /// Slot of a shared HTTP/2 connection, on which the request counts as active.
    stream: Option<StreamSlot>,
    /// Guard of a pooled HTTP/1 connection, which aborts the request on drop.
    guard: Option<RequestGuard>,
    /// Memory permit for the bytes of an HTTP/2 response that the endpoint may send before they are read.
    window: Option<Arc<Permit>>,
}

impl SelectedEndpoint {
    /// Returns the endpoint of a request to `destination` through this upstream.
    fn of(destination: &Destination, session: &Session, upstream: &Upstream) -> Self {
        Self {
            endpoint: upstream.endpoint(),
            workload: upstream.workload().cloned(),
            service: destination.service(session),
            remote: match destination {
                Destination::Host(host) => Some(host.clone()),
                _ => None,
            },
            remote_identity: None,
            held: None,
            stream: None,
            guard: None,
            window: None,
        }
    }
}

/// Retry, timeout and session parameters of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending<'a> {
    pub(super) hops: Hops,
    /// Timeout of one attempt (`backendRequest` in a route's timeouts).
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) again: RetryPolicy<'a>,
    /// Mark that a previous waypoint retries the request.
    pub(super) retry_mark: RetryMark,
    /// Endpoint of the request's sticky session, which is preferred.
    pub(super) sticky: Option<&'a BackendEndpoint>,
}

/// Response headers of an endpoint, with the body to stream.
#[derive(Debug)]
pub(super) struct UpstreamResponse {
    pub(super) response: Response<Incoming>,
    pub(super) chosen: SelectedEndpoint,
    /// Response flags collected while the request was forwarded.
    pub(super) flags: ResponseFlags,
}

impl UpstreamResponse {
    fn new(response: Response<Incoming>, chosen: SelectedEndpoint) -> Self {
        Self {
            response,
            chosen,
            flags: ResponseFlags::default(),
        }
    }
}

/// Failure of a request before an endpoint responded.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reply: Reply,
    /// Response-code details for the access log.
    pub(super) details: String,
}

/// Returns the TLS settings for the connection to the endpoint, if the destination's rule requires TLS.
fn tls_upstream<'a>(
    session: &'a Session,
    decision: Option<&'a DestinationDecision>,
    host: &'a str,
    version: Version,
) -> Option<TlsUpstream<'a>> {
    Some(TlsUpstream {
        origination: decision?.port.tls()?,
        config: &session.shard.waypoint.config,
        host,
        version: Some(version),
    })
}

/// Returns the PROXY protocol header of connections to endpoints, if the destination's rule requires one.
fn preamble(
    session: &Session,
    decision: Option<&DestinationDecision>,
    upstream: &Upstream,
) -> Option<Preamble> {
    let (client, called) = (session.caller.address, session.target.address());
    Preamble::of(decision?.port.policy(), upstream, client, called)
}

/// Sends a request to an endpoint, with retries; returns the response headers with a streaming body.
pub(super) async fn send(
    session: &Session,
    destination: &Destination,
    version: Version,
    sending: Sending<'_>,
    request: Request<Body>,
) -> Result<UpstreamResponse, Failure> {
    let Some(own) = session.shard.waypoint.local.known().await else {
        return Err(Failure::without_own_workload());
    };
    let Sending {
        hops,
        attempt_timeout,
        again,
        mut retry_mark,
        sticky,
    } = sending;
    let decision = destination.decision(session, version, request.headers(), request.uri());
    let decision = decision.await?;
    let ruled = decision.as_ref();
    let limits = decision.as_ref().map(|decision| *decision.port.limits());
    let limits = limits.unwrap_or_default();
    let has_body = !request.body().is_end_stream();
    let host = destination.host(session);
    let tls_upstream = tls_upstream(session, decision.as_deref(), &host, version);
    let window = window(session, version).map_err(Failure::overloaded)?;
    let (mut retrying, mut request) = Retrying::of(again, request, &session.memory);
    let active = session.shard.retries.active(destination.account(session));
    let mut retry_permit: Option<RetryPermit> = None;
    let mut failed: Vec<ArcStr> = Vec::new();
    let choose = async |failed: &[ArcStr]| {
        let chosen = destination.upstream(session, &own, ruled, failed, sticky);
        chosen.await
    };
    let mut upstream = choose(&failed).await;
    loop {
        let (to, held) = upstream?;
        let to = &to;
        let mut chosen = SelectedEndpoint::of(destination, session, to);
        failed.extend(chosen.workload.iter().map(|one| one.uid().clone()));
        let _load = session.shard.upstreams.http.load(chosen.endpoint);
        tell_waypoint(&mut request, to, hops, retry_mark);
        // Where the next waypoint chooses the endpoint, that waypoint originates TLS.
        let over = tls_upstream.filter(|_| held.is_some() || !to.is_waypoint());
        if let Some(over) = over {
            chosen.remote = Some(host.clone());
            chosen.remote_identity = over.identity();
            if version == Version::Http2 {
                message::secure(&mut request);
            }
        }
        let preamble = preamble(session, decision.as_deref(), to);
        let opening = ConnectOptions {
            limits: &limits,
            tls: over,
            preamble: preamble.as_ref(),
        };
        let trying = attempt(session, &own, to, version, opening, request);
        let outcome = match attempt_timeout {
            None => Some(trying.await),
            Some(attempt_timeout) => tokio::time::timeout(attempt_timeout, trying).await.ok(),
        };
        report(session, held.as_ref(), outcome.as_ref(), has_body);
        chosen.window.clone_from(&window);
        chosen.held = held.zip(decision.clone()).map(Arc::new);
        let AttemptResult {
            mut ended,
            is_reason,
            unsent,
        } = AttemptResult::of(outcome, chosen, &retrying, decision.as_deref());
        // An unsent request is no load on the endpoint.
        let is_burden = unsent.is_none();
        if is_burden && !is_reason {
            return ended;
        }
        let Some(wait) = retrying.next() else {
            flag(&mut ended, ResponseFlag::RetryLimitExceeded);
            return ended;
        };
        retry_mark = retry_mark.or(is_burden);
        if is_burden {
            // The previous attempt has ended.
            drop(retry_permit.take());
            retry_permit = RetryPermit::of(session, decision.as_ref(), &active);
            if retry_permit.is_none() {
                flag(&mut ended, ResponseFlag::UpstreamOverflow);
                return ended;
            }
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        // Another endpoint if there is one, since this one has just failed.
        upstream = choose(&failed).await;
        if upstream.is_err() && retrying.may_try_the_same() {
            failed.clear();
            upstream = choose(&failed).await;
        }
        if upstream.is_err() || is_one_pod(destination, session) {
            return ended;
        }
        // Rewound only now: without a retry, the current reader of the body continues.
        request = match unsent.or_else(|| retrying.request()) {
            Some(again) => again,
            None => return ended,
        };
    }
}

/// Whether the destination is a single pod, so that no other endpoint can be tried.
fn is_one_pod(destination: &Destination, session: &Session) -> bool {
    let of = (destination, &session.target);
    matches!(of, (Destination::Target, Target::Pod { .. }))
}

/// Returns the bytes of a response that an endpoint may send before they are read: one stream's receive window in
/// HTTP/2, none in HTTP/1, where the waypoint reads no more than it passes on.
pub(super) fn window_bytes(version: Version) -> usize {
    match version {
        Version::Http1 => 0,
        Version::Http2 => usize::try_from(STREAM_WINDOW).unwrap_or(usize::MAX),
    }
}

/// Charges the caller for the bytes that the endpoint may send before they are read.
fn window(session: &Session, version: Version) -> Result<Option<Arc<Permit>>, Exhausted> {
    let bytes = window_bytes(version);
    if bytes == 0 {
        return Ok(None);
    }
    let permit = session.memory.take(Use::Upstream, bytes)?;
    Ok(Some(Arc::new(permit)))
}

/// Writes the hop count and the retry mark, if the next hop is a waypoint.
fn tell_waypoint(request: &mut Request<Body>, to: &Upstream, hops: Hops, retry_mark: RetryMark) {
    let (headers, is_next) = (request.headers_mut(), to.is_waypoint());
    hops.write(headers, is_next);
    retry_mark.write(headers, is_next);
}

/// Result of one attempt, with the request if it may be sent again.
struct AttemptResult {
    ended: Result<UpstreamResponse, Failure>,
    /// Whether the outcome permits a retry.
    is_reason: bool,
    /// Request of which nothing was sent, so that another endpoint may receive it.
    unsent: Option<Request<Body>>,
}

impl AttemptResult {
    /// Converts the outcome of an attempt; `None` means that the attempt timed out.
    fn of(
        outcome: Option<Result<Response<Incoming>, FailedAttempt>>,
        mut chosen: SelectedEndpoint,
        retrying: &Retrying<'_>,
        decision: Option<&DestinationDecision>,
    ) -> Self {
        let mut unsent = None;
        let (is_reason, ended) = match outcome {
            None => {
                let late = Failure::too_late("backend_request_timeout");
                (retrying.is_reason(&Outcome::Late), Err(late))
            }
            Some(Ok(mut response)) => {
                let extensions = response.extensions_mut();
                chosen.stream = extensions.remove();
                chosen.guard = extensions.remove();
                if let Some(decision) = decision {
                    decision.answer(response.headers_mut());
                }
                let answer = Outcome::Answer(response.status(), response.headers());
                let is_reason = retrying.is_reason(&answer);
                (is_reason, Ok(UpstreamResponse::new(response, chosen)))
            }
            Some(Err(FailedAttempt {
                broken,
                unsent: whole,
            })) => {
                let endpoint = chosen.endpoint;
                tracing::debug!(%endpoint, error = broken.text, "an endpoint did not answer a request");
                unsent = whole.filter(|_| retrying.may_try_another());
                let is_untouched = broken.is_untouched;
                let is_reason = retrying.is_reason(&Outcome::Broken { is_untouched });
                (is_reason, Err(Failure::of(broken)))
            }
        };
        Self {
            ended,
            is_reason,
            unsent,
        }
    }
}

fn flag(ended: &mut Result<UpstreamResponse, Failure>, flag: ResponseFlag) {
    match ended {
        Ok(sent) => sent.flags.insert(flag),
        Err(failure) => failure.reply.flags.insert(flag),
    }
}

/// Reports the outcome of an attempt to the outlier detection of the destination's rule.
fn report(
    session: &Session,
    held: Option<&EndpointLease>,
    outcome: Option<&Result<Response<Incoming>, FailedAttempt>>,
    has_body: bool,
) {
    let seen = match outcome {
        Some(outcome) => {
            let status = outcome.as_ref().map(Response::status);
            endpoint::outcome(status.map_err(|attempt| &attempt.broken), has_body)
        }
        // A timeout is only the endpoint's failure without a body: the client may send the body slowly.
        None => (!has_body).then_some(ambit_resilience::Outcome::Failed),
    };
    if let (Some(held), Some(seen)) = (held, seen) {
        held.report(session.shard.waypoint.rule_context(), seen);
    }
}

/// Attempt that ended without a response.
struct FailedAttempt {
    broken: Broken,
    /// Request of which nothing was sent, so that it can be retried.
    unsent: Option<Request<Body>>,
}

async fn attempt(
    session: &Session,
    own: &Local,
    upstream: &Upstream,
    version: Version,
    options: ConnectOptions<'_>,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, FailedAttempt> {
    let key = HttpKey::new(upstream, version).with_tls(options.tls.map(|tls| tls.key()));
    let key = key.with_preamble(options.preamble.cloned());
    let caller = &session.caller;
    let key = key.for_caller(caller.identity.as_ref(), caller.address.ip());
    let applied = upstream.applied_services(session.target.service_name());
    let key = key.with_applied(applied.clone());
    let pool = &session.shard.upstreams.http;
    let sent = |error| FailedAttempt {
        broken: Broken::of(&error, version),
        unsent: None,
    };
    // Only extended CONNECT requests are sent.
    let is_connect = *request.method() == Method::CONNECT;
    // The endpoint may have closed an idle connection in the meantime.
    while let Some(pooled) = if is_connect {
        None
    } else {
        pool.take(&key, options.limits)
    } {
        match pooled.send(pool, request, Some(&session.share)).await {
            Ok(response) => return Ok(response),
            Err(error) => match error.unsent {
                Some(unsent) => request = unsent,
                None => return Err(sent(error.error)),
            },
        }
    }
    let reader = caller.identity.as_ref().map(|one| &*one.namespace);
    let connect = Connect {
        upstream,
        own,
        // Callers share HTTP connections, so that tunnels name none of them.
        forwarded: &own_client(own),
        applied: &applied,
        options,
        hops: None,
        identity: None,
        memory: Some(&session.memory),
    };
    let checkout = match open(session, connect, &key, is_connect).await {
        Ok(checkout) => checkout,
        Err(error) => {
            return Err(FailedAttempt {
                broken: Broken::unreached(&*error, reader),
                unsent: Some(request),
            });
        }
    };
    let responded = checkout.send(pool, request, Some(&session.share)).await;
    responded.map_err(|error| FailedAttempt {
        unsent: error.unsent,
        ..sent(error.error)
    })
}

async fn open(
    session: &Session,
    connect: Connect<'_>,
    key: &HttpKey,
    is_connect: bool,
) -> Result<Checkout, Box<dyn std::error::Error + Send + Sync>> {
    let upstreams = &session.shard.upstreams;
    let (pool, share) = (&upstreams.http, &session.share);
    let stream = upstreams.connect(connect).await?;
    if is_connect {
        return Ok(pool.begin_extended(key, stream, share).await?);
    }
    let reuse_limits = ReuseLimits::of(connect.options.limits);
    Ok(pool.begin(key, stream, reuse_limits, Some(share)).await?)
}

impl From<NoUpstream> for Failure {
    fn from(from: NoUpstream) -> Self {
        let details = from.to_string();
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let reply = match from {
            NoUpstream::Unsupported(why) => {
                Reply::new(unavailable, why.as_str(), ResponseFlag::NoCluster)
            }
            NoUpstream::Overflow(_) => Reply::new(
                unavailable,
                "upstream connect error or disconnect/reset before headers. reset reason: overflow",
                ResponseFlag::UpstreamOverflow,
            ),
            NoUpstream::Ejected(_) | NoUpstream::Subset(..) | NoUpstream::Route(_) => Reply::new(
                unavailable,
                "no healthy upstream",
                ResponseFlag::NoHealthyUpstream,
            ),
        };
        Self { reply, details }
    }
}

impl From<NoEndpointError> for Failure {
    fn from(from: NoEndpointError) -> Self {
        match from {
            NoEndpointError::Rule(rule) => rule.into(),
            NoEndpointError::Upstream(error @ UpstreamError::Lookups(_)) => Self {
                reply: Reply::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "overloaded: too many names are looked up for the caller",
                    ResponseFlag::OverloadManager,
                ),
                details: error.to_string(),
            },
            NoEndpointError::Upstream(error) => {
                Self::unavailable(ResponseFlag::NoHealthyUpstream, &chain(&error))
            }
        }
    }
}

impl Failure {
    fn of(broken: Broken) -> Self {
        let Broken {
            status,
            flag,
            body,
            text,
            ..
        } = broken;
        Self {
            reply: Reply::new(status, body, flag),
            details: text,
        }
    }

    /// Returns the failure of a request while the workload record of the waypoint's own pod is missing.
    pub(super) fn without_own_workload() -> Self {
        Self::unavailable(ResponseFlag::NoHealthyUpstream, "no_own_workload")
    }

    fn unavailable(flag: ResponseFlag, details: &str) -> Self {
        Self {
            reply: Reply::new(StatusCode::SERVICE_UNAVAILABLE, "no healthy upstream", flag),
            details: details.to_owned(),
        }
    }

    /// Returns the failure of a request when a memory budget has no room for its response.
    fn overloaded(full: Exhausted) -> Self {
        Self {
            details: full.to_string(),
            reply: Reply::overloaded(full),
        }
    }

    /// Returns the failure of a request that exceeds the route's timeout.
    pub(super) fn too_late(details: &str) -> Self {
        let flag = ResponseFlag::UpstreamRequestTimeout;
        Self {
            reply: Reply::new(
                StatusCode::GATEWAY_TIMEOUT,
                "upstream request timeout",
                flag,
            ),
            details: details.to_owned(),
        }
    }
}
