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
use ambit_model::{AppProtocol, ArcStr, NamespacedHostname, Service};
use ambit_proxy::{Local, report::chain};
use ambit_route::{BackendRequest, Route, RouteError, WorkloadRef};
use ambit_telemetry::http::ResponseFlag;
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};

use super::{broken::Broken, reply::Reply};
use crate::{
    circle::Passed,
    message::{self, Body, Version},
    session::Session,
    target::Target,
    upstream::{Checkout, HttpKey, UpstreamError, Way},
};

/// How often a request is sent again.
const RETRIES: usize = 2;

/// What a request or a connection goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
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
            Self::Target => session.target.named().cloned(),
            Self::Backend(name, _) => {
                let table = session.shard.waypoint.state.table();
                table.service(name).cloned()
            }
        }
    }

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

    /// A way to it, other than to workloads that failed.
    pub(crate) async fn route(
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
        Chosen {
            endpoint: way.endpoint(),
            workload: way.workload().cloned(),
            service: self.service(session),
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
    let replay = Replay::of(&request);
    let mut request = request;
    let mut failed: Vec<ArcStr> = Vec::new();
    let mut retries = 0;
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
        passed.tell(request.headers_mut(), to.leads_to_waypoint());
        let trying = attempt(session, &own, to, version, request);
        let outcome = match patience {
            None => trying.await,
            Some(patience) => match tokio::time::timeout(patience, trying).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(Failure::too_late("backend_request_timeout")),
            },
        };
        let (again, ended) = match outcome {
            Ok(response) => {
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
        // Never to the same again: it would be asked to do what it has just failed to do.
        way = destination.way(session, &own, &failed).await;
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
    let stream = upstreams.connect(way, own, &forwarded, None).await?;
    Ok(upstreams.http.begin(key, stream).await?)
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

    /// As often as requests are sent again.
    fn after_retries(mut self) -> Self {
        self.reply.flags.insert(ResponseFlag::RetryLimitExceeded);
        self
    }
}
