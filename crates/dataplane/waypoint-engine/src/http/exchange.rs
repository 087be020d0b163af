//! A request and its response on their way through the waypoint. The phases are the methods of [`Exchange`] in their
//! order: accept, admit, route, limit, change, delay, prepare, send, respond. Its [`Record`] reports the exchange when
//! the last part of the response has been sent.

mod first_response;
mod version;

use std::{pin::pin, sync::Arc};

use ambit_jwt::Authenticated;
use ambit_model::ExtensionPhase;
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use tokio::{sync::Notify, time::Instant};

use super::{
    admit::{
        admission::Admission,
        authentication::authenticate,
        authorizer::{ExternalAuthorization, ExternalOutcome, authorize_externally},
        passing::{Passing, Trailers},
        request_authorization::authorize,
    },
    body::{
        idle::IdleTimeout,
        interim::{self, Expectation},
    },
    connection::header_timeout::RequestPacing,
    extension::{PluginsOutcome, RequestPlugins},
    fault,
    limits::{self, CountedRequest, RateLimitHeaders},
    mirror::{self, MirrorSource, Mirroring},
    normalized_target::{self, NormalizedTarget, is_grpc},
    reply::Reply,
    report::record::Record,
    request_headers::{complete, strip},
    response_body::{ApplicationBody, ResponseBody},
    response_headers,
    routing::{
        backend_authorization::authorize_backend,
        client_route::{ChangedRequest, Original},
        routed::{CorsHeaders, RoutingResult, SelectedRoute, misdirected, route},
    },
    send::{self, Failure, Sending, UpstreamResponse, outgoing, retrying::RetryPolicy},
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
use version::version;

/// Handles a request and returns its response. With `refused`, the request was rejected before, and only the rejection
/// is recorded. `unread` is notified when the client does not read the response.
pub(super) async fn respond(
    mut session: Arc<Session>,
    request: Request<Incoming>,
    mut refused: Option<Reply>,
    pacing: &RequestPacing,
    unread: &Arc<Notify>,
) -> Response<Body> {
    // A request with an invalid host is refused below.
    if let Ok(host) = normalized_target::host(&request) {
        match session.of_host(&host) {
            Ok(Some(specific)) => session = Arc::new(specific),
            Ok(None) => {}
            Err(error) => refused = refused.or_else(|| Some(misdirected(error))),
        }
    }
    let (mut exchange, request) = Exchange::begin(session, request);
    pacing.reads(exchange.record.received.clone());
    let outcome = match refused {
        Some(reply) => Err(Stop::Refused(reply)),
        None => Box::pin(exchange.run(request)).await,
    };
    let response = match outcome {
        Ok(response) => response,
        Err(Stop::Responded(response)) => *response,
        Err(Stop::Refused(reply)) => exchange.refuse(reply),
    };
    exchange.finish(response, unread).await
}

/// State of a request in flight that any phase needs to end it with a response.
struct Exchange {
    session: Arc<Session>,
    is_grpc: bool,
    record: Record,
    pending_upgrade: PendingUpgrade,
    plugins: Option<Box<RequestPlugins>>,
    cors_headers: CorsHeaders,
    limit_headers: RateLimitHeaders,
}

/// Response that ends an exchange before the request is sent to an endpoint.
enum Stop {
    /// Rejection of the request, or failure to forward it.
    Refused(Reply),
    /// Response of an authorization provider, a plugin or a route.
    Responded(Box<Response<ResponseBody>>),
}

impl From<Reply> for Stop {
    fn from(reply: Reply) -> Self {
        Self::Refused(reply)
    }
}

/// Request after normalization, as policies, routes and the application see it.
struct Accepted {
    began: Instant,
    request: Request<Incoming>,
    normalized: NormalizedTarget,
    upgrade: Option<Upgrade>,
    idle: IdleTimeout,
    hops: Hops,
    retry_mark: RetryMark,
    /// Whether the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
}

/// Result of a request's authorization, by policies and by an authorization provider.
struct Admitted {
    admission: Admission,
    external: ExternalAuthorization,
}

/// Request in the form in which it is sent to an endpoint.
struct Outbound {
    request: Request<Body>,
    hops: Hops,
    retry_mark: RetryMark,
    mirroring: Mirroring,
    /// Notified when the endpoint does not read the request body.
    unread: Arc<Notify>,
    awaited: Awaited,
}

/// Properties of a sent request that its response depends on.
struct Awaited {
    version: Version,
    upgrade: Option<Upgrade>,
    idle: IdleTimeout,
    expectation: Option<Expectation>,
    deadline: Option<Instant>,
}

/// Response of an endpoint whose headers have been received.
struct Arrived {
    sent: UpstreamResponse,
    awaited: Awaited,
}

impl Exchange {
    /// Starts the record of a request, and converts an extended CONNECT to the equivalent HTTP/1.1 upgrade request.
    fn begin(session: Arc<Session>, mut request: Request<Incoming>) -> (Self, Request<Incoming>) {
        let pending_upgrade = PendingUpgrade::of(&mut request);
        upgrade::as_http1(&mut request, &session.shard.waypoint.config.upgrades);
        headers::join_cookies(request.headers_mut());
        let is_grpc = is_grpc(&request);
        let record = Record::new(&session, &request, is_grpc);
        if request.body().is_end_stream() {
            record.received.completed();
        }
        let exchange = Self {
            plugins: RequestPlugins::of(&session, is_grpc),
            session,
            is_grpc,
            record,
            pending_upgrade,
            cors_headers: CorsHeaders::default(),
            limit_headers: RateLimitHeaders::default(),
        };
        (exchange, request)
    }

    async fn run(&mut self, request: Request<Incoming>) -> Result<Response<ResponseBody>, Stop> {
        let mut accepted = self.accept(request)?;
        let mut admitted = self.admit(&mut accepted).await?;
        let mut selected = self.route(&accepted)?;
        self.limit(&accepted, &admitted).await?;
        self.change(&mut accepted, &mut selected, &mut admitted)
            .await?;
        let deadline = selected.timeouts().request;
        let deadline = deadline.map(|timeout| accepted.began + timeout);
        self.delay(&selected, &admitted, deadline).await?;
        let outbound = self.prepare(accepted, &mut admitted, &selected, deadline)?;
        let arrived = self.send(outbound, &selected).await?;
        Ok(self.respond(arrived, admitted, &selected)?)
    }

    /// Normalizes a request, and removes hop-by-hop headers and those that only proxies of the mesh may send.
    fn accept(&mut self, mut request: Request<Incoming>) -> Result<Accepted, Reply> {
        let began = Instant::now();
        let normalized = NormalizedTarget::of(&self.session, &request)?;
        self.record.normalized(&normalized.host, &normalized.target);
        let config = &self.session.shard.waypoint.config;
        let upgrade = upgrade::requested(&request, &config.upgrades);
        let idle_timeout = config.streams.idle_timeout;
        let idle = IdleTimeout::new(idle_timeout, request.headers(), upgrade.is_some());
        let hops = Hops::take(request.headers_mut()).ok_or_else(Reply::routing_loop)?;
        let retry_mark = RetryMark::take(request.headers_mut());
        let expects_continue = interim::is_expected(&request);
        // Removed first, so that the authorized form is the forwarded one.
        strip(&mut request)?;
        if let Some(upgrade) = &upgrade {
            upgrade.write(request.headers_mut());
        }
        self.record.pass_trace_on(request.headers_mut());
        Ok(Accepted {
            began,
            request,
            normalized,
            upgrade,
            idle,
            hops,
            retry_mark,
            expects_continue,
        })
    }

    /// Calls the authorization provider of CUSTOM policies, verifies tokens, runs plugins, and authorizes the resulting
    /// request.
    async fn admit(&mut self, accepted: &mut Accepted) -> Result<Admitted, Stop> {
        if let Some(plugins) = &mut self.plugins {
            plugins.set_hops(accepted.hops);
        }
        let external = self.authorize_externally(accepted).await?;
        self.extend(ExtensionPhase::Authn, accepted).await?;
        let (session, record) = (&self.session, &mut self.record);
        let proved = authenticate(
            session,
            &mut accepted.request,
            &mut accepted.normalized,
            record,
        )?;
        self.extend(ExtensionPhase::Authz, accepted).await?;
        let mut admission = self.authorize(accepted, &proved, &external)?;
        // Authorized again, so that the authorized form is the forwarded one.
        if self.extend(ExtensionPhase::Unspecified, accepted).await? {
            admission = self.authorize(accepted, &proved, &external)?;
        }
        // A plugin may have changed the method.
        if *accepted.request.method() != Method::GET && accepted.upgrade.take().is_some() {
            Upgrade::withdraw(accepted.request.headers_mut());
        }
        Ok(Admitted {
            admission,
            external,
        })
    }

    /// Authorizes the request in its current form, after changes by the provider and by plugins so far.
    fn authorize(
        &mut self,
        accepted: &Accepted,
        proved: &Authenticated,
        external: &ExternalAuthorization,
    ) -> Result<Admission, Reply> {
        let Accepted {
            request,
            normalized,
            ..
        } = accepted;
        let record = &mut self.record;
        authorize(&self.session, request, normalized, proved, external, record)
    }

    async fn authorize_externally(
        &mut self,
        accepted: &mut Accepted,
    ) -> Result<ExternalAuthorization, Stop> {
        let Accepted {
            request,
            normalized,
            hops,
            idle,
            ..
        } = accepted;
        let (session, record) = (&self.session, &mut self.record);
        let is_grpc = is_grpc(request);
        let authorizing =
            authorize_externally(session, request, normalized, record, *hops, is_grpc, idle);
        match Box::pin(authorizing).await? {
            ExternalOutcome::Allowed(external) => Ok(external),
            ExternalOutcome::Responded(response) => {
                Err(Stop::Responded(Box::new(response.map(ResponseBody::Own))))
            }
        }
    }

    /// Runs the plugins up to a phase (`AUTHN`, `AUTHZ`, `STATS`). Returns whether a plugin may have changed the
    /// request.
    async fn extend(
        &mut self,
        upto: ExtensionPhase,
        accepted: &mut Accepted,
    ) -> Result<bool, Stop> {
        let Some(plugins) = &mut self.plugins else {
            return Ok(false);
        };
        let running = plugins.request(upto, &mut accepted.request, &mut accepted.normalized);
        match running.await? {
            PluginsOutcome::Unchanged => Ok(false),
            PluginsOutcome::MayHaveChanged => Ok(true),
            PluginsOutcome::Responded(response) => Err(Stop::Responded(response)),
        }
    }

    /// Chooses the route rule and the backend of the request.
    fn route(&mut self, accepted: &Accepted) -> Result<SelectedRoute, Stop> {
        let Accepted {
            request,
            normalized,
            ..
        } = accepted;
        let (record, cors_headers) = (&mut self.record, &mut self.cors_headers);
        match route(&self.session, request, normalized, record, cors_headers)? {
            RoutingResult::Selected(selected) => Ok(selected),
            RoutingResult::Responded(response) => {
                Err(Stop::Responded(Box::new(response.map(ResponseBody::Own))))
            }
        }
    }

    /// Counts the request against the rate limits of the requested service.
    async fn limit(&mut self, accepted: &Accepted, admitted: &Admitted) -> Result<(), Reply> {
        let attachments = self.session.attachments();
        let counted = CountedRequest {
            services: attachments.services(),
            request: accepted.normalized.as_received(&accepted.request),
        };
        limits::limit(
            &self.session,
            counted,
            None,
            &admitted.admission,
            accepted.hops,
            &mut self.limit_headers,
        )
        .await
    }

    /// Applies the route's filters, after the original request has been authorized and routed, and authorizes the
    /// changed request for the backend.
    async fn change(
        &mut self,
        accepted: &mut Accepted,
        selected: &mut SelectedRoute,
        admitted: &mut Admitted,
    ) -> Result<(), Reply> {
        let Accepted {
            request,
            normalized,
            ..
        } = accepted;
        let session = &self.session;
        let original = Original::of(selected, request, normalized);
        selected.change(session, request.headers_mut(), normalized)?;
        selected.name_host(session, normalized)?;
        if let Some(original) = &original {
            original.restore_claims(session, request.headers_mut());
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
    async fn delay(
        &mut self,
        selected: &SelectedRoute,
        admitted: &Admitted,
        deadline: Option<Instant>,
    ) -> Result<(), Reply> {
        let Some(injected) = selected.fault() else {
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
    fn prepare(
        &mut self,
        accepted: Accepted,
        admitted: &mut Admitted,
        selected: &SelectedRoute,
        deadline: Option<Instant>,
    ) -> Result<Outbound, Reply> {
        let Accepted {
            mut request,
            normalized,
            upgrade,
            idle,
            hops,
            retry_mark,
            expects_continue,
            ..
        } = accepted;
        let session = &self.session;
        let destination = &selected.destination;
        let version = version(session, destination, upgrade.as_ref(), request.version());
        complete(session, &mut request, &normalized);
        let (parts, incoming) = request.into_parts();
        self.record.forwarded(&parts.headers);
        let Admitted {
            admission,
            external,
        } = admitted;
        // A client whose body a provider has read has already received `100 Continue`.
        let asks_application =
            expects_continue && version == Version::Http1 && !external.has_body();
        let expectation = (asks_application && self.plugins.is_none()).then(Expectation::default);
        let incoming = external.body(incoming);
        let received = self.record.received.clone();
        let (admitted, trailers) = (admission.clone(), Trailers::OfRequest);
        let body = Passing::body(incoming, received, admitted, trailers, None, ());
        let body = interim::hold(idle.request(body), expectation.as_ref());
        let unread = Arc::new(Notify::new());
        let mut body = session.shard.stalls.watch(body, &unread);
        if let (Some(plugins), None) = (&self.plugins, &upgrade) {
            body = plugins.request_body(body);
        }
        // The stream after an upgrade has no requests to mirror.
        let mirrors = match upgrade {
            None => selected.mirrors(),
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
        outgoing::address(&mut request, &normalized.host, &normalized.target, version)?;
        match &upgrade {
            Some(upgrade) => upgrade.send_as(version, &mut request),
            None if version == Version::Http1 => outgoing::frame_body(&mut request),
            None => {}
        }
        // Plugins see no interim responses.
        interim::follow(&mut request, expectation.as_ref(), self.plugins.is_none());
        Ok(Outbound {
            request,
            hops,
            retry_mark,
            mirroring,
            unread,
            awaited: Awaited {
                version,
                upgrade,
                idle,
                expectation,
                deadline,
            },
        })
    }

    /// Sends a request to an endpoint, with retries, and waits for the response headers.
    async fn send(
        &mut self,
        outbound: Outbound,
        selected: &SelectedRoute,
    ) -> Result<Arrived, Stop> {
        let Outbound {
            request,
            hops,
            retry_mark,
            mirroring,
            unread,
            awaited,
        } = outbound;
        let sending = Sending {
            hops,
            attempt_timeout: selected.timeouts().backend_request,
            again: match selected.retry() {
                _ if retry_mark.is_set() => RetryPolicy::Unsent,
                Some(rule) => RetryPolicy::ByRule(rule),
                None => RetryPolicy::Safely,
            },
            retry_mark,
            sticky: selected.sticky(),
        };
        let (session, destination) = (self.session.clone(), &selected.destination);
        let sending = send::send(&session, destination, awaited.version, sending, request);
        let sending = pin!(sending);
        let plugins = self.plugins.as_deref();
        let first = first_response(sending, awaited.deadline, &unread, plugins).await;
        mirroring.original_over();
        match first {
            FirstResponse::Upstream(Ok(sent)) => Ok(Arrived { sent, awaited }),
            FirstResponse::Upstream(Err(failure)) => {
                let reply = awaited.idle.reply();
                Err(Stop::Refused(reply.unwrap_or_else(|| self.fail(failure))))
            }
            FirstResponse::Plugin(response) => Err(Stop::Responded(Box::new(response))),
        }
    }

    /// Converts an endpoint's response to the form in which the client receives it, or switches protocols for an
    /// upgrade.
    fn respond(
        &mut self,
        arrived: Arrived,
        admitted: Admitted,
        selected: &SelectedRoute,
    ) -> Result<Response<ResponseBody>, Reply> {
        let Arrived { sent, awaited } = arrived;
        let UpstreamResponse {
            mut response,
            chosen,
            flags,
        } = sent;
        let (session, version) = (&self.session, awaited.version);
        // The version of the client's connection, whatever the endpoint speaks (RFC 9110, section 2.5).
        *response.version_mut() = http::Version::HTTP_11;
        if let Some(workload) = &chosen.workload {
            selected.continue_session(workload.uid(), response.headers_mut());
        }
        self.record.reached(chosen, flags);
        let is_switched = match &awaited.upgrade {
            Some(upgrade) => upgrade.is_switched(version, &response)?,
            None => response.status() == StatusCode::SWITCHING_PROTOCOLS,
        };
        if is_switched {
            let switched = upgrade::switch(
                session,
                awaited.upgrade,
                version,
                &mut self.pending_upgrade,
                admitted.admission,
                response,
            )?;
            // The stream after the switch is not a part of the response.
            self.record.sent.completed();
            return Ok(switched.map(ResponseBody::Own));
        }
        response_headers::check(session, &mut response)?;
        let headers = response.headers_mut();
        admitted.external.change_response(session, headers);
        selected.change_response(headers);
        Ok(response.map(|incoming| {
            ResponseBody::Application(ApplicationBody {
                incoming,
                admission: admitted.admission,
                deadline: awaited.deadline,
                early: Expectation::answered(awaited.expectation.as_ref()),
                idle: awaited.idle,
            })
        }))
    }

    /// Records the failure of a request to which no endpoint responded, and returns the reply to the client.
    fn fail(&mut self, failure: Failure) -> Reply {
        if self.record.received.is_broken() {
            return Reply::refused("the request's body is not what HTTP allows", "body");
        }
        self.record.upstream_failure = Some(failure.details);
        failure.reply
    }

    fn refuse(&mut self, reply: Reply) -> Response<ResponseBody> {
        self.record.replied(&reply);
        reply.into_response(self.is_grpc).map(ResponseBody::Own)
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
            response = Box::pin(plugins.answer(response, &mut self.record)).await;
        }
        self.record.answered(&response);
        let (parts, body) = response.into_parts();
        let Self {
            session,
            record,
            plugins,
            ..
        } = self;
        let body = match body {
            ResponseBody::Own(body) => body,
            ResponseBody::Application(body) => {
                let sent = record.sent.clone();
                let keep = (record, body.early);
                let incoming = Passing::body(
                    body.incoming,
                    sent,
                    body.admission,
                    Trailers::OfResponse,
                    body.deadline,
                    keep,
                );
                let stalls = &session.shard.stalls;
                stalls.watch(body.idle.response(incoming), unread)
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
