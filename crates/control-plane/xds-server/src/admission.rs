//! Rate limit of new streams. After a restart of the control plane all clients reconnect at once;
//! each waits for a short time instead of being rejected, up to a maximum wait.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum wait; a client that would wait longer is rejected, and retries.
const MAX_ADMISSION_WAIT: Duration = Duration::from_secs(15);

/// Admission control of xDS streams.
#[derive(Debug)]
pub struct StreamAdmission {
    limiter: Mutex<RateLimiter>,
}

/// Rate limiter that computes when the next stream may be opened. Does no IO.
#[derive(Debug)]
struct RateLimiter {
    interval: Duration,
    /// Number of streams that may be opened at once after an idle period.
    burst: u32,
    /// Time at which the whole burst is available again, if no further stream is opened.
    burst_restored_at: Option<Instant>,
}

impl RateLimiter {
    /// Reserves the next stream, and returns how long its caller must wait; `None` if that exceeds
    /// [`MAX_ADMISSION_WAIT`].
    fn acquire(&mut self, now: Instant) -> Option<Duration> {
        let burst_restored_at = self.burst_restored_at.map_or(now, |at| at.max(now));
        let ahead = burst_restored_at - now;
        let wait = ahead.saturating_sub(self.interval * self.burst);
        (wait <= MAX_ADMISSION_WAIT).then(|| {
            self.burst_restored_at = Some(burst_restored_at + self.interval);
            wait
        })
    }
}

impl StreamAdmission {
    /// Creates the admission control with a rate in streams per second, which is also the burst.
    pub fn new(per_second: u32) -> Self {
        let per_second = per_second.max(1);
        let limiter = RateLimiter {
            interval: Duration::from_secs(1) / per_second,
            burst: per_second,
            burst_restored_at: None,
        };
        Self {
            limiter: Mutex::new(limiter),
        }
    }

    /// Waits until the caller may open a stream; returns false if the wait would be too long.
    pub async fn acquire(&self) -> bool {
        let wait = self.limiter.lock().acquire(Instant::now());
        match wait {
            Some(Duration::ZERO) => true,
            Some(wait) => {
                tokio::time::sleep(wait).await;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_streams_wait_or_are_rejected() {
        let now = Instant::now();
        let mut limiter = RateLimiter {
            interval: Duration::from_millis(100),
            burst: 10,
            burst_restored_at: None,
        };
        let waits: Vec<_> = (0..12).filter_map(|_| limiter.acquire(now)).collect();
        let (at_once, later) = waits.split_at(11);
        assert!(at_once.iter().all(Duration::is_zero), "{waits:?}");
        assert_eq!(later, [Duration::from_millis(100)]);
        let let_in = (0..1000).filter(|_| limiter.acquire(now).is_some()).count();
        assert_eq!(let_in, 149, "within the longest wait");
        let later = now + Duration::from_secs(60);
        assert_eq!(limiter.acquire(later), Some(Duration::ZERO));
    }
}
