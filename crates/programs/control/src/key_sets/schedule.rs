//! Which key set is fetched when, and how long one is believed that cannot be fetched again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ambit_derive::{KeySource, KeyState};
use ambit_model::ArcStr;
use tokio::time::Instant;

/// Most fetches at once.
const AT_ONCE: usize = 8;
/// How long after the first failure the next attempt is made; it doubles with each.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// How long it is at most.
const LAST_RETRY: Duration = Duration::from_secs(300);
/// How long the keys are believed that were had last: who keeps us from an issuer must not keep a key alive that the
/// issuer has withdrawn.
const BELIEVED: Duration = Duration::from_secs(24 * 3600);

/// Schedule of fetches, as described for the module.
#[derive(Debug)]
pub(super) struct Book {
    refresh: Duration,
    sets: BTreeMap<KeySource, Set>,
}

#[derive(Debug)]
struct Set {
    /// `None`: it is being fetched.
    due: Option<Instant>,
    failures: u32,
    last: Option<(ArcStr, Instant)>,
}

impl Book {
    pub(super) fn new(refresh: Duration) -> Self {
        Self {
            refresh,
            sets: BTreeMap::new(),
        }
    }

    /// Sets the key sets that are wanted now, and forgets others.
    pub(super) fn want(&mut self, sources: &BTreeSet<KeySource>, now: Instant) {
        self.sets.retain(|source, _| sources.contains(source));
        for source in sources {
            self.sets.entry(source.clone()).or_insert(Set {
                due: Some(now),
                failures: 0,
                last: None,
            });
        }
    }

    /// Key sets that are due to be fetched now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<KeySource> {
        let fetching = self.sets.values().filter(|set| set.due.is_none()).count();
        let due = self.sets.iter_mut();
        let due = due.filter(|(_, set)| set.due.is_some_and(|at| at <= now));
        let begun = due
            .take(AT_ONCE.saturating_sub(fetching))
            .map(|(source, set)| {
                set.due = None;
                source.clone()
            });
        begun.collect()
    }

    /// When something may be due.
    pub(super) fn next(&self) -> Option<Instant> {
        let fetching = self.sets.values().filter(|set| set.due.is_none()).count();
        let first = self.sets.values().filter_map(|set| set.due).min();
        first.filter(|_| fetching < AT_ONCE)
    }

    /// Takes the result of a fetch, and gives the state of the set; `None` if it is not wanted any more. Times are
    /// spread by a factor.
    pub(super) fn fetched<E: std::fmt::Display>(
        &mut self,
        source: &KeySource,
        outcome: Result<String, E>,
        now: Instant,
        spread: f64,
    ) -> Option<KeyState> {
        let set = self.sets.get_mut(source)?;
        let trouble = match outcome {
            Ok(keys) => {
                set.failures = 0;
                set.due = Some(now + self.refresh.mul_f64(spread));
                set.last = Some((keys.into(), now));
                None
            }
            Err(error) => {
                let doubled = FIRST_RETRY * 2_u32.pow(set.failures.min(10));
                let wait = doubled.min(LAST_RETRY).min(self.refresh);
                set.failures = set.failures.saturating_add(1);
                set.due = Some(now + wait.mul_f64(spread));
                set.last = set
                    .last
                    .take()
                    .filter(|(_, at)| now.duration_since(*at) < BELIEVED);
                Some(ArcStr::from(error.to_string()))
            }
        };
        Some(KeyState {
            keys: set.last.as_ref().map(|(keys, _)| keys.clone()),
            trouble,
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
            is_issuer: false,
            timeout: Duration::from_secs(5),
            namespace: None,
        }
    }

    fn had(keys: &str) -> Result<String, String> {
        Ok(keys.to_owned())
    }

    fn failed() -> Result<String, String> {
        Err("gone".to_owned())
    }

    #[test]
    fn a_set_is_fetched_at_once_and_again_after_the_refresh() {
        let (mut book, now) = (Book::new(REFRESH), Instant::now());
        let one = source("a");
        book.want(&[one.clone()].into(), now);
        assert_eq!(book.due(now), std::slice::from_ref(&one));
        assert_eq!((book.due(now), book.next()), (vec![], None));
        let state = book.fetched(&one, had("k"), now, 1.0).unwrap();
        assert_eq!((state.keys.as_deref(), state.trouble), (Some("k"), None));
        assert_eq!(book.next(), Some(now + REFRESH));
        assert_eq!(book.due(now + REFRESH), [one]);
    }

    #[test]
    fn failures_are_spread_out_and_what_was_had_last_is_believed_for_a_day() {
        let (mut book, mut now) = (Book::new(REFRESH), Instant::now());
        let one = source("a");
        book.want(&[one.clone()].into(), now);
        book.due(now);
        assert_eq!(book.fetched(&one, failed(), now, 1.0).unwrap().keys, None);
        assert_eq!(book.next(), Some(now + Duration::from_secs(1)));
        book.fetched(&one, had("k"), now, 1.0);
        let began = now;
        let mut waits = Vec::new();
        while now - began < BELIEVED {
            let state = book.fetched(&one, failed(), now, 1.0).unwrap();
            assert_eq!(state.keys.as_deref(), Some("k"));
            assert_eq!(state.trouble.as_deref(), Some("gone"));
            let next = book.next().unwrap();
            waits.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(waits[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(book.fetched(&one, failed(), now, 1.0).unwrap().keys, None);
    }

    #[test]
    fn few_are_fetched_at_once_and_what_nobody_wants_is_forgotten() {
        let (mut book, now) = (Book::new(REFRESH), Instant::now());
        let all: BTreeSet<_> = (0..20).map(|index| source(&index.to_string())).collect();
        book.want(&all, now);
        let begun = book.due(now);
        assert_eq!((begun.len(), book.due(now).len()), (AT_ONCE, 0));
        book.fetched(&begun[0], had("k"), now, 1.0);
        assert_eq!(book.due(now).len(), 1);
        book.want(&BTreeSet::new(), now);
        assert_eq!(book.fetched(&begun[1], had("k"), now, 1.0), None);
        assert_eq!(book.next(), None);
    }
}
