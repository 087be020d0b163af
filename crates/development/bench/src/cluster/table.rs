//! Table of scenarios: result of Istio ambient, target, and measured result.
//!
//! Istio's results were measured on a machine of this size, with Istio ambient (istiod, istio-cni and ztunnel of August
//! 2026, the charts' defaults) on the same two-node Kubernetes 1.34 and under the same load.

use comfy_table::{ContentArrangement, Table};

/// Results of one scenario: Istio's, the target, and the measured result.
#[derive(Clone, Debug)]
pub(crate) struct ClusterRow {
    pub(super) scenario: &'static str,
    pub(super) istio_result: &'static str,
    pub(super) target: &'static str,
    pub(super) measured: String,
    /// Istio's result divided by the measured result, if both are single values.
    pub(super) times_better: Option<f64>,
    pub(super) is_target_reached: bool,
}

impl ClusterRow {
    /// Prints the measured result immediately, and returns the row.
    pub(super) fn print_row(self) -> Self {
        let reached = if self.is_target_reached {
            "reached"
        } else {
            "NOT REACHED"
        };
        eprintln!("  {}: {} ({reached})", self.scenario, self.measured);
        self
    }
}

/// Prints the table of all scenarios' results.
#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
pub(crate) fn print(rows: &[ClusterRow]) {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(200)
        .set_header([
            "scenario",
            "existing",
            "to be reached",
            "measured",
            "ratio",
            "",
        ]);
    for row in rows {
        let ratio = row
            .times_better
            .map_or_else(String::new, |times| format!("{times:.1} x"));
        let reached = if row.is_target_reached {
            "reached"
        } else {
            "NOT REACHED"
        };
        table.add_row([
            row.scenario,
            row.istio_result,
            row.target,
            &row.measured,
            &ratio,
            reached,
        ]);
    }
    println!("\n{table}");
}
