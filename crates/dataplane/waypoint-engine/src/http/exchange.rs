//! A request and its response on their way through the waypoint. The phases are the methods of [`Exchange`] in their
//! order: accept, admit, route, limit, change, delay, prepare, send, respond. Its [`RequestRecord`] reports the
//! exchange when the last part of the response has been sent.

mod first_response;
mod upstream_version;

use std::{pin::pin, sync::Arc};

use ambit_jwt::AuthenticatedRequest;
use ambit_model::ExtensionPhase;
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use tokio::{sync::Notify, time::Instant};

use super::{
    admit::{
        admission::Admission,
        authentication::authenticate,
        authorized_body::{AuthorizedBody, TrailersDirection},
        authorizer::{ExternalAuthorization, ExternalOutcome, authorize_externally},
        request_authorization::authorize,
    },
    body::{
        idle::IdleTimeout,
        interim::{self, ContinueExpectation},
    },
    connection::header_timeout::RequestProgress,
    extension::{PluginsOutcome, RequestPlugins},
    fault,
    limits::{self, CountedRequest, RateLimitHeaders},
    mirror::{self, MirrorCancellation, MirrorSource},
    normalized_target::{self, NormalizedTarget, is_grpc},
    reply::Reply,
    report::record::RequestRecord,
    request_headers::{add_generated_headers, sanitize},
    response_body::{ApplicationBody, ResponseBody},
    response_headers,
    routing::{
        backend_authorization::authorize_backend,
        client_route::{ChangedRequest, OriginalRequest},
        route_selection::{CorsHeaders, RoutingResult, SelectedRoute, misdirected_reply, route},
    },
    send::{self, Failure, SendOptions, UpstreamResponse, outgoing, retry_state::RetryPolicy},
    upgrade::{self, PendingUpgrade, Upgrade},
};
use crate::{
    headers,
    hops::Hops,
    message::{Body, Version},
    retry_mark::RetryMark,
    session::Session,
};
use first_response::{FirstResponse, first_response};
use upstream_version::upstream_version;

/// Handles a request and returns its response. `refused` is the reply to a request that was already rejected: only the
/// rejection is recorded. `unread` is notified when the client does not read the response.
pub(super) async fn respond(
    mut session: Arc<Session>,
    request: Request<Incoming>,
    mut refused: Option<Reply>,
    progress: &RequestProgress,
    unread: &Arc<Notify>,
) -> Response<Body> {
    // A request with an invalid host is refused below.
    if let Ok(host) = normalized_target::request_host(&request) {
        match session.for_host(&host) {
            Ok(Some(specific)) => session = Arc::new(specific),
            Ok(None) => {}
            Err(error) => refused = refused.or_else(|| Some(misdirected_reply(error))),
        }
    }
    let (mut exchange, request) = Exchange::begin(session, request);
    progress.set_body_counter(exchange.record.received_body.clone());
    let outcome = match refused {
        Some(reply) => Err(EarlyResponse::Rejected(reply)),
        None => Box::pin(exchange.run(request)).await,
    };
    let response = match outcome {
        Ok(response) => response,
        Err(EarlyResponse::Responded(response)) => *response,
        Err(EarlyResponse::Rejected(reply)) => exchange.reject(reply),
    };
    exchange.finish(response, unread).await
}

/// State of a request in flight that any phase needs to end it with a response.
struct Exchange {
    session: Arc<Session>,
    is_grpc: bool,
    record: RequestRecord,
    pending_upgrade: PendingUpgrade,
    plugins: Option<Box<RequestPlugins>>,
    cors_headers: CorsHeaders,
    limit_headers: RateLimitHeaders,
}

/// Response that ends an exchange before the request is sent to an endpoint.
enum EarlyResponse {
    /// Rejection of the request, or failure to forward it.
    Rejected(Reply),
    /// Response of an authorization provider, a plugin or a route.
    Responded(Box<Response<ResponseBody>>),
}

impl From<Reply> for EarlyResponse {
    fn from(reply: Reply) -> Self {
        Self::Rejected(reply)
    }
}

/// Request after normalization, as policies, routes and the application see it.
struct NormalizedRequest {
    began: Instant,
    request: Request<Incoming>,
    normalized: NormalizedTarget,
    upgrade: Option<Upgrade>,
    idle_timeout: IdleTimeout,
    hops: Hops,
    retry_mark: RetryMark,
    /// Whether the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
}

/// Result of a request's authorization, by policies and by an authorization provider.
struct AdmittedRequest {
    admission: Admission,
    external_authorization: ExternalAuthorization,
}

/// Request as it is sent to an endpoint.
struct OutboundRequest {
    request: Request<Body>,
    hops: Hops,
    retry_mark: RetryMark,
    mirror_cancellation: MirrorCancellation,
    /// Signal that the endpoint does not read the request body.
    request_stalled: Arc<Notify>,
    response_context: ResponseContext,
}

/// Properties of a forwarded request that determine how its response is handled.
struct ResponseContext {
    version: Version,
    upgrade: Option<Upgrade>,
    idle_timeout: IdleTimeout,
    expectation: Option<ContinueExpectation>,
    deadline: Option<Instant>,
}

/// Response of an endpoint whose headers have been received.
struct ReceivedResponse {
    upstream_response: UpstreamResponse,
    response_context: ResponseContext,
}

impl Exchange {
    /// Starts the record of a request, and converts an extended CONNECT to the equivalent HTTP/1.1 upgrade request.
    fn begin(session: Arc<Session>, mut request: Request<Incoming>) -> (Self, Request<Incoming>) {
        let pending_upgrade = PendingUpgrade::take_from(&mut request);
        upgrade::convert_extended_connect(&mut request, &session.shard.waypoint.config.upgrades);
        headers::join_cookies(request.headers_mut());
        let is_grpc = is_grpc(&request);
        let record = RequestRecord::new(&session, &request, is_grpc);
        if request.body().is_end_stream() {
            record.received_body.mark_complete();
        }
        let exchange = Self {
            plugins: RequestPlugins::for_request(&session, is_grpc),
            session,
            is_grpc,
            record,
            pending_upgrade,
            cors_headers: CorsHeaders::default(),
            limit_headers: RateLimitHeaders::default(),
        };
        (exchange, request)
    }

    async fn run(
        &mut self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, EarlyResponse> {
        let mut accepted = self.accept(request)?;
        let mut admitted = self.admit(&mut accepted).await?;
        let mut selected = self.route(&accepted)?;
        self.check_rate_limits(&accepted, &admitted).await?;
        self.apply_route_filters(&mut accepted, &mut selected, &mut admitted)
            .await?;
        let deadline = selected.timeouts().request;
        let deadline = deadline.map(|timeout| accepted.began + timeout);
        self.inject_fault(&selected, &admitted, deadline).await?;
        let outbound = self.prepare_outbound(accepted, &mut admitted, &selected, deadline)?;
        let arrived = self.send(outbound, &selected).await?;
        Ok(self.respond(arrived, admitted, &selected)?)
    }

    /// Normalizes a request, and removes hop-by-hop headers and those that only proxies of the mesh may send.
    fn accept(&mut self, mut request: Request<Incoming>) -> Result<NormalizedRequest, Reply> {
        let began = Instant::now();
        let normalized = NormalizedTarget::from_request(&self.session, &request)?;
        self.record
            .record_target(&normalized.host, &normalized.target);
        let config = &self.session.shard.waypoint.config;
        let upgrade = upgrade::parse_requested(&request, &config.upgrades);
        let idle_timeout = config.streams.idle_timeout;
        let idle = IdleTimeout::new(idle_timeout, request.headers(), upgrade.is_some());
        let hops =
            Hops::take_from_headers(request.headers_mut()).ok_or_else(Reply::routing_loop)?;
        let retry_mark = RetryMark::take_from_headers(request.headers_mut());
        let expects_continue = interim::expects_continue(&request);
        // Removed first, so that the authorized form is the forwarded one.
        sanitize(&mut request)?;
        if let Some(upgrade) = &upgrade {
            upgrade.write_headers(request.headers_mut());
        }
        self.record.write_trace_context(request.headers_mut());
        Ok(NormalizedRequest {
            began,
            request,
            normalized,
            upgrade,
            idle_timeout: idle,
            hops,
            retry_mark,
            expects_continue,
        })
    }

    /// Calls the authorization provider of CUSTOM policies, verifies tokens, runs plugins, and authorizes the resulting
    /// request.
    async fn admit(
        &mut self,
        accepted: &mut NormalizedRequest,
    ) -> Result<AdmittedRequest, EarlyResponse> {
        if let Some(plugins) = &mut self.plugins {
            plugins.set_hops(accepted.hops);
        }
        let external = self.authorize_externally(accepted).await?;
        self.run_plugins(ExtensionPhase::Authn, accepted).await?;
        let (session, record) = (&self.session, &mut self.record);
        let proved = authenticate(
            session,
            &mut accepted.request,
            &mut accepted.normalized,
            record,
        )?;
        self.run_plugins(ExtensionPhase::Authz, accepted).await?;
        let mut admission = self.authorize(accepted, &proved, &external)?;
        // Authorized again, so that the authorized form is the forwarded one.
        if self
            .run_plugins(ExtensionPhase::Unspecified, accepted)
            .await?
        {
            admission = self.authorize(accepted, &proved, &external)?;
        }
        // A plugin may have changed the method.
        if *accepted.request.method() != Method::GET && accepted.upgrade.take().is_some() {
            Upgrade::remove_upgrade_headers(accepted.request.headers_mut());
        }
        Ok(AdmittedRequest {
            admission,
            external_authorization: external,
        })
    }

    /// Authorizes the request in its current form, including changes that the authorization provider and plugins have
    /// made.
    fn authorize(
        &mut self,
        accepted: &NormalizedRequest,
        proved: &AuthenticatedRequest,
        external: &ExternalAuthorization,
    ) -> Result<Admission, Reply> {
        let NormalizedRequest {
            request,
            normalized,
            ..
        } = accepted;
        let record = &mut self.record;
        authorize(&self.session, request, normalized, proved, external, record)
    }

    async fn authorize_externally(
        &mut self,
        accepted: &mut NormalizedRequest,
    ) -> Result<ExternalAuthorization, EarlyResponse> {
        let NormalizedRequest {
            request,
            normalized,
            hops,
            idle_timeout: idle,
            ..
        } = accepted;
        let (session, record) = (&self.session, &mut self.record);
        let is_grpc = is_grpc(request);
        let authorizing =
            authorize_externally(session, request, normalized, record, *hops, is_grpc, idle);
        match Box::pin(authorizing).await? {
            ExternalOutcome::Allowed(external) => Ok(external),
            ExternalOutcome::Responded(response) => Err(EarlyResponse::Responded(Box::new(
                response.map(ResponseBody::Generated),
            ))),
        }
    }

    /// Runs the plugins of all phases up to the given one (`AUTHN`, `AUTHZ`, `STATS`). Returns whether a plugin may
    /// have changed the request.
    async fn run_plugins(
        &mut self,
        upto: ExtensionPhase,
        accepted: &mut NormalizedRequest,
    ) -> Result<bool, EarlyResponse> {
        let Some(plugins) = &mut self.plugins else {
            return Ok(false);
        };
        let running = plugins.run_on_request(upto, &mut accepted.request, &mut accepted.normalized);
        match running.await? {
            PluginsOutcome::Unchanged => Ok(false),
            PluginsOutcome::MayHaveChanged => Ok(true),
            PluginsOutcome::Responded(response) => Err(EarlyResponse::Responded(response)),
        }
    }

    /// Chooses the route rule and the backend of the request.
    fn route(&mut self, accepted: &NormalizedRequest) -> Result<SelectedRoute, EarlyResponse> {
        let NormalizedRequest {
            request,
            normalized,
            ..
        } = accepted;
        let (record, cors_headers) = (&mut self.record, &mut self.cors_headers);
        match route(&self.session, request, normalized, record, cors_headers)? {
            RoutingResult::Selected(selected) => Ok(selected),
            RoutingResult::Responded(response) => Err(EarlyResponse::Responded(Box::new(
                response.map(ResponseBody::Generated),
            ))),
        }
    }

    /// Counts the request against the rate limits of the requested service.
    async fn check_rate_limits(
        &mut self,
        accepted: &NormalizedRequest,
        admitted: &AdmittedRequest,
    ) -> Result<(), Reply> {
        let attachments = self.session.attachments();
        let counted = CountedRequest {
            services: attachments.services(),
            request: accepted.normalized.route_request(&accepted.request),
        };
        limits::enforce(
            &self.session,
            counted,
            None,
            &admitted.admission,
            accepted.hops,
            &mut self.limit_headers,
        )
        .await
    }

    /// Applies the route's filters after the original request has been authorized and routed. Then authorizes the
    /// changed request for the backend.
    async fn apply_route_filters(
        &mut self,
        accepted: &mut NormalizedRequest,
        selected: &mut SelectedRoute,
        admitted: &mut AdmittedRequest,
    ) -> Result<(), Reply> {
        let NormalizedRequest {
            request,
            normalized,
            ..
        } = accepted;
        let session = &self.session;
        let original = OriginalRequest::save(selected, request, normalized);
        selected.apply_request_filters(session, request.headers_mut(), normalized)?;
        selected.resolve_wildcard_host(session, normalized)?;
        if let Some(original) = &original {
            original.restore_token_headers(session, request.headers_mut());
        }
        let admission = admitted.admission.clone();
        admitted.admission =
            authorize_backend(admission, selected, request, normalized, &mut self.record)?;
        if let Some(original) = &original {
            let sent = ChangedRequest {
                destination: &selected.destination,
                request,
                normalized,
            };
            let (admission, hops) = (&admitted.admission, accepted.hops);
            let headers = &mut self.limit_headers;
            Box::pin(original.admit(session, sent, admission, hops, headers)).await?;
        }
        Ok(())
    }

    /// Injects the delay or abort of the route's fault filter.
    async fn inject_fault(
        &mut self,
        selected: &SelectedRoute,
        admitted: &AdmittedRequest,
        deadline: Option<Instant>,
    ) -> Result<(), Reply> {
        let Some(injected) = selected.draw_fault() else {
            return Ok(());
        };
        let admission = &admitted.admission;
        Box::pin(fault::inject(
            injected,
            admission,
            deadline,
            &mut self.record,
        ))
        .await
    }

    /// Converts a request to the form in which it is sent to the endpoint, and starts its mirrored requests.
    fn prepare_outbound(
        &mut self,
        accepted: NormalizedRequest,
        admitted: &mut AdmittedRequest,
        selected: &SelectedRoute,
        deadline: Option<Instant>,
    ) -> Result<OutboundRequest, Reply> {
        let NormalizedRequest {
            mut request,
            normalized,
            upgrade,
            idle_timeout: idle,
            hops,
            retry_mark,
            expects_continue,
            ..
        } = accepted;
        let session = &self.session;
        let destination = &selected.destination;
        let version = upstream_version(session, destination, upgrade.as_ref(), request.version());
        add_generated_headers(session, &mut request, &normalized);
        let (parts, incoming) = request.into_parts();
        self.record.record_forwarded_headers(&parts.headers);
        let AdmittedRequest {
            admission,
            external_authorization: external,
        } = admitted;
        // A client whose body a provider has read has already received `100 Continue`.
        let asks_application =
            expects_continue && version == Version::Http1 && !external.has_body();
        let expectation =
            (asks_application && self.plugins.is_none()).then(ContinueExpectation::default);
        let incoming = external.take_body(incoming);
        let received = self.record.received_body.clone();
        let (admitted, trailers) = (admission.clone(), TrailersDirection::Request);
        let body = AuthorizedBody::wrap(incoming, received, admitted, trailers, None, ());
        let body = interim::hold_until_continue(idle.wrap_request(body), expectation.as_ref());
        let unread = Arc::new(Notify::new());
        let mut body = session.shard.stalls.watch(body, &unread);
        if let (Some(plugins), None) = (&self.plugins, &upgrade) {
            body = plugins.request_body(body);
        }
        // The stream after an upgrade has no requests to mirror.
        let mirrors = match upgrade {
            None => selected.draw_mirrors(),
            Some(_) => Vec::new(),
        };
        let source = MirrorSource {
            head: &parts,
            normalized: &normalized,
            admission,
            route_owner: selected.route_owner(),
            hops,
        };
        let (body, mirroring) = mirror::mirror(session, &mirrors, source, body);
        let mut request = Request::from_parts(parts, body);
        outgoing::set_request_target(&mut request, &normalized.host, &normalized.target, version)?;
        match &upgrade {
            Some(upgrade) => upgrade.convert_for(version, &mut request),
            None if version == Version::Http1 => outgoing::set_chunked_framing(&mut request),
            None => {}
        }
        // Plugins see no interim responses.
        interim::forward_interim_responses(
            &mut request,
            expectation.as_ref(),
            self.plugins.is_none(),
        );
        Ok(OutboundRequest {
            request,
            hops,
            retry_mark,
            mirror_cancellation: mirroring,
            request_stalled: unread,
            response_context: ResponseContext {
                version,
                upgrade,
                idle_timeout: idle,
                expectation,
                deadline,
            },
        })
    }

    /// Sends a request to an endpoint, with retries, and waits for the response headers.
    async fn send(
        &mut self,
        outbound: OutboundRequest,
        selected: &SelectedRoute,
    ) -> Result<ReceivedResponse, EarlyResponse> {
        let OutboundRequest {
            request,
            hops,
            retry_mark,
            mirror_cancellation: mirroring,
            request_stalled: unread,
            response_context: awaited,
        } = outbound;
        let sending = SendOptions {
            hops,
            attempt_timeout: selected.timeouts().backend_request,
            retry_policy: match selected.retry() {
                _ if retry_mark.is_set() => RetryPolicy::OnlyUnsent,
                Some(rule) => RetryPolicy::RoutePolicy(rule),
                None => RetryPolicy::OnlySafe,
            },
            retry_mark,
            session_endpoint: selected.session_endpoint(),
        };
        let (session, destination) = (self.session.clone(), &selected.destination);
        let sending = send::send(&session, destination, awaited.version, sending, request);
        let sending = pin!(sending);
        let plugins = self.plugins.as_deref();
        let first = first_response(sending, awaited.deadline, &unread, plugins).await;
        mirroring.detach();
        match first {
            FirstResponse::Upstream(Ok(sent)) => Ok(ReceivedResponse {
                upstream_response: sent,
                response_context: awaited,
            }),
            FirstResponse::Upstream(Err(failure)) => {
                let reply = awaited.idle_timeout.timeout_reply();
                Err(EarlyResponse::Rejected(
                    reply.unwrap_or_else(|| self.record_failure(failure)),
                ))
            }
            FirstResponse::Plugin(response) => Err(EarlyResponse::Responded(Box::new(response))),
        }
    }

    /// Converts an endpoint's response to the form in which the client receives it, or switches protocols for an
    /// upgrade.
    fn respond(
        &mut self,
        arrived: ReceivedResponse,
        admitted: AdmittedRequest,
        selected: &SelectedRoute,
    ) -> Result<Response<ResponseBody>, Reply> {
        let ReceivedResponse {
            upstream_response: sent,
            response_context: awaited,
        } = arrived;
        let UpstreamResponse {
            mut response,
            selected_endpoint: chosen,
            flags,
        } = sent;
        let (session, version) = (&self.session, awaited.version);
        // The version of the client's connection, whatever the endpoint speaks (RFC 9110, section 2.5).
        *response.version_mut() = http::Version::HTTP_11;
        if let Some(workload) = &chosen.workload {
            selected.continue_session(workload.uid(), response.headers_mut());
        }
        self.record.record_endpoint(chosen, flags);
        let is_switched = match &awaited.upgrade {
            Some(upgrade) => upgrade.is_accepted_by(version, &response)?,
            None => response.status() == StatusCode::SWITCHING_PROTOCOLS,
        };
        if is_switched {
            let switched = upgrade::switch_protocols(
                session,
                awaited.upgrade,
                version,
                &mut self.pending_upgrade,
                admitted.admission,
                response,
            )?;
            // The stream after the switch is not a part of the response.
            self.record.sent_body.mark_complete();
            return Ok(switched.map(ResponseBody::Generated));
        }
        response_headers::sanitize(session, &mut response)?;
        let headers = response.headers_mut();
        admitted
            .external_authorization
            .change_response(session, headers);
        selected.change_response(headers);
        Ok(response.map(|incoming| {
            ResponseBody::Streamed(ApplicationBody {
                incoming,
                admission: admitted.admission,
                deadline: awaited.deadline,
                early_response: ContinueExpectation::record_final_response(
                    awaited.expectation.as_ref(),
                ),
                idle_timeout: awaited.idle_timeout,
            })
        }))
    }

    /// Records the failure of a request to which no endpoint responded, and returns the reply to the client.
    fn record_failure(&mut self, failure: Failure) -> Reply {
        if self.record.received_body.is_aborted() {
            return Reply::bad_request("the request's body is not what HTTP allows", "body");
        }
        self.record.upstream_failure = Some(failure.details);
        failure.reply
    }

    fn reject(&mut self, reply: Reply) -> Response<ResponseBody> {
        self.record.record_reply(&reply);
        reply
            .into_response(self.is_grpc)
            .map(ResponseBody::Generated)
    }

    /// Adds the CORS and rate-limit headers to a response, runs plugins on it, and streams its body.
    async fn finish(
        mut self,
        mut response: Response<ResponseBody>,
        unread: &Arc<Notify>,
    ) -> Response<Body> {
        self.cors_headers.change_response(response.headers_mut());
        self.limit_headers.change_response(response.headers_mut());
        if let Some(plugins) = &self.plugins {
            response = Box::pin(plugins.run_on_response(response, &mut self.record)).await;
        }
        self.record.record_response(&response);
        let (parts, body) = response.into_parts();
        let Self {
            session,
            record,
            plugins,
            ..
        } = self;
        let body = match body {
            ResponseBody::Generated(body) => body,
            ResponseBody::Streamed(body) => {
                let sent = record.sent_body.clone();
                let keep = (record, body.early_response);
                let incoming = AuthorizedBody::wrap(
                    body.incoming,
                    sent,
                    body.admission,
                    TrailersDirection::Response,
                    body.deadline,
                    keep,
                );
                let stalls = &session.shard.stalls;
                stalls.watch(body.idle_timeout.wrap_response(incoming), unread)
            }
        };
        let body = match &plugins {
            Some(plugins) if parts.status != StatusCode::SWITCHING_PROTOCOLS => {
                plugins.response_body(body)
            }
            _ => body,
        };
        Response::from_parts(parts, body)
    }
}
