//! Schedules fetches of key sets, and decides how long keys stay valid when fetches fail.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ambit_derive::{KeySetState, KeySource};
use ambit_model::ArcStr;
use tokio::time::Instant;

/// Maximum concurrent fetches of key sets.
const MAX_CONCURRENT_FETCHES: usize = 8;
/// Delay of the first retry after a failed fetch; doubled after each further failure.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay of a retry.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
/// Time for which fetched keys stay valid when later fetches fail: an attacker who blocks the issuer must not keep a
/// revoked key valid.
const KEY_VALIDITY: Duration = Duration::from_secs(24 * 3600);

/// Schedule of fetches of all desired key sets.
#[derive(Debug)]
pub(super) struct FetchSchedule {
    refresh_interval: Duration,
    key_sets: BTreeMap<KeySource, KeySetEntry>,
}

#[derive(Debug)]
struct KeySetEntry {
    /// Time at which the next fetch is due; `None` during a fetch.
    due_at: Option<Instant>,
    failures: u32,
    last_fetched: Option<(ArcStr, Instant)>,
}

impl FetchSchedule {
    pub(super) fn new(refresh: Duration) -> Self {
        Self {
            refresh_interval: refresh,
            key_sets: BTreeMap::new(),
        }
    }

    /// Sets the desired key sets, and removes all others.
    pub(super) fn set_desired(&mut self, sources: &BTreeSet<KeySource>, now: Instant) {
        self.key_sets.retain(|source, _| sources.contains(source));
        for source in sources {
            self.key_sets.entry(source.clone()).or_insert(KeySetEntry {
                due_at: Some(now),
                failures: 0,
                last_fetched: None,
            });
        }
    }

    /// Returns the key sets that are due, and marks them as being fetched.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<KeySource> {
        let fetching = self
            .key_sets
            .values()
            .filter(|set| set.due_at.is_none())
            .count();
        let due = self.key_sets.iter_mut();
        let due = due.filter(|(_, set)| set.due_at.is_some_and(|at| at <= now));
        let begun = due
            .take(MAX_CONCURRENT_FETCHES.saturating_sub(fetching))
            .map(|(source, set)| {
                set.due_at = None;
                source.clone()
            });
        begun.collect()
    }

    /// Returns the time of the next fetch.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let fetching = self
            .key_sets
            .values()
            .filter(|set| set.due_at.is_none())
            .count();
        let first = self.key_sets.values().filter_map(|set| set.due_at).min();
        first.filter(|_| fetching < MAX_CONCURRENT_FETCHES)
    }

    /// Handles the result of a fetch, and returns the new state of the key set; `None` if it is no longer desired. The
    /// next fetch's delay is multiplied by the random factor `spread`.
    pub(super) fn on_fetched<E: std::fmt::Display>(
        &mut self,
        source: &KeySource,
        outcome: Result<String, E>,
        now: Instant,
        spread: f64,
    ) -> Option<KeySetState> {
        let set = self.key_sets.get_mut(source)?;
        let trouble = match outcome {
            Ok(keys) => {
                set.failures = 0;
                set.due_at = Some(now + self.refresh_interval.mul_f64(spread));
                set.last_fetched = Some((keys.into(), now));
                None
            }
            Err(error) => {
                let doubled = FIRST_RETRY_DELAY * 2_u32.pow(set.failures.min(10));
                let wait = doubled.min(MAX_RETRY_DELAY).min(self.refresh_interval);
                set.failures = set.failures.saturating_add(1);
                set.due_at = Some(now + wait.mul_f64(spread));
                set.last_fetched = set
                    .last_fetched
                    .take()
                    .filter(|(_, at)| now.duration_since(*at) < KEY_VALIDITY);
                Some(ArcStr::from(error.to_string()))
            }
        };
        Some(KeySetState {
            keys: set.last_fetched.as_ref().map(|(keys, _)| keys.clone()),
            last_error: trouble,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFRESH: Duration = Duration::from_secs(1200);

    fn source(url: &str) -> KeySource {
        KeySource {
            url: url.into(),
            format: ambit_derive::KeyFormat::KeySet,
            timeout: Duration::from_secs(5),
            namespace: None,
        }
    }

    fn fetched(keys: &str) -> Result<String, String> {
        Ok(keys.to_owned())
    }

    fn failed() -> Result<String, String> {
        Err("gone".to_owned())
    }

    #[test]
    fn set_is_fetched_at_once_and_after_the_refresh_interval() {
        let (mut schedule, now) = (FetchSchedule::new(REFRESH), Instant::now());
        let one = source("a");
        schedule.set_desired(&[one.clone()].into(), now);
        assert_eq!(schedule.take_due(now), std::slice::from_ref(&one));
        assert_eq!(
            (schedule.take_due(now), schedule.next_due()),
            (vec![], None)
        );
        let state = schedule.on_fetched(&one, fetched("k"), now, 1.0).unwrap();
        assert_eq!((state.keys.as_deref(), state.last_error), (Some("k"), None));
        assert_eq!(schedule.next_due(), Some(now + REFRESH));
        assert_eq!(schedule.take_due(now + REFRESH), [one]);
    }

    #[test]
    fn failed_sets_back_off_and_old_keys_expire_after_a_day() {
        let (mut schedule, mut now) = (FetchSchedule::new(REFRESH), Instant::now());
        let one = source("a");
        schedule.set_desired(&[one.clone()].into(), now);
        schedule.take_due(now);
        assert_eq!(
            schedule.on_fetched(&one, failed(), now, 1.0).unwrap().keys,
            None
        );
        assert_eq!(schedule.next_due(), Some(now + Duration::from_secs(1)));
        schedule.on_fetched(&one, fetched("k"), now, 1.0);
        let began = now;
        let mut waits = Vec::new();
        while now - began < KEY_VALIDITY {
            let state = schedule.on_fetched(&one, failed(), now, 1.0).unwrap();
            assert_eq!(state.keys.as_deref(), Some("k"));
            assert_eq!(state.last_error.as_deref(), Some("gone"));
            let next = schedule.next_due().unwrap();
            waits.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(waits[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(
            schedule.on_fetched(&one, failed(), now, 1.0).unwrap().keys,
            None
        );
    }

    #[test]
    fn concurrent_fetches_are_limited_and_unused_sets_removed() {
        let (mut schedule, now) = (FetchSchedule::new(REFRESH), Instant::now());
        let all: BTreeSet<_> = (0..20).map(|index| source(&index.to_string())).collect();
        schedule.set_desired(&all, now);
        let begun = schedule.take_due(now);
        assert_eq!(
            (begun.len(), schedule.take_due(now).len()),
            (MAX_CONCURRENT_FETCHES, 0)
        );
        schedule.on_fetched(&begun[0], fetched("k"), now, 1.0);
        assert_eq!(schedule.take_due(now).len(), 1);
        schedule.set_desired(&BTreeSet::new(), now);
        assert_eq!(schedule.on_fetched(&begun[1], fetched("k"), now, 1.0), None);
        assert_eq!(schedule.next_due(), None);
    }
}
