//! HTTP connections to endpoints, kept for further requests.
//!
//! One connection of HTTP/1 carries one request at a time and comes back when the answer has been read to its end;
//! one of HTTP/2 carries many. Connections are never shared between endpoints, nor between ways to them.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ambit_model::Identity;
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;

use super::{Stream, Way};
use crate::message::{Body, Tasks, Version};

/// How long an idle connection is kept: shorter than servers usually do, since a request that meets the end of
/// its connection fails.
const IDLE: Duration = Duration::from_secs(4);
/// Idle HTTP/1 connections to one endpoint.
const MAX_IDLE: usize = 128;
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
}

impl HttpKey {
    pub(crate) fn new(way: &Way, version: Version) -> Self {
        match way {
            Way::Plain(peer, _) => Self {
                peer: *peer,
                tunnel: None,
                version,
            },
            Way::Tunnel(route) => Self {
                peer: route.addr,
                tunnel: Some((route.authority.clone(), route.expected.to_vec())),
                version,
            },
        }
    }
}

/// How long a connection is kept, and for how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Without a request.
    pub(crate) idle: Duration,
    /// Requests in its life; zero is any number.
    pub(crate) requests: u32,
}

impl Default for Keep {
    fn default() -> Self {
        Self {
            idle: IDLE,
            requests: 0,
        }
    }
}

/// What a connection is kept for, and how much of that it has done.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    keep: Keep,
    requests: u32,
}

impl Life {
    /// With one more request.
    fn further(self) -> Self {
        Self {
            requests: self.requests.saturating_add(1),
            ..self
        }
    }

    fn is_over(&self) -> bool {
        self.keep.requests > 0 && self.requests >= self.keep.requests
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
    /// With the request that it is for.
    life: Life,
}

#[derive(Debug)]
struct Idle {
    sender: http1::SendRequest<Body>,
    since: Instant,
    life: Life,
}

impl Idle {
    fn is_stale(&self) -> bool {
        self.since.elapsed() >= self.life.keep.idle
    }
}

#[derive(Debug, Default)]
struct State {
    idle: HashMap<HttpKey, Vec<Idle>>,
    shared: HashMap<HttpKey, (http2::SendRequest<Body>, Life)>,
    /// Requests under way, by endpoint.
    loads: HashMap<SocketAddr, Arc<AtomicUsize>>,
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

impl HttpPool {
    /// A connection that is open already.
    pub(crate) fn take(&self, key: &HttpKey) -> Option<Checkout> {
        let mut state = self.0.lock();
        let taken = match key.version {
            Version::Http1 => state
                .take_idle(key)
                .map(|(sender, life)| (HttpSender::Http1(sender), life)),
            Version::Http2 => state
                .take_shared(key)
                .map(|(sender, life)| (HttpSender::Http2(sender), life)),
        };
        let (sender, life) = taken?;
        Some(Checkout {
            sender,
            key: key.clone(),
            life: life.further(),
        })
    }

    /// Begins HTTP on a new connection.
    pub(crate) async fn begin(
        &self,
        key: &HttpKey,
        stream: Stream,
        keep: Keep,
    ) -> hyper::Result<Checkout> {
        let life = Life { keep, requests: 1 };
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
                let mut builder = http2::Builder::new(Tasks);
                builder
                    .timer(TokioTimer::new())
                    .max_header_list_size(u32::try_from(MAX_HEADERS).unwrap_or(u32::MAX))
                    .initial_stream_window_size(1 << 20)
                    .initial_connection_window_size(4 << 20)
                    .keep_alive_interval(Duration::from_secs(10))
                    .keep_alive_timeout(Duration::from_secs(20));
                let (sender, connection) = builder.handshake(io).await?;
                ambit_rt::spawn("http2 upstream", async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection to an endpoint ended");
                    }
                });
                if !life.is_over() {
                    let shared = (sender.clone(), life);
                    self.0.lock().shared.insert(key.clone(), shared);
                }
                HttpSender::Http2(sender)
            }
        };
        Ok(Checkout {
            sender,
            key: key.clone(),
            life,
        })
    }

    /// Counts a request at an endpoint until the value is dropped.
    pub(crate) fn load(&self, endpoint: SocketAddr) -> Load {
        let mut state = self.0.lock();
        let load = state.loads.entry(endpoint).or_default().clone();
        load.fetch_add(1, Relaxed);
        if state.loads.len() > 1024 {
            state.loads.retain(|_, load| load.load(Relaxed) > 0);
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
        let mut state = self.0.lock();
        state.sweep();
        let idle = state.idle.entry(key).or_default();
        if idle.len() < MAX_IDLE {
            idle.push(Idle {
                sender,
                since: Instant::now(),
                life,
            });
        }
    }
}

impl State {
    fn take_idle(&mut self, key: &HttpKey) -> Option<(http1::SendRequest<Body>, Life)> {
        let idle = self.idle.get_mut(key)?;
        while let Some(one) = idle.pop() {
            if one.sender.is_ready() && !one.is_stale() {
                return Some((one.sender, one.life));
            }
        }
        self.idle.remove(key);
        None
    }

    fn take_shared(&mut self, key: &HttpKey) -> Option<(http2::SendRequest<Body>, Life)> {
        let (sender, life) = self.shared.get_mut(key)?;
        if sender.is_closed() {
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
                let (pool, key, life) = (pool.clone(), self.key, self.life);
                if !life.is_over() && response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
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
                sender.try_send_request(request).await
            }
        }
    }
}
