//! Limits for the reuse of pooled connections, by idle time, lifetime and number of requests.

use std::time::{Duration, Instant};

use ambit_model::DestinationLimits;

/// Idle timeout of pooled HTTP/1 connections. It is shorter than that of common servers, since a request fails if the
/// server closes its connection at the same time.
const HTTP1_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Idle timeout of pooled HTTP/2 connections. Each caller has connections of its own.
const HTTP2_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum concurrent requests on one HTTP/2 connection.
pub(super) const MAX_STREAMS: u32 = 100;

/// Limits for the reuse of a pooled connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReuseLimits {
    /// Idle timeout of a pooled HTTP/1.1 connection.
    pub(super) idle_timeout: Duration,
    /// Idle timeout of a pooled HTTP/2 connection, if the destination's rule sets one.
    http2_idle_timeout: Option<Duration>,
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
            idle_timeout: limits.idle_timeout.unwrap_or(HTTP1_IDLE_TIMEOUT),
            http2_idle_timeout: limits.idle_timeout,
            max_requests: limits.requests_per_connection,
            max_lifetime: limits.max_connection_duration,
            max_streams: match limits.streams_per_connection {
                0 => MAX_STREAMS,
                most => most.min(MAX_STREAMS),
            },
        }
    }

    /// Returns the idle timeout of an HTTP/2 connection.
    pub(super) fn http2_idle_timeout(&self) -> Duration {
        self.http2_idle_timeout.unwrap_or(HTTP2_IDLE_TIMEOUT)
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
