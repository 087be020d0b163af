//! Sends a request to an endpoint, and retries with another one if that fails.

mod attempt;
pub(super) mod outgoing;
mod retry_permit;
pub(super) mod retry_state;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ambit_model::{ArcStr, Service};
use ambit_proxy::report::format_error_chain;
use ambit_route::{BackendEndpoint, WorkloadRef};
use ambit_telemetry::http::{ResponseFlag, ResponseFlags};
use http::{Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};

use super::{
    backend::{
        destination::{Destination, NoEndpointError},
        endpoint::{self, DestinationDecision},
        upstream_failure::UpstreamFailure,
    },
    reply::Reply,
    send::{
        attempt::{Attempt, FailedAttempt},
        retry_permit::RetryPermit,
        retry_state::{AttemptOutcome, RetryPolicy, RetryState},
    },
};
use crate::{
    destination::{EndpointLease, NoUpstream},
    hops::Hops,
    memory::{BudgetExhausted, ChargePurpose, MemoryPermit},
    message::{Body, Version},
    retry_mark::RetryMark,
    session::Session,
    target::Target,
    tls_origination::TlsUpstream,
    upstream::{
        ConnectOptions, ProxyProtocolHeader, RequestGuard, STREAM_WINDOW_BYTES, StreamSlot,
        Upstream, UpstreamError,
    },
};

/// Endpoint to which a request was sent, with the resources held until the response ends.
#[derive(Clone, Debug)]
pub(super) struct SelectedEndpoint {
    pub(super) endpoint: SocketAddr,
    pub(super) workload: Option<WorkloadRef>,
    pub(super) service: Option<Arc<Service>>,
    /// Host below the wildcard hostname of the target that the client has requested.
    pub(super) wildcard_host: Option<ArcStr>,
    /// SAN of the endpoint's certificate, verified by TLS that the waypoint originates.
    pub(super) remote_identity: Option<ArcStr>,
    /// Leases on the endpoint and on the limits of the destination's rule, released when the response ends.
    leases: Option<Arc<(EndpointLease, Arc<DestinationDecision>)>>,
    /// Slot of the request on a shared HTTP/2 connection, which limits concurrent requests.
    stream_slot: Option<StreamSlot>,
    /// Guard of a pooled HTTP/1 connection, which aborts the request on drop.
    guard: Option<RequestGuard>,
    /// Memory permit for the receive window of an HTTP/2 response: bytes that the endpoint may send before they are
    /// read.
    window_permit: Option<Arc<MemoryPermit>>,
}

impl SelectedEndpoint {
    /// Returns the endpoint of a request to `destination` through this upstream.
    fn new(destination: &Destination, session: &Session, upstream: &Upstream) -> Self {
        Self {
            endpoint: upstream.endpoint(),
            workload: upstream.workload().cloned(),
            service: destination.service(session),
            wildcard_host: match destination {
                Destination::Host(host) => Some(host.clone()),
                _ => None,
            },
            remote_identity: None,
            leases: None,
            stream_slot: None,
            guard: None,
            window_permit: None,
        }
    }
}

/// Retry, timeout and session parameters of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendOptions<'a> {
    pub(super) hops: Hops,
    /// Timeout of one attempt (`backendRequest` in a route's timeouts).
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) retry_policy: RetryPolicy<'a>,
    /// Mark of a request that is itself a retry by a previous waypoint.
    pub(super) retry_mark: RetryMark,
    /// Preferred endpoint: the one of the request's sticky session.
    pub(super) session_endpoint: Option<&'a BackendEndpoint>,
}

/// Response of an endpoint: its headers have been received, its body is still to be streamed.
#[derive(Debug)]
pub(super) struct UpstreamResponse {
    pub(super) response: Response<Incoming>,
    pub(super) selected_endpoint: SelectedEndpoint,
    /// Response flags collected while the request was forwarded.
    pub(super) flags: ResponseFlags,
}

impl UpstreamResponse {
    fn new(response: Response<Incoming>, chosen: SelectedEndpoint) -> Self {
        Self {
            response,
            selected_endpoint: chosen,
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
fn proxy_protocol_header(
    session: &Session,
    decision: Option<&DestinationDecision>,
    upstream: &Upstream,
) -> Option<ProxyProtocolHeader> {
    let (client, called) = (session.caller.address, session.target.address());
    ProxyProtocolHeader::for_policy(decision?.port.policy(), upstream, client, called)
}

/// Sends a request to an endpoint, with retries; returns the response headers with a streaming body.
pub(super) async fn send(
    session: &Session,
    destination: &Destination,
    version: Version,
    options: SendOptions<'_>,
    request: Request<Body>,
) -> Result<UpstreamResponse, Failure> {
    let Some(own) = session.shard.waypoint.local.wait_until_published().await else {
        return Err(Failure::without_own_workload());
    };
    let SendOptions {
        hops,
        attempt_timeout,
        retry_policy: again,
        mut retry_mark,
        session_endpoint: sticky,
    } = options;
    let decision = destination.apply_rule(session, version, request.headers(), request.uri());
    let decision = decision.await?;
    let ruled = decision.as_ref();
    let limits = decision.as_ref().map(|decision| *decision.port.limits());
    let limits = limits.unwrap_or_default();
    let has_body = !request.body().is_end_stream();
    let host = destination.default_sni(session);
    let tls_upstream = tls_upstream(session, decision.as_deref(), &host, version);
    let window = reserve_window(session, version).map_err(Failure::overloaded)?;
    let (mut retrying, mut request) = RetryState::new(again, request, &session.memory);
    let active = session
        .shard
        .retries
        .begin_request(destination.retry_budget_key(session));
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
        let mut chosen = SelectedEndpoint::new(destination, session, to);
        failed.extend(chosen.workload.iter().map(|one| one.uid().clone()));
        let _load = session.shard.upstreams.http.count_request(chosen.endpoint);
        // Where the next waypoint chooses the endpoint, that waypoint originates TLS.
        let over = tls_upstream.filter(|_| held.is_some() || !to.is_waypoint());
        if let Some(over) = over {
            chosen.wildcard_host = Some(host.clone());
            chosen.remote_identity = over.accepted_sans();
        }
        let preamble = proxy_protocol_header(session, decision.as_deref(), to);
        let attempt = Attempt {
            session,
            own: &own,
            upstream: to,
            version,
            options: ConnectOptions {
                limits: &limits,
                tls: over,
                preamble: preamble.as_ref(),
            },
            hops,
            retry_mark,
        };
        let outcome = attempt.send(request, &retrying, attempt_timeout).await;
        report_outcome(session, held.as_ref(), outcome.as_ref(), has_body);
        chosen.window_permit.clone_from(&window);
        chosen.leases = held.zip(decision.clone()).map(Arc::new);
        let AttemptResult {
            result: mut ended,
            permits_retry: is_reason,
            unsent_request: unsent,
        } = AttemptResult::new(outcome, chosen, &retrying, decision.as_deref());
        // An unsent request is no load on the endpoint.
        let is_burden = unsent.is_none();
        if is_burden && !is_reason {
            return ended;
        }
        let Some(wait) = retrying.next_delay() else {
            add_flag(&mut ended, ResponseFlag::RetryLimitExceeded);
            return ended;
        };
        retry_mark = retry_mark.with_retry(is_burden);
        if is_burden {
            // The previous attempt has ended.
            drop(retry_permit.take());
            retry_permit = RetryPermit::acquire(session, decision.as_ref(), &active);
            if retry_permit.is_none() {
                add_flag(&mut ended, ResponseFlag::UpstreamOverflow);
                return ended;
            }
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        // Another endpoint if there is one, since this one has just failed.
        upstream = choose(&failed).await;
        if upstream.is_err() && retrying.may_try_same_endpoint() {
            failed.clear();
            upstream = choose(&failed).await;
        }
        if upstream.is_err() || is_single_pod(destination, session) {
            return ended;
        }
        // Rewound only now: without a retry, the current reader of the body continues.
        request = match unsent.or_else(|| retrying.next_request()) {
            Some(again) => again,
            None => return ended,
        };
    }
}

/// Whether the destination is a single pod, so that no other endpoint can be tried.
fn is_single_pod(destination: &Destination, session: &Session) -> bool {
    let of = (destination, &session.target);
    matches!(of, (Destination::Target, Target::Pod { .. }))
}

/// Returns the bytes of a response that an endpoint may send before they are read: one stream's receive window in
/// HTTP/2, none in HTTP/1, where the waypoint reads no more than it passes on.
pub(super) fn window_bytes(version: Version) -> usize {
    match version {
        Version::Http1 => 0,
        Version::Http2 => usize::try_from(STREAM_WINDOW_BYTES).unwrap_or(usize::MAX),
    }
}

/// Charges the caller for the bytes that the endpoint may send before they are read.
fn reserve_window(
    session: &Session,
    version: Version,
) -> Result<Option<Arc<MemoryPermit>>, BudgetExhausted> {
    let bytes = window_bytes(version);
    if bytes == 0 {
        return Ok(None);
    }
    let permit = session
        .memory
        .charge_request(ChargePurpose::Upstream, bytes)?;
    Ok(Some(Arc::new(permit)))
}

/// Result of one attempt, with the request if it may be sent again.
struct AttemptResult {
    result: Result<UpstreamResponse, Failure>,
    /// Whether the retry policy permits a retry after this outcome.
    permits_retry: bool,
    /// Request to be sent to another endpoint, if nothing of it was sent.
    unsent_request: Option<Request<Body>>,
}

impl AttemptResult {
    /// Converts the outcome of an attempt; `None` means that the attempt timed out.
    fn new(
        outcome: Option<Result<Response<Incoming>, FailedAttempt>>,
        mut chosen: SelectedEndpoint,
        retrying: &RetryState<'_>,
        decision: Option<&DestinationDecision>,
    ) -> Self {
        let mut unsent = None;
        let (is_reason, ended) = match outcome {
            None => {
                let late = Failure::timed_out("backend_request_timeout");
                (retrying.should_retry(&AttemptOutcome::TimedOut), Err(late))
            }
            Some(Ok(mut response)) => {
                let extensions = response.extensions_mut();
                chosen.stream_slot = extensions.remove();
                chosen.guard = extensions.remove();
                if let Some(decision) = decision {
                    decision.add_cookie(response.headers_mut());
                }
                let answer = AttemptOutcome::Response(response.status(), response.headers());
                let is_reason = retrying.should_retry(&answer);
                (is_reason, Ok(UpstreamResponse::new(response, chosen)))
            }
            Some(Err(FailedAttempt {
                upstream_failure: broken,
                unsent_request: whole,
                ..
            })) => {
                let endpoint = chosen.endpoint;
                tracing::debug!(%endpoint, error = broken.details, "an endpoint did not answer a request");
                unsent = whole.filter(|_| retrying.may_try_other_endpoint());
                let is_untouched = broken.is_unprocessed;
                let is_reason = retrying.should_retry(&AttemptOutcome::Failed { is_untouched });
                (is_reason, Err(Failure::from_upstream_failure(broken)))
            }
        };
        Self {
            result: ended,
            permits_retry: is_reason,
            unsent_request: unsent,
        }
    }
}

fn add_flag(result: &mut Result<UpstreamResponse, Failure>, flag: ResponseFlag) {
    match result {
        Ok(sent) => sent.flags.insert(flag),
        Err(failure) => failure.reply.flags.insert(flag),
    }
}

/// Reports the outcome of an attempt to the outlier detection of the destination's rule.
fn report_outcome(
    session: &Session,
    lease: Option<&EndpointLease>,
    outcome: Option<&Result<Response<Incoming>, FailedAttempt>>,
    has_body: bool,
) {
    let seen = match outcome {
        Some(outcome) => {
            let status = outcome.as_ref().map(Response::status);
            endpoint::outlier_outcome(
                status.map_err(|attempt| &attempt.upstream_failure),
                has_body,
            )
        }
        // A timeout is only the endpoint's failure without a body: the client may send the body slowly.
        None => (!has_body).then_some(ambit_resilience::EndpointOutcome::Failed),
    };
    if let (Some(held), Some(seen)) = (lease, seen) {
        held.report(session.shard.waypoint.rule_context(), seen);
    }
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
            NoUpstream::AllEndpointsEjected(_)
            | NoUpstream::UnusableSubset(..)
            | NoUpstream::Route(_) => Reply::new(
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
            NoEndpointError::DestinationRule(rule) => rule.into(),
            NoEndpointError::Upstream(error @ UpstreamError::TooManyLookups(_)) => Self {
                reply: Reply::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "overloaded: too many names are looked up for the caller",
                    ResponseFlag::OverloadManager,
                ),
                details: error.to_string(),
            },
            NoEndpointError::Upstream(error) => {
                Self::unavailable(ResponseFlag::NoHealthyUpstream, &format_error_chain(&error))
            }
        }
    }
}

impl Failure {
    fn from_upstream_failure(broken: UpstreamFailure) -> Self {
        let UpstreamFailure {
            status,
            flag,
            body,
            details: text,
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
    fn overloaded(exhausted: BudgetExhausted) -> Self {
        Self {
            details: exhausted.to_string(),
            reply: Reply::overloaded(exhausted),
        }
    }

    /// Returns the failure of a request that exceeds the route's timeout.
    pub(super) fn timed_out(details: &str) -> Self {
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
