//! Writes a run's results to a file, which `cargo xtask bench --against` compares with the results of another revision.

use std::{fs::File, num::NonZeroUsize, path::PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// Environment variable with the path of the file of results.
const FIGURES_FILE_VARIABLE: &str = "AMBIT_BENCH_FIGURES";
/// Environment variable with the number of rounds of traffic and of a waypoint's loads.
const ROUNDS_VARIABLE: &str = "AMBIT_BENCH_ROUNDS";

/// Result of one benchmark, from which `cargo xtask bench --against` compares two revisions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BenchmarkFigure {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
    /// Quality, higher is better: relative to the result of the same run without the mesh or with Envoy, or absolute if
    /// there is no such result.
    pub(crate) score: f64,
}

/// Returns the number of rounds in the environment variable [`ROUNDS_VARIABLE`], or `default` if the variable is not
/// set.
///
/// # Errors
/// When the variable is no positive number.
pub(crate) fn configured_rounds(default: usize) -> Result<usize> {
    match std::env::var(ROUNDS_VARIABLE) {
        Ok(rounds) => Ok(rounds
            .parse::<NonZeroUsize>()
            .context(ROUNDS_VARIABLE)?
            .get()),
        Err(_) => Ok(default),
    }
}

/// Returns the median of the values; `None` without any.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Writes the benchmark results to the file whose path is in the environment variable [`FIGURES_FILE_VARIABLE`]; does
/// nothing if the variable is not set.
///
/// # Errors
///
/// When the file cannot be written.
pub(crate) fn write_figures(figures: &[BenchmarkFigure]) -> Result<()> {
    let Some(path) = std::env::var_os(FIGURES_FILE_VARIABLE).map(PathBuf::from) else {
        return Ok(());
    };
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    serde_json::to_writer(file, figures).with_context(|| format!("cannot write {}", path.display()))
}
