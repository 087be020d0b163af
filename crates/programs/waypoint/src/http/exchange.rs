//! One request: brought into form, judged, routed, sent on; its answer on the way back.

use std::sync::Arc;

use ambit_l7::{
    path,
    route::{self, Backend, Choice, MatchedPath, RouteRequest, Rule},
};
use ambit_model::{AppProtocol, HttpTimeouts, NamespacedHostname};
use ambit_telemetry::http::ResponseFlag;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, LOCATION},
    uri::PathAndQuery,
};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::{
    admission::Admission,
    body::Passing,
    headers,
    record::Record,
    reply::Reply,
    send::{self, Destination, Failure},
    upgrade::{self, Leftover},
};
use crate::{
    circle::Passed,
    message::{self, Body, Version},
    session::Session,
    target::Target,
};

/// The kind of routes whose requests are gRPC's.
const GRPC_ROUTE: &str = "GRPCRoute";

/// Answers a request.
pub(super) async fn respond(
    session: Arc<Session>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let mut leftover = Leftover::of(&mut request);
    let is_grpc = is_grpc(&request);
    let mut record = Record::new(&session, &request, is_grpc);
    let answered = Box::pin(answer(&session, request, &mut leftover, &mut record)).await;
    let response = answered.unwrap_or_else(|reply| {
        record.replied(&reply);
        reply.into_response(is_grpc).map(Answer::Own)
    });
    record.answered(&response);
    let (parts, body) = response.into_parts();
    let body = match body {
        Answer::Own(body) => body,
        Answer::Passed(incoming, admission, deadline) => {
            let sent = record.sent.clone();
            Passing::body(incoming, sent, Some(admission), deadline, record)
        }
    };
    Response::from_parts(parts, body)
}

/// The body of an answer.
pub(super) enum Answer {
    /// Our own.
    Own(Body),
    /// The application's, as long as policies admit it, and until a deadline.
    Passed(Incoming, Admission, Option<Instant>),
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
    leftover: &mut Leftover,
    record: &mut Record,
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
    let admission = judge(session, &request, &form, record)?;
    let routed = route(session, &request, &form, record)?;
    let taken = match routed {
        Routed::On(taken) => taken,
        Routed::Elsewhere(response) => return Ok(response.map(Answer::Own)),
    };
    // Only now: what was judged and routed is what came.
    taken.change(session, request.headers_mut(), &mut form)?;
    let destination = &taken.destination;
    let deadline = taken.timeouts().request.map(|most| began + most);
    let version = match (&upgrade, destination.app_protocol(session)) {
        (Some(_), _) | (None, AppProtocol::Http11) => Version::Http1,
        (None, AppProtocol::Http2 | AppProtocol::Grpc) => Version::Http2,
        (None, _) => version_of(request.version()),
    };
    complete(session, &mut request, &form);
    let (parts, incoming) = request.into_parts();
    record.forwarded(&parts.headers);
    let received = record.received.clone();
    let body = Passing::body(incoming, received, Some(admission.clone()), None, ());
    let mut outgoing = Request::from_parts(parts, body);
    address(&mut outgoing, &form, version)?;
    let patience = taken.timeouts().backend_request;
    let sending = send::send(session, destination, version, (passed, patience), outgoing);
    let sent = match deadline {
        None => sending.await,
        Some(at) => match tokio::time::timeout_at(at, sending).await {
            Ok(sent) => sent,
            Err(_) => Err(Failure::too_late("request_timeout")),
        },
    };
    let (mut response, chosen) = sent.map_err(|failure| {
        if record.received.is_broken() {
            return Reply::refused("the request's body is not what HTTP allows", "body");
        }
        record.upstream_failure = Some(failure.details);
        failure.reply
    })?;
    record.reached(chosen);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let switched = upgrade::switch(session, upgrade, leftover, admission, response)?;
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
    taken.change_answer(response.headers_mut());
    Ok(response.map(|incoming| Answer::Passed(incoming, admission, deadline)))
}

fn version_of(version: http::Version) -> Version {
    if version == http::Version::HTTP_2 {
        Version::Http2
    } else {
        Version::Http1
    }
}

/// A request's host and path, in the one form that everything sees.
#[derive(Debug)]
struct Form {
    host: String,
    /// Without the query.
    path: String,
    target: PathAndQuery,
}

impl Form {
    /// Of whose path a rule's match took `prefix` bytes.
    fn matched(&self, prefix: usize) -> MatchedPath<'_> {
        MatchedPath {
            path: &self.path,
            query: self.target.query(),
            prefix,
        }
    }

    fn of(session: &Session, request: &Request<Incoming>) -> Result<Self, Reply> {
        if *request.method() == Method::CONNECT {
            let reply = Reply::refused("CONNECT is not supported", "method");
            return Err(reply.with_status(StatusCode::METHOD_NOT_ALLOWED));
        }
        let host = host(request).map_err(|error| Reply::refused(error, "host"))?;
        let mode = session
            .shard
            .waypoint
            .published
            .gateway()
            .path_normalization;
        let given = request.uri().path_and_query();
        let given = given.map_or("/", PathAndQuery::as_str);
        let normal = path::for_request(request.method(), given, mode);
        let normal = normal.map_err(|error| Reply::refused(error.to_string(), error.reason()))?;
        let target = PathAndQuery::try_from(normal.as_str());
        let target = target.map_err(|error| Reply::refused(error.to_string(), "path_form"))?;
        Ok(Self {
            host,
            path: normal.path().to_owned(),
            target,
        })
    }
}

/// The host that a request is for. What could be read in two ways is refused: another host in the target than in
/// the header, several headers, or credentials in it.
fn host(request: &Request<Incoming>) -> Result<String, &'static str> {
    let mut lines = request.headers().get_all(HOST).iter();
    let header = lines.next().map(HeaderValue::to_str).transpose();
    let header = header.map_err(|_| "the host is no text")?;
    if lines.next().is_some() {
        return Err("there is more than one host header");
    }
    let authority = request.uri().authority().map(|one| one.as_str());
    let host = match (authority, header) {
        (Some(authority), Some(header)) if !authority.eq_ignore_ascii_case(header) => {
            return Err("the host header is another than the target's");
        }
        (Some(host), _) | (None, Some(host)) => host,
        (None, None) if request.version() <= http::Version::HTTP_10 => "",
        (None, None) => return Err("there is no host"),
    };
    if host.contains('@') || (!host.is_empty() && host.parse::<http::uri::Authority>().is_err()) {
        return Err("the host cannot be one");
    }
    Ok(host.to_owned())
}

fn judge(
    session: &Arc<Session>,
    request: &Request<Incoming>,
    form: &Form,
    record: &mut Record,
) -> Result<Admission, Reply> {
    let (decision, admission) = Admission::of(
        session,
        request.method().clone(),
        form.host.clone(),
        form.path.clone(),
        request.headers().clone(),
    );
    record.judged(&decision);
    admission.ok_or_else(Reply::denied)
}

/// What the routes of a service make of a request.
enum Routed {
    /// It is sent.
    On(Taken),
    /// It is answered with another address.
    Elsewhere(Response<Body>),
}

/// Where a request is sent, and what is done with it on the way.
#[derive(Debug)]
struct Taken {
    destination: Destination,
    /// None: the service leads to itself.
    rule: Option<Chosen>,
}

/// What was chosen of a rule.
#[derive(Debug)]
struct Chosen {
    rule: Arc<Rule>,
    /// Which of its backends.
    backend: usize,
    /// Bytes of the path that the match took as prefix.
    prefix: usize,
}

impl Chosen {
    fn backend(&self) -> Option<&Backend> {
        self.rule.backends().get(self.backend)
    }
}

impl Taken {
    fn itself() -> Self {
        Self {
            destination: Destination::Target,
            rule: None,
        }
    }

    fn timeouts(&self) -> HttpTimeouts {
        let rule = self.rule.as_ref();
        rule.map(|chosen| chosen.rule.timeouts).unwrap_or_default()
    }

    /// Changes the request as the rule has it, and then as the backend has it.
    fn change(
        &self,
        session: &Session,
        headers: &mut HeaderMap,
        form: &mut Form,
    ) -> Result<(), Reply> {
        let Some(chosen) = &self.rule else {
            return Ok(());
        };
        chosen.rule.filters.change_request(headers);
        if let Some(backend) = chosen.backend() {
            backend.filters.change_request(headers);
        }
        let Some(rewrite) = &chosen.rule.filters.rewrite else {
            return Ok(());
        };
        if let Some(host) = &rewrite.hostname {
            host.as_str().clone_into(&mut form.host);
        }
        if rewrite.path.is_some() {
            let published = &session.shard.waypoint.published;
            let mode = published.gateway().path_normalization;
            let asked = form.matched(chosen.prefix);
            let target = route::changed(rewrite.path.as_ref(), asked, mode);
            let target = target.map_err(|error| unroutable(&error.to_string()))?;
            let target = PathAndQuery::try_from(target);
            form.target = target.map_err(|error| unroutable(&error.to_string()))?;
        }
        Ok(())
    }

    /// Changes the answer in the same order.
    fn change_answer(&self, headers: &mut HeaderMap) {
        let Some(chosen) = &self.rule else { return };
        chosen.rule.filters.change_response(headers);
        if let Some(backend) = chosen.backend() {
            backend.filters.change_response(headers);
        }
    }
}

/// A request that has passed too many waypoints.
fn in_a_circle() -> Reply {
    let text = "the routes of waypoints lead in a circle";
    Reply::new(StatusCode::LOOP_DETECTED, text, ResponseFlag::NoRoute)
}

/// A request that its rule leads nowhere.
fn unroutable(text: &str) -> Reply {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    Reply::new(status, text, ResponseFlag::NoCluster)
}

/// The same, as the kind of its route has it: of a GRPCRoute, `UNAVAILABLE`.
fn leads_nowhere(rule: &Rule, text: &str) -> Reply {
    let reply = unroutable(text);
    if rule.route.kind == GRPC_ROUTE {
        return reply.with_status(StatusCode::SERVICE_UNAVAILABLE);
    }
    reply
}

/// Where a request goes, by the routes of its service.
fn route(
    session: &Session,
    request: &Request<Incoming>,
    form: &Form,
    record: &mut Record,
) -> Result<Routed, Reply> {
    let Target::Service {
        served, address, ..
    } = &session.target
    else {
        return Ok(Routed::On(Taken::itself()));
    };
    // As it is now: the tunnel may be older than the routes.
    let now = session.shard.waypoint.published.service(&served.name);
    let Some(served) = now else {
        let text = "this waypoint does not serve the service any more";
        return Err(Reply::new(
            StatusCode::NOT_FOUND,
            text,
            ResponseFlag::NoRoute,
        ));
    };
    let table = served.routes(address.port(), session.caller.namespace());
    let choice = table.choose(&RouteRequest {
        method: request.method().as_str(),
        path: &form.path,
        query: form.target.query(),
        headers: request.headers(),
    });
    let (rule, prefix) = match choice {
        Choice::Itself => return Ok(Routed::On(Taken::itself())),
        Choice::NoMatch => {
            return Err(Reply::new(StatusCode::NOT_FOUND, "", ResponseFlag::NoRoute));
        }
        Choice::Rule(rule, prefix) => (rule, prefix),
    };
    record.route = Some(rule.route.to_string());
    if let Some(why) = &rule.unsupported {
        return Err(leads_nowhere(rule, why));
    }
    if let Some(redirect) = &rule.filters.redirect {
        let mode = session
            .shard
            .waypoint
            .published
            .gateway()
            .path_normalization;
        let to = redirect.location(&form.host, address.port(), form.matched(prefix), mode);
        let location = to.map_err(|error| unroutable(&error.to_string()))?;
        let location = HeaderValue::from_str(&location);
        let location = location.map_err(|error| unroutable(&error.to_string()))?;
        let mut response = Response::new(message::text(""));
        *response.status_mut() = redirect.status;
        response.headers_mut().insert(LOCATION, location);
        rule.filters.change_response(response.headers_mut());
        return Ok(Routed::Elsewhere(response));
    }
    let drawn = rule.backend(&mut rand::rng());
    let (backend, to) = drawn.ok_or_else(|| leads_nowhere(rule, "no backend"))?;
    let destination = match &to.to.service {
        Ok(name) if *name == served.name && to.to.port == address.port() => Destination::Target,
        Ok(name) => Destination::Backend(NamespacedHostname::clone(name), to.to.port),
        Err(why) => return Err(leads_nowhere(rule, why)),
    };
    Ok(Routed::On(Taken {
        destination,
        rule: Some(Chosen {
            rule: rule.clone(),
            backend,
            prefix,
        }),
    }))
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

/// Gives the target the form that the version wants.
fn address(request: &mut Request<Body>, form: &Form, version: Version) -> Result<(), Reply> {
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(form.target.clone());
    match version {
        Version::Http1 => *request.version_mut() = http::Version::HTTP_11,
        Version::Http2 => {
            *request.version_mut() = http::Version::HTTP_2;
            request.headers_mut().remove(HOST);
            let authority = form.host.parse();
            parts.scheme = Some(http::uri::Scheme::HTTP);
            parts.authority =
                Some(authority.map_err(|_| Reply::refused("there is no host", "host"))?);
        }
    }
    *request.uri_mut() =
        Uri::from_parts(parts).map_err(|error| Reply::refused(error.to_string(), "target"))?;
    Ok(())
}
