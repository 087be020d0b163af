//! Steady load from a pod, and its report: every failure with its time, and sums.

use std::collections::BTreeMap;

use ambit_cluster::objects;
use anyhow::{Context, Result};
use serde::Deserialize;

use super::rig::{BenchCluster, PodPlan, split_arguments};

/// Load generator that runs in a pod.
pub(super) struct Load<'a> {
    rig: &'a BenchCluster,
    namespace: &'a str,
    name: &'a str,
}

/// Failed request of the load.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Failure {
    /// Kind of connection: `keep-alive`, `new` or `long`.
    pub(super) mode: String,
    pub(super) kind: String,
    /// Whether the request failed before a connection was established.
    pub(super) opening: bool,
    pub(super) unix: f64,
}

/// Sums over the requests on one kind of connection.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct ModeTotals {
    pub(super) requests: u64,
    pub(super) failed: u64,
    pub(super) longest_gap_ms: f64,
    pub(super) p99_ms: f64,
}

/// Report of a finished load: its failures, and sums by kind of connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) failures: Vec<Failure>,
    pub(super) modes: BTreeMap<String, ModeTotals>,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event {
    Failure(Failure),
    Summary {
        modes: BTreeMap<String, ModeTotals>,
    },
    #[serde(other)]
    Other,
}

impl Report {
    fn parse(log: &str) -> Result<Self> {
        let mut report = Self::default();
        for line in log.lines() {
            match serde_json::from_str(line).with_context(|| format!("not a report: {line}"))? {
                Event::Failure(failure) => report.failures.push(failure),
                Event::Summary { modes } => report.modes = modes,
                Event::Other => {}
            }
        }
        Ok(report)
    }

    /// Returns the failures on one kind of connection between two times.
    pub(super) fn between<'a>(
        &'a self,
        mode: &'a str,
        from: f64,
        to: f64,
    ) -> impl Iterator<Item = &'a Failure> {
        self.failures
            .iter()
            .filter(move |one| one.mode == mode && one.unix >= from && one.unix < to)
    }

    /// Returns the failures between two times as text: `new 5 (refused 4, reset 1), keep-alive 0, long 10 (reset 10)`.
    pub(super) fn summary(&self, from: f64, to: f64) -> String {
        ["new", "keep-alive", "long"]
            .map(|mode| {
                let mut kinds = BTreeMap::<&str, u32>::new();
                for failure in self.between(mode, from, to) {
                    *kinds.entry(&failure.kind).or_default() += 1;
                }
                let sum: u32 = kinds.values().sum();
                let kinds: Vec<_> = kinds
                    .iter()
                    .map(|(kind, count)| format!("{kind} {count}"))
                    .collect();
                match sum {
                    0 => format!("{mode} 0"),
                    _ => format!("{mode} {sum} ({})", kinds.join(", ")),
                }
            })
            .join(", ")
    }

    /// Returns the number of failed requests on all kinds of connections between two times.
    pub(super) fn failed_requests(&self, from: f64, to: f64) -> usize {
        ["new", "keep-alive", "long"]
            .iter()
            .map(|mode| self.between(mode, from, to).count())
            .sum()
    }

    /// Returns the number of established connections that broke between two times.
    pub(super) fn broken_connections(&self, from: f64, to: f64) -> usize {
        ["keep-alive", "long"]
            .iter()
            .flat_map(|mode| self.between(mode, from, to))
            .filter(|failure| !failure.opening)
            .count()
    }

    /// Returns the longest time in seconds without a success on any kind of connection.
    pub(super) fn longest_gap(&self) -> f64 {
        let gaps = self.modes.values().map(|sums| sums.longest_gap_ms / 1e3);
        gaps.fold(0.0, f64::max)
    }
}

impl<'a> Load<'a> {
    /// Starts a load on `server` from node 1 for this number of seconds, and waits until each kind of connection has
    /// succeeded once.
    pub(super) async fn start(
        rig: &'a BenchCluster,
        namespace: &'a str,
        name: &'a str,
        server: &str,
        seconds: u32,
        more: &str,
    ) -> Result<Self> {
        let tool = split_arguments(&format!(
            "load --http http://{server}:8080/ --echo {server}:9090 --seconds {seconds} {more}"
        ));
        let plan = PodPlan {
            namespace,
            name,
            node: 1,
            tool_arguments: tool,
        };
        rig.create(&plan).await?;
        rig.wait_for_log_line(namespace, name, "\"running\"")
            .await?;
        Ok(Self {
            rig,
            namespace,
            name,
        })
    }

    /// Waits for the end of the load, and returns its report.
    pub(super) async fn stop(self) -> Result<Report> {
        let Self {
            rig,
            namespace,
            name,
        } = self;
        let timeout = std::time::Duration::from_secs(300);
        objects::wait_until("the end of the load", timeout, async || {
            let pod = rig.pods(namespace).get(name).await?;
            let phase = pod.status.and_then(|status| status.phase);
            objects::error_unless(phase.as_deref() == Some("Succeeded"), format!("{phase:?}"))
        })
        .await?;
        let report = Report::parse(&rig.log(namespace, name).await?)?;
        rig.remove(namespace, name).await?;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_of_the_load_tool_is_parsed() {
        let report = Report::parse(
            r#"{"event":"begun","unix":100.0}
{"event":"running","at":0.1,"unix":100.1}
{"event":"failure","mode":"new","kind":"refused","opening":true,"unix":101.0,"at":1.0,"text":""}
{"event":"failure","mode":"new","kind":"reset","opening":true,"unix":101.1,"at":1.1,"text":""}
{"event":"failure","mode":"long","kind":"reset","opening":false,"unix":101.2,"at":1.2,"text":""}
{"event":"summary","modes":{"new":{"requests":10,"failed":2,"longest_gap_ms":500.0,"p99_ms":1.0}}}"#,
        )
        .unwrap();
        assert_eq!(
            report.summary(100.5, 102.0),
            "new 2 (refused 1, reset 1), keep-alive 0, long 1 (reset 1)"
        );
        assert_eq!(
            report.summary(101.15, 102.0),
            "new 0, keep-alive 0, long 1 (reset 1)"
        );
        assert_eq!(
            (
                report.broken_connections(0.0, 1e9),
                report.failed_requests(0.0, 1e9)
            ),
            (1, 3)
        );
        assert!((report.longest_gap() - 0.5).abs() < 1e-9);
    }
}
