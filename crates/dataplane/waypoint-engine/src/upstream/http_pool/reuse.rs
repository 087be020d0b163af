//! Limits for the reuse of pooled connections, by idle time, lifetime and number of requests.

use std::time::{Duration, Instant};

use ambit_model::DestinationLimits;

/// Idle timeout of pooled connections. Each caller has HTTP/2 connections of its own.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle time after which an HTTP/1 connection carries repeatable requests only, and is closed if the pool is full. It is
/// shorter than the idle timeout of common servers, since a request fails if the server closes its connection at the same
/// time.
const RECENT_USE: Duration = Duration::from_secs(4);
/// Maximum concurrent requests on one HTTP/2 connection.
pub(super) const MAX_STREAMS: u32 = 100;

/// Pooled HTTP/1 connections that may carry a request. The endpoint may close any of them as the request is sent; the
/// longer a connection has been idle, the more probable that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// Connections used a short while ago, for requests that may not be repeated.
    Recent,
    /// All connections, for requests that are repeated on a new connection if the endpoint closes theirs.
    Any,
}

/// Limits for the reuse of a pooled connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReuseLimits {
    /// Idle timeout of a pooled connection.
    pub(super) idle_timeout: Duration,
    /// Idle time up to which a pooled HTTP/1.1 connection carries requests that may not be repeated.
    recent_use: Duration,
    /// Maximum number of requests on a connection; zero for no limit.
    max_requests: u32,
    /// Maximum lifetime of a connection, after which it carries no further requests.
    max_lifetime: Option<Duration>,
    /// Maximum number of concurrent requests on an HTTP/2 connection.
    pub(super) max_streams: u32,
}

impl ReuseLimits {
    /// Derives the reuse limits from the connection-pool settings of a destination's rule.
    pub(crate) fn from_destination_limits(limits: &DestinationLimits) -> Self {
        Self {
            idle_timeout: limits.idle_timeout.unwrap_or(IDLE_TIMEOUT),
            // A rule's timeout is for all requests.
            recent_use: limits.idle_timeout.unwrap_or(RECENT_USE),
            max_requests: limits.requests_per_connection,
            max_lifetime: limits.max_connection_duration,
            max_streams: match limits.streams_per_connection {
                0 => MAX_STREAMS,
                most => most.min(MAX_STREAMS),
            },
        }
    }

    /// Returns the time that an HTTP/1.1 connection may have been idle to carry a request.
    pub(super) fn max_idle_time(&self, reuse: Reuse) -> Duration {
        match reuse {
            Reuse::Recent => self.recent_use,
            Reuse::Any => self.idle_timeout,
        }
    }
}

/// Age of a connection and number of requests that it has carried, with their limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionUse {
    pub(super) limits: ReuseLimits,
    request_count: u32,
    began: Instant,
}

impl ConnectionUse {
    /// Creates the state of a new connection with its first request.
    pub(super) fn new(limits: ReuseLimits) -> Self {
        Self {
            limits,
            request_count: 1,
            began: Instant::now(),
        }
    }

    /// Counts one more request on the connection.
    pub(super) fn next_request(self) -> Self {
        Self {
            request_count: self.request_count.saturating_add(1),
            ..self
        }
    }

    /// Replaces the limits of the connection by the current ones of the destination's rule.
    pub(super) fn with_limits(self, limits: ReuseLimits) -> Self {
        Self { limits, ..self }
    }

    pub(super) fn is_expired(&self) -> bool {
        let ReuseLimits {
            max_requests: requests,
            max_lifetime,
            ..
        } = self.limits;
        let is_used_up = requests > 0 && self.request_count >= requests;
        is_used_up || max_lifetime.is_some_and(|max_lifetime| self.began.elapsed() >= max_lifetime)
    }
}
