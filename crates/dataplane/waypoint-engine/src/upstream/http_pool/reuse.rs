//! Limits for the reuse of pooled connections, by idle time, lifetime and number of requests.

use std::time::{Duration, Instant};

use ambit_model::DestinationLimits;
use http::HeaderMap;

/// Idle timeout of pooled HTTP/1.1 connections, the default of Envoy.
const HTTP1_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Idle timeout of pooled HTTP/2 connections. It is short, since each caller has connections of its own.
const HTTP2_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle timeout of HTTP/1.1 connections whose memory budget is mostly charged, so that idle connections leave room for
/// new ones.
const SCARCE_MEMORY_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle time after which an HTTP/1.1 connection carries repeatable requests only. It is shorter than the idle timeout of
/// common servers, since another request fails if the server closes its connection at the same time.
const RECENT_USE: Duration = Duration::from_secs(4);
/// Time before an endpoint's idle timeout from which on its connections are not used.
pub(super) const TIMEOUT_MARGIN: Duration = Duration::from_secs(1);
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
    /// Idle timeout of a pooled HTTP/1.1 connection.
    http1_idle_timeout: Duration,
    /// Idle timeout of a pooled HTTP/2 connection.
    pub(super) http2_idle_timeout: Duration,
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
            http1_idle_timeout: limits.idle_timeout.unwrap_or(HTTP1_IDLE_TIMEOUT),
            http2_idle_timeout: limits.idle_timeout.unwrap_or(HTTP2_IDLE_TIMEOUT),
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

    /// Returns the reuse limits for calls of the waypoint itself. They are not repeated, so that connections that were
    /// not used recently are of no use.
    pub(crate) fn for_calls() -> Self {
        Self {
            http1_idle_timeout: RECENT_USE,
            ..Self::from_destination_limits(&DestinationLimits::default())
        }
    }

    /// Returns the idle time up to which an HTTP/1.1 connection carries requests that may not be repeated.
    pub(super) fn recent_use(&self) -> Duration {
        self.recent_use
    }

    /// Returns the time that an HTTP/1.1 connection may have been idle to carry a request.
    fn max_idle_time(&self, reuse: Reuse) -> Duration {
        match reuse {
            Reuse::Recent => self.recent_use,
            Reuse::Any => self.http1_idle_timeout,
        }
    }
}

/// Age of a connection and number of requests that it has carried, with their limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionUse {
    pub(super) limits: ReuseLimits,
    /// Idle timeout that the endpoint has announced for the connection, in a `Keep-Alive` header.
    announced_timeout: Option<Duration>,
    request_count: u32,
    began: Instant,
}

impl ConnectionUse {
    /// Creates the state of a new connection with its first request.
    pub(super) fn new(limits: ReuseLimits) -> Self {
        Self {
            limits,
            announced_timeout: None,
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

    /// Records the idle timeout that the endpoint announces in the headers of a response.
    pub(super) fn with_response_headers(self, headers: &HeaderMap) -> Self {
        Self {
            announced_timeout: announced_timeout(headers).or(self.announced_timeout),
            ..self
        }
    }

    /// Returns the time that the HTTP/1.1 connection may have been idle to carry a request.
    pub(super) fn max_idle_time(&self, reuse: Reuse) -> Duration {
        let max = self.limits.max_idle_time(reuse);
        let announced = self.announced_timeout;
        let margin = |announced: Duration| TIMEOUT_MARGIN.min(announced / 2);
        announced.map_or(max, |announced| max.min(announced - margin(announced)))
    }

    /// Returns the time for which the HTTP/1.1 connection is kept without a request.
    pub(super) fn idle_timeout(&self, is_memory_scarce: bool) -> Duration {
        let timeout = self.max_idle_time(Reuse::Any);
        match is_memory_scarce {
            true => timeout.min(SCARCE_MEMORY_IDLE_TIMEOUT),
            false => timeout,
        }
    }

    /// Whether the connection has reached its maximum lifetime or number of requests.
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

/// Parses the `timeout` parameter of `Keep-Alive` headers (`timeout=5, max=100`), in seconds.
fn announced_timeout(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("keep-alive").into_iter();
    let parameters = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']));
    let timeouts = parameters.filter_map(|parameter| {
        let (name, seconds) = parameter.split_once('=')?;
        let seconds = seconds.trim().trim_matches('"').parse().ok()?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| Duration::from_secs(seconds))
    });
    timeouts.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_valid_announced_timeout_applies() {
        for (values, expected) in [
            (&["timeout=5"][..], Some(5)),
            (&["max=100, Timeout = \"7\""], Some(7)),
            (&["timeout=9", "timeout=8"], Some(8)),
            (&["timeout=0"], Some(0)),
            (&["timeout=-1", "timeout", "max=5", "timeout=5s"], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("keep-alive", value.parse().unwrap());
            }
            let expected = expected.map(Duration::from_secs);
            assert_eq!(announced_timeout(&headers), expected, "{values:?}");
        }
    }

    #[test]
    fn connections_are_not_used_shortly_before_the_announced_timeout() {
        let limits = ReuseLimits::from_destination_limits(&DestinationLimits::default());
        let mut headers = HeaderMap::new();
        let mut idle_times = |value: &str| {
            headers.insert("keep-alive", value.parse().unwrap());
            let usage = ConnectionUse::new(limits).with_response_headers(&headers);
            [Reuse::Recent, Reuse::Any].map(|reuse| usage.max_idle_time(reuse).as_millis())
        };
        assert_eq!(idle_times("timeout=65"), [4_000, 64_000]);
        assert_eq!(idle_times("timeout=3"), [2_000, 2_000]);
        assert_eq!(idle_times("timeout=1"), [500, 500]);
        assert_eq!(idle_times("timeout=0"), [0, 0]);
        assert_eq!(idle_times("max=5"), [4_000, 3_600_000]);
    }
}
