//! Requests and connections that go from waypoint to waypoint, because routes lead to services that have waypoints of their own:
//! not in circles.

use http::{HeaderMap, HeaderName, HeaderValue};

/// How many waypoints a request, or the connection in a tunnel, has passed. Only waypoints see it.
const PASSED: HeaderName = HeaderName::from_static("x-ambit-waypoints-passed");
/// A request that has passed so many goes in a circle. Each route to a service with another waypoint adds one or two.
const MOST: u8 = 8;
/// As how many waypoints a mirror counts. What is mirrored may be mirrored once more by another waypoint, and goes no
/// further: with several mirrors each, further ones would multiply it.
const MIRROR: u8 = 3;

/// How many waypoints were passed before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed(u8);

impl Passed {
    /// Of what begins here.
    pub(crate) const NONE: Self = Self(0);

    /// What headers say; `None` if these are too many.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(PASSED).and_then(|said| said.to_str().ok());
        let passed = text.and_then(|text| text.parse().ok()).unwrap_or(0);
        (passed < MOST).then_some(Self(passed))
    }

    /// Of a request as it came; without the header from then on. Whoever says too much harms itself; too little is
    /// made good at the next waypoint.
    pub(crate) fn take(headers: &mut HeaderMap) -> Option<Self> {
        let passed = Self::of(headers);
        headers.remove(PASSED);
        passed
    }

    /// Of what a mirror gets of a request.
    pub(crate) fn mirrored(self) -> Self {
        Self(self.0.saturating_add(MIRROR))
    }

    /// Tells it to the waypoint that is next, if one is.
    pub(crate) fn tell(self, headers: &mut HeaderMap, one_is_next: bool) {
        if one_is_next {
            headers.insert(PASSED, HeaderValue::from(u16::from(self.0) + 1));
        } else {
            headers.remove(PASSED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(said: &'static str) -> Option<Passed> {
        let mut headers = HeaderMap::new();
        headers.insert(PASSED, HeaderValue::from_static(said));
        let taken = Passed::take(&mut headers);
        assert!(headers.is_empty());
        taken
    }

    #[test]
    fn too_many_waypoints_are_a_circle() {
        assert_eq!(Passed::take(&mut HeaderMap::new()), Some(Passed(0)));
        assert_eq!(taken("7"), Some(Passed(7)));
        for said in ["8", "255"] {
            assert_eq!(taken(said), None, "{said}");
        }
        let next = |passed: Passed| {
            let mut headers = HeaderMap::new();
            passed.tell(&mut headers, true);
            Passed::take(&mut headers)
        };
        let once = next(Passed::NONE.mirrored());
        assert_eq!(once, Some(Passed(4)));
        assert_eq!(once.and_then(|once| next(once.mirrored())), None);
        // No waypoint says that.
        for said in ["", "-1", "256", "x"] {
            assert_eq!(taken(said), Some(Passed(0)), "{said}");
        }
    }
}
