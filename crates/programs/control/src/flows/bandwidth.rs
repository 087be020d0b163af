//! Bandwidth limit of one reader of flow events, so that no reader takes CPU time from xDS. The proxies sample events
//! that are not read in time, and report the sampling.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Maximum bytes per second for one reader.
const MAX_BYTES_PER_SECOND: f64 = 4e6;

/// Limiter of the bytes that are sent to one reader.
#[derive(Debug, Default)]
pub(super) struct BandwidthLimit {
    /// Time at which the bytes sent so far are within the limit.
    next_send_at: Option<Instant>,
}

impl BandwidthLimit {
    /// Waits until the limit allows to send these bytes, and counts them.
    pub(super) async fn wait_for(&mut self, bytes: usize) {
        let due = self.reserve(bytes, Instant::now());
        sleep_until(due).await;
    }

    /// Counts bytes; returns the earliest time at which they may be sent.
    #[expect(clippy::cast_precision_loss, reason = "chunks are small")]
    fn reserve(&mut self, bytes: usize, now: Instant) -> Instant {
        let due = self.next_send_at.map_or(now, |at| at.max(now));
        let cost = Duration::from_secs_f64(bytes as f64 / MAX_BYTES_PER_SECOND);
        self.next_send_at = Some(due + cost);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_limited_per_second() {
        let start = Instant::now();
        let mut bandwidth = BandwidthLimit::default();
        let chunks = 400;
        let last = (0..=chunks)
            .map(|_| bandwidth.reserve(10_000, start))
            .last()
            .unwrap();
        assert_eq!((last - start).as_millis(), 1000);
        let later = start + Duration::from_secs(60);
        assert_eq!(bandwidth.reserve(10_000, later), later);
    }
}
