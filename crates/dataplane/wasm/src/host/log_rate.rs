//! Rate limit of an instance's log lines: excess lines are dropped, and their number is logged later.

use std::time::{Duration, Instant};

use crate::limits::MAX_LINES;

/// Number of log lines in the current second, and of dropped ones.
#[derive(Debug, Default)]
pub(crate) struct LogRate {
    began: Option<Instant>,
    lines: u32,
    dropped: u64,
}

/// Decision whether a log line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The line is written; the number of lines that were dropped before it.
    Written(u64),
    Dropped,
}

impl LogRate {
    /// Counts a log line, and decides whether it is written.
    pub(crate) fn line(&mut self, now: Instant) -> Line {
        let is_new = self
            .began
            .is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1));
        if is_new {
            self.began = Some(now);
            self.lines = 0;
        }
        if self.lines >= MAX_LINES {
            self.dropped += 1;
            return Line::Dropped;
        }
        self.lines += 1;
        Line::Written(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lines_of_a_flood_are_counted() {
        let (mut logged, now) = (LogRate::default(), Instant::now());
        for _ in 0..MAX_LINES {
            assert_eq!(logged.line(now), Line::Written(0));
        }
        for _ in 0..7 {
            assert_eq!(logged.line(now), Line::Dropped);
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(logged.line(later), Line::Written(7));
        assert_eq!(logged.line(later), Line::Written(0));
    }
}
