//! Reuse of pooled connections: how long, and for how many requests.

use std::time::{Duration, Instant};

use ambit_model::DestinationLimits;

/// Idle timeout of pooled connections. It is shorter than that of usual servers, since a request fails if the server
/// closes its connection meanwhile.
const IDLE: Duration = Duration::from_secs(4);
/// Idle timeout of pooled HTTP/2 connections, of which each caller has its own.
const IDLE_STREAMS: Duration = Duration::from_secs(60);
/// Requests at once on one connection of HTTP/2.
pub(super) const MAX_STREAMS: u32 = 100;

/// Lifetime of a pooled connection, in time and requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReuseLimits {
    /// Idle timeout of HTTP/1.1.
    pub(super) idle: Duration,
    /// Idle timeout of HTTP/2, if a policy sets it.
    idle_streams: Option<Duration>,
    /// Requests in its life; zero is any number.
    requests: u32,
    /// Maximum lifetime, after which the connection drains.
    lasts: Option<Duration>,
    /// Requests at once, of HTTP/2.
    pub(super) streams: u32,
}

impl ReuseLimits {
    /// Derives the lifetime from a destination's limits.
    pub(crate) fn under(limits: &DestinationLimits) -> Self {
        Self {
            idle: limits.idle_timeout.unwrap_or(IDLE),
            idle_streams: limits.idle_timeout,
            requests: limits.requests_per_connection,
            lasts: limits.max_connection_duration,
            streams: match limits.streams_per_connection {
                0 => MAX_STREAMS,
                most => most.min(MAX_STREAMS),
            },
        }
    }

    /// Returns the idle timeout of a connection with counted requests.
    pub(super) fn idle_streams(&self) -> Duration {
        self.idle_streams.unwrap_or(IDLE_STREAMS)
    }
}

/// Lifetime of a connection and the requests that it has carried.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionUse {
    pub(super) keep: ReuseLimits,
    requests: u32,
    began: Instant,
}

impl ConnectionUse {
    /// Starts the life of a connection with its first request.
    pub(super) fn new(keep: ReuseLimits) -> Self {
        Self {
            keep,
            requests: 1,
            began: Instant::now(),
        }
    }

    /// Counts a further request.
    pub(super) fn further(self) -> Self {
        Self {
            requests: self.requests.saturating_add(1),
            ..self
        }
    }

    /// Applies changed limits.
    pub(super) fn under(self, keep: ReuseLimits) -> Self {
        Self { keep, ..self }
    }

    pub(super) fn is_over(&self) -> bool {
        let ReuseLimits {
            requests, lasts, ..
        } = self.keep;
        let is_used_up = requests > 0 && self.requests >= requests;
        is_used_up || lasts.is_some_and(|lasts| self.began.elapsed() >= lasts)
    }
}
