//! When to reconnect.

use std::time::Duration;

const INITIAL: Duration = Duration::from_millis(10);
const CAP: Duration = Duration::from_secs(15);

/// How a stream, or the attempt to open one, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It could not be opened.
    ConnectFailed,
    /// The server closed it in an ordinary way (rollout, connection age, transport closed).
    Transient,
    /// The server ended it with an error status.
    Refused,
    /// It ended cleanly, or broke.
    Closed,
}

impl Ending {
    /// The `reason` of the terminations metric.
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
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: INITIAL }
    }
}

impl Backoff {
    /// The delay after an ending. A stream that ends before its first response counts as refused,
    /// however it ends: reconnecting at once would spin.
    pub(crate) fn after(&mut self, ending: Ending, was_useful: bool) -> Duration {
        match ending {
            Ending::Transient if was_useful => {
                self.next = INITIAL;
                INITIAL
            }
            Ending::Closed if was_useful => {
                self.next = INITIAL;
                Duration::ZERO
            }
            _ => {
                let delay = self.next;
                self.next = CAP.min(delay.saturating_mul(2));
                delay
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_double_the_delay_and_ordinary_ends_reset_it() {
        let mut backoff = Backoff::default();
        let mut fail = || backoff.after(Ending::ConnectFailed, false).as_millis();
        assert_eq!([fail(), fail(), fail()], [10, 20, 40]);
        assert_eq!(backoff.after(Ending::Refused, true).as_millis(), 80);
        assert_eq!(backoff.after(Ending::Transient, true).as_millis(), 10);
        assert_eq!(backoff.after(Ending::Refused, true).as_millis(), 10);
        assert_eq!(backoff.after(Ending::Closed, true), Duration::ZERO);
        for _ in 0..20 {
            backoff.after(Ending::ConnectFailed, false);
        }
        assert_eq!(backoff.after(Ending::ConnectFailed, false), CAP);
    }

    #[test]
    fn a_server_that_closes_at_once_is_not_hammered() {
        let mut backoff = Backoff::default();
        let mut close = || backoff.after(Ending::Closed, false).as_millis();
        assert_eq!([close(), close(), close()], [10, 20, 40]);
    }
}
