//! Exponential backoff as a value. The value uses neither a clock nor a random generator: the caller sleeps, and passes
//! the random number.

use std::time::Duration;

/// Exponential backoff with a cap and jitter.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: Duration,
    cap: Duration,
    jitter: f64,
    next: Duration,
}

impl Backoff {
    /// Creates an exponential backoff from `initial` up to `cap`; `jitter` 0.2 spreads each delay by ±20 %.
    pub fn new(initial: Duration, cap: Duration, jitter: f64) -> Self {
        Self {
            initial,
            cap,
            jitter: jitter.clamp(0.0, 1.0),
            next: initial.min(cap),
        }
    }

    /// Returns the next delay. `random` is in `0.0..1.0`; 0.5 adds no jitter.
    pub fn next_delay(&mut self, random: f64) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.cap);
        let random = if random.is_finite() {
            random.clamp(0.0, 1.0)
        } else {
            0.5
        };
        delay
            .mul_f64(1.0 + self.jitter * (2.0 * random - 1.0))
            .min(self.cap)
    }

    /// Resets the next delay to the initial one.
    pub fn reset(&mut self) {
        self.next = self.initial.min(self.cap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_and_start_again_after_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5), 0.0);
        let seconds: Vec<_> = (0..5).map(|_| backoff.next_delay(0.9).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 5, 5]);
        backoff.reset();
        assert_eq!(backoff.next_delay(0.0), Duration::from_secs(1));
    }

    #[test]
    fn jitter_spreads_up_and_down_within_the_cap() {
        let mut backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(11), 0.2);
        assert_eq!(backoff.clone().next_delay(0.0), Duration::from_secs(8));
        assert_eq!(backoff.clone().next_delay(0.5), Duration::from_secs(10));
        assert_eq!(backoff.clone().next_delay(1.0), Duration::from_secs(11));
        assert_eq!(backoff.next_delay(f64::NAN), Duration::from_secs(10));
    }
}
