//! Sending a request to an endpoint, and to another if that one cannot take it.
//!
//! What may have reached an application is sent again only if that changes nothing: a request without a body
//! whose method is idempotent (RFC 9110, section 9.2.2), or that HTTP/2 says was not processed (RFC 9113, section
//! 8.7).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ambit_codec::Forwarded;
use ambit_model::{AppProtocol, ArcStr, DestinationLimits, NamespacedHostname, Service};
use ambit_proxy::{Local, report::chain};
use ambit_resilience::{Outcome, Slot};
use ambit_route::{BackendRequest, LoadAt, Route, RouteError, WorkloadRef};
use ambit_telemetry::http::ResponseFlag;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};

use super::{
    broken::Broken,
    circle::Passed,
    endpoint::{self, Ruling},
    reply::Reply,
};
use crate::{
    destination::{Held, NoWay, Port, in_time},
    message::{self, Body, Version},
    session::Session,
    target::Target,
    upstream::{Checkout, HttpKey, Keep, UpstreamError, Way},
};

/// How often a request is sent again.
const RETRIES: usize = 2;

/// What a request goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// What the tunnel asks for.
    Target,
    /// A backend of a route.
    Backend(NamespacedHostname, u16),
}

/// Where a request went.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) endpoint: SocketAddr,
    pub(super) workload: Option<WorkloadRef>,
    pub(super) service: Option<Arc<Service>>,
    /// What is counted until the answer's end, where a rule is followed.
    held: Option<Arc<(Held, Arc<Ruling>)>>,
}

/// A request that came to nothing.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reply: Reply,
    /// For the log.
    pub(super) details: String,
}

impl Destination {
    /// What the destination speaks, as far as that is declared.
    pub(super) fn app_protocol(&self, session: &Session) -> AppProtocol {
        match self {
            Self::Target => session.target.app_protocol(),
            Self::Backend(name, port) => {
                let table = session.shard.waypoint.state.table();
                let service = table.service(name);
                service.map_or(AppProtocol::Unknown, |service| service.app_protocol(*port))
            }
        }
    }

    async fn route(
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
            Self::Target => {
                let target = &session.target;
                target.route(waypoint, &own.workload, failed, Some(load))
            }
            Self::Backend(name, port) => {
                let request = BackendRequest {
                    waypoint: &own.workload,
                    own: &waypoint.address,
                    is_target: false,
                    failed,
                };
                let table = waypoint.state.table();
                table.backend(&request, name, *port, Some(load), &mut rand::rng())
            }
        }
    }

    /// The port of a service that it is, if there is a rule for it.
    fn ruled(&self, session: &Session) -> Option<Arc<Port>> {
        let (name, number) = match (self, &session.target) {
            (Self::Backend(name, number), _) => (name, *number),
            (
                Self::Target,
                Target::Service {
                    served, address, ..
                },
            ) => (&served.name, address.port()),
            (Self::Target, Target::Pod { .. }) => return None,
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
            None => Ok(None),
        }
    }

    fn chosen(&self, session: &Session, way: &Way) -> Chosen {
        let service = match self {
            Self::Target => session.target.named().cloned(),
            Self::Backend(name, _) => {
                let table = session.shard.waypoint.state.table();
                table.service(name).cloned()
            }
        };
        Chosen {
            endpoint: way.endpoint(),
            workload: way.workload().cloned(),
            service,
            held: None,
        }
    }

    /// A way to an endpoint: as a rule has it, else to the one of two drawn that has fewer requests under way.
    async fn way(
        &self,
        session: &Session,
        own: &Local,
        ruling: Option<&Arc<Ruling>>,
        failed: &[ArcStr],
    ) -> Result<(Way, Option<Held>), NoPlace> {
        let ipv6 = session.shard.waypoint.config.ipv6;
        if let Some(ruling) = ruling {
            let is_target = *self == Self::Target;
            let waypoint = &session.shard.waypoint;
            let wish = ruling.wish(failed);
            match ruling
                .port
                .route(waypoint.around(), &own.workload, is_target, wish)
            {
                Ok(Some((route, held))) => {
                    return Ok((Way::of(route, ipv6).await?, Some(held)));
                }
                Ok(None) => {}
                // What is missing is asked for below.
                Err(NoWay::Route(error)) if error.missing().is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let route = self.route(session, own, failed).await;
        let way = Way::of(route.map_err(UpstreamError::from)?, ipv6).await?;
        Ok((way, None))
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

/// Sends a request; returns the answer's head, its body still to come. A try may take `patience`: what has not begun
/// to answer by then has not failed to be reached, so that nobody else is asked.
pub(super) async fn send(
    session: &Session,
    destination: &Destination,
    version: Version,
    (passed, patience): (Passed, Option<Duration>),
    request: Request<Body>,
) -> Result<(Response<Incoming>, Chosen), Failure> {
    let Some(own) = session.shard.waypoint.local.known().await else {
        return Err(Failure::unavailable(
            ResponseFlag::NoHealthyUpstream,
            "no_own_workload",
        ));
    };
    let asked = (request.headers(), request.uri());
    let ruling = destination.ruling(session, version, asked).await?;
    let limits = ruling.as_ref().map(|ruling| *ruling.port.limits());
    let limits = limits.unwrap_or_default();
    let replay = Replay::of(&request);
    let mut request = request;
    let mut retry: Option<Slot> = None;
    let mut failed: Vec<ArcStr> = Vec::new();
    let mut retries = 0;
    let mut way = destination
        .way(session, &own, ruling.as_ref(), &failed)
        .await;
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
        passed.tell(request.headers_mut(), to);
        let trying = attempt(session, &own, to, (version, &limits), request);
        let outcome = match patience {
            None => trying.await,
            Some(patience) => match tokio::time::timeout(patience, trying).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    // A client that sends its body slowly is not the endpoint's fault.
                    if let (Some(held), Some(_)) = (&held, &replay) {
                        held.report(session.shard.waypoint.around(), Outcome::Failed);
                    }
                    return Err(Failure::too_late("backend_request_timeout"));
                }
            },
        };
        report(session, held.as_ref(), &outcome, replay.is_none());
        chosen.held = held.zip(ruling.clone()).map(Arc::new);
        let (again, ended) = match outcome {
            Ok(mut response) => {
                if let Some(ruling) = &ruling {
                    ruling.answer(response.headers_mut());
                }
                let is_refusal = response.status() == StatusCode::SERVICE_UNAVAILABLE;
                let replay = replay.as_ref().filter(|_| is_refusal);
                (
                    replay.and_then(|replay| replay.request(false)),
                    Ok((response, chosen)),
                )
            }
            Err(Attempt { broken, unsent }) => {
                let endpoint = chosen.endpoint;
                tracing::debug!(%endpoint, error = broken.text, "an endpoint did not answer a request");
                let replay = replay.as_ref();
                let again =
                    unsent.or_else(|| replay.and_then(|one| one.request(broken.is_untouched)));
                (again, Err(Failure::of(broken)))
            }
        };
        let Some(next) = again else {
            return ended;
        };
        if retries == RETRIES {
            return ended.map_err(Failure::after_retries);
        }
        if let Some(ruling) = &ruling {
            // The one before is over.
            drop(retry.take());
            match ruling.port.retry(session.shard.waypoint.around()) {
                Ok(slot) => retry = Some(slot),
                Err(_) => return ended.map_err(Failure::without_retry),
            }
        }
        // Never to the same again: it would be asked to do what it has just failed to do.
        way = destination
            .way(session, &own, ruling.as_ref(), &failed)
            .await;
        if way.is_err()
            || matches!(
                (destination, &session.target),
                (Destination::Target, Target::Pod { .. })
            )
        {
            return ended;
        }
        retries += 1;
        request = next;
    }
}

/// Tells of an endpoint that a rule chose what came of a try.
fn report(
    session: &Session,
    held: Option<&Held>,
    outcome: &Result<Response<Incoming>, Attempt>,
    has_body: bool,
) {
    let seen = outcome.as_ref().map(Response::status);
    let seen = endpoint::outcome(seen.map_err(|attempt| &attempt.broken), has_body);
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
    (version, limits): (Version, &DestinationLimits),
    mut request: Request<Body>,
) -> Result<Response<Incoming>, Attempt> {
    let key = HttpKey::new(way, version);
    let pool = &session.shard.upstreams.http;
    let sent = |error| Attempt {
        broken: Broken::of(&error),
        unsent: None,
    };
    // A connection that waited may have been closed by its endpoint in the meantime.
    while let Some(kept) = pool.take(&key) {
        match kept.send(pool, request).await {
            Ok(response) => return Ok(response),
            Err(mut error) => match error.take_message() {
                Some(unsent) => request = unsent,
                None => return Err(sent(error.into_error())),
            },
        }
    }
    let checkout = match open(session, own, way, &key, limits).await {
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
    limits: &DestinationLimits,
) -> Result<Checkout, Box<dyn std::error::Error + Send + Sync>> {
    // Connections are shared by callers: it names none of them.
    let ip = own.workload.workload_ips.first().copied();
    let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let forwarded = Forwarded {
        client: SocketAddr::new(ip, 0),
        host: None,
    };
    let upstreams = &session.shard.upstreams;
    let connecting = in_time(
        limits.connect_timeout,
        upstreams.connect(way, own, &forwarded),
    );
    let stream = connecting.await.map_err(UpstreamError::TooLong)??;
    let default = Keep::default();
    let keep = Keep {
        idle: limits.idle_timeout.unwrap_or(default.idle),
        requests: limits.requests_per_connection,
    };
    Ok(upstreams.http.begin(key, stream, keep).await?)
}

/// A request that may be sent again.
#[derive(Debug)]
struct Replay {
    parts: http::request::Parts,
    /// Whether sending it twice is like sending it once.
    is_idempotent: bool,
}

impl Replay {
    /// If it has no body.
    fn of(request: &Request<Body>) -> Option<Self> {
        let is_idempotent = matches!(
            *request.method(),
            Method::GET
                | Method::HEAD
                | Method::OPTIONS
                | Method::PUT
                | Method::DELETE
                | Method::TRACE
        );
        if !request.body().is_end_stream() {
            return None;
        }
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = request.method().clone();
        parts.uri = request.uri().clone();
        parts.version = request.version();
        parts.headers = request.headers().clone();
        Some(Self {
            parts,
            is_idempotent,
        })
    }

    /// The request again, if the endpoint has not touched it, or would only do what it has done already.
    fn request(&self, is_untouched: bool) -> Option<Request<Body>> {
        let is_safe = is_untouched || self.is_idempotent;
        is_safe.then(|| Request::from_parts(self.parts.clone(), message::text("")))
    }
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
            NoWay::Ejected(_) | NoWay::Route(_) => Reply::new(
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

    /// It is not sent again: too many are already.
    fn without_retry(mut self) -> Self {
        self.reply.flags.insert(ResponseFlag::UpstreamOverflow);
        self
    }

    /// As often as requests are sent again.
    fn after_retries(mut self) -> Self {
        self.reply.flags.insert(ResponseFlag::RetryLimitExceeded);
        self
    }
}
