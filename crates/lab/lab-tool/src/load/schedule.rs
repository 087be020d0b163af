//! Schedule of one worker's requests: a fixed rate, independent of response times.
//!
//! A worker that waited for a slow response sends the newest due request at once and skips the
//! older ones: the load never comes in bursts, and skipped requests are counted.

use std::time::Duration;

/// Schedule of one worker's requests. Times are offsets from the beginning of the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// Offset at which the first request is due.
    first_due: Duration,
    interval: Duration,
    next_number: u32,
}

/// Next request of a worker: its due time, and the number of skipped requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueRequest {
    pub(super) due: Duration,
    /// Number of requests before this one that were skipped, since an earlier one took too long.
    pub(super) skipped: u32,
}

impl Schedule {
    /// Creates the schedule of worker number `worker` of `workers`, which together send `rate` requests per second.
    pub(super) fn with_rate_share(rate: u32, worker: u32, workers: u32) -> Self {
        let each = Duration::from_secs(1) / rate.max(1);
        Self {
            first_due: each * worker,
            interval: each * workers,
            next_number: 0,
        }
    }

    /// Creates the schedule of a worker that sends a request every `interval`, the first one at `first`.
    pub(super) fn with_interval(interval: Duration, first: Duration) -> Self {
        Self {
            first_due: first,
            interval,
            next_number: 0,
        }
    }

    /// Returns the next request, which is to be sent at its due time, or at once if that has passed.
    pub(super) fn next_request(&mut self, now: Duration) -> DueRequest {
        let behind =
            now.saturating_sub(self.first_due).as_nanos() / self.interval.as_nanos().max(1);
        let newest = u32::try_from(behind).unwrap_or(u32::MAX);
        let number = newest.max(self.next_number);
        let missed = number - self.next_number;
        self.next_number = number.saturating_add(1);
        DueRequest {
            due: self.first_due + self.interval * number,
            skipped: missed,
        }
    }

    /// Returns the interval between the worker's requests.
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
            let mut schedule = Schedule::with_rate_share(200, worker, 4);
            due.extend([
                schedule.next_request(ms(0)).due,
                schedule.next_request(ms(0)).due,
            ]);
        }
        due.sort();
        let every_five: Vec<_> = (0..8).map(|n| ms(5 * n)).collect();
        assert_eq!(due, every_five);
    }

    #[test]
    fn slow_response_skips_due_requests_without_a_burst() {
        let mut schedule = Schedule::with_interval(ms(20), ms(0));
        assert_eq!(
            schedule.next_request(ms(0)),
            DueRequest {
                due: ms(0),
                skipped: 0
            }
        );
        // Late by less than an interval: nothing is skipped.
        assert_eq!(
            schedule.next_request(ms(25)),
            DueRequest {
                due: ms(20),
                skipped: 0
            }
        );
        // Two seconds later 99 requests were due; the newest is sent now, the next on time.
        assert_eq!(
            schedule.next_request(ms(2030)),
            DueRequest {
                due: ms(2020),
                skipped: 99
            }
        );
        assert_eq!(
            schedule.next_request(ms(2031)),
            DueRequest {
                due: ms(2040),
                skipped: 0
            }
        );
    }
}
