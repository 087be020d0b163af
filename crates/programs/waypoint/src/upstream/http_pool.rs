//! HTTP connections to endpoints, kept for further requests.
//!
//! One connection of HTTP/1 carries one request at a time and comes back when the answer has been read to its end;
//! one of HTTP/2 carries many. Connections are never shared between endpoints, nor between ways to them.

mod counted;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ambit_model::{DestinationLimits, Identity};
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;

use super::{Stream, Way};
use crate::{
    message::{Body, Tasks, Version},
    origination::TlsKey,
};
pub(crate) use counted::StreamSlot;
use counted::{Counted, Streams};

/// How long an idle connection is kept: shorter than servers usually do, since a request that meets the end of
/// its connection fails.
const IDLE: Duration = Duration::from_secs(4);
/// Idle HTTP/1 connections to one endpoint.
const MAX_IDLE: usize = 128;
/// How often idle connections are looked through, which takes a look at each.
const SWEEP: Duration = Duration::from_millis(500);
/// So many endpoints' requests are counted before those that have none are forgotten.
const COUNTED: usize = 1024;
/// The same of HTTP/2 where requests are counted, unless a rule says it.
const IDLE_STREAMS: Duration = Duration::from_secs(3600);
/// How long the settings of HTTP/2 are waited for, where they have to be known, and how often they are looked for:
/// hyper does not tell when they come.
const SETTINGS: Duration = Duration::from_secs(10);
const SETTINGS_LOOK: Duration = Duration::from_millis(2);
/// Longest header section of an answer.
const MAX_HEADERS: usize = 64 << 10;

/// What connections are distinguished by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HttpKey {
    /// Where the socket or tunnel goes.
    peer: SocketAddr,
    /// What the tunnel asks for, and whom it expects; none in plaintext.
    tunnel: Option<(String, Vec<Identity>)>,
    version: Version,
    /// What TLS begins here, if any does.
    tls: Option<TlsKey>,
}

impl HttpKey {
    pub(crate) fn new(way: &Way, version: Version) -> Self {
        match way {
            Way::Plain(peer, _) => Self {
                peer: *peer,
                tunnel: None,
                version,
                tls: None,
            },
            Way::Tunnel(route) => Self {
                peer: route.addr,
                tunnel: Some((route.authority.clone(), route.expected.to_vec())),
                version,
                tls: None,
            },
        }
    }

    /// The same over TLS.
    pub(crate) fn over(self, tls: Option<TlsKey>) -> Self {
        Self { tls, ..self }
    }
}

/// How long a connection is kept, and for how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Without a request, of HTTP/1.
    idle: Duration,
    /// The same of HTTP/2, where a rule says it.
    idle_streams: Option<Duration>,
    /// Requests in its life; zero is any number.
    requests: u32,
    /// How long further requests are taken.
    lasts: Option<Duration>,
    /// Requests at once, of HTTP/2; zero is any number.
    streams: u32,
}

impl Keep {
    /// As a rule has it.
    pub(crate) fn under(limits: &DestinationLimits) -> Self {
        Self {
            idle: limits.idle_timeout.unwrap_or(IDLE),
            idle_streams: limits.idle_timeout,
            requests: limits.requests_per_connection,
            lasts: limits.max_connection_duration,
            streams: limits.streams_per_connection,
        }
    }

    /// How long a connection whose requests are counted may be without any.
    fn idle_streams(&self) -> Duration {
        self.idle_streams.unwrap_or(IDLE_STREAMS)
    }

    /// Whether the requests on a connection of HTTP/2 are counted.
    fn is_counted(&self) -> bool {
        self.streams > 0 || self.idle_streams.is_some()
    }
}

/// What a connection is kept for, and how much of that it has done.
#[derive(Clone, Copy, Debug)]
struct Life {
    keep: Keep,
    requests: u32,
    began: Instant,
}

impl Life {
    /// With its first request.
    fn new(keep: Keep) -> Self {
        Self {
            keep,
            requests: 1,
            began: Instant::now(),
        }
    }

    /// With one more request.
    fn further(self) -> Self {
        Self {
            requests: self.requests.saturating_add(1),
            ..self
        }
    }

    /// As the rule is now.
    fn under(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    fn is_over(&self) -> bool {
        let Keep {
            requests, lasts, ..
        } = self.keep;
        let is_used_up = requests > 0 && self.requests >= requests;
        is_used_up || lasts.is_some_and(|lasts| self.began.elapsed() >= lasts)
    }
}

/// Sends requests on one connection.
#[derive(Debug)]
enum HttpSender {
    /// One request at a time.
    Http1(http1::SendRequest<Body>),
    /// Many at once.
    Http2(http2::SendRequest<Body>),
}

/// A connection for one request.
#[derive(Debug)]
pub(crate) struct Checkout {
    sender: HttpSender,
    key: HttpKey,
    /// With the request that it is for; none of a connection for one alone.
    life: Option<Life>,
    stream: Option<StreamSlot>,
}

#[derive(Debug)]
struct Idle {
    sender: http1::SendRequest<Body>,
    since: Instant,
    life: Life,
}

impl Idle {
    fn is_stale(&self) -> bool {
        self.since.elapsed() >= self.life.keep.idle || self.life.is_over()
    }
}

#[derive(Debug, Default)]
struct State {
    idle: HashMap<HttpKey, Vec<Idle>>,
    swept: Option<Instant>,
    shared: HashMap<HttpKey, (http2::SendRequest<Body>, Life)>,
    counted: Counted,
    /// Requests under way, by endpoint.
    loads: HashMap<SocketAddr, Arc<AtomicUsize>>,
    /// How many of them there may be before they are looked through: so many that this is rare.
    most_loads: usize,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpPool(Arc<Mutex<State>>);

/// A request under way at an endpoint.
#[derive(Debug)]
pub(crate) struct Load(Arc<AtomicUsize>);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// HTTP that cannot begin on a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BeginError {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("the endpoint sent no HTTP/2 settings within {} s", SETTINGS.as_secs())]
    NoSettings,
    #[error("the endpoint does not offer WebSocket over HTTP/2 (RFC 8441)")]
    NotOffered,
}

fn http2_builder() -> http2::Builder<Tasks> {
    let mut builder = http2::Builder::new(Tasks);
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(MAX_HEADERS).unwrap_or(u32::MAX))
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

impl HttpPool {
    /// A connection that is open already, and may carry another request.
    pub(crate) fn take(&self, key: &HttpKey, limits: &DestinationLimits) -> Option<Checkout> {
        let keep = Keep::under(limits);
        let mut state = self.0.lock();
        let (sender, life, stream) = match key.version {
            Version::Http1 => {
                let (sender, life) = state.take_idle(key, keep)?;
                (HttpSender::Http1(sender), life, None)
            }
            Version::Http2 if keep.is_counted() => {
                let (sender, life, stream) = state.counted.take(key, keep)?;
                (HttpSender::Http2(sender), life, Some(stream))
            }
            Version::Http2 => {
                let (sender, life) = state.take_shared(key, keep)?;
                (HttpSender::Http2(sender), life, None)
            }
        };
        Some(Checkout {
            sender,
            key: key.clone(),
            life: Some(life.further()),
            stream,
        })
    }

    /// Begins HTTP on a new connection.
    pub(crate) async fn begin(
        &self,
        key: &HttpKey,
        stream: Stream,
        keep: Keep,
    ) -> hyper::Result<Checkout> {
        let life = Life::new(keep);
        let mut slot = None;
        let io = TokioIo::new(stream);
        let sender = match key.version {
            Version::Http1 => {
                let mut builder = http1::Builder::new();
                builder.max_buf_size(MAX_HEADERS);
                let (sender, connection) = builder.handshake(io).await?;
                ambit_rt::spawn("http1 upstream", async move {
                    if let Err(error) = connection.with_upgrades().await {
                        tracing::debug!(%error, "a connection to an endpoint ended");
                    }
                });
                HttpSender::Http1(sender)
            }
            Version::Http2 => {
                let (sender, connection) = http2_builder().handshake(io).await?;
                ambit_rt::spawn("http2 upstream", async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection to an endpoint ended");
                    }
                });
                if !life.is_over() {
                    slot = self.share(key, sender.clone(), life);
                }
                HttpSender::Http2(sender)
            }
        };
        Ok(Checkout {
            sender,
            key: key.clone(),
            life: Some(life),
            stream: slot,
        })
    }

    /// Keeps a connection of HTTP/2 for further requests.
    fn share(
        &self,
        key: &HttpKey,
        sender: http2::SendRequest<Body>,
        life: Life,
    ) -> Option<StreamSlot> {
        let mut state = self.0.lock();
        if !life.keep.is_counted() {
            state.shared.insert(key.clone(), (sender, life));
            return None;
        }
        let (streams, slot) = Streams::begun();
        let counted = &mut state.counted;
        counted.insert(key.clone(), sender, life, streams.clone());
        let (pool, key) = (self.clone(), key.clone());
        ambit_rt::spawn("http2 idle", async move {
            let mut wait = life.keep.idle_streams();
            loop {
                tokio::time::sleep(wait).await;
                let next = pool.0.lock().counted.retire(&key, &streams);
                match next {
                    Some(next) => wait = next,
                    None => return,
                }
            }
        });
        Some(slot)
    }

    /// Begins HTTP/2 on a new connection that is for one extended CONNECT (RFC 8441), once the endpoint has said that it
    /// takes them.
    pub(crate) async fn begin_extended(
        key: &HttpKey,
        stream: Stream,
    ) -> Result<Checkout, BeginError> {
        let mut builder = http2_builder();
        // Until the endpoint's settings are here, it allows no streams.
        builder.initial_max_send_streams(0);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let deadline = Instant::now() + SETTINGS;
        while connection.current_max_send_streams() == 0 {
            if Instant::now() >= deadline {
                return Err(BeginError::NoSettings);
            }
            tokio::time::sleep(SETTINGS_LOOK).await;
        }
        if !connection.is_extended_connect_protocol_enabled() {
            return Err(BeginError::NotOffered);
        }
        ambit_rt::spawn("http2 upstream", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to an endpoint ended");
            }
        });
        Ok(Checkout {
            sender: HttpSender::Http2(sender),
            key: key.clone(),
            life: None,
            stream: None,
        })
    }

    /// Counts a request at an endpoint until the value is dropped.
    pub(crate) fn load(&self, endpoint: SocketAddr) -> Load {
        let mut state = self.0.lock();
        let load = state.loads.entry(endpoint).or_default().clone();
        load.fetch_add(1, Relaxed);
        if state.loads.len() > state.most_loads.max(COUNTED) {
            state.loads.retain(|_, load| load.load(Relaxed) > 0);
            state.most_loads = state.loads.len() * 2;
        }
        Load(load)
    }

    /// Requests under way at an endpoint.
    pub(crate) fn load_of(&self, endpoint: SocketAddr) -> usize {
        let state = self.0.lock();
        state
            .loads
            .get(&endpoint)
            .map_or(0, |load| load.load(Relaxed))
    }

    fn put(&self, key: HttpKey, sender: http1::SendRequest<Body>, life: Life) {
        let now = Instant::now();
        let mut state = self.0.lock();
        if state.swept.is_none_or(|last| now - last >= SWEEP) {
            state.swept = Some(now);
            state.sweep();
        }
        let idle = state.idle.entry(key).or_default();
        if idle.len() < MAX_IDLE {
            idle.push(Idle {
                sender,
                since: now,
                life,
            });
        }
    }
}

impl State {
    fn take_idle(&mut self, key: &HttpKey, keep: Keep) -> Option<(http1::SendRequest<Body>, Life)> {
        let idle = self.idle.get_mut(key)?;
        while let Some(mut one) = idle.pop() {
            one.life = one.life.under(keep);
            if one.sender.is_ready() && !one.is_stale() {
                return Some((one.sender, one.life));
            }
        }
        self.idle.remove(key);
        None
    }

    fn take_shared(
        &mut self,
        key: &HttpKey,
        keep: Keep,
    ) -> Option<(http2::SendRequest<Body>, Life)> {
        let (sender, life) = self.shared.get_mut(key)?;
        *life = life.under(keep);
        if sender.is_closed() || life.is_over() {
            self.shared.remove(key);
            return None;
        }
        let taken = (sender.clone(), *life);
        *life = life.further();
        if life.is_over() {
            self.shared.remove(key);
        }
        Some(taken)
    }

    fn sweep(&mut self) {
        self.idle.retain(|_, idle| {
            idle.retain(|one| !one.is_stale() && !one.sender.is_closed());
            !idle.is_empty()
        });
    }
}

impl Checkout {
    /// Sends a request. A connection of HTTP/1 goes back to the pool when it can take another.
    ///
    /// # Errors
    /// With the request, if nothing of it was sent.
    pub(crate) async fn send(
        self,
        pool: &HttpPool,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        match self.sender {
            HttpSender::Http1(mut sender) => {
                let response = sender.try_send_request(request).await?;
                let (pool, key) = (pool.clone(), self.key);
                let life = self.life.filter(|life| !life.is_over());
                if let Some(life) = life
                    && response.status() != http::StatusCode::SWITCHING_PROTOCOLS
                {
                    ambit_rt::spawn("http1 reuse", async move {
                        if sender.ready().await.is_ok() {
                            pool.put(key, sender, life);
                        }
                    });
                }
                Ok(response)
            }
            HttpSender::Http2(mut sender) => {
                // A connection that was just opened, or is about to close.
                if let Err(error) = sender.ready().await {
                    tracing::debug!(%error, "a connection to an endpoint has ended");
                }
                let mut response = sender.try_send_request(request).await?;
                if let Some(stream) = self.stream {
                    response.extensions_mut().insert(stream);
                }
                Ok(response)
            }
        }
    }
}
