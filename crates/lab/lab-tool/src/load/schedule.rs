//! When the requests of one worker are due: at a fixed rate, whatever answers take.
//!
//! A worker that an answer held up sends the newest request that is due at once and gives the older
//! ones up: the load never comes in bursts, and what was not sent is counted.

use std::time::Duration;

/// The schedule of one worker. Times are offsets from the beginning of the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Due time of the first request.
    first: Duration,
    interval: Duration,
    next: u32,
}

/// Request that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) due: Duration,
    /// Number of earlier requests that could not be sent in time.
    pub(super) missed: u32,
}

impl Pace {
    /// Worker `worker` of `workers` that together send `rate` requests a second.
    pub(super) fn share(rate: u32, worker: u32, workers: u32) -> Self {
        let each = Duration::from_secs(1) / rate.max(1);
        Self {
            first: each * worker,
            interval: each * workers,
            next: 0,
        }
    }

    /// Creates a pace of a request every `interval`, starting after `first`.
    pub(super) fn every(interval: Duration, first: Duration) -> Self {
        Self {
            first,
            interval,
            next: 0,
        }
    }

    /// The next request: to be sent when it is due, or at once if that has passed.
    pub(super) fn turn(&mut self, now: Duration) -> Turn {
        let behind = now.saturating_sub(self.first).as_nanos() / self.interval.as_nanos().max(1);
        let newest = u32::try_from(behind).unwrap_or(u32::MAX);
        let number = newest.max(self.next);
        let missed = number - self.next;
        self.next = number.saturating_add(1);
        Turn {
            due: self.first + self.interval * number,
            missed,
        }
    }

    /// Returns the interval between requests.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn workers_share_the_rate_evenly() {
        let mut due = Vec::new();
        for worker in 0..4 {
            let mut pace = Pace::share(200, worker, 4);
            due.extend([pace.turn(ms(0)).due, pace.turn(ms(0)).due]);
        }
        due.sort();
        let every_five: Vec<_> = (0..8).map(|n| ms(5 * n)).collect();
        assert_eq!(due, every_five);
    }

    #[test]
    fn a_slow_answer_gives_up_what_it_held_up_and_no_burst_follows() {
        let mut pace = Pace::every(ms(20), ms(0));
        assert_eq!(
            pace.turn(ms(0)),
            Turn {
                due: ms(0),
                missed: 0
            }
        );
        // Late by less than a turn: nothing is lost.
        assert_eq!(
            pace.turn(ms(25)),
            Turn {
                due: ms(20),
                missed: 0
            }
        );
        // Two seconds later 99 turns have passed; the newest is sent now, the next on time.
        assert_eq!(
            pace.turn(ms(2030)),
            Turn {
                due: ms(2020),
                missed: 99
            }
        );
        assert_eq!(
            pace.turn(ms(2031)),
            Turn {
                due: ms(2040),
                missed: 0
            }
        );
    }
}
