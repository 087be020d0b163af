//! Sending a request to an endpoint, and to another if that one cannot take it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ambit_codec::Forwarded;
use ambit_model::{AppProtocol, ArcStr, DestinationLimits, NamespacedHostname, Service};
use ambit_proxy::{Local, report::chain};
use ambit_route::{BackendEndpoint, BackendRequest, LoadAt, Route, RouteError, WorkloadRef};
use ambit_telemetry::http::{ResponseFlag, ResponseFlags};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};

use super::{
    broken::Broken,
    endpoint::{self, Ruling},
    leave::Leave,
    outgoing,
    reply::Reply,
    retrying::{Again, Outcome, Retrying},
};
use crate::{
    budget::Account,
    circle::Passed,
    destination::{Held, NoWay, Port},
    message::{Body, Version},
    origination::Toward,
    session::Session,
    target::Target,
    upstream::{Checkout, HttpKey, HttpPool, Keep, StreamSlot, UpstreamError, Way},
    ways,
};

/// What a request or a connection goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// What the tunnel asks for.
    Target,
    /// A backend of a route.
    Backend(NamespacedHostname, u16),
    /// A backend of a route that is a subset of a service.
    Subset(NamespacedHostname, u16, ArcStr),
    /// A host that the client names, below the wildcard that the tunnel asks for.
    Host(ArcStr),
}

/// Where a request went.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) endpoint: SocketAddr,
    pub(super) workload: Option<WorkloadRef>,
    pub(super) service: Option<Arc<Service>>,
    /// The host outside of the mesh, where it is known.
    pub(super) remote: Option<ArcStr>,
    /// What its certificate was verified for.
    pub(super) remote_identity: Option<ArcStr>,
    /// What is counted until the answer's end, where a rule is followed.
    held: Option<Arc<(Held, Arc<Ruling>)>>,
    /// The same at the connection, where streams of it are counted.
    stream: Option<StreamSlot>,
}

/// How a request is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending<'a> {
    pub(super) passed: Passed,
    /// How long one try may take until it is answered.
    pub(super) patience: Option<Duration>,
    pub(super) again: Again<'a>,
    /// The endpoint of the session that it is of.
    pub(super) kept: Option<&'a BackendEndpoint>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) response: Response<Incoming>,
    pub(super) chosen: Chosen,
    /// What happened on the way to it.
    pub(super) flags: ResponseFlags,
}

impl Sent {
    fn new(response: Response<Incoming>, chosen: Chosen) -> Self {
        Self {
            response,
            chosen,
            flags: ResponseFlags::default(),
        }
    }
}

/// A request that came to nothing.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reply: Reply,
    /// For the log.
    pub(super) details: String,
}

impl Destination {
    /// The service, if it is one.
    pub(crate) fn service(&self, session: &Session) -> Option<Arc<Service>> {
        match self {
            Self::Target | Self::Host(_) => session.target.named().cloned(),
            Self::Backend(name, _) | Self::Subset(name, ..) => {
                let table = session.shard.waypoint.state.table();
                table.service(name).cloned()
            }
        }
    }

    /// The port of a service that it is; `None` for a pod.
    pub(super) fn port<'a>(
        &'a self,
        session: &'a Session,
    ) -> Option<(&'a NamespacedHostname, u16)> {
        match (self, &session.target) {
            (Self::Backend(name, port) | Self::Subset(name, port, _), _) => Some((name, *port)),
            (
                Self::Target | Self::Host(_),
                Target::Service {
                    served, address, ..
                },
            ) => Some((&served.name, address.port())),
            (Self::Target | Self::Host(_), Target::Pod { .. }) => None,
        }
    }

    /// The question for one of its endpoints.
    pub(super) fn backend_request<'a>(
        &self,
        session: &'a Session,
        own: &'a Local,
        failed: &'a [ArcStr],
    ) -> BackendRequest<'a> {
        BackendRequest {
            waypoint: &own.workload,
            own: &session.shard.waypoint.address,
            is_target: self.is_target(session),
            failed,
        }
    }

    /// Whether it is what the tunnel asks for, or endpoints of that.
    pub(super) fn is_asked_for(&self, session: &Session) -> bool {
        match self {
            Self::Target | Self::Host(_) => true,
            Self::Subset(name, port, _) => session.target.is_port(name, *port),
            Self::Backend(..) => false,
        }
    }

    /// What the destination speaks, as far as that is declared.
    pub(super) fn app_protocol(&self, session: &Session) -> AppProtocol {
        match self {
            Self::Target | Self::Host(_) => session.target.app_protocol(),
            Self::Backend(name, port) | Self::Subset(name, port, _) => {
                let table = session.shard.waypoint.state.table();
                let service = table.service(name);
                service.map_or(AppProtocol::Unknown, |service| service.app_protocol(*port))
            }
        }
    }

    /// Whose retries count together.
    fn account(&self, session: &Session) -> Account {
        match self {
            Self::Target | Self::Host(_) => Account::Address(session.target.address()),
            Self::Backend(name, port) | Self::Subset(name, port, _) => {
                Account::Service(name.clone(), *port)
            }
        }
    }

    /// Whether it is the service that the tunnel asks for, so that its endpoints are this waypoint's to choose from.
    fn is_target(&self, session: &Session) -> bool {
        match (self, &session.target) {
            (Self::Target | Self::Host(_), _) => true,
            (Self::Subset(name, ..), Target::Service { served, .. }) => *name == served.name,
            _ => false,
        }
    }

    /// A way to it, other than to workloads that failed.
    pub(crate) async fn route(
        &self,
        session: &Session,
        own: &Local,
        failed: &[ArcStr],
    ) -> Result<Route, RouteError> {
        let http = &session.shard.upstreams.http;
        let load = |endpoint| http.load_of(endpoint);
        let look = || self.known_route(session, own, failed, &load);
        session.shard.waypoint.completed(look).await
    }

    fn known_route(
        &self,
        session: &Session,
        own: &Local,
        failed: &[ArcStr],
        load: LoadAt<'_>,
    ) -> Result<Route, RouteError> {
        let waypoint = &session.shard.waypoint;
        match self {
            Self::Target | Self::Host(_) => {
                let target = &session.target;
                target.route(waypoint, &own.workload, failed, Some(load))
            }
            Self::Backend(name, port) | Self::Subset(name, port, _) => {
                let request = self.backend_request(session, own, failed);
                let table = waypoint.state.table();
                table.backend(&request, name, *port, Some(load), &mut rand::rng())
            }
        }
    }

    /// The port of a service that it is, if there is a rule for it.
    pub(crate) fn ruled(&self, session: &Session) -> Option<Arc<Port>> {
        let (name, number) = match (self, &session.target) {
            (Self::Subset(name, number, subset), _) => {
                let published = &session.shard.waypoint.published;
                return published.destination(name)?.subset(subset, *number);
            }
            (Self::Backend(name, number), _) => (name, *number),
            (
                Self::Target | Self::Host(_),
                Target::Service {
                    served, address, ..
                },
            ) => (&served.name, address.port()),
            (Self::Target | Self::Host(_), Target::Pod { .. }) => return None,
        };
        let published = &session.shard.waypoint.published;
        Some(published.destination(name)?.port(number))
    }

    /// What a rule says of a request to it, if there is one.
    async fn ruling(
        &self,
        session: &Session,
        version: Version,
        asked: (&HeaderMap, &Uri),
    ) -> Result<Option<Arc<Ruling>>, NoWay> {
        match self.ruled(session) {
            Some(port) => Ok(Some(Ruling::of(session, port, version, asked).await?)),
            None => match self {
                // Never to the service's other endpoints.
                Self::Subset(..) => Err(self.unknown_subset()),
                _ => Ok(None),
            },
        }
    }

    fn unknown_subset(&self) -> NoWay {
        let (service, subset) = match self {
            Self::Subset(service, _, subset) => (service.to_string(), subset.clone()),
            _ => Default::default(),
        };
        NoWay::Subset(service, subset)
    }

    fn chosen(&self, session: &Session, way: &Way) -> Chosen {
        Chosen {
            endpoint: way.endpoint(),
            workload: way.workload().cloned(),
            service: self.service(session),
            remote: match self {
                Self::Host(host) => Some(host.clone()),
                _ => None,
            },
            remote_identity: None,
            held: None,
            stream: None,
        }
    }

    /// A way to an endpoint: as a rule has it, else to the one of two drawn that has fewer requests under way.
    async fn way(
        &self,
        session: &Session,
        own: &Local,
        ruling: Option<&Arc<Ruling>>,
        (failed, kept): (&[ArcStr], Option<&BackendEndpoint>),
    ) -> Result<(Way, Option<Held>), NoPlace> {
        let waypoint = &session.shard.waypoint;
        if let Some(way) = self.given(session).await? {
            return Ok((way, None));
        }
        if let Some(ruling) = ruling {
            let is_target = self.is_target(session);
            let wish = ruling.wish(failed, kept.map(|kept| kept.workload.uid()));
            match ruling
                .port
                .route(waypoint.around(), &own.workload, is_target, wish)
            {
                Ok(Some((route, held))) => {
                    return Ok((ways::way(route, waypoint).await?, Some(held)));
                }
                Ok(None) => {}
                // What is missing is asked for below.
                Err(NoWay::Route(error)) if error.missing().is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(kept) = kept.filter(|kept| !failed.contains(kept.workload.uid()))
            && ruling.is_none()
            && let Some(route) = self.route_to(session, own, kept)
        {
            return Ok((ways::way(route, waypoint).await?, None));
        }
        let route = self.route(session, own, failed).await;
        let begins_tls = ruling.filter(|ruling| ruling.port.tls().is_some());
        if let Some(ruling) = begins_tls.or_else(|| ruling.filter(|_| self.is_subset())) {
            // What was missing is here now, or will not be; the way itself may be to an endpoint of no subset, or to
            // one that is not reached as it should be.
            let route = route.map_err(UpstreamError::from)?;
            let around = waypoint.around();
            let is_target = self.is_target(session);
            let wish = ruling.wish(failed, None);
            let chosen = ruling.port.route(around, &own.workload, is_target, wish)?;
            return match chosen {
                Some((route, held)) => Ok((ways::way(route, waypoint).await?, Some(held))),
                None if self.is_subset() => Err(self.unknown_subset().into()),
                // The service's own waypoint chooses the endpoint, and speaks to it.
                None => Ok((ways::way(route, waypoint).await?, None)),
            };
        }
        let way = ways::way(route.map_err(UpstreamError::from)?, waypoint).await?;
        Ok((way, None))
    }

    fn is_subset(&self) -> bool {
        matches!(self, Self::Subset(..))
    }
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
enum NoPlace {
    #[error(transparent)]
    Rule(#[from] NoWay),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

/// TLS with endpoints, where it begins here.
fn toward<'a>(
    session: &'a Session,
    ruling: Option<&'a Ruling>,
    host: &'a str,
) -> Option<Toward<'a>> {
    Some(Toward {
        origination: ruling?.port.tls()?,
        config: &session.shard.waypoint.config,
        host,
    })
}

/// Sends a request; returns the answer's head, its body still to come.
pub(super) async fn send(
    session: &Session,
    destination: &Destination,
    version: Version,
    sending: Sending<'_>,
    request: Request<Body>,
) -> Result<Sent, Failure> {
    let Some(own) = session.shard.waypoint.local.known().await else {
        return Err(Failure::unavailable(
            ResponseFlag::NoHealthyUpstream,
            "no_own_workload",
        ));
    };
    let Sending {
        passed,
        patience,
        again,
        kept,
    } = sending;
    let asked = (request.headers(), request.uri());
    let ruling = destination.ruling(session, version, asked).await?;
    let ruled = ruling.as_ref();
    let limits = ruling.as_ref().map(|ruling| *ruling.port.limits());
    let limits = limits.unwrap_or_default();
    let has_body = !request.body().is_end_stream();
    let host = destination.host(session);
    let toward = toward(session, ruling.as_deref(), &host);
    let (mut retrying, mut request) = Retrying::of(again, request);
    let active = session.shard.retries.active(destination.account(session));
    let mut leave: Option<Leave> = None;
    let mut failed: Vec<ArcStr> = Vec::new();
    let mut way = destination.way(session, &own, ruled, (&failed, kept)).await;
    loop {
        let (to, held) = way?;
        let to = &to;
        let mut chosen = destination.chosen(session, to);
        failed.extend(
            chosen
                .workload
                .iter()
                .map(|workload| workload.uid().clone()),
        );
        let _load = session.shard.upstreams.http.load(chosen.endpoint);
        passed.tell(request.headers_mut(), to.leads_to_waypoint());
        // Without an endpoint of its own choice it is the next waypoint that speaks to one.
        let over = toward.filter(|_| held.is_some() || !to.leads_to_waypoint());
        if let Some(over) = over {
            chosen.remote = Some(host.clone());
            chosen.remote_identity = Some(over.identity());
            if version == Version::Http2 {
                outgoing::secure(&mut request);
            }
        }
        let trying = attempt(session, &own, to, (version, &limits, over), request);
        let outcome = match patience {
            None => Some(trying.await),
            Some(patience) => tokio::time::timeout(patience, trying).await.ok(),
        };
        report(session, held.as_ref(), outcome.as_ref(), has_body);
        chosen.held = held.zip(ruling.clone()).map(Arc::new);
        let Tried {
            mut ended,
            is_reason,
            unsent,
        } = Tried::of(outcome, chosen, &retrying, ruling.as_deref());
        // What was not sent is no burden to anybody.
        let is_burden = unsent.is_none();
        if is_burden && !is_reason {
            return ended;
        }
        let Some(wait) = retrying.next() else {
            flag(&mut ended, ResponseFlag::RetryLimitExceeded);
            return ended;
        };
        if is_burden {
            // The one before is over.
            drop(leave.take());
            leave = Leave::of(session, ruling.as_ref(), &active);
            if leave.is_none() {
                flag(&mut ended, ResponseFlag::UpstreamOverflow);
                return ended;
            }
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        // To another if there is one: this one would be asked to do what it has just failed to do.
        way = destination.way(session, &own, ruled, (&failed, kept)).await;
        if way.is_err() && retrying.may_try_the_same() {
            failed.clear();
            way = destination.way(session, &own, ruled, (&failed, kept)).await;
        }
        if way.is_err()
            || matches!(
                (destination, &session.target),
                (Destination::Target, Target::Pod { .. })
            )
        {
            return ended;
        }
        // Only now: who reads the body until then goes on if this is the end.
        request = match unsent.or_else(|| retrying.request()) {
            Some(again) => again,
            None => return ended,
        };
    }
}

/// What a try came to.
struct Tried {
    ended: Result<Sent, Failure>,
    /// Whether that is a reason for another.
    is_reason: bool,
    /// The request, if nothing of it was sent and it may go to another endpoint.
    unsent: Option<Request<Body>>,
}

impl Tried {
    /// Without an outcome its time was over.
    fn of(
        outcome: Option<Result<Response<Incoming>, Attempt>>,
        mut chosen: Chosen,
        retrying: &Retrying<'_>,
        ruling: Option<&Ruling>,
    ) -> Self {
        let mut unsent = None;
        let (is_reason, ended) = match outcome {
            None => {
                let late = Failure::too_late("backend_request_timeout");
                (retrying.is_reason(&Outcome::Late), Err(late))
            }
            Some(Ok(mut response)) => {
                if let Some(ruling) = ruling {
                    chosen.stream = response.extensions_mut().remove();
                    ruling.answer(response.headers_mut());
                }
                let answer = Outcome::Answer(response.status(), response.headers());
                let is_reason = retrying.is_reason(&answer);
                (is_reason, Ok(Sent::new(response, chosen)))
            }
            Some(Err(Attempt {
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

fn flag(ended: &mut Result<Sent, Failure>, flag: ResponseFlag) {
    match ended {
        Ok(sent) => sent.flags.insert(flag),
        Err(failure) => failure.reply.flags.insert(flag),
    }
}

/// Tells of an endpoint that a rule chose what came of a try.
fn report(
    session: &Session,
    held: Option<&Held>,
    outcome: Option<&Result<Response<Incoming>, Attempt>>,
    has_body: bool,
) {
    let seen = match outcome {
        Some(outcome) => {
            let status = outcome.as_ref().map(Response::status);
            endpoint::outcome(status.map_err(|attempt| &attempt.broken), has_body)
        }
        // It took too long; a client that sends its body slowly is not the endpoint's fault.
        None => (!has_body).then_some(ambit_resilience::Outcome::Failed),
    };
    if let (Some(held), Some(seen)) = (held, seen) {
        held.report(session.shard.waypoint.around(), seen);
    }
}

/// A try that failed.
struct Attempt {
    broken: Broken,
    /// The request, if nothing of it was sent.
    unsent: Option<Request<Body>>,
}

async fn attempt(
    session: &Session,
    own: &Local,
    way: &Way,
    (version, limits, over): (Version, &DestinationLimits, Option<Toward<'_>>),
    mut request: Request<Body>,
) -> Result<Response<Incoming>, Attempt> {
    let key = HttpKey::new(way, version).over(over.map(|over| over.key()));
    let pool = &session.shard.upstreams.http;
    let sent = |error| Attempt {
        broken: Broken::of(&error),
        unsent: None,
    };
    // Only extended ones are sent.
    let is_connect = *request.method() == Method::CONNECT;
    // A connection that waited may have been closed by its endpoint in the meantime.
    while let Some(kept) = if is_connect {
        None
    } else {
        pool.take(&key, limits)
    } {
        match kept.send(pool, request).await {
            Ok(response) => return Ok(response),
            Err(mut error) => match error.take_message() {
                Some(unsent) => request = unsent,
                None => return Err(sent(error.into_error())),
            },
        }
    }
    let checkout = match open(session, own, way, &key, (limits, over, version, is_connect)).await {
        Ok(checkout) => checkout,
        Err(error) => {
            return Err(Attempt {
                broken: Broken::unreached(chain(&*error)),
                unsent: Some(request),
            });
        }
    };
    checkout.send(pool, request).await.map_err(|mut error| {
        let unsent = error.take_message();
        Attempt {
            unsent,
            ..sent(error.into_error())
        }
    })
}

async fn open(
    session: &Session,
    own: &Local,
    way: &Way,
    key: &HttpKey,
    (limits, over, version, is_connect): (&DestinationLimits, Option<Toward<'_>>, Version, bool),
) -> Result<Checkout, Box<dyn std::error::Error + Send + Sync>> {
    // Connections are shared by callers: it names none of them.
    let ip = own.workload.workload_ips.first().copied();
    let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let forwarded = Forwarded {
        client: SocketAddr::new(ip, 0),
        host: None,
    };
    let upstreams = &session.shard.upstreams;
    let over = over.map(|over| (over, Some(version)));
    let connecting = upstreams.connect(way, own, &forwarded, None, (limits, over));
    let stream = connecting.await?;
    if is_connect {
        return Ok(HttpPool::begin_extended(key, stream).await?);
    }
    let keep = Keep::under(limits);
    Ok(upstreams.http.begin(key, stream, keep).await?)
}

impl From<NoWay> for Failure {
    fn from(from: NoWay) -> Self {
        let details = from.to_string();
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let reply = match from {
            NoWay::Unsupported(why) => {
                Reply::new(unavailable, why.as_str(), ResponseFlag::NoCluster)
            }
            NoWay::Overflow(_) => Reply::new(
                unavailable,
                "upstream connect error or disconnect/reset before headers. reset reason: overflow",
                ResponseFlag::UpstreamOverflow,
            ),
            NoWay::Ejected(_) | NoWay::Subset(..) | NoWay::Route(_) => Reply::new(
                unavailable,
                "no healthy upstream",
                ResponseFlag::NoHealthyUpstream,
            ),
        };
        Self { reply, details }
    }
}

impl From<NoPlace> for Failure {
    fn from(from: NoPlace) -> Self {
        match from {
            NoPlace::Rule(rule) => rule.into(),
            NoPlace::Upstream(error) => {
                Self::unavailable(ResponseFlag::NoHealthyUpstream, &chain(&error))
            }
        }
    }
}

impl Failure {
    fn of(broken: Broken) -> Self {
        let Broken {
            status, flag, text, ..
        } = broken;
        let said = "upstream connect error or disconnect/reset before headers";
        Self {
            reply: Reply::new(status, said, flag),
            details: text,
        }
    }

    fn unavailable(flag: ResponseFlag, details: &str) -> Self {
        Self {
            reply: Reply::new(StatusCode::SERVICE_UNAVAILABLE, "no healthy upstream", flag),
            details: details.to_owned(),
        }
    }

    /// A route's timeout is over.
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
