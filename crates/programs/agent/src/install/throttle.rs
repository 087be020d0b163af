//! Rate limit of changes to the network configurations: delays increase while another process reverts them.

use std::time::{Duration, Instant};

/// Time without changes after which the count of successive changes restarts.
const BURST_WINDOW: Duration = Duration::from_secs(10);
/// Number of successive changes without delay: a starting CNI writes its configuration several times.
const MAX_BURST: u32 = 5;
/// Initial and maximum delay of further changes.
const THROTTLE_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Rate limit of changes to the network configurations.
#[derive(Debug, Default)]
pub struct Throttle {
    last_change: Option<Instant>,
    burst_length: u32,
}

impl Throttle {
    /// Returns the earliest time of the next change; `None` while changes are not delayed.
    pub fn next_allowed(&self) -> Option<Instant> {
        let quarrel = self.burst_length.checked_sub(MAX_BURST)?;
        let pause = THROTTLE_DELAY.0 * 2u32.saturating_pow(quarrel.min(10));
        Some(self.last_change? + pause.min(THROTTLE_DELAY.1))
    }

    /// Counts a change. Returns true when changes begin to be delayed.
    pub fn record_change(&mut self, now: Instant) -> bool {
        let pause = self.next_allowed().zip(self.last_change);
        let pause = pause.map_or(Duration::ZERO, |(until, last)| until - last);
        let calm = self
            .last_change
            .is_none_or(|last| now > last + pause + BURST_WINDOW);
        self.burst_length = if calm { 1 } else { self.burst_length + 1 };
        self.last_change = Some(now);
        self.burst_length == MAX_BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarrel_is_fought_ever_slower_and_forgotten_in_time() {
        let mut throttle = Throttle::default();
        let mut now = Instant::now();
        let mut reported = 0;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            now = throttle.next_allowed().unwrap_or(now).max(now);
            reported += u32::from(throttle.record_change(now));
            pauses.push(throttle.next_allowed().map_or(0, |at| (at - now).as_secs()));
        }
        assert_eq!(reported, 1);
        assert_eq!(pauses, [0, 0, 0, 0, 1, 2, 4, 8, 16, 30, 30, 30]);
        now += Duration::from_secs(60);
        assert!(!throttle.record_change(now));
        assert_eq!(throttle.next_allowed(), None);
    }
}
