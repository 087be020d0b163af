//! Mark of requests that a previous waypoint has already sent once: it makes the attempts of several waypoints add up
//! instead of multiplying.
//!
//! A waypoint that receives a marked request does not retry it once an endpoint may have received it. Only the first
//! attempt of each waypoint has the retries of the next one, so n, m and k retries cause 1 + n + m + k attempts at
//! most.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Header of retries, sent between waypoints only. A client that sends it loses its own retries, and gains nothing.
const HEADER: HeaderName = HeaderName::from_static("x-ambit-retry");

/// Whether a request is a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryMark(bool);

impl RetryMark {
    /// Mark of mirrored requests, which no further waypoint retries.
    pub(crate) const MIRROR: Self = Self(true);

    /// Reads and removes the mark of a received request.
    pub(crate) fn take(headers: &mut HeaderMap) -> Self {
        Self(headers.remove(HEADER).is_some())
    }

    /// Whether the request is a retry.
    pub(crate) fn is_set(self) -> bool {
        self.0
    }

    /// Returns the mark for an attempt, which is set if the attempt is a retry.
    pub(crate) fn or(self, is_retry: bool) -> Self {
        Self(self.0 || is_retry)
    }

    /// Marks the request for the next waypoint, if there is one.
    pub(crate) fn write(self, headers: &mut HeaderMap, is_waypoint: bool) {
        if self.0 && is_waypoint {
            headers.insert(HEADER, HeaderValue::from_static("1"));
        } else {
            headers.remove(HEADER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_mark_is_passed_on_by_waypoints() {
        let mut headers = HeaderMap::new();
        let first = RetryMark::take(&mut headers);
        first.write(&mut headers, true);
        assert!(!first.is_set() && headers.is_empty());
        first.or(true).write(&mut headers, true);
        let second = RetryMark::take(&mut headers);
        assert!(second.is_set() && headers.is_empty());
        second.or(false).write(&mut headers, true);
        assert!(RetryMark::take(&mut headers).is_set());
    }

    #[test]
    fn applications_do_not_see_the_mark() {
        let mut headers = HeaderMap::new();
        let retry = RetryMark(true);
        retry.write(&mut headers, true);
        retry.write(&mut headers, false);
        assert!(headers.is_empty());
    }
}
