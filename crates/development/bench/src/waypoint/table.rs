//! Table of waypoint results: Ambit's, Envoy's, and the factor between them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use comfy_table::{ContentArrangement, Table};

use crate::figure::{BenchmarkFigure, median};

/// Result of a load, and the waypoint's CPU time per request.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadResult {
    pub(super) requests_per_second: f64,
    pub(super) median: Option<Duration>,
    pub(super) p99: Option<Duration>,
    /// CPU time per request, in seconds.
    pub(super) cpu: f64,
}

/// Results of one measurement of both waypoints, Ambit's and Envoy's.
#[derive(Clone, Debug)]
pub(super) struct WaypointRow {
    what: String,
    unit: &'static str,
    ours: f64,
    envoy: f64,
    /// Factor by which Ambit's result is better than Envoy's.
    improvement_factor: f64,
    /// Target for the factor: how much better Ambit's result must be.
    target_factor: f64,
}

impl WaypointRow {
    /// Returns the row as a result with its score, for the comparison of revisions.
    pub(super) fn figure(&self) -> BenchmarkFigure {
        BenchmarkFigure {
            what: self.what.clone(),
            unit: self.unit,
            value: self.ours,
            // Without failures, Envoy's number divided by ours is infinite.
            score: if self.target_factor.is_finite() {
                self.improvement_factor
            } else {
                1.0 / (1.0 + self.ours)
            },
        }
    }

    /// Creates a row of resident memory, in megabytes.
    pub(super) fn memory(what: &str, ours: f64, envoy: f64) -> Self {
        Self::smaller_is_better(&format!("memory, {what}"), "MB", ours, envoy, 2.0)
    }

    /// Creates a row of the times until changed routes took effect, in milliseconds.
    pub(super) fn change(ours: Vec<f64>, envoy: Vec<f64>) -> Self {
        let middle = |times| median(times).unwrap_or(f64::NAN);
        Self::smaller_is_better("changed route", "ms", middle(ours), middle(envoy), 1.0)
    }

    /// Creates a row of the median latency that each waypoint's path adds to the `direct` one.
    pub(super) fn added_latency(
        what: &str,
        direct: Vec<Duration>,
        ours: Vec<Duration>,
        envoy: Vec<Duration>,
    ) -> Result<Self> {
        let middle = |times: Vec<Duration>| {
            median(times.into_iter().map(microseconds).collect()).context("no latency was measured")
        };
        let direct = middle(direct)?;
        eprintln!("  {what}: median without a mesh: {direct:.0} us");
        Ok(Self::smaller_is_better(
            &format!("{what}: median added to that without a mesh"),
            "us",
            middle(ours)? - direct,
            middle(envoy)? - direct,
            1.0,
        ))
    }

    /// Creates a row with the numbers of failed requests; the target is none.
    pub(super) fn failed(what: &str, ours: u64, envoy: u64) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            reason = "counts of requests, far below 2^52"
        )]
        let (ours, envoy) = (ours as f64, envoy as f64);
        Self {
            // None at all is as many times better as can be wanted.
            improvement_factor: if ours > 0.0 {
                envoy / ours
            } else {
                f64::INFINITY
            },
            ..Self::smaller_is_better(
                &format!("{what}: failed"),
                "requests",
                ours,
                envoy,
                f64::INFINITY,
            )
        }
    }

    pub(super) fn smaller_is_better(
        what: &str,
        unit: &'static str,
        ours: f64,
        envoy: f64,
        target: f64,
    ) -> Self {
        eprintln!("  {what}: {ours:.2}, Envoy {envoy:.2} {unit}");
        Self {
            what: what.to_owned(),
            unit,
            ours,
            envoy,
            improvement_factor: envoy / ours,
            target_factor: target,
        }
    }

    /// Creates the rows with the medians of the rounds.
    pub(super) fn from_load_results(
        what: &str,
        ours: &[LoadResult],
        envoy: &[LoadResult],
    ) -> Vec<Self> {
        let both = |figure: &dyn Fn(&LoadResult) -> Option<f64>| {
            let side = |figures: &[LoadResult]| median(figures.iter().filter_map(figure).collect());
            Some((side(ours)?, side(envoy)?))
        };
        let mut rows = Vec::new();
        if let Some((ours, envoy)) = both(&|f| Some(1.0 / f.cpu)) {
            let what = format!("{what}: requests a CPU second");
            eprintln!("  {what}: {ours:.0}, Envoy {envoy:.0}");
            rows.push(Self {
                what,
                unit: "req/s",
                ours,
                envoy,
                improvement_factor: ours / envoy,
                target_factor: 1.5,
            });
        }
        if let Some((ours, envoy)) = both(&|f| Some(f.requests_per_second)) {
            let what = format!("{what}: requests");
            eprintln!("  {what}: {ours:.0}, Envoy {envoy:.0} a second");
            rows.push(Self {
                what,
                unit: "req/s",
                ours,
                envoy,
                improvement_factor: ours / envoy,
                target_factor: 1.0,
            });
        }
        if let Some((ours, envoy)) = both(&|f| f.median.map(microseconds)) {
            rows.push(Self::smaller_is_better(
                &format!("{what}: median"),
                "us",
                ours,
                envoy,
                1.0,
            ));
        }
        if let Some((ours, envoy)) = both(&|f| f.p99.map(microseconds)) {
            rows.push(Self::smaller_is_better(
                &format!("{what}: p99"),
                "us",
                ours,
                envoy,
                1.0,
            ));
        }
        rows
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Formats a number with this number of digits, or a dash if the number is not finite.
fn format_finite(number: f64, digits: usize) -> String {
    if number.is_finite() {
        format!("{number:.digits$}")
    } else {
        "-".into()
    }
}

/// Prints the table of waypoint results.
#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
pub(super) fn print(rows: &[WaypointRow]) {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(160)
        .set_header([
            "waypoint",
            "unit",
            "ambit",
            "Envoy",
            "times better",
            "to be reached",
            "",
        ]);
    for row in rows {
        let outcome = if row.improvement_factor >= row.target_factor {
            "reached"
        } else {
            "NOT REACHED"
        };
        table.add_row([
            row.what.clone(),
            row.unit.to_owned(),
            format!("{:.1}", row.ours),
            format!("{:.1}", row.envoy),
            format_finite(row.improvement_factor, 2),
            format_finite(row.target_factor, 1),
            outcome.to_owned(),
        ]);
    }
    println!("\n{table}");
}
