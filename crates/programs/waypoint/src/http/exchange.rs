//! One request: normalized, authorized, routed, forwarded; and its response.

use std::{
    pin::{Pin, pin},
    sync::Arc,
};

use ambit_jwt::Authenticated;
use ambit_model::{AppProtocol, DestinationHttpVersion, ExtensionPhase};
use ambit_telemetry::http::ResponseFlag;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST},
};
use hyper::body::{Body as _, Incoming};
use tokio::{sync::Notify, time::Instant};

use super::{
    admission::{Admission, Facts},
    answer::Answer,
    authentication::authenticate,
    authorizer::{Authorized, ExternalAuthorization, authorize},
    body::{Passing, Trailers},
    client_route::Original,
    destination::Destination,
    extension::{Extended, Extension},
    fault,
    form::{self, Form},
    header_timeout::RequestPacing,
    idle::IdleTimeout,
    interim::{self, Expectation},
    limits::{self, Counted, Limited},
    mirror,
    observer::Observer,
    outgoing,
    overload::has_too_many_fields,
    record::Record,
    reply::Reply,
    retrying::RetryPolicy,
    routed::{Crossing, Routed, Taken, misdirected, route},
    send::{self, Failure, Sending, Sent},
    upgrade::{self, PendingUpgrade, Upgrade},
};
use crate::{
    headers,
    hops::Hops,
    message::{Body, Version},
    retry_mark::RetryMark,
    route_owner::RouteOwner,
    session::Session,
};

/// Responds to a request; with `refused`, if that has been decided already. `unread` is notified when the client does
/// not read the response.
pub(super) async fn respond(
    mut session: Arc<Session>,
    mut request: Request<Incoming>,
    mut refused: Option<Reply>,
    (pacing, unread): (&RequestPacing, &Arc<Notify>),
) -> Response<Body> {
    // Of a host that cannot be one the request is refused below.
    if let Ok(host) = form::host(&request) {
        match session.of_host(&host) {
            Ok(Some(specific)) => session = Arc::new(specific),
            Ok(None) => {}
            Err(error) => refused = refused.or_else(|| Some(misdirected(error))),
        }
    }
    let mut pending_upgrade = PendingUpgrade::of(&mut request);
    upgrade::as_http1(&mut request, &session.shard.waypoint.config.upgrades);
    headers::join_cookies(request.headers_mut());
    let is_grpc = is_grpc(&request);
    let mut record = Record::new(&session, &request, is_grpc);
    if request.body().is_end_stream() {
        record.received.completed();
    }
    pacing.reads(record.received.clone());
    let mut crossing = Crossing::default();
    let mut limited = Limited::default();
    let mut extended = Extended::of(&session, is_grpc);
    let response_headers = (&mut crossing, &mut limited);
    let under_way = (
        &mut pending_upgrade,
        &mut record,
        response_headers,
        &mut extended,
    );
    let answered = match refused {
        Some(reply) => Err(reply),
        None => Box::pin(answer(&session, request, under_way)).await,
    };
    let mut response = answered.unwrap_or_else(|reply| {
        record.replied(&reply);
        reply.into_response(is_grpc).map(Answer::Own)
    });
    crossing.change_answer(response.headers_mut());
    limited.change_answer(response.headers_mut());
    if let Some(extended) = &extended {
        response = Box::pin(extended.answer(response, &mut record)).await;
    }
    record.answered(&response);
    let (parts, body) = response.into_parts();
    let stalls = &session.shard.stalls;
    let body = match body {
        Answer::Own(body) => body,
        Answer::Hops(incoming, admission, deadline, (early, idle)) => {
            let sent = record.sent.clone();
            let trailers = Trailers::OfResponse;
            let keep = (record, early);
            let body = Passing::body(incoming, sent, (admission, trailers), deadline, keep);
            stalls.watch(idle.response(body), unread)
        }
    };
    let body = match &extended {
        Some(extended) if parts.status != StatusCode::SWITCHING_PROTOCOLS => {
            extended.response_body(body)
        }
        _ => body,
    };
    Response::from_parts(parts, body)
}

pub(super) fn is_grpc<B>(request: &Request<B>) -> bool {
    let of = request.headers().get(CONTENT_TYPE);
    let rest = of.and_then(|of| of.as_bytes().strip_prefix(b"application/grpc"));
    // Not `application/grpc-web`, which is answered as HTTP is.
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

#[expect(
    clippy::too_many_lines,
    reason = "the steps of a request, one after another"
)]
async fn answer(
    session: &Arc<Session>,
    mut request: Request<Incoming>,
    (pending_upgrade, record, (crossing, limited), extended): (
        &mut PendingUpgrade,
        &mut Record,
        (&mut Crossing, &mut Limited),
        &mut Option<Box<Extended>>,
    ),
) -> Result<Response<Answer>, Reply> {
    let began = Instant::now();
    let mut form = Form::of(session, &request)?;
    record.formed(&form.host, &form.target);
    let mut upgrade = upgrade::requested(&request, &session.shard.waypoint.config.upgrades);
    let idle_timeout = session.shard.waypoint.config.streams.idle_timeout;
    let idle = IdleTimeout::new(idle_timeout, request.headers(), upgrade.is_some());
    let hops = Hops::take(request.headers_mut()).ok_or_else(in_a_circle)?;
    let retry_mark = RetryMark::take(request.headers_mut());
    let is_expected = interim::is_expected(&request);
    // The authorized form is the one that is forwarded.
    strip(&mut request)?;
    if let Some(upgrade) = &upgrade {
        upgrade.ask(request.headers_mut());
    }
    record.pass_trace_on(request.headers_mut());
    let admitting = admit(
        session,
        (&mut request, &mut form),
        (hops, &idle),
        extended,
        record,
    );
    let (admission, mut authorized) = match admitting.await? {
        Admitted::On(admission, authorized) => (admission, authorized),
        Admitted::Answered(response) => return Ok(*response),
    };
    // A plugin may have made another request of it.
    if *request.method() != Method::GET && upgrade.take().is_some() {
        Upgrade::withdraw(request.headers_mut());
    }
    let mut taken = match route(session, &request, &form, record, crossing)? {
        Routed::On(taken) => taken,
        Routed::Answered(response) => return Ok(response.map(Answer::Own)),
    };
    let attachments = session.attachments();
    let counted = Counted {
        services: attachments.services(),
        request: limits::as_it_came(&request, &form),
    };
    limits::limit(session, (counted, None), (&admission, hops), limited).await?;
    // Only now: the original request was authorized and routed.
    let original = Original::of(&taken, &request, &form);
    taken.change(session, request.headers_mut(), &mut form)?;
    taken.name_host(session, &form)?;
    if let Some(original) = &original {
        original.restore_claims(session, request.headers_mut());
    }
    let destination = &taken.destination;
    let admission = judge_backend(admission, &taken, &request, &form, record)?;
    if let Some(original) = &original {
        let sent = (destination, &request, &form);
        let admitting = original.admit(session, sent, (&admission, hops), limited);
        Box::pin(admitting).await?;
    }
    let deadline = taken.timeouts().request.map(|most| began + most);
    if let Some(injected) = taken.fault() {
        Box::pin(fault::inject(injected, &admission, deadline, record)).await?;
    }
    let version = version(session, destination, upgrade.as_ref(), request.version());
    complete(session, &mut request, &form);
    let (parts, incoming) = request.into_parts();
    record.forwarded(&parts.headers);
    let received = record.received.clone();
    // A client whose body has been read for a provider has its 100.
    let asks_application = is_expected && version == Version::Http1 && !authorized.has_body();
    let expectation = (asks_application && extended.is_none()).then(Expectation::default);
    let incoming = authorized.body(incoming);
    let trailers = Trailers::OfRequest;
    let mut body = Passing::body(incoming, received, (admission.clone(), trailers), None, ());
    body = interim::hold(idle.request(body), expectation.as_ref());
    let unread = Arc::new(Notify::new());
    body = session.shard.stalls.watch(body, &unread);
    if let (Some(extended), None) = (&extended, &upgrade) {
        body = extended.request_body(body);
    }
    // What follows an upgrade is no request that could be mirrored.
    let mirrors = match upgrade {
        None => taken.mirrors(),
        Some(_) => Vec::new(),
    };
    let mirror_input = (&parts, &form, &admission, taken.route_owner());
    let (body, mirroring) = mirror::mirror(session, &mirrors, hops, mirror_input, body);
    let mut sent_on = Request::from_parts(parts, body);
    outgoing::address(&mut sent_on, &form.host, &form.target, version)?;
    match &upgrade {
        Some(upgrade) => upgrade.send_as(version, &mut sent_on),
        None if version == Version::Http1 => outgoing::frame_body(&mut sent_on),
        None => {}
    }
    // Plugins see no interim responses.
    interim::follow(&mut sent_on, expectation.as_ref(), extended.is_none());
    let sending = Sending {
        hops,
        attempt_timeout: taken.timeouts().backend_request,
        again: match taken.retry() {
            _ if retry_mark.is_set() => RetryPolicy::Unsent,
            Some(rule) => RetryPolicy::ByRule(rule),
            None => RetryPolicy::Safely,
        },
        retry_mark,
        sticky: taken.sticky(),
    };
    let sending = send::send(session, destination, version, sending, sent_on);
    let sending = pin!(sending);
    let first = first_answer(sending, (deadline, &*unread), extended.as_deref()).await;
    mirroring.original_over();
    let sent = match first {
        First::Sent(sent) => sent,
        First::Plugin(response) => return Ok(response),
    };
    let Sent {
        mut response,
        chosen,
        flags,
    } = sent.map_err(|failure| idle.reply().unwrap_or_else(|| failed(failure, record)))?;
    // Of its own connection, whatever the endpoint speaks (RFC 9110, section 2.5).
    *response.version_mut() = http::Version::HTTP_11;
    if let Some(workload) = &chosen.workload {
        taken.continue_session(workload.uid(), response.headers_mut());
    }
    record.reached(chosen, flags);
    let is_switched = match &upgrade {
        Some(upgrade) => upgrade.is_switched(version, &response)?,
        None => response.status() == StatusCode::SWITCHING_PROTOCOLS,
    };
    if is_switched {
        let switched = upgrade::switch(
            session,
            (upgrade, version),
            pending_upgrade,
            admission,
            response,
        )?;
        // What follows is no part of the answer.
        record.sent.completed();
        return Ok(switched.map(Answer::Own));
    }
    check_response(session, &mut response)?;
    authorized.change_answer(session, response.headers_mut());
    taken.change_answer(response.headers_mut());
    let early = Expectation::answered(expectation.as_ref());
    Ok(response.map(|incoming| Answer::Hops(incoming, admission, deadline, (early, idle))))
}

/// Replies to a request that failed before an upstream responded.
fn failed(failure: Failure, record: &mut Record) -> Reply {
    if record.received.is_broken() {
        return Reply::refused("the request's body is not what HTTP allows", "body");
    }
    record.upstream_failure = Some(failure.details);
    failure.reply
}

fn protocol_error() -> Reply {
    let flag = ResponseFlag::UpstreamProtocolError;
    Reply::new(StatusCode::BAD_GATEWAY, "upstream protocol error", flag)
}

/// Validates a response before it is forwarded.
fn check_response(session: &Session, response: &mut Response<Incoming>) -> Result<(), Reply> {
    let limits = session.shard.waypoint.config.headers;
    if has_too_many_fields(response.headers(), limits) {
        return Err(too_many_headers(limits.fields));
    }
    if !may_pass(response.headers_mut()) {
        return Err(protocol_error());
    }
    headers::remove_claims_of_response(response.headers_mut());
    Ok(())
}

fn too_many_headers(most: usize) -> Reply {
    let text = format!(
        "the application's response has more than {most} header fields (AMBIT_MAX_HEADERS)"
    );
    let flag = ResponseFlag::UpstreamProtocolError;
    Reply::new(StatusCode::BAD_GATEWAY, text, flag)
}

/// Removes the headers of one hop from a response; false if it may not be passed on.
fn may_pass(all: &mut HeaderMap) -> bool {
    !headers::has_other_encoding(all) && headers::remove_hop_by_hop(all).is_ok()
}

/// Source of the first response.
enum First {
    /// Result of sending the request to an endpoint.
    Sent(Result<Sent, Failure>),
    /// Response of a plugin while the request's body was being forwarded.
    Plugin(Response<Answer>),
}

/// Sends a request, as long as its deadline and its plugins let it.
async fn first_answer(
    mut sending: Pin<&mut impl Future<Output = Result<Sent, Failure>>>,
    (deadline, unread): (Option<Instant>, &Notify),
    extended: Option<&Extended>,
) -> First {
    let sending = async {
        let late = async {
            match deadline {
                None => std::future::pending().await,
                Some(at) => tokio::time::sleep_until(at).await,
            }
        };
        tokio::select! {
            biased;
            sent = sending.as_mut() => sent,
            () = late => Err(Failure::too_late("request_timeout")),
            () = unread.notified() => Err(Failure::too_late("request_body_stalled")),
        }
    };
    let Some(extended) = extended else {
        return First::Sent(sending.await);
    };
    let sent = tokio::select! {
        biased;
        response = extended.answered() => return First::Plugin(response),
        sent = sending => sent,
    };
    if sent.is_err()
        && let Some(response) = extended.has_answered()
    {
        return First::Plugin(response);
    }
    First::Sent(sent)
}

/// Result of the steps before routing.
enum Admitted {
    /// Request that continues with routing.
    On(Admission, Box<ExternalAuthorization>),
    /// Response of a provider or plugin to the client.
    Answered(Box<Response<Answer>>),
}

/// Calls the provider of CUSTOM policies, verifies tokens, runs plugins, and authorizes the resulting request.
async fn admit(
    session: &Arc<Session>,
    (request, form): (&mut Request<Incoming>, &mut Form),
    (hops, idle): (Hops, &IdleTimeout),
    extended: &mut Option<Box<Extended>>,
    record: &mut Record,
) -> Result<Admitted, Reply> {
    if let Some(extended) = extended {
        extended.set_hops(hops);
    }
    let context = (hops, is_grpc(request), idle);
    let authorizing = authorize(session, request, form, record, context);
    let external = match Box::pin(authorizing).await? {
        Authorized::On(external) => external,
        Authorized::Answered(response) => {
            return Ok(Admitted::Answered(Box::new(response.map(Answer::Own))));
        }
    };
    if let Some(extended) = extended
        && let Extension::Answered(response) = extended
            .request(ExtensionPhase::Authn, request, form)
            .await?
    {
        return Ok(Admitted::Answered(response));
    }
    let proved = authenticate(session, request, form, record)?;
    if let Some(extended) = extended
        && let Extension::Answered(response) = extended
            .request(ExtensionPhase::Authz, request, form)
            .await?
    {
        return Ok(Admitted::Answered(response));
    }
    let by = (&proved, &external);
    let mut admission = judge(session, request, form, by, record)?;
    if let Some(extended) = extended {
        let last = ExtensionPhase::Unspecified;
        match extended.request(last, request, form).await? {
            Extension::Unchanged => {}
            // The authorized form is the one that is forwarded.
            Extension::Seen => admission = judge(session, request, form, by, record)?,
            Extension::Answered(response) => return Ok(Admitted::Answered(response)),
        }
    }
    Ok(Admitted::On(admission, Box::new(external)))
}

/// Judges a request by its policies.
pub(super) fn judge<B>(
    session: &Arc<Session>,
    request: &Request<B>,
    form: &Form,
    (proved, external): (&Authenticated, &ExternalAuthorization),
    observer: &mut impl Observer,
) -> Result<Admission, Reply> {
    let facts = Facts::of(request, form);
    let (decision, admission) = Admission::of(session, facts, proved.clone(), external.by.clone());
    observer.judged(&decision);
    admission.ok_or_else(Reply::denied)
}

/// The version that a request is sent in: as the port declares, unless a rule chooses otherwise.
fn version(
    session: &Session,
    destination: &Destination,
    upgrade: Option<&Upgrade>,
    came: http::Version,
) -> Version {
    let declared = destination.app_protocol(session);
    let ruled = destination.ruled(session);
    let ruled = ruled.map(|port| port.policy().http_version);
    let ruled = ruled.unwrap_or_default();
    if let Some(upgrade) = upgrade {
        return upgrade.version(declared);
    }
    match (ruled, declared) {
        (DestinationHttpVersion::AlwaysHttp2, _) => Version::Http2,
        (DestinationHttpVersion::AsDeclared, AppProtocol::Http11) => Version::Http1,
        (DestinationHttpVersion::AsDeclared, AppProtocol::Http2 | AppProtocol::Grpc) => {
            Version::Http2
        }
        (DestinationHttpVersion::AsDeclared | DestinationHttpVersion::AsClient, _) => {
            outgoing::version_of(came)
        }
    }
}

/// Authorizes a request that a route forwards to another service for that one, too, and one that a consumer route
/// changes as if the client had sent it in that form.
pub(super) fn judge_backend<B>(
    admission: Admission,
    taken: &Taken,
    request: &Request<B>,
    form: &Form,
    observer: &mut impl Observer,
) -> Result<Admission, Reply> {
    let by = taken.route_owner();
    let is_requested = matches!(
        taken.destination,
        Destination::Target | Destination::Host(_)
    );
    if by == RouteOwner::Service && is_requested {
        return Ok(admission);
    }
    let sent = taken
        .changes_request()
        .then(|| Facts::as_sent(request, form));
    let (decision, admission) = admission.authorize_backend(&taken.destination, by, sent);
    if let Some(decision) = decision {
        observer.judged(&decision);
    }
    admission.ok_or_else(Reply::denied)
}

/// Returns the response to a request in a routing loop.
pub(super) fn in_a_circle() -> Reply {
    let text = "the routes of waypoints form a loop";
    Reply::new(StatusCode::LOOP_DETECTED, text, ResponseFlag::NoRoute)
}

/// Removes the headers that are not sent on.
pub(super) fn strip<B>(request: &mut Request<B>) -> Result<(), Reply> {
    let all = request.headers_mut();
    if headers::has_other_encoding(all) {
        let reply = Reply::refused(
            "only the transfer encoding chunked is supported",
            "transfer_encoding",
        );
        return Err(reply.with_status(StatusCode::NOT_IMPLEMENTED));
    }
    let removed = headers::remove_hop_by_hop(all);
    removed.map_err(|error| Reply::refused(error.to_string(), "connection_header"))?;
    headers::remove_claims(all);
    // The framing is made anew, and `Expect` with it.
    all.remove(CONTENT_LENGTH);
    all.remove(EXPECT);
    Ok(())
}

/// Adds generated headers.
fn complete(session: &Session, request: &mut Request<Incoming>, form: &Form) {
    let all = request.headers_mut();
    // Plugins and routes may have added lines.
    headers::join_cookies(all);
    all.remove(HOST);
    if let Ok(host) = HeaderValue::from_str(&form.host) {
        all.insert(HOST, host);
    }
    let gateway = session.shard.waypoint.published.gateway();
    if gateway.trusted_proxies > 0 {
        let client = session.remote_ip(all);
        headers::add_external_address(all, client);
    }
    headers::add_forwarding(all, session.caller.address.ip());
    let waypoint = &session.shard.waypoint;
    if gateway.client_identity_header {
        let client = session.caller.identity.as_ref();
        headers::add_client_identity(all, &waypoint.dialer.identity, client);
    }
}
