//! Decides after an export attempt: done, retry after a backoff, or give up (OTLP's specification, "Failures" and
//! "Retryable response codes"). The module performs no I/O: the caller sleeps, and passes the random number.

use std::time::Duration;

use ambit_rt::Backoff;

/// Initial and maximum backoff after a failed attempt.
const BACKOFF_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Jitter of backoffs, so that programs do not all return to a collector at once.
const JITTER: f64 = 0.3;
/// Maximum `Retry-After` of a collector that is respected.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of attempts to export one message.
const MAX_ATTEMPTS: u32 = 6;

/// Result of one export attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The collector accepted the message, except for this number of data points or log records.
    Accepted {
        /// Number of rejected data points or log records.
        rejected: u64,
    },
    /// The attempt failed, and may be retried.
    Retryable {
        /// Delay from the collector's `Retry-After`.
        after: Option<Duration>,
    },
    /// The collector rejected the message, and a retry would be futile.
    Rejected,
}

/// Decision after an export attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// The collector has accepted the message, except for this number of data points or log records.
    Done {
        /// Number of rejected data points or log records.
        rejected: u64,
    },
    /// Retry the message after this backoff.
    Retry(Duration),
    /// Drop the message, and send nothing during this time.
    GiveUp(Duration),
}

/// Retry state of the exports of one signal, one export at a time.
#[derive(Debug)]
pub(crate) struct RetryState {
    backoff: Backoff,
    attempts: u32,
}

impl Default for RetryState {
    fn default() -> Self {
        let (first, longest) = BACKOFF_RANGE;
        Self {
            backoff: Backoff::new(first, longest, JITTER),
            attempts: 0,
        }
    }
}

impl RetryState {
    /// Decides after an attempt. `random` is in `0.0..1.0`.
    pub(crate) fn decide(&mut self, attempt: &Attempt, random: f64) -> RetryDecision {
        match attempt {
            Attempt::Accepted { rejected } => {
                self.backoff.reset();
                self.attempts = 0;
                RetryDecision::Done {
                    rejected: *rejected,
                }
            }
            Attempt::Retryable { after } => {
                let pause = self.backoff.next_delay(random);
                // `Retry-After` may lengthen the pause, up to the maximum, but not shorten it.
                let asked = after.unwrap_or_default().min(MAX_RETRY_AFTER);
                let pause = pause.max(asked);
                self.attempts += 1;
                if self.attempts < MAX_ATTEMPTS {
                    return RetryDecision::Retry(pause);
                }
                self.attempts = 0;
                RetryDecision::GiveUp(pause)
            }
            Attempt::Rejected => {
                self.attempts = 0;
                RetryDecision::GiveUp(self.backoff.next_delay(random))
            }
        }
    }
}

/// Whether an HTTP status of a collector permits a retry.
pub(crate) fn is_retryable_http(status: u16) -> bool {
    matches!(status, 429 | 502 | 503 | 504)
}

/// Whether a gRPC status permits a retry: CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE,
/// UNAVAILABLE and DATA_LOSS. RESOURCE_EXHAUSTED is retryable only with a `RetryInfo`, which is not
/// supported.
pub(crate) fn is_retryable_grpc(status: u16) -> bool {
    matches!(status, 1 | 4 | 10 | 11 | 14 | 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Attempt = Attempt::Retryable { after: None };

    #[test]
    fn pauses_double_up_to_the_longest_until_the_export_is_given_up() {
        let mut retries = RetryState::default();
        let mut pauses = Vec::new();
        for _ in 1..MAX_ATTEMPTS {
            match retries.decide(&FAILED, 0.5) {
                RetryDecision::Retry(pause) => pauses.push(pause.as_secs()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        assert_eq!(
            retries.decide(&FAILED, 0.5),
            RetryDecision::GiveUp(Duration::from_secs(30))
        );
        // The next export begins with the longer pauses.
        assert_eq!(
            retries.decide(&FAILED, 0.5),
            RetryDecision::Retry(Duration::from_secs(30))
        );
        assert_eq!(
            retries.decide(&Attempt::Accepted { rejected: 3 }, 0.5),
            RetryDecision::Done { rejected: 3 }
        );
        assert_eq!(
            retries.decide(&FAILED, 0.5),
            RetryDecision::Retry(Duration::from_secs(1))
        );
    }

    #[test]
    fn retry_after_lengthens_a_pause_within_bounds() {
        let after = |seconds| Attempt::Retryable {
            after: Some(Duration::from_secs(seconds)),
        };
        for (asked, pause) in [(0, 1), (1, 1), (7, 7), (60, 60), (u64::MAX, 60)] {
            assert_eq!(
                RetryState::default().decide(&after(asked), 0.5),
                RetryDecision::Retry(Duration::from_secs(pause)),
                "{asked}"
            );
        }
    }

    #[test]
    fn refused_messages_are_dropped_and_slow_the_next_ones_down() {
        let mut retries = RetryState::default();
        for pause in [1, 2, 4] {
            assert_eq!(
                retries.decide(&Attempt::Rejected, 0.5),
                RetryDecision::GiveUp(Duration::from_secs(pause))
            );
        }
    }

    #[test]
    fn statuses_are_retryable_as_specified() {
        let http: Vec<u16> = (100..600).filter(|one| is_retryable_http(*one)).collect();
        assert_eq!(http, [429, 502, 503, 504]);
        let grpc: Vec<u16> = (0..=16).filter(|one| is_retryable_grpc(*one)).collect();
        assert_eq!(grpc, [1, 4, 10, 11, 14, 15]);
    }
}
