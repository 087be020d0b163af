//! Results of the load: the outcome of every request, the longest time without a success, and latencies. Pure: uses
//! neither sockets nor clocks.

use std::{collections::BTreeMap, io, time::Duration};

use serde::Serialize;

/// Kind of connection that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ConnectionMode {
    /// One request after the other on connections that stay open.
    KeepAlive,
    /// Each request on a new connection.
    New,
    /// Occasional messages on long-lived connections to an echo server.
    Long,
}

/// Kind of a request's failure, as the client observes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FailureKind {
    Refused,
    Reset,
    Eof,
    Timeout,
    Unreachable,
    /// Response with an unexpected status or content.
    WrongAnswer,
    Other,
}

impl From<&io::Error> for FailureKind {
    fn from(error: &io::Error) -> Self {
        use io::ErrorKind as E;
        match error.kind() {
            E::ConnectionRefused => Self::Refused,
            E::ConnectionReset | E::ConnectionAborted | E::BrokenPipe => Self::Reset,
            E::UnexpectedEof => Self::Eof,
            E::TimedOut | E::WouldBlock => Self::Timeout,
            E::HostUnreachable | E::NetworkUnreachable => Self::Unreachable,
            E::InvalidData => Self::WrongAnswer,
            _ => Self::Other,
        }
    }
}

/// Result of one request. Times are offsets from the beginning of the load.
#[derive(Clone, Debug)]
pub(super) struct FinishedRequest {
    pub(super) mode: ConnectionMode,
    /// Number of the worker among the workers of its mode.
    pub(super) worker: u32,
    pub(super) due: Duration,
    pub(super) finished_at: Duration,
    /// Number of requests before this one that were skipped. Their due times are `interval` apart.
    pub(super) skipped: u32,
    pub(super) interval: Duration,
    /// Whether the request was the first on a new connection.
    pub(super) is_first_on_connection: bool,
    pub(super) failure: Option<Failure>,
}

/// Kind of a request's failure, and the text of the error.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    pub(super) text: String,
}

/// Sums over the results of one kind of connection.
#[derive(Clone, Debug, Default)]
struct ModeTotals {
    requests: u64,
    skipped: u64,
    opened: u64,
    failed: BTreeMap<FailureKind, u64>,
    failed_opens: u64,
    broken: u64,
    last_success: Option<Duration>,
    longest_gap: Gap,
    latencies: Latencies,
    /// Number of workers that must succeed before the load counts as running.
    workers_without_success: u32,
    responding_workers: std::collections::BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gap {
    start: Duration,
    duration: Duration,
}

impl ModeTotals {
    fn record_success(&mut self, at: Duration, worker: u32) {
        self.responding_workers.insert(worker);
        self.record_gap_until(at);
        self.last_success = Some(self.last_success.map_or(at, |last| last.max(at)));
    }

    /// Records the time from the last success until `at`, if it is the longest gap.
    fn record_gap_until(&mut self, at: Duration) {
        let Some(from) = self.last_success else {
            return;
        };
        let lasted = at.saturating_sub(from);
        if lasted > self.longest_gap.duration {
            self.longest_gap = Gap {
                start: from,
                duration: lasted,
            };
        }
    }
}

/// Results of the load so far, by mode.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(BTreeMap<ConnectionMode, ModeTotals>);

/// Summary of one mode's results, as it is printed. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) requests: u64,
    pub(super) failed: u64,
    /// Number of failed requests by kind.
    pub(super) failures: BTreeMap<FailureKind, u64>,
    /// Number of failures while a connection was being opened, or at its first request.
    pub(super) failed_openings: u64,
    /// Number of failures on connections that had been open.
    pub(super) broken: u64,
    /// Number of connections whose first request succeeded.
    pub(super) opened: u64,
    /// Number of requests that were skipped because an earlier one was not completed in time.
    pub(super) missed: u64,
    /// Longest time between two successes of a mode; `longest_gap_at_ms` is its beginning.
    pub(super) longest_gap_ms: f64,
    pub(super) longest_gap_at_ms: f64,
    /// Median latency from the due time to the response, including skipped requests.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

impl Tally {
    /// Sets the number of workers that will report results for a mode.
    pub(super) fn expect_workers(&mut self, mode: ConnectionMode, workers: u32) {
        self.0.entry(mode).or_default().workers_without_success = workers;
    }

    pub(super) fn record(&mut self, finished: &FinishedRequest) {
        let sums = self.0.entry(finished.mode).or_default();
        sums.requests += 1;
        sums.skipped += u64::from(finished.skipped);
        for turn in 0..=finished.skipped {
            let due = finished.due.saturating_sub(finished.interval * turn);
            sums.latencies.add(finished.finished_at.saturating_sub(due));
        }
        match &finished.failure {
            None => {
                sums.opened += u64::from(finished.is_first_on_connection);
                sums.record_success(finished.finished_at, finished.worker);
            }
            Some(failure) => {
                *sums.failed.entry(failure.kind).or_default() += 1;
                if finished.is_first_on_connection {
                    sums.failed_opens += 1;
                } else {
                    sums.broken += 1;
                }
            }
        }
    }

    /// Whether every expected worker has succeeded at least once.
    pub(super) fn is_running(&self) -> bool {
        self.0.values().all(|sums| {
            sums.responding_workers.len()
                >= usize::try_from(sums.workers_without_success).unwrap_or(usize::MAX)
        })
    }

    /// Returns the summary of each mode; the time from the last success until `now` counts as a gap.
    pub(super) fn summaries(&self, now: Duration) -> BTreeMap<ConnectionMode, Summary> {
        let summary = |sums: &ModeTotals| {
            let mut sums = sums.clone();
            sums.record_gap_until(now);
            Summary {
                requests: sums.requests,
                failed: sums.failed.values().sum(),
                failed_openings: sums.failed_opens,
                broken: sums.broken,
                opened: sums.opened,
                missed: sums.skipped,
                longest_gap_ms: milliseconds(sums.longest_gap.duration),
                longest_gap_at_ms: milliseconds(sums.longest_gap.start),
                p50_ms: milliseconds(sums.latencies.quantile(0.5)),
                p99_ms: milliseconds(sums.latencies.quantile(0.99)),
                max_ms: milliseconds(sums.latencies.quantile(1.0)),
                failures: sums.failed,
            }
        };
        self.0
            .iter()
            .map(|(mode, sums)| (*mode, summary(sums)))
            .collect()
    }
}

/// Converts a duration to milliseconds, rounded to microseconds.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Histogram of latencies, by latency in microseconds, with a precision of about three percent.
#[derive(Clone, Debug, Default)]
struct Latencies(BTreeMap<u64, u64>);

impl Latencies {
    /// Number of leading binary digits of a latency in microseconds that the histogram keeps.
    const PRECISION_DIGITS: u32 = 6;

    fn add(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let dropped = (u64::BITS - micros.leading_zeros()).saturating_sub(Self::PRECISION_DIGITS);
        *self.0.entry(micros >> dropped << dropped).or_default() += 1;
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a count of requests, far below 2^52"
    )]
    fn quantile(&self, quantile: f64) -> Duration {
        let all = self.0.values().sum::<u64>() as f64;
        let mut seen = 0;
        for (micros, count) in &self.0 {
            seen += count;
            if seen as f64 >= all * quantile {
                return Duration::from_micros(*micros);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn finished_request(
        mode: ConnectionMode,
        due: u64,
        at: u64,
        failure: Option<FailureKind>,
    ) -> FinishedRequest {
        FinishedRequest {
            mode,
            worker: 0,
            due: ms(due),
            finished_at: ms(at),
            skipped: 0,
            interval: ms(20),
            is_first_on_connection: mode == ConnectionMode::New,
            failure: failure.map(|kind| Failure {
                kind,
                text: String::new(),
            }),
        }
    }

    fn summary(events: &[FinishedRequest], now: u64) -> BTreeMap<ConnectionMode, Summary> {
        let mut tally = Tally::default();
        for event in events {
            tally.record(event);
        }
        tally.summaries(ms(now))
    }

    #[test]
    fn failures_are_counted_by_mode_and_kind() {
        let summary = summary(
            &[
                finished_request(ConnectionMode::New, 0, 1, None),
                finished_request(ConnectionMode::New, 20, 21, Some(FailureKind::Refused)),
                finished_request(ConnectionMode::New, 40, 41, Some(FailureKind::Refused)),
                finished_request(ConnectionMode::New, 60, 61, Some(FailureKind::Eof)),
                finished_request(ConnectionMode::Long, 60, 61, Some(FailureKind::Reset)),
            ],
            61,
        );
        let new = &summary[&ConnectionMode::New];
        assert_eq!((new.requests, new.failed, new.opened), (4, 3, 1));
        assert_eq!(
            new.failures,
            BTreeMap::from([(FailureKind::Refused, 2), (FailureKind::Eof, 1)])
        );
        assert_eq!((new.failed_openings, new.broken), (3, 0));
        let long = &summary[&ConnectionMode::Long];
        assert_eq!((long.failed_openings, long.broken), (0, 1));
    }

    #[test]
    fn the_longest_gap_is_between_successes_of_any_worker() {
        let mut other = finished_request(ConnectionMode::New, 1000, 1010, None);
        other.worker = 1;
        let events = [
            finished_request(ConnectionMode::New, 0, 10, None),
            finished_request(ConnectionMode::New, 20, 700, Some(FailureKind::Timeout)),
            other,
            // Reported later than a newer success of another worker.
            finished_request(ConnectionMode::New, 900, 1005, None),
            finished_request(ConnectionMode::New, 1020, 1030, None),
        ];
        let new = &summary(&events, 1040)[&ConnectionMode::New];
        assert_eq!((new.longest_gap_at_ms, new.longest_gap_ms), (10.0, 1000.0));
    }

    #[test]
    fn silence_at_the_end_is_a_gap() {
        let events = [finished_request(ConnectionMode::KeepAlive, 0, 10, None)];
        let gap = summary(&events, 5010)[&ConnectionMode::KeepAlive].longest_gap_ms;
        assert!((gap - 5000.0).abs() < 1e-9, "{gap}");
    }

    #[test]
    fn skipped_requests_count_with_their_waiting_time() {
        // Due at 20 ms, sent when the one due at 1000 ms could be sent: 49 requests were skipped.
        let mut held_up = finished_request(ConnectionMode::KeepAlive, 1000, 1001, None);
        held_up.skipped = 49;
        let events = [
            finished_request(ConnectionMode::KeepAlive, 0, 1, None),
            held_up,
        ];
        let sums = &summary(&events, 1001)[&ConnectionMode::KeepAlive];
        assert_eq!((sums.requests, sums.missed), (2, 49));
        assert!((sums.p50_ms - 480.0).abs() < 20.0, "{}", sums.p50_ms);
        assert!((sums.max_ms - 981.0).abs() < 30.0, "{}", sums.max_ms);
    }

    #[test]
    fn a_load_runs_when_every_worker_has_succeeded() {
        let mut tally = Tally::default();
        tally.expect_workers(ConnectionMode::New, 2);
        tally.expect_workers(ConnectionMode::Long, 1);
        tally.record(&finished_request(ConnectionMode::Long, 0, 1, None));
        tally.record(&finished_request(ConnectionMode::New, 0, 1, None));
        tally.record(&finished_request(ConnectionMode::New, 0, 1, None));
        assert!(!tally.is_running());
        let mut second = finished_request(ConnectionMode::New, 0, 1, Some(FailureKind::Refused));
        second.worker = 1;
        tally.record(&second);
        assert!(!tally.is_running());
        second.failure = None;
        tally.record(&second);
        assert!(tally.is_running());
    }

    #[test]
    fn errors_map_to_known_kinds() {
        for (error, kind) in [
            (io::ErrorKind::ConnectionRefused, FailureKind::Refused),
            (io::ErrorKind::BrokenPipe, FailureKind::Reset),
            (io::ErrorKind::UnexpectedEof, FailureKind::Eof),
            (io::ErrorKind::WouldBlock, FailureKind::Timeout),
            (io::ErrorKind::InvalidData, FailureKind::WrongAnswer),
        ] {
            assert_eq!(FailureKind::from(&io::Error::from(error)), kind);
        }
    }
}
