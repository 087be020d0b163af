//! Rate limit of changes to the network configurations: delays increase while another process reverts them.

use std::time::{Duration, Instant};

/// Time without changes after which they count anew.
const WINDOW: Duration = Duration::from_secs(10);
/// Number of successive changes without delay, since a starting CNI writes its configuration several times.
const ORDINARY: u32 = 5;
/// Initial and maximum delay of further changes.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Rate limit of changes to the network configurations.
#[derive(Debug, Default)]
pub struct Throttle {
    last: Option<Instant>,
    in_a_row: u32,
}

impl Throttle {
    /// Returns the earliest time of the next change; `None` while changes are not delayed.
    pub fn not_before(&self) -> Option<Instant> {
        let quarrel = self.in_a_row.checked_sub(ORDINARY)?;
        let pause = PAUSE.0 * 2u32.saturating_pow(quarrel.min(10));
        Some(self.last? + pause.min(PAUSE.1))
    }

    /// Counts a change. Returns true when changes begin to be delayed.
    pub fn changed(&mut self, now: Instant) -> bool {
        let pause = self.not_before().zip(self.last);
        let pause = pause.map_or(Duration::ZERO, |(until, last)| until - last);
        let calm = self.last.is_none_or(|last| now > last + pause + WINDOW);
        self.in_a_row = if calm { 1 } else { self.in_a_row + 1 };
        self.last = Some(now);
        self.in_a_row == ORDINARY
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
            now = throttle.not_before().unwrap_or(now).max(now);
            reported += u32::from(throttle.changed(now));
            pauses.push(throttle.not_before().map_or(0, |at| (at - now).as_secs()));
        }
        assert_eq!(reported, 1);
        assert_eq!(pauses, [0, 0, 0, 0, 1, 2, 4, 8, 16, 30, 30, 30]);
        now += Duration::from_secs(60);
        assert!(!throttle.changed(now));
        assert_eq!(throttle.not_before(), None);
    }
}
