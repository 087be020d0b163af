//! Log limit of an instance: excess lines are dropped, and reported once a second.

use std::time::{Duration, Instant};

use crate::limits::MAX_LINES;

/// Log lines of the current second.
#[derive(Debug, Default)]
pub(crate) struct LogRate {
    began: Option<Instant>,
    lines: u32,
    dropped: u64,
}

/// Decision on a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Log line that is written, with the number of dropped ones before it.
    Written(u64),
    Dropped,
}

impl LogRate {
    /// Counts a line.
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
