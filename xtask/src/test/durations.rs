//! Report of the slowest tests and suites of a test run.

use std::time::Duration;

/// Maximum number of rows of each table.
const MAX_ROWS: usize = 20;

/// Durations of the tests and suites of a test run.
#[derive(Debug, Default)]
pub(super) struct Durations {
    tests: Vec<(Duration, String)>,
    suites: Vec<(Duration, String)>,
}

impl Durations {
    /// Adds a suite's duration and, from the output of libtest's `--report-time`, the durations of its tests.
    pub(super) fn add(&mut self, suite: &str, elapsed: Duration, output: &str) {
        self.suites.push((elapsed, suite.to_owned()));
        let tests = output.lines().filter_map(parse_test_duration);
        self.tests
            .extend(tests.map(|(name, elapsed)| (elapsed, format!("{suite} {name}"))));
    }

    /// Prints the slowest tests and the slowest suites, slowest first.
    pub(super) fn print(mut self) {
        for (what, rows) in [("suites", &mut self.suites), ("tests", &mut self.tests)] {
            rows.sort_by(|a, b| b.cmp(a));
            eprintln!("==> the slowest {what}");
            for (elapsed, name) in rows.iter().take(MAX_ROWS) {
                eprintln!("    {:7.1} s  {name}", elapsed.as_secs_f64());
            }
        }
    }
}

/// Parses name and duration in a line such as `test name ... ok <1.234s>`.
fn parse_test_duration(line: &str) -> Option<(&str, Duration)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, seconds) = rest.strip_suffix("s>")?.rsplit_once('<')?;
    let seconds = seconds.parse().ok()?;
    Some((name, Duration::try_from_secs_f64(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_lines_carry_durations() {
        let found = parse_test_duration("test a::b ... ok <1.250s>");
        assert_eq!(found, Some(("a::b", Duration::from_millis(1250))));
        assert_eq!(
            parse_test_duration("test a ... FAILED <0.5s>").map(|one| one.0),
            Some("a")
        );
        for line in [
            "test a ... ok",
            "running 3 tests",
            "test result: ok. 1 passed",
            "test a ... ok <-1s>",
        ] {
            assert_eq!(parse_test_duration(line), None, "{line}");
        }
    }
}
