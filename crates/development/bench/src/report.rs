//! Table of results: without the mesh, through it, their ratio, and the target ratio.

use crate::figure::BenchmarkFigure;

/// Direction in which a benchmark's result is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BetterDirection {
    Higher,
    Lower,
}

/// Result of one benchmark in the table.
#[derive(Clone, Debug)]
pub(crate) struct ReportLine {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    /// Result without the mesh; `None` for benchmarks that have no meaning without the mesh.
    pub(crate) without_mesh: Option<f64>,
    pub(crate) with_mesh: f64,
    /// Result of Istio's node proxy on a machine of the same size: a ratio to the result without the mesh if `bare` is
    /// set, otherwise an absolute value.
    pub(crate) istio: Option<f64>,
    pub(crate) better: BetterDirection,
}

impl ReportLine {
    /// Creates and prints a result without a comparison; smaller is better.
    pub(crate) fn without_baseline(
        what: &str,
        unit: &'static str,
        mesh: f64,
        existing: Option<f64>,
    ) -> Self {
        eprintln!("  {what}: {mesh:.3} {unit}");
        Self {
            what: what.into(),
            unit,
            without_mesh: None,
            with_mesh: mesh,
            istio: existing,
            better: BetterDirection::Lower,
        }
    }

    /// Creates and prints a result with and without the mesh; smaller is better, and `existing` is a ratio.
    pub(crate) fn compared_with(
        what: &str,
        unit: &'static str,
        bare: f64,
        mesh: f64,
        existing: f64,
    ) -> Self {
        Self {
            without_mesh: Some(bare),
            ..Self::without_baseline(what, unit, mesh, Some(existing))
        }
    }

    /// Returns the result with its score, for the comparison of revisions.
    pub(crate) fn to_figure(&self) -> BenchmarkFigure {
        BenchmarkFigure {
            what: self.what.clone(),
            unit: self.unit,
            value: self.with_mesh,
            score: match self.better {
                BetterDirection::Higher => self.comparison_score(),
                BetterDirection::Lower => 1.0 / self.comparison_score(),
            },
        }
    }

    /// Returns the value that is compared with Istio's: the ratio, or the value itself.
    fn comparison_score(&self) -> f64 {
        self.without_mesh
            .map_or(self.with_mesh, |bare| self.with_mesh / bare)
    }

    fn outcome(&self) -> &'static str {
        match (self.istio, self.better) {
            (None, _) => "",
            (Some(existing), BetterDirection::Higher) if self.comparison_score() >= existing => {
                "better"
            }
            (Some(existing), BetterDirection::Lower) if self.comparison_score() <= existing => {
                "better"
            }
            _ => "worse",
        }
    }
}

/// Prints the table of results.
#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
pub(crate) fn print(lines: &[ReportLine]) {
    println!(
        "\n{:<52} {:>10} {:>10} {:>8} {:>10}  unit",
        "", "bare", "mesh", "ratio", "existing"
    );
    for line in lines {
        let bare = line.without_mesh.map_or_else(|| "-".to_owned(), number);
        let ratio = line.without_mesh.map_or_else(
            || "-".to_owned(),
            |bare| format!("{:.3}", line.with_mesh / bare),
        );
        let existing = line.istio.map_or_else(|| "-".to_owned(), number);
        println!(
            "{:<52} {:>10} {:>10} {:>8} {:>10}  {:<8} {}",
            line.what,
            bare,
            number(line.with_mesh),
            ratio,
            existing,
            line.unit,
            line.outcome()
        );
    }
    println!(
        "\n\"existing\" is what the existing node proxy reaches: a ratio to bare where there is one, \
         else a value."
    );
}

fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_rated_by_their_ratio() {
        let line = ReportLine {
            what: "requests".into(),
            unit: "req/s",
            without_mesh: Some(100.0),
            with_mesh: 30.0,
            istio: Some(0.25),
            better: BetterDirection::Higher,
        };
        assert_eq!(line.outcome(), "better");
        assert_eq!(
            ReportLine {
                with_mesh: 20.0,
                ..line.clone()
            }
            .outcome(),
            "worse"
        );
        assert_eq!(
            ReportLine {
                better: BetterDirection::Lower,
                ..line
            }
            .outcome(),
            "worse"
        );
    }
}
