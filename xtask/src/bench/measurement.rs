//! Results of a benchmark's run, as `ambit-bench` writes them.

use std::{fs::File, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

/// Environment variable with the path of the file to which `ambit-bench` writes its results.
pub(super) const FILE_VARIABLE: &str = "AMBIT_BENCH_FIGURES";

/// Result of one benchmark in a run. Numbers that are not finite are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measurement {
    pub(super) what: String,
    pub(super) unit: String,
    /// Measured value, in this unit.
    pub(super) value: Option<f64>,
    /// Ratio to the result of the same run without the mesh or with Envoy.
    pub(super) ratio: Option<f64>,
    /// Result of two plain TCP relays: a ratio like `ratio`, or else a value.
    pub(super) relay: Option<f64>,
    /// Result of Istio's node proxy or of Envoy: a ratio to the result without the mesh, or else a value.
    pub(super) existing: Option<f64>,
    /// Quality, higher is better, for comparisons between runs.
    pub(super) score: Option<f64>,
}

/// Reads the results of a run.
///
/// # Errors
/// When the file cannot be read, or has no results.
pub(super) fn read_measurements(file: &Path) -> Result<Vec<Measurement>> {
    let open = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let figures: Vec<Measurement> = serde_json::from_reader(open)
        .with_context(|| format!("{} has no figures", file.display()))?;
    ensure!(
        !figures.is_empty(),
        "this benchmark has no figures to compare"
    );
    Ok(figures)
}
