//! Number of waypoints that a request or connection has passed, carried in a header to end routing loops between
//! waypoints.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Header with the number of waypoints that a request, or the connection in a tunnel, has passed. It is never sent to
/// applications.
const HOPS_HEADER: HeaderName = HeaderName::from_static("x-ambit-waypoints-passed");
/// Number of hops at which a request is considered to be in a routing loop. Each route to a service with another
/// waypoint adds one or two.
const MAX_HOPS: u8 = 8;
/// Hops added to the count of a mirrored request: another waypoint may mirror it once more, later ones may not. Several
/// mirrors at each waypoint would multiply the requests.
const MIRROR_HOPS: u8 = 3;

/// Number of waypoints that a request or connection has passed before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hops(u8);

impl Hops {
    /// Zero hops, for requests that this waypoint itself originates.
    pub(crate) const NONE: Self = Self(0);

    /// Parses the hop count in request headers; `None` if the count suggests a routing loop.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let text = headers
            .get(HOPS_HEADER)
            .and_then(|value| value.to_str().ok());
        let hops = text.and_then(|text| text.parse().ok()).unwrap_or(0);
        (hops < MAX_HOPS).then_some(Self(hops))
    }

    /// Parses and removes the hop-count header; `None` if the count suggests a routing loop. A client that forges a
    /// high count harms only itself, and the next waypoint corrects a low one.
    pub(crate) fn take_from_headers(headers: &mut HeaderMap) -> Option<Self> {
        let hops = Self::from_headers(headers);
        headers.remove(HOPS_HEADER);
        hops
    }

    /// Returns the number of hops that a mirrored request of this request carries.
    pub(crate) fn for_mirror(self) -> Self {
        Self(self.0.saturating_add(MIRROR_HOPS))
    }

    /// Writes the hop count, including this waypoint, if the next hop is a waypoint; otherwise removes the header.
    pub(crate) fn write(self, headers: &mut HeaderMap, is_next_waypoint: bool) {
        if is_next_waypoint {
            headers.insert(HOPS_HEADER, HeaderValue::from(u16::from(self.0) + 1));
        } else {
            headers.remove(HOPS_HEADER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_hops(value: &'static str) -> Option<Hops> {
        let mut headers = HeaderMap::new();
        headers.insert(HOPS_HEADER, HeaderValue::from_static(value));
        let taken = Hops::take_from_headers(&mut headers);
        assert!(headers.is_empty());
        taken
    }

    #[test]
    fn hops_are_limited_and_mirrors_count_more() {
        assert_eq!(
            Hops::take_from_headers(&mut HeaderMap::new()),
            Some(Hops(0))
        );
        assert_eq!(take_hops("7"), Some(Hops(7)));
        for value in ["8", "255"] {
            assert_eq!(take_hops(value), None, "{value}");
        }
        let next = |hops: Hops| {
            let mut headers = HeaderMap::new();
            hops.write(&mut headers, true);
            Hops::take_from_headers(&mut headers)
        };
        let once = next(Hops::NONE.for_mirror());
        assert_eq!(once, Some(Hops(4)));
        assert_eq!(once.and_then(|once| next(once.for_mirror())), None);
        // Values that no waypoint writes.
        for value in ["", "-1", "256", "x"] {
            assert_eq!(take_hops(value), Some(Hops(0)), "{value}");
        }
    }
}
