//! Bandwidth limit of one reader of flow events, so that no reader takes CPU time from xDS. The proxies sample events
//! that are not read in time, and report the sampling.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Maximum bytes per second for one reader.
const BYTES_PER_SECOND: f64 = 4e6;

/// Limiter of the bytes that are sent to one reader.
#[derive(Debug, Default)]
pub(super) struct Bandwidth {
    /// Time at which the bytes sent so far are within the limit.
    paid_at: Option<Instant>,
}

impl Bandwidth {
    /// Waits until the limit allows to send these bytes, and counts them.
    pub(super) async fn take(&mut self, bytes: usize) {
        let due = self.due(bytes, Instant::now());
        sleep_until(due).await;
    }

    /// Counts bytes; returns the earliest time at which they may be sent.
    #[expect(clippy::cast_precision_loss, reason = "chunks are small")]
    fn due(&mut self, bytes: usize, now: Instant) -> Instant {
        let due = self.paid_at.map_or(now, |at| at.max(now));
        let cost = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND);
        self.paid_at = Some(due + cost);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_limited_per_second() {
        let start = Instant::now();
        let mut bandwidth = Bandwidth::default();
        let chunks = 400;
        let last = (0..=chunks)
            .map(|_| bandwidth.due(10_000, start))
            .last()
            .unwrap();
        assert_eq!((last - start).as_millis(), 1000);
        let later = start + Duration::from_secs(60);
        assert_eq!(bandwidth.due(10_000, later), later);
    }
}
