//! Rate limit of an instance's log lines: excess lines are dropped, and their number is logged later.

use std::time::{Duration, Instant};

use crate::limits::MAX_LOG_LINES_PER_SECOND;

/// Number of log lines in the current second, and of dropped ones.
#[derive(Debug, Default)]
pub(crate) struct LogRateLimiter {
    window_start: Option<Instant>,
    line_count: u32,
    dropped_lines: u64,
}

/// Decision of the rate limiter about a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogPermission {
    /// The line is written; the number of lines that were dropped before it.
    Allowed(u64),
    Dropped,
}

impl LogRateLimiter {
    /// Counts a log line, and decides whether it is written.
    pub(crate) fn count_line(&mut self, now: Instant) -> LogPermission {
        let is_new = self
            .window_start
            .is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1));
        if is_new {
            self.window_start = Some(now);
            self.line_count = 0;
        }
        if self.line_count >= MAX_LOG_LINES_PER_SECOND {
            self.dropped_lines += 1;
            return LogPermission::Dropped;
        }
        self.line_count += 1;
        LogPermission::Allowed(std::mem::take(&mut self.dropped_lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lines_of_a_flood_are_counted() {
        let (mut logged, now) = (LogRateLimiter::default(), Instant::now());
        for _ in 0..MAX_LOG_LINES_PER_SECOND {
            assert_eq!(logged.count_line(now), LogPermission::Allowed(0));
        }
        for _ in 0..7 {
            assert_eq!(logged.count_line(now), LogPermission::Dropped);
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(logged.count_line(later), LogPermission::Allowed(7));
        assert_eq!(logged.count_line(later), LogPermission::Allowed(0));
    }
}
