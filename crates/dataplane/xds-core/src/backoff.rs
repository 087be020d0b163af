//! Delays between attempts to open a stream to the control plane.

use std::time::Duration;

const INITIAL_DELAY: Duration = Duration::from_millis(10);
/// Maximum delay after streams that the server rejected: it is reachable, but may be overloaded.
const MAX_REFUSED_DELAY: Duration = Duration::from_secs(15);
/// Maximum delay after failed connection attempts, and so the maximum time until a recovered control plane is used.
const MAX_UNREACHABLE_DELAY: Duration = Duration::from_secs(1);

/// How a stream, or an attempt to open one, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamEnding {
    /// The connection or stream could not be opened.
    ConnectFailed,
    /// The server ended the stream for an ordinary reason: rollout, maximum connection age, closed transport.
    Transient,
    /// The server ended the stream with an error status.
    Refused,
    /// The stream ended cleanly, or broke.
    Closed,
}

impl StreamEnding {
    /// Returns the value of the label `reason` in the metric of stream terminations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConnectFailed => "ConnectionError",
            Self::Transient => "Reconnect",
            Self::Refused => "Error",
            Self::Closed => "Complete",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Backoff {
    /// Next delay after the server rejects a stream or ends it before its first response.
    refused_delay: Duration,
    /// Next delay after a failed connection attempt.
    unreachable_delay: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            refused_delay: INITIAL_DELAY,
            unreachable_delay: INITIAL_DELAY,
        }
    }
}

impl Backoff {
    /// Returns the delay before the next stream is opened. Unless `was_useful`, a stream that ended without a response
    /// counts as rejected, so that the client does not reconnect in a busy loop.
    pub(crate) fn next_delay(&mut self, ending: StreamEnding, was_useful: bool) -> Duration {
        match ending {
            StreamEnding::Transient if was_useful => {
                *self = Self::default();
                INITIAL_DELAY
            }
            StreamEnding::Closed if was_useful => {
                *self = Self::default();
                Duration::ZERO
            }
            StreamEnding::ConnectFailed => {
                double_delay(&mut self.unreachable_delay, MAX_UNREACHABLE_DELAY)
            }
            _ => {
                self.unreachable_delay = INITIAL_DELAY;
                double_delay(&mut self.refused_delay, MAX_REFUSED_DELAY)
            }
        }
    }
}

fn double_delay(next: &mut Duration, cap: Duration) -> Duration {
    let delay = *next;
    *next = cap.min(delay.saturating_mul(2));
    delay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_double_the_delay_and_ordinary_ends_reset_it() {
        let mut backoff = Backoff::default();
        let mut refuse = || backoff.next_delay(StreamEnding::Refused, false).as_millis();
        assert_eq!([refuse(), refuse(), refuse()], [10, 20, 40]);
        assert_eq!(
            backoff.next_delay(StreamEnding::Refused, true).as_millis(),
            80
        );
        assert_eq!(
            backoff
                .next_delay(StreamEnding::Transient, true)
                .as_millis(),
            10
        );
        assert_eq!(
            backoff.next_delay(StreamEnding::Refused, true).as_millis(),
            10
        );
        assert_eq!(
            backoff.next_delay(StreamEnding::Closed, true),
            Duration::ZERO
        );
        for _ in 0..20 {
            backoff.next_delay(StreamEnding::Refused, false);
        }
        assert_eq!(
            backoff.next_delay(StreamEnding::Refused, false),
            MAX_REFUSED_DELAY
        );
    }

    #[test]
    fn returned_server_is_connected_within_a_second() {
        let mut backoff = Backoff::default();
        let mut fail = || {
            backoff
                .next_delay(StreamEnding::ConnectFailed, false)
                .as_millis()
        };
        assert_eq!([fail(), fail(), fail()], [10, 20, 40]);
        for _ in 0..20 {
            let delay = backoff.next_delay(StreamEnding::ConnectFailed, false);
            assert!(delay <= Duration::from_secs(1), "{delay:?}");
        }
        // Refusals while the server starts have delays of their own.
        assert_eq!(
            backoff.next_delay(StreamEnding::Refused, false),
            INITIAL_DELAY
        );
    }

    #[test]
    fn server_that_closes_at_once_gets_growing_delays() {
        let mut backoff = Backoff::default();
        let mut close = || backoff.next_delay(StreamEnding::Closed, false).as_millis();
        assert_eq!([close(), close(), close()], [10, 20, 40]);
    }
}
