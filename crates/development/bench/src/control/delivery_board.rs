//! Records the times at which changes are made and reach the last proxy.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Prefix of the names of added and removed pods; the number of the change follows.
pub(super) const CHURN_POD_PREFIX: &str = "churn-";

/// Time of each change, and the number of proxies that received the change. Additions and removals are numbered
/// separately.
#[derive(Debug)]
pub(super) struct DeliveryBoard {
    start: Instant,
    additions: Vec<Delivery>,
    removals: Vec<Delivery>,
}

#[derive(Debug, Default)]
struct Delivery {
    /// Time at which the change was made, in nanoseconds after the start; 0 before the change.
    changed_at: AtomicU64,
    received_by: AtomicU32,
    last_received_at: AtomicU64,
}

impl DeliveryBoard {
    /// Creates a board with room for `changes` additions and as many removals.
    pub(super) fn new(changes: usize) -> Self {
        let delivery = || (0..changes).map(|_| Delivery::default()).collect();
        Self {
            start: Instant::now(),
            additions: delivery(),
            removals: delivery(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn delivery(&self, is_there: bool) -> &[Delivery] {
        if is_there {
            &self.additions
        } else {
            &self.removals
        }
    }

    /// Records the time at which addition (`is_there`) or removal `number` is made.
    pub(super) fn record_change(&self, is_there: bool, number: usize) {
        if let Some(delivery) = self.delivery(is_there).get(number) {
            delivery
                .changed_at
                .store(self.now().max(1), Ordering::Relaxed);
        }
    }

    /// Records that a proxy received the addition (`is_there`) or removal of the record `name`.
    pub(super) fn record_delivery(&self, is_there: bool, name: &[u8]) {
        let Some(number) = number(name) else { return };
        let Some(delivery) = self.delivery(is_there).get(number) else {
            return;
        };
        delivery.received_by.fetch_add(1, Ordering::Relaxed);
        delivery
            .last_received_at
            .fetch_max(self.now(), Ordering::Relaxed);
    }

    /// Returns for every change from number `from` on the time until `proxies` proxies received it; `None` if some have
    /// not.
    pub(super) fn latencies(&self, from: usize, proxies: u32) -> Vec<Option<Duration>> {
        let there = self.additions.iter().skip(from);
        there
            .chain(self.removals.iter().skip(from))
            .filter(|delivery| delivery.changed_at.load(Ordering::Relaxed) > 0)
            .map(|delivery| {
                let made = delivery.changed_at.load(Ordering::Relaxed);
                let last = delivery.last_received_at.load(Ordering::Relaxed);
                (delivery.received_by.load(Ordering::Relaxed) >= proxies)
                    .then(|| Duration::from_nanos(last.saturating_sub(made)))
            })
            .collect()
    }
}

/// Parses the number of a change from the name of its object's record.
fn number(name: &[u8]) -> Option<usize> {
    let name = std::str::from_utf8(name).ok()?;
    let (_, rest) = name.rsplit_once(CHURN_POD_PREFIX)?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_once_the_last_proxy_received_it() {
        let board = DeliveryBoard::new(2);
        board.record_change(true, 1);
        board.record_delivery(true, b"Kubernetes//Pod/ns/churn-1");
        assert_eq!(board.latencies(0, 2), [None]);
        board.record_delivery(false, b"Kubernetes//Pod/ns/churn-1");
        board.record_delivery(true, b"Kubernetes//Pod/ns/other");
        assert_eq!(board.latencies(0, 2), [None]);
        board.record_delivery(true, b"Kubernetes//Pod/ns/churn-1");
        assert!(board.latencies(0, 2)[0].is_some());
    }

    #[test]
    fn numbers_end_where_digits_do() {
        assert_eq!(number(b"a/churn-17"), Some(17));
        assert_eq!(number(b"a/churn-17/b"), Some(17));
        assert_eq!(number(b"a/b"), None);
    }
}
