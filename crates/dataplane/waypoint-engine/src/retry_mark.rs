//! Header that marks retries between waypoints, so that the attempts of several waypoints add up instead of
//! multiplying.
//!
//! A waypoint does not retry a marked request once an endpoint may have received it. Only the first attempt of each
//! waypoint may be retried by the next one, so n, m and k retries cause at most 1 + n + m + k attempts.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Request header that marks retries, sent between waypoints only. A client that sends it loses its own retries, and
/// gains nothing.
const HEADER: HeaderName = HeaderName::from_static("x-ambit-retry");

/// Mark that a request is a retry of a previous waypoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryMark(bool);

impl RetryMark {
    /// Mark of mirrored requests, so that no further waypoint retries them.
    pub(crate) const MIRROR: Self = Self(true);

    /// Removes the retry mark from the headers of a received request, and returns it.
    pub(crate) fn take_from_headers(headers: &mut HeaderMap) -> Self {
        Self(headers.remove(HEADER).is_some())
    }

    /// Whether the request is a retry of a previous waypoint.
    pub(crate) fn is_set(self) -> bool {
        self.0
    }

    /// Returns the mark of an outgoing attempt: set if this waypoint or a previous one retries the request.
    pub(crate) fn with_retry(self, is_retry: bool) -> Self {
        Self(self.0 || is_retry)
    }

    /// Writes the retry mark if the next hop is a waypoint; otherwise removes the header.
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
        let first = RetryMark::take_from_headers(&mut headers);
        first.write(&mut headers, true);
        assert!(!first.is_set() && headers.is_empty());
        first.with_retry(true).write(&mut headers, true);
        let second = RetryMark::take_from_headers(&mut headers);
        assert!(second.is_set() && headers.is_empty());
        second.with_retry(false).write(&mut headers, true);
        assert!(RetryMark::take_from_headers(&mut headers).is_set());
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
