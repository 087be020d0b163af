//! One request: brought into form, judged, routed, sent on; its answer on the way back.

use std::{
    pin::{Pin, pin},
    sync::Arc,
};

use ambit_jwt::Authenticated;
use ambit_model::{AppProtocol, ExtensionPhase};
use ambit_telemetry::http::ResponseFlag;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST},
};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::{
    admission::{Admission, Facts},
    answer::Answer,
    authentication::authenticate,
    authorizer::{Asked, Authorized, authorize},
    body::Passing,
    extension::{Extended, Extension},
    fault,
    form::Form,
    limits::{self, Limited},
    mirror, outgoing,
    record::Record,
    reply::Reply,
    retrying::Again,
    routed::{Crossing, Routed, Taken, route},
    send::{self, Destination, Failure, Sending, Sent},
    upgrade::{self, Leftover, Upgrade},
};
use crate::{
    circle::Passed,
    headers,
    led_by::LedBy,
    message::{Body, Version},
    session::Session,
};

/// Answers a request.
pub(super) async fn respond(
    session: Arc<Session>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let mut leftover = Leftover::of(&mut request);
    upgrade::as_http1(&mut request);
    let is_grpc = is_grpc(&request);
    let mut record = Record::new(&session, &request, is_grpc);
    let mut crossing = Crossing::default();
    let mut limited = Limited::default();
    let mut extended = Extended::of(&session, is_grpc);
    let said = (&mut crossing, &mut limited);
    let under_way = (&mut leftover, &mut record, said, &mut extended);
    let answering = answer(&session, request, under_way);
    let answered = Box::pin(answering).await;
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
    let body = match body {
        Answer::Own(body) => body,
        Answer::Passed(incoming, admission, deadline) => {
            let sent = record.sent.clone();
            Passing::body(incoming, sent, Some(admission), deadline, record)
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

fn is_grpc<B>(request: &Request<B>) -> bool {
    let of = request.headers().get(CONTENT_TYPE);
    let rest = of.and_then(|of| of.as_bytes().strip_prefix(b"application/grpc"));
    // Not `application/grpc-web`, which is answered as HTTP is.
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

async fn answer(
    session: &Arc<Session>,
    mut request: Request<Incoming>,
    (leftover, record, (crossing, limited), extended): (
        &mut Leftover,
        &mut Record,
        (&mut Crossing, &mut Limited),
        &mut Option<Box<Extended>>,
    ),
) -> Result<Response<Answer>, Reply> {
    let began = Instant::now();
    let mut form = Form::of(session, &request)?;
    record.formed(&form.host, &form.target);
    let upgrade = upgrade::requested(&request);
    // What is judged is what is forwarded.
    strip(&mut request)?;
    let passed = Passed::take(request.headers_mut()).ok_or_else(in_a_circle)?;
    if let Some(upgrade) = &upgrade {
        upgrade.ask(request.headers_mut());
    }
    record.pass_trace_on(request.headers_mut());
    let admitting = admit(session, (&mut request, &mut form), passed, extended, record);
    let (admission, mut authorized) = match admitting.await? {
        Admitted::On(admission, authorized) => (admission, authorized),
        Admitted::Answered(response) => return Ok(*response),
    };
    let mut taken = match route(session, &request, &form, record, crossing)? {
        Routed::On(taken) => taken,
        Routed::Answered(response) => return Ok(response.map(Answer::Own)),
    };
    // What came is counted, and not what becomes of it.
    limits::limit(session, &request, &form, (&admission, passed), limited).await?;
    // Only now: what was judged and routed is what came.
    taken.change(session, request.headers_mut(), &mut form)?;
    taken.name_host(session, &form)?;
    let destination = &taken.destination;
    let admission = judge_led(admission, &taken, &request, &form, record)?;
    let deadline = taken.timeouts().request.map(|most| began + most);
    if let Some(injected) = taken.fault() {
        Box::pin(fault::inject(injected, &admission, deadline, record)).await?;
    }
    let declared = destination.app_protocol(session);
    let version = version(upgrade.as_ref(), declared, request.version());
    complete(session, &mut request, &form);
    let (parts, incoming) = request.into_parts();
    record.forwarded(&parts.headers);
    let received = record.received.clone();
    let incoming = authorized.body(incoming);
    let mut body = Passing::body(incoming, received, Some(admission.clone()), None, ());
    if let (Some(extended), None) = (&extended, &upgrade) {
        body = extended.request_body(body);
    }
    // What follows an upgrade is no request that could be mirrored.
    let mirrors = match upgrade {
        None => taken.mirrors(),
        Some(_) => Vec::new(),
    };
    let asked = (&parts, &form, &admission, taken.led_by());
    let body = mirror::mirror(session, &mirrors, passed, asked, body);
    let mut sent_on = Request::from_parts(parts, body);
    outgoing::address(&mut sent_on, &form.host, &form.target, version)?;
    if let Some(upgrade) = &upgrade {
        upgrade.send_as(version, &mut sent_on);
    }
    let sending = Sending {
        passed,
        patience: taken.timeouts().backend_request,
        again: taken.retry().map_or(Again::Safely, Again::ByRule),
        kept: taken.kept(),
    };
    let sending = send::send(session, destination, version, sending, sent_on);
    let sending = pin!(sending);
    let sent = match first_answer(sending, deadline, extended.as_deref()).await {
        First::Sent(sent) => sent,
        First::Plugin(response) => return Ok(response),
    };
    let Sent {
        mut response,
        chosen,
        flags,
    } = sent.map_err(|failure| {
        if record.received.is_broken() {
            return Reply::refused("the request's body is not what HTTP allows", "body");
        }
        record.upstream_failure = Some(failure.details);
        failure.reply
    })?;
    if let Some(workload) = &chosen.workload {
        taken.continue_session(workload.uid(), response.headers_mut());
    }
    record.reached(chosen, flags);
    let is_switched = match &upgrade {
        Some(upgrade) => upgrade.is_switched(version, &response)?,
        None => response.status() == StatusCode::SWITCHING_PROTOCOLS,
    };
    if is_switched {
        let switched = upgrade::switch(session, upgrade, leftover, admission, response)?;
        // What follows is no part of the answer.
        record.sent.completed();
        return Ok(switched.map(Answer::Own));
    }
    let all = response.headers_mut();
    if headers::has_other_encoding(all) || headers::remove_hop_by_hop(all).is_err() {
        let flag = ResponseFlag::UpstreamProtocolError;
        return Err(Reply::new(
            StatusCode::BAD_GATEWAY,
            "upstream protocol error",
            flag,
        ));
    }
    authorized.change_answer(session, response.headers_mut());
    taken.change_answer(response.headers_mut());
    Ok(response.map(|incoming| Answer::Passed(incoming, admission, deadline)))
}

/// Who answers first.
enum First {
    /// The endpoint, or nobody.
    Sent(Result<Sent, Failure>),
    /// A plugin, while the request's body was on its way.
    Plugin(Response<Answer>),
}

/// Sends a request, as long as its deadline and its plugins let it.
async fn first_answer(
    mut sending: Pin<&mut impl Future<Output = Result<Sent, Failure>>>,
    deadline: Option<Instant>,
    extended: Option<&Extended>,
) -> First {
    let sending = async {
        match deadline {
            None => sending.as_mut().await,
            Some(at) => match tokio::time::timeout_at(at, sending.as_mut()).await {
                Ok(sent) => sent,
                Err(_) => Err(Failure::too_late("request_timeout")),
            },
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

/// What becomes of a request before it is routed.
enum Admitted {
    /// It goes on.
    On(Admission, Asked),
    /// A provider or a plugin answers it.
    Answered(Box<Response<Answer>>),
}

/// Asks the provider of CUSTOM policies, verifies tokens, and judges what plugins and these have made of the request.
async fn admit(
    session: &Arc<Session>,
    (request, form): (&mut Request<Incoming>, &mut Form),
    passed: Passed,
    extended: &mut Option<Box<Extended>>,
    record: &mut Record,
) -> Result<Admitted, Reply> {
    let context = (passed, is_grpc(request));
    let authorizing = authorize(session, request, form, record, context);
    let asked = match Box::pin(authorizing).await? {
        Authorized::On(asked) => asked,
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
    let by = (&proved, &asked);
    let mut admission = judge(session, request, form, by, record)?;
    if let Some(extended) = extended {
        let last = ExtensionPhase::Unspecified;
        match extended.request(last, request, form).await? {
            Extension::Unchanged => {}
            // What is judged is what is forwarded.
            Extension::Seen => admission = judge(session, request, form, by, record)?,
            Extension::Answered(response) => return Ok(Admitted::Answered(response)),
        }
    }
    Ok(Admitted::On(admission, asked))
}

fn judge(
    session: &Arc<Session>,
    request: &Request<Incoming>,
    form: &Form,
    (proved, asked): (&Authenticated, &Asked),
    record: &mut Record,
) -> Result<Admission, Reply> {
    let facts = Facts {
        method: request.method().clone(),
        host: form.host.clone(),
        path: form.path.clone(),
        headers: request.headers().clone(),
    };
    let (decision, admission) = Admission::of(session, facts, proved.clone(), asked.by.clone());
    record.judged(&decision);
    admission.ok_or_else(Reply::denied)
}

/// In which version a request is sent.
fn version(upgrade: Option<&Upgrade>, declared: AppProtocol, came: http::Version) -> Version {
    match (upgrade, declared) {
        (Some(upgrade), _) => upgrade.version(declared),
        (None, AppProtocol::Http11) => Version::Http1,
        (None, AppProtocol::Http2 | AppProtocol::Grpc) => Version::Http2,
        (None, _) => outgoing::version_of(came),
    }
}

/// Judges what a route leads to another service as that one's, too, and what a route of its clients makes of a request
/// as if they had sent that.
fn judge_led(
    admission: Admission,
    taken: &Taken,
    request: &Request<Incoming>,
    form: &Form,
    record: &mut Record,
) -> Result<Admission, Reply> {
    let by = taken.led_by();
    let is_asked_for = matches!(
        taken.destination,
        Destination::Target | Destination::Host(_)
    );
    if by == LedBy::Service && is_asked_for {
        return Ok(admission);
    }
    let sent = taken.changes_request().then(|| Facts {
        method: request.method().clone(),
        host: form.host.clone(),
        path: form.target.path().to_owned(),
        headers: request.headers().clone(),
    });
    let (decision, admission) = admission.led_to(&taken.destination, by, sent);
    if let Some(decision) = decision {
        record.judged(&decision);
    }
    admission.ok_or_else(Reply::denied)
}

/// A request that has passed too many waypoints.
fn in_a_circle() -> Reply {
    let text = "the routes of waypoints lead in a circle";
    Reply::new(StatusCode::LOOP_DETECTED, text, ResponseFlag::NoRoute)
}

/// Removes the headers that are not sent on.
fn strip(request: &mut Request<Incoming>) -> Result<(), Reply> {
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
    headers::remove_identities(all);
    // The framing is made anew, and the body is read from the client as soon as it is asked for.
    all.remove(CONTENT_LENGTH);
    all.remove(EXPECT);
    Ok(())
}

/// Adds the headers that are made here.
fn complete(session: &Session, request: &mut Request<Incoming>, form: &Form) {
    let all = request.headers_mut();
    all.remove(HOST);
    if let Ok(host) = HeaderValue::from_str(&form.host) {
        all.insert(HOST, host);
    }
    headers::add_forwarding(all, session.caller.address.ip());
    let waypoint = &session.shard.waypoint;
    if waypoint.published.gateway().client_identity_header {
        let client = session.caller.identity.as_ref();
        headers::add_client_identity(all, &waypoint.dialer.identity, client);
    }
}
