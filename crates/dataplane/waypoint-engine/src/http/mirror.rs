//! Mirrored requests, which clients cannot observe: the mirror's response is discarded, and the original request never
//! waits for a mirror. Metrics of requests leave them out; `ambit_requests_mirrored_total` counts them.
//!
//! A mirror receives the forwarded form of an admitted request, with `-shadow` appended to the host, as in Istio and
//! Envoy, so that applications can tell these requests from others.

use std::{sync::Arc, time::Duration};

use ambit_l7::route::RouteRequest;
use ambit_model::{AppProtocol, HttpMirror};
use ambit_telemetry::http::MirrorOutcome;
use http::{HeaderMap, HeaderValue, Method, Request, header::HOST, request, uri::PathAndQuery};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::sync::{oneshot, watch};

use super::{
    admit::admission::{Admission, RequestAttributes},
    backend::destination::Destination,
    body::tee::{self, CopyOutcome},
    limits::{self, CountedRequest, RateLimitHeaders},
    normalized_target::NormalizedTarget,
    send::{self, SendOptions, outgoing, retry_state::RetryPolicy},
};
use crate::{
    attachments::Attachments,
    headers,
    hops::Hops,
    http::backend::destination_attachments,
    memory::ChargePurpose,
    message::{Body, Version},
    retry_mark::RetryMark,
    route_owner::RouteOwner,
    session::Session,
};

/// Timeout for a mirror to respond after the whole request was sent.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

/// Handle to the mirrored requests of one original request. Dropping the handle before the original request has a
/// response, when its client disconnects, cancels the mirrored requests.
#[derive(Debug)]
pub(super) struct MirrorCancellation(watch::Sender<bool>);

impl MirrorCancellation {
    /// Lets the mirrored requests complete on their own, since the original request has a response or has failed.
    pub(super) fn detach(self) {
        // There may be no mirrored requests.
        let _none = self.0.send(true);
    }
}

/// Completes when the original request is cancelled before it has a response.
async fn wait_for_cancellation(mut original_ended: watch::Receiver<bool>) {
    if original_ended.wait_for(|is_over| *is_over).await.is_ok() {
        std::future::pending().await
    }
}

/// Parameters of the request to mirror, except its body.
#[derive(Clone, Copy, Debug)]
pub(super) struct MirrorSource<'a> {
    pub(super) head: &'a request::Parts,
    pub(super) normalized: &'a NormalizedTarget,
    pub(super) admission: &'a Admission,
    /// Owner of the route that defines the mirrors.
    pub(super) route_owner: RouteOwner,
    pub(super) hops: Hops,
}

/// Builds a mirrored request; `None` if the request's target cannot be expressed in the HTTP version of the mirror.
fn mirrored_request(
    source: &MirrorSource<'_>,
    body: Body,
    host: &str,
    version: Version,
) -> Option<Request<Body>> {
    let mut request = Request::new(body);
    request.method_mut().clone_from(&source.head.method);
    request.headers_mut().clone_from(&source.head.headers);
    if let Ok(value) = HeaderValue::from_str(host) {
        request.headers_mut().insert(HOST, value);
    }
    outgoing::set_request_target(&mut request, host, &source.normalized.target, version).ok()?;
    Some(request)
}

/// Sends copies of a request to its mirrors. Returns the body for the original request, whose frames are copied to the
/// mirrors as they stream.
pub(super) fn mirror(
    session: &Arc<Session>,
    mirrors: &[&HttpMirror],
    source: MirrorSource<'_>,
    body: Body,
) -> (Body, MirrorCancellation) {
    let (mirroring, is_over) = watch::channel(false);
    let mirroring = MirrorCancellation(mirroring);
    if mirrors.is_empty() {
        return (body, mirroring);
    }
    let state = &session.shard.mirrors;
    let metrics = &session.shard.waypoint.http_metrics;
    let mut begun = Vec::new();
    for to in mirrors {
        match state.acquire() {
            Some(slot) => begun.push((to, slot)),
            None => metrics.count_mirrored_request(MirrorOutcome::LimitReached),
        }
    }
    let (body, copies) = tee::tee(body, begun.len(), &state.buffered, &session.memory);
    for ((to, slot), (copy, copied)) in begun.into_iter().zip(copies) {
        let destination = Destination::Backend(to.service.clone(), to.port);
        let version = match destination.app_protocol(session) {
            AppProtocol::Http11 => Version::Http1,
            AppProtocol::Http2 | AppProtocol::Grpc => Version::Http2,
            _ => outgoing::default_upstream_version(source.head.version),
        };
        let host = shadow_host(&source.normalized.host);
        let Some(request) = mirrored_request(&source, copy, &host, version) else {
            metrics.count_mirrored_request(MirrorOutcome::Failed);
            continue;
        };
        // The copy's headers are charged while it is in flight.
        let bytes = headers::header_memory_bytes(request.headers());
        let Ok(held) = session.memory.charge_request(ChargePurpose::Headers, bytes) else {
            metrics.count_mirrored_request(MirrorOutcome::LimitReached);
            continue;
        };
        let there = destination_attachments::find(session, &destination, source.route_owner);
        // Plugins do not process mirrored requests, and tokens are verified for the requested service only.
        if let Some(there) = &there
            && (!destination_attachments::are_tokens_applied(session, there)
                || destination_attachments::have_plugins(session, there))
        {
            metrics.count_mirrored_request(MirrorOutcome::Denied);
            continue;
        }
        let counted = there.map(|there| MirroredRequest {
            attachments: there,
            host: source.normalized.host.clone(),
            target: source.normalized.target.clone(),
            headers: request.headers().clone(),
            method: request.method().clone(),
        });
        // Authorized in the form that the mirror receives, since its service may have policies of its own.
        let sent = RequestAttributes {
            method: source.head.method.clone(),
            host,
            path: source.normalized.target.path().to_owned(),
            headers: request.headers().clone(),
        };
        let authorized =
            source
                .admission
                .authorize_backend(&destination, source.route_owner, Some(sent));
        let (_, admission) = authorized;
        let Some(admission) = admission else {
            metrics.count_mirrored_request(MirrorOutcome::Denied);
            continue;
        };
        let sending = SendOptions {
            hops: source.hops.for_mirror(),
            attempt_timeout: None,
            retry_policy: RetryPolicy::Never,
            retry_mark: RetryMark::MIRROR,
            session_endpoint: None,
        };
        let (session, hops, is_over) = (session.clone(), source.hops, is_over.clone());
        ambit_rt::spawn("mirror", async move {
            let _held = (slot, held);
            let mut drain = session.shard.waypoint.lifecycle.drain_watcher();
            let answering = async {
                if let Some(counted) = &counted
                    && counted
                        .enforce_limits(&session, &admission, hops)
                        .await
                        .is_err()
                {
                    return MirrorOutcome::Denied;
                }
                send_mirrored_request(&session, &destination, version, sending, request).await
            };
            let outcome = tokio::select! {
                outcome = answering => outcome,
                outcome = mirror_timed_out(copied) => outcome,
                () = wait_for_cancellation(is_over) => MirrorOutcome::Failed,
                () = admission.wait_until_revoked() => MirrorOutcome::Denied,
                () = drain.wait_until_deadline() => MirrorOutcome::Late,
            };
            tracing::debug!(?destination, ?outcome, "a request was mirrored");
            session
                .shard
                .waypoint
                .http_metrics
                .count_mirrored_request(outcome);
        });
    }
    (body, mirroring)
}

/// Mirrored request of a consumer route, which counts against the rate limits of the mirror's service like a client's
/// request.
struct MirroredRequest {
    attachments: Arc<Attachments>,
    host: String,
    target: PathAndQuery,
    headers: HeaderMap,
    method: Method,
}

impl MirroredRequest {
    async fn enforce_limits(
        &self,
        session: &Session,
        admission: &Admission,
        hops: Hops,
    ) -> Result<(), super::reply::Reply> {
        let request = RouteRequest {
            method: self.method.as_str(),
            path: self.target.path(),
            query: self.target.query(),
            host: &self.host,
            headers: &self.headers,
        };
        let counted = CountedRequest {
            services: self.attachments.services(),
            request,
        };
        limits::enforce(
            session,
            counted,
            None,
            admission,
            hops,
            &mut RateLimitHeaders::default(),
        )
        .await
    }
}

/// Sends a mirrored request, and discards the response.
async fn send_mirrored_request(
    session: &Session,
    destination: &Destination,
    version: Version,
    options: SendOptions<'_>,
    request: Request<Body>,
) -> MirrorOutcome {
    match send::send(session, destination, version, options, request).await {
        Ok(sent) => {
            let mut body = sent.response.into_body();
            while !body.is_end_stream() {
                match body.frame().await {
                    Some(Ok(_)) => {}
                    Some(Err(_)) => return MirrorOutcome::Failed,
                    None => break,
                }
            }
            MirrorOutcome::Answered
        }
        Err(failure) => {
            tracing::debug!(why = failure.details, "a mirror did not answer");
            MirrorOutcome::Failed
        }
    }
}

/// Completes when the mirror is too slow: it lags too far behind the body, or has not responded [`RESPONSE_TIMEOUT`]
/// after the end of the body.
async fn mirror_timed_out(copy_outcome: oneshot::Receiver<CopyOutcome>) -> MirrorOutcome {
    if let Ok(CopyOutcome::TooSlow) = copy_outcome.await {
        return MirrorOutcome::BodyTimeout;
    }
    tokio::time::sleep(RESPONSE_TIMEOUT).await;
    MirrorOutcome::Late
}

/// Appends `-shadow` to the host of a mirrored request, except to an IPv6 address in brackets.
fn shadow_host(host: &str) -> String {
    if host.is_empty() || host.starts_with('[') {
        return host.to_owned();
    }
    match host.rsplit_once(':') {
        Some((name, port)) => format!("{name}-shadow:{port}"),
        None => format!("{host}-shadow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrored_requests_have_the_shadow_host() {
        for (host, expected) in [
            ("orders", "orders-shadow"),
            ("orders.shop:8080", "orders.shop-shadow:8080"),
            ("10.0.0.1", "10.0.0.1-shadow"),
            ("[::1]:80", "[::1]:80"),
            ("", ""),
        ] {
            assert_eq!(shadow_host(host), expected);
        }
    }
}
