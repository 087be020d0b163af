//! Flow events for users who may not forward ports of the mesh's pods: `GET /flows`, through the API server's proxy of
//! the control plane's Service.
//!
//! A user's bearer token is in a separate header, since the API server consumes `authorization`. The API server decides
//! to whom the token belongs and of which namespaces the user may `get` flow events; for a user who may not read all
//! namespaces, proxies send only the events of permitted namespaces ([`ambit_flow::Filter::confined`]). Any replica
//! reads the events of all proxies, and passes their lines on without parsing them.

mod bandwidth;
mod identity;
mod listener;
mod proxies;
mod readers;
mod users;

use std::{sync::Arc, time::Duration};

use ambit_flow::{Filter, ProxyState};
use ambit_flow_reader::ReaderEvent;
use ambit_rt::{
    DrainWatcher, RateLimits,
    http::{
        Peer, Request, Response, method_not_allowed, not_found, query_parameters, stream, text,
    },
};
use bytes::Bytes;
use hyper::Method;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, interval_at, timeout},
};

use bandwidth::BandwidthLimit;
pub use identity::{IdentityError, OwnIdentity};
pub use proxies::{MeshProxies, MeshProxy};
use readers::{ReaderCounts, ReaderPermit};
pub use users::{AccessError, UserAuthorizer, UserRights};

/// Rate limit of one source address: requests per second, and burst. All users' requests have the
/// API server's address.
const REQUEST_RATE: (u32, u32) = (10, 100);
/// Timeout for a reader to accept a chunk of the response.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum chunks that are buffered for a reader.
const MAX_CHUNKS_IN_FLIGHT: usize = 2;
/// Capacity of the queue of proxies' events for one reader; when it is full, the proxies wait, and sample their events.
const EVENT_QUEUE_CAPACITY: usize = 64;

/// HTTP server of flow events for users.
pub struct FlowService {
    users: UserAuthorizer,
    proxies: MeshProxies,
    readers: Arc<ReaderCounts>,
    request_rates: RateLimits<std::net::IpAddr>,
    /// Interval at which the user of an open stream is authorized again.
    recheck_interval: Duration,
    drain: DrainWatcher,
}

impl std::fmt::Debug for FlowService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowService").finish_non_exhaustive()
    }
}

impl FlowService {
    /// Creates a server that serves events of `proxies` to users whom `users` authorizes, until the drain starts. The
    /// user of an open stream is authorized again at the interval `check_again`.
    pub fn new(
        users: UserAuthorizer,
        proxies: MeshProxies,
        check_again: Duration,
        drain: DrainWatcher,
    ) -> Self {
        Self {
            users,
            proxies,
            readers: Arc::default(),
            request_rates: RateLimits::new(REQUEST_RATE.0, REQUEST_RATE.1),
            recheck_interval: check_again,
            drain,
        }
    }

    /// Responds to one request for flow events.
    pub async fn respond(self: Arc<Self>, request: Request) -> Response {
        match (request.uri().path(), request.method()) {
            (ambit_flow::FLOWS_PATH, &Method::GET) => self
                .open_event_stream(&request)
                .await
                .unwrap_or_else(|refused| error_response(&refused)),
            (ambit_flow::FLOWS_PATH, _) => method_not_allowed("GET"),
            _ => not_found(),
        }
    }

    async fn open_event_stream(
        self: Arc<Self>,
        request: &Request,
    ) -> Result<Response, AccessError> {
        let peer = request.extensions().get::<Peer>();
        if peer.is_none_or(|Peer(peer)| !self.is_within_rate_limit(peer.ip())) {
            return Err(AccessError::TooManyRequests("too many requests: try again"));
        }
        let mut filter = parse_filter(request)?;
        let token = request.headers().get(ambit_flow::USER_TOKEN_HEADER);
        let token = token.and_then(|token| token.to_str().ok());
        let token = token.ok_or(AccessError::NoToken)?.to_owned();
        let rights = self.users.authorize(&token, &filter.namespaces).await?;
        filter.confined = rights.is_confined_to_namespaces;
        let permit = self.readers.clone().acquire_permit(&rights.user);
        let permit = permit.ok_or(AccessError::TooManyRequests(
            "too many readers of flow events: end another one",
        ))?;
        tracing::info!(user = %rights.user, namespaces = ?filter.namespaces, confined = filter.confined, "a user reads flow events");
        let (sender, chunks) = mpsc::channel(MAX_CHUNKS_IN_FLIGHT);
        let reading = EventStream {
            flows: self,
            filter,
            token,
            user: rights.user,
            _permit: permit,
        };
        ambit_rt::spawn("reader of flow events", reading.run(sender));
        Ok(stream(200, "application/x-ndjson", chunks))
    }

    fn is_within_rate_limit(&self, peer: std::net::IpAddr) -> bool {
        self.request_rates
            .try_acquire(peer.to_canonical(), std::time::Instant::now())
    }
}

/// Parses the filter of events in a request's query parameters. The user's rights override its confinement to
/// namespaces.
fn parse_filter(request: &Request) -> Result<Filter, AccessError> {
    let parameters: Vec<_> = query_parameters(request.uri()).collect();
    let parameters = parameters
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    Filter::from_parameters(parameters)
        .map_err(|error| AccessError::MalformedParameter(error.to_string()))
}

fn error_response(error: &AccessError) -> Response {
    let status = match error {
        AccessError::MalformedParameter(_) => 400,
        AccessError::NoToken | AccessError::RejectedToken => 401,
        AccessError::MissingRights(_) => 403,
        AccessError::Unavailable | AccessError::TooManyRequests(_) => 503,
    };
    text(status, format!("{error}\n"))
}

/// Response stream of flow events to one user.
struct EventStream {
    flows: Arc<FlowService>,
    filter: Filter,
    token: String,
    user: String,
    _permit: ReaderPermit,
}

impl EventStream {
    async fn run(self, chunks: mpsc::Sender<Bytes>) {
        let (sender, mut received) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let (proxies, filter) = (self.proxies(), self.filter.clone());
        let _following = ambit_rt::spawn_abortable("flows of proxies", async move {
            ambit_flow_reader::follow(proxies, &filter, sender).await;
        });
        let mut bandwidth = BandwidthLimit::default();
        let mut check = interval_at(
            Instant::now() + self.flows.recheck_interval,
            self.flows.recheck_interval,
        );
        let mut drain = self.flows.drain.clone();
        // Tells the reader that the stream has started.
        let mut chunk = Bytes::from_static(b"\n");
        loop {
            let sent = timeout(SEND_TIMEOUT, chunks.send(chunk)).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
            chunk = tokio::select! {
                next = received.recv() => match next {
                    Some(next) => encode_line(next),
                    None => return,
                },
                _ = check.tick() => match self.is_still_allowed().await {
                    Ok(()) => Bytes::from_static(b"\n"),
                    Err(refused) => {
                        self.send_error(&chunks, &refused).await;
                        return;
                    }
                },
                () = chunks.closed() => return,
                _ = drain.wait_until_started() => return,
            };
            bandwidth.wait_for(chunk.len()).await;
        }
    }

    /// Returns the mesh's proxies, with the names of only those waypoint pods that the user may see.
    fn proxies(&self) -> MeshProxies {
        match self.filter.confined {
            true => self.flows.proxies.restricted_to(&self.filter.namespaces),
            false => self.flows.proxies.clone(),
        }
    }

    /// Returns an error if the user may no longer read the requested events. While the API server is unavailable,
    /// streams continue.
    async fn is_still_allowed(&self) -> Result<(), AccessError> {
        let namespaces = &self.filter.namespaces;
        match self.flows.users.authorize(&self.token, namespaces).await {
            Ok(rights)
                if rights.user == self.user
                    && rights.is_confined_to_namespaces <= self.filter.confined =>
            {
                Ok(())
            }
            Ok(_) => Err(AccessError::MissingRights(Vec::new())),
            Err(AccessError::Unavailable | AccessError::TooManyRequests(_)) => Ok(()),
            Err(refused) => Err(refused),
        }
    }

    async fn send_error(&self, chunks: &mpsc::Sender<Bytes>, refused: &AccessError) {
        tracing::info!(user = %self.user, %refused, "a user may no longer read flow events");
        let ended = ReaderEvent::Disconnected("the control plane".to_owned(), refused.to_string());
        // The reader may have disconnected already.
        let _sent = timeout(SEND_TIMEOUT, chunks.send(encode_line(ended))).await;
    }
}

/// Formats events received from a proxy as lines of the response.
fn encode_line(received: ReaderEvent) -> Bytes {
    let state = match received {
        ReaderEvent::Lines(lines) => return lines,
        ReaderEvent::Connected(proxy) => ProxyState::Began { proxy },
        ReaderEvent::Disconnected(proxy, reason) => ProxyState::Ended { proxy, reason },
    };
    format!("{}\n", json!(state)).into()
}
