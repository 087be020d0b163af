//! Steady load from a test pod, and its result.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde_json::Value;

use crate::TestNamespace;

/// Number of failures that are printed from the beginning and from the end of the list.
const MAX_PRINTED_FAILURES: usize = 4;

/// Load of 200 requests per second on keep-alive connections, 200 on new connections, and on ten long connections.
#[derive(Debug)]
pub struct Load<'a> {
    space: &'a TestNamespace<'a>,
    name: String,
}

/// Failed request of a load.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Kind of connection: `keep-alive`, `new` or `long`.
    pub mode: String,
    /// Kind of failure: `refused`, `reset`, `eof`, `timeout`, ...
    pub kind: String,
    /// Time of the failure in seconds since 1970.
    pub unix: f64,
    /// Whole line of the load generator's output.
    pub line: String,
}

/// Result of a finished load: failures, and totals by kind of connection.
#[derive(Clone, Debug)]
pub struct LoadOutcome {
    /// All failed requests.
    pub failures: Vec<Failure>,
    /// Number of successful requests, by kind of connection.
    pub succeeded: BTreeMap<String, u64>,
    /// Longest time between two successes, by kind of connection.
    pub longest_gap: BTreeMap<String, Duration>,
}

impl<'a> Load<'a> {
    /// Starts a load on a server of this namespace; returns when all connections are in use.
    pub fn start(
        space: &'a TestNamespace<'a>,
        name: &str,
        node: Option<&str>,
        server: &str,
    ) -> Self {
        // The Service may not be known everywhere yet.
        let script = format!(
            "until ambit-lab-tool get http://{server}/; do sleep 0.1; done
             exec ambit-lab-tool load --http=http://{server}/ --echo={server}:9000"
        );
        space.run(name, node, &script);
        space.wait_for_event(name, "running");
        Self {
            space,
            name: name.to_owned(),
        }
    }

    /// Starts a load with a tenth of the requests and longer timeouts, for paths through several proxies.
    pub fn start_slow(space: &'a TestNamespace<'a>, name: &str, node: &str, server: &str) -> Self {
        let script = format!(
            "until ambit-lab-tool get http://{server}/; do sleep 0.1; done
             exec ambit-lab-tool load --http=http://{server}/ --echo={server}:9000 \
                 --rate-keepalive=20 --rate-new=20 --long=4 --timeout=20s"
        );
        space.run(name, Some(node), &script);
        space.wait_for_event(name, "running");
        Self {
            space,
            name: name.to_owned(),
        }
    }

    /// Starts a load like [`Self::start`], from a captured pod on the first node against `server`.
    #[track_caller]
    pub fn start_captured(space: &'a TestNamespace<'a>) -> Self {
        let load = Self::start(space, "load", Some("n1"), "server");
        space.wait_until_captured("load", true);
        space.wait_for_get("load", "http://server/", true);
        load
    }

    /// Returns the load pod's name, which is also its label `app`.
    pub fn pod(&self) -> &str {
        &self.name
    }

    /// Ends the load and returns its result.
    pub fn finish(self) -> LoadOutcome {
        let killed = self.space.exec(&self.name, &["kill", "1"]);
        assert!(killed.status.success(), "{killed:?}");
        self.space.wait_for_event(&self.name, "summary");
        let mut outcome = LoadOutcome {
            failures: Vec::new(),
            succeeded: BTreeMap::new(),
            longest_gap: BTreeMap::new(),
        };
        for line in self.space.events(&self.name) {
            match line.get("event").and_then(Value::as_str) {
                Some("failure") => outcome.failures.push(failure(&line)),
                Some("summary") => {
                    let count =
                        |sums: &Value, key| sums.get(key).and_then(Value::as_u64).unwrap_or(0);
                    outcome.succeeded = by_mode(&line, |sums| {
                        count(sums, "requests").saturating_sub(count(sums, "failed"))
                    });
                    outcome.longest_gap = by_mode(&line, |sums| {
                        let gap = sums.get("longest_gap_ms").and_then(Value::as_f64);
                        Duration::from_secs_f64(gap.unwrap_or_default() / 1000.0)
                    });
                }
                _ => {}
            }
        }
        outcome
    }
}

impl LoadOutcome {
    /// Fails the test if any connection could not be established in time. Broken established connections are no
    /// failure.
    #[track_caller]
    pub fn assert_all_connections_opened(&self) {
        let mut failures = self.failures.iter();
        let refused =
            failures.find(|failure| ["refused", "timeout"].contains(&failure.kind.as_str()));
        assert!(refused.is_none(), "{self}");
    }

    /// Fails the test if any request failed, or if any kind of connection had no request.
    #[track_caller]
    pub fn assert_no_failures(&self) {
        assert!(self.failures.is_empty(), "{self}");
        for mode in ["keep-alive", "new", "long"] {
            let count = self.succeeded.get(mode).copied().unwrap_or_default();
            assert!(count > 0, "no {mode} request at all: {self}");
        }
    }
}

/// Formats the sums, and the first and last failures of the load.
impl fmt::Display for LoadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "succeeded: {:?}", self.succeeded)?;
        writeln!(f, "longest silence: {:?}", self.longest_gap)?;
        writeln!(f, "{} failures", self.failures.len())?;
        let rest = self.failures.len().saturating_sub(MAX_PRINTED_FAILURES);
        let first = self.failures.iter().take(MAX_PRINTED_FAILURES);
        let last = self.failures.iter().skip(rest.max(MAX_PRINTED_FAILURES));
        for failure in first.chain(last) {
            writeln!(f, "{}", failure.line)?;
        }
        Ok(())
    }
}

fn failure(line: &Value) -> Failure {
    let text = |key: &str| {
        let value = line.get(key).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    Failure {
        mode: text("mode"),
        kind: text("kind"),
        unix: line.get("unix").and_then(Value::as_f64).unwrap_or_default(),
        line: line.to_string(),
    }
}

fn by_mode<T>(summary: &Value, of: impl Fn(&Value) -> T) -> BTreeMap<String, T> {
    let modes = summary.get("modes").and_then(Value::as_object);
    modes
        .into_iter()
        .flatten()
        .map(|(mode, sums)| (mode.clone(), of(sums)))
        .collect()
}
