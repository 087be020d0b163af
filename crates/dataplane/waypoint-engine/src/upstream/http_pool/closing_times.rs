//! Idle times after which endpoints have closed HTTP/1.1 connections. They bound the reuse for requests that may not be
//! repeated, since an endpoint may have a shorter idle timeout than usual servers without announcing it.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{
    key::HttpKey,
    reuse::{ReuseLimits, TIMEOUT_MARGIN},
};

/// Time for which an observation applies. Endpoints also close connections for other reasons than an idle timeout, for
/// instance when they restart.
const OBSERVATION_LIFETIME: Duration = Duration::from_secs(600);
/// Time for which an observation applies that permits no reuse at all. It is rather a restart of the endpoint.
const RESTART_OBSERVATION_LIFETIME: Duration = Duration::from_secs(30);
/// Maximum number of observed endpoints.
const MAX_OBSERVATIONS: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Observation {
    /// Shortest idle time after which the endpoint has closed a connection.
    closed_after: Duration,
    observed_at: Instant,
}

impl Observation {
    fn is_current(&self) -> bool {
        let lifetime = match self.closed_after <= TIMEOUT_MARGIN {
            true => RESTART_OBSERVATION_LIFETIME,
            false => OBSERVATION_LIFETIME,
        };
        self.observed_at.elapsed() < lifetime
    }
}

/// Endpoints that have closed connections after a shorter idle time than others are reused for.
#[derive(Debug, Default)]
pub(super) struct ClosingTimes(HashMap<HttpKey, Observation>);

impl ClosingTimes {
    /// Records that the endpoint has closed a connection after this idle time. Of several observations, the shortest
    /// time applies.
    pub(super) fn record(&mut self, key: &HttpKey, after: Duration, limits: ReuseLimits) {
        if after.saturating_sub(TIMEOUT_MARGIN) >= limits.recent_use() {
            return;
        }
        let observation = Observation {
            closed_after: after,
            observed_at: Instant::now(),
        };
        if let Some(known) = self.0.get_mut(key) {
            if !known.is_current() || after <= known.closed_after {
                *known = observation;
            }
            return;
        }
        if self.0.len() >= MAX_OBSERVATIONS {
            self.make_room();
        }
        self.0.insert(key.clone(), observation);
    }

    /// Returns the idle time up to which a connection carries requests that may not be repeated: `max`, or less if the
    /// endpoint has closed connections earlier.
    pub(super) fn limit(&self, key: &HttpKey, max: Duration) -> Duration {
        let observed = self.0.get(key).filter(|known| known.is_current());
        observed.map_or(max, |known| {
            max.min(known.closed_after.saturating_sub(TIMEOUT_MARGIN))
        })
    }

    /// Removes outdated observations, and the older half of the others if there are none.
    fn make_room(&mut self) {
        self.0.retain(|_, known| known.is_current());
        if self.0.len() < MAX_OBSERVATIONS {
            return;
        }
        let mut times: Vec<Instant> = self.0.values().map(|known| known.observed_at).collect();
        let (_, &mut median, _) = times.select_nth_unstable(MAX_OBSERVATIONS / 2);
        self.0.retain(|_, known| known.observed_at > median);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ambit_model::DestinationLimits;

    use super::*;
    use crate::{message::Version, upstream::Upstream};

    const MAX: Duration = Duration::from_secs(4);

    fn key(port: usize) -> HttpKey {
        let port = u16::try_from(port).unwrap();
        let upstream = Upstream::Plain(SocketAddr::from(([10, 0, 0, 1], port)), None);
        HttpKey::new(&upstream, Version::Http1)
    }

    fn record(times: &mut ClosingTimes, port: usize, after: Duration) {
        let limits = ReuseLimits::from_destination_limits(&DestinationLimits::default());
        times.record(&key(port), after, limits);
    }

    #[test]
    fn shortest_observed_time_applies_until_it_is_outdated() {
        let mut times = ClosingTimes::default();
        let mut limit_after = |seconds| {
            record(&mut times, 1, Duration::from_secs(seconds));
            times.limit(&key(1), MAX).as_secs()
        };
        assert_eq!(limit_after(5), 4);
        assert_eq!(limit_after(3), 2);
        assert_eq!(limit_after(2), 1);
        assert_eq!(limit_after(3), 1);
        assert_eq!(times.limit(&key(2), MAX), MAX);
        let known = times.0.get_mut(&key(1)).unwrap();
        known.observed_at -= OBSERVATION_LIFETIME;
        assert_eq!(times.limit(&key(1), MAX), MAX);
        record(&mut times, 1, Duration::from_secs(3));
        assert_eq!(times.limit(&key(1), MAX).as_secs(), 2);
    }

    #[test]
    fn closing_of_a_connection_that_was_just_used_soon_does_not_apply() {
        let mut times = ClosingTimes::default();
        record(&mut times, 1, Duration::from_millis(300));
        assert_eq!(times.limit(&key(1), MAX), Duration::ZERO);
        let known = times.0.get_mut(&key(1)).unwrap();
        known.observed_at -= RESTART_OBSERVATION_LIFETIME;
        assert_eq!(times.limit(&key(1), MAX), MAX);
    }

    #[test]
    fn endpoints_with_usual_timeouts_are_not_recorded() {
        let mut times = ClosingTimes::default();
        record(&mut times, 1, Duration::from_secs(5));
        assert!(times.0.is_empty());
    }

    #[test]
    fn older_observations_make_room_for_new_ones() {
        let mut times = ClosingTimes::default();
        for port in 0..=MAX_OBSERVATIONS {
            record(&mut times, port, Duration::ZERO);
            assert!(times.0.len() <= MAX_OBSERVATIONS);
        }
        assert_eq!(times.limit(&key(MAX_OBSERVATIONS), MAX), Duration::ZERO);
        assert_eq!(times.limit(&key(0), MAX), MAX);
    }
}
