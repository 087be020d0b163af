//! Rate limit of new streams. After a restart all clients come at once; each is admitted after a
//! short wait rather than sent away, as long as the wait is bearable.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A wait that is longer is a refusal; clients come back by themselves.
const LONGEST: Duration = Duration::from_secs(15);

/// Admission control of xDS streams.
#[derive(Debug)]
pub struct Admission {
    gate: Mutex<Gate>,
}

/// Rate limiter that decides when the next caller may enter. Pure.
#[derive(Debug)]
struct Gate {
    interval: Duration,
    /// Burst size after an idle period.
    burst: u32,
    /// Time at which the queue is empty, without further callers.
    line_ends: Option<Instant>,
}

impl Gate {
    /// Returns the wait of the next caller; `None` if it is too long.
    fn enter(&mut self, now: Instant) -> Option<Duration> {
        let line_ends = self.line_ends.map_or(now, |at| at.max(now));
        let ahead = line_ends - now;
        let wait = ahead.saturating_sub(self.interval * self.burst);
        (wait <= LONGEST).then(|| {
            self.line_ends = Some(line_ends + self.interval);
            wait
        })
    }
}

impl Admission {
    /// Creates the admission with a rate per second, which is also the burst.
    pub fn new(per_second: u32) -> Self {
        let per_second = per_second.max(1);
        let gate = Gate {
            interval: Duration::from_secs(1) / per_second,
            burst: per_second,
            line_ends: None,
        };
        Self {
            gate: Mutex::new(gate),
        }
    }

    /// Waits for one's turn; false if the line is too long.
    pub async fn enter(&self) -> bool {
        let wait = self.gate.lock().enter(Instant::now());
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
    fn a_few_enter_at_once_the_others_in_turn_and_some_not_at_all() {
        let now = Instant::now();
        let mut gate = Gate {
            interval: Duration::from_millis(100),
            burst: 10,
            line_ends: None,
        };
        let waits: Vec<_> = (0..12).filter_map(|_| gate.enter(now)).collect();
        let (at_once, later) = waits.split_at(11);
        assert!(at_once.iter().all(Duration::is_zero), "{waits:?}");
        assert_eq!(later, [Duration::from_millis(100)]);
        let let_in = (0..1000).filter(|_| gate.enter(now).is_some()).count();
        assert_eq!(let_in, 149, "within the longest wait");
        let later = now + Duration::from_secs(60);
        assert_eq!(gate.enter(later), Some(Duration::ZERO));
    }
}
