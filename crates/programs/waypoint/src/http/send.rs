//! Sending a request to an endpoint, and to another if that one cannot take it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ambit_codec::Forwarded;
use ambit_model::{AppProtocol, ArcStr, NamespacedHostname, Service};
use ambit_proxy::{Local, report::chain};
use ambit_route::{BackendRequest, Route, RouteError, WorkloadRef};
use ambit_telemetry::http::{ResponseFlag, ResponseFlags};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::{
    broken::Broken,
    circle::Passed,
    reply::Reply,
    retrying::{Again, Outcome, Retrying},
};
use crate::{
    budget::Account,
    message::{Body, Version},
    session::Session,
    target::Target,
    upstream::{Checkout, HttpKey, UpstreamError, Way},
};

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
}

/// How a request is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending<'a> {
    pub(super) passed: Passed,
    /// How long one try may take until it is answered.
    pub(super) patience: Option<Duration>,
    pub(super) again: Again<'a>,
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

    /// Whose retries count together.
    fn account(&self, session: &Session) -> Account {
        match self {
            Self::Target => Account::Address(session.target.address()),
            Self::Backend(name, port) => Account::Service(name.clone(), *port),
        }
    }

    async fn route(
        &self,
        session: &Session,
        own: &Local,
        failed: &[ArcStr],
    ) -> Result<Route, RouteError> {
        let look = || self.known_route(session, own, failed);
        session.shard.waypoint.completed(look).await
    }

    fn known_route(
        &self,
        session: &Session,
        own: &Local,
        failed: &[ArcStr],
    ) -> Result<Route, RouteError> {
        let waypoint = &session.shard.waypoint;
        match self {
            Self::Target => session.target.route(waypoint, &own.workload, failed),
            Self::Backend(name, port) => {
                let request = BackendRequest {
                    waypoint: &own.workload,
                    own: &waypoint.address,
                    is_target: false,
                    failed,
                };
                let table = waypoint.state.table();
                table.backend(&request, name, *port, &mut rand::rng())
            }
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
        }
    }

    /// A way to one of two endpoints drawn: the one with fewer requests under way.
    async fn way(
        &self,
        session: &Session,
        own: &Local,
        failed: &[ArcStr],
    ) -> Result<Way, UpstreamError> {
        let ipv6 = session.shard.waypoint.config.ipv6;
        let first = Way::of(self.route(session, own, failed).await?, ipv6).await?;
        if matches!((self, &session.target), (Self::Target, Target::Pod { .. })) {
            return Ok(first);
        }
        let second = Way::of(self.route(session, own, failed).await?, ipv6).await?;
        let http = &session.shard.upstreams.http;
        let load = |way: &Way| http.load_of(way.endpoint());
        Ok(if load(&second) < load(&first) {
            second
        } else {
            first
        })
    }
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
    } = sending;
    let (mut retrying, mut request) = Retrying::of(again, request);
    let active = session.shard.retries.active(destination.account(session));
    let mut permit;
    let mut failed: Vec<ArcStr> = Vec::new();
    let mut way = destination.way(session, &own, &failed).await;
    loop {
        let to = match &way {
            Ok(to) => to,
            Err(error) => return Err(Failure::no_endpoint(error)),
        };
        let chosen = destination.chosen(session, to);
        failed.extend(
            chosen
                .workload
                .iter()
                .map(|workload| workload.uid().clone()),
        );
        let _load = session.shard.upstreams.http.load(chosen.endpoint);
        passed.tell(request.headers_mut(), to);
        let trying = attempt(session, &own, to, version, request);
        let outcome = match patience {
            None => Some(trying.await),
            Some(patience) => tokio::time::timeout(patience, trying).await.ok(),
        };
        let mut unsent = None;
        let (is_reason, mut ended) = match outcome {
            None => {
                let late = Failure::too_late("backend_request_timeout");
                (retrying.is_reason(&Outcome::Late), Err(late))
            }
            Some(Ok(response)) => {
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
            permit = active.permit();
            if permit.is_none() {
                flag(&mut ended, ResponseFlag::UpstreamOverflow);
                return ended;
            }
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        // To another if there is one: this one would be asked to do what it has just failed to do.
        way = destination.way(session, &own, &failed).await;
        if way.is_err() && retrying.may_try_the_same() {
            failed.clear();
            way = destination.way(session, &own, &failed).await;
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

fn flag(ended: &mut Result<Sent, Failure>, flag: ResponseFlag) {
    match ended {
        Ok(sent) => sent.flags.insert(flag),
        Err(failure) => failure.reply.flags.insert(flag),
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
    version: Version,
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
    let checkout = match open(session, own, way, &key).await {
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
) -> Result<Checkout, Box<dyn std::error::Error + Send + Sync>> {
    // Connections are shared by callers: it names none of them.
    let ip = own.workload.workload_ips.first().copied();
    let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let forwarded = Forwarded {
        client: SocketAddr::new(ip, 0),
        host: None,
    };
    let upstreams = &session.shard.upstreams;
    let stream = upstreams.connect(way, own, &forwarded).await?;
    Ok(upstreams.http.begin(key, stream).await?)
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

    fn no_endpoint(error: &UpstreamError) -> Self {
        Self::unavailable(ResponseFlag::NoHealthyUpstream, &chain(error))
    }
}
