//! `cargo xtask bench PART --against REV`: runs the same benchmark with this tree's programs and with those of another
//! revision or directory, alternately, until each result is known to be better, equal or worse.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::{
    comparison::{ComparisonOutcome, Interval, MAX_PAIRS},
    programs,
};
use crate::shell;

/// Number of pairs of runs before the first comparison.
const MIN_PAIRS: usize = 4;

/// Result of one benchmark in a run, as `ambit-bench` writes it.
#[derive(Deserialize)]
struct Measurement {
    what: String,
    unit: String,
    /// Measured value; `None` if it is not finite.
    value: Option<f64>,
    score: Option<f64>,
}

/// Values of one benchmark in all pairs of runs.
#[derive(Default)]
struct ComparedMeasurement {
    unit: String,
    base_values: Vec<f64>,
    current_values: Vec<f64>,
    ratios: Vec<f64>,
}

/// Builds the programs of another revision in a separate worktree, beside this tree's, and returns their directory. The
/// benchmark itself is this tree's, so that both are measured alike.
pub(super) fn programs_of_revision(revision: &str, now: &Path) -> Result<PathBuf> {
    let commit = resolve_commit(revision)?;
    let directory = std::path::absolute(shell::target_dir())?.join("bench-against");
    let (source, target) = (directory.join("source"), directory.join("target"));
    let mut git = Command::new("git");
    git.current_dir(shell::workspace_root());
    if source.exists() {
        git.arg("-C").arg(&source).args(["checkout", "--quiet"]);
    } else {
        git.args(["worktree", "add", "--quiet", "--force"]);
    }
    git.args(["--detach"]);
    if !source.exists() {
        git.arg(&source);
    }
    shell::run(&format!("check {revision} ({commit}) out"), git.arg(commit))?;
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--release", "--locked", "--bins"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(&source);
    shell::run(&format!("build the binaries of {revision}"), &mut build)?;
    programs_in(&target.join("release"), now)
}

/// Copies the programs in a directory, beside this tree's benchmark, and returns the directory of the copies.
pub(super) fn programs_in(directory: &Path, now: &Path) -> Result<PathBuf> {
    let copies = std::path::absolute(shell::target_dir())?.join("bench-against/programs");
    if copies.exists() {
        fs::remove_dir_all(&copies)?;
    }
    programs::copy_programs(directory, &copies)?;
    fs::copy(now.join("ambit-bench"), copies.join("ambit-bench"))?;
    Ok(copies)
}

/// Resolves a revision to a commit in this working tree, since `HEAD` is a different commit in the separate worktree.
fn resolve_commit(revision: &str) -> Result<String> {
    let mut git = Command::new("git");
    git.args(["rev-parse", "--verify", "--end-of-options"])
        .arg(format!("{revision}^{{commit}}"))
        .current_dir(shell::workspace_root());
    let output = git.output().context("cannot start git")?;
    ensure!(output.status.success(), "there is no revision {revision}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Runs the benchmark alternately from both directories of programs, and prints the comparison. `bench` is the command
/// with its arguments and environment; its program is replaced.
pub(super) fn compare(bench: &Command, now: &Path, then: &Path) -> Result<()> {
    let (mut figures, mut left_out) = (BTreeMap::new(), BTreeSet::new());
    for pair in 0..MAX_PAIRS {
        // Neither is always first: a machine that gets slower would count for one of them.
        let (of_now, of_then) = if pair % 2 == 0 {
            let of_now = measure(bench, now)?;
            (of_now, measure(bench, then)?)
        } else {
            let of_then = measure(bench, then)?;
            (measure(bench, now)?, of_then)
        };
        left_out.extend(add_pair(&mut figures, of_now, of_then)?);
        if pair + 1 >= MIN_PAIRS && !figures.values().any(is_undecided) {
            break;
        }
    }
    print(&figures, &left_out);
    let worse: Vec<&str> = figures
        .iter()
        .filter(|(_, figure)| comparison_outcome(figure) == Some(ComparisonOutcome::Worse))
        .map(|(what, _)| what.as_str())
        .collect();
    ensure!(worse.is_empty(), "worse than before: {}", worse.join("; "));
    Ok(())
}

fn measure(bench: &Command, programs: &Path) -> Result<Vec<Measurement>> {
    let file = programs.join("figures.json");
    let mut command = Command::new(programs.join("ambit-bench"));
    shell::copy_environment(bench, &mut command);
    command
        .env("AMBIT_BENCH_ROUNDS", "1")
        .env("AMBIT_BENCH_FIGURES", &file)
        .current_dir(shell::workspace_root());
    shell::run(
        &format!("benchmark of {}", programs.display()),
        &mut command,
    )?;
    let read = File::open(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let figures: Vec<Measurement> = serde_json::from_reader(read)
        .with_context(|| format!("{} has no figures", file.display()))?;
    ensure!(
        !figures.is_empty(),
        "this benchmark has no figures to compare"
    );
    Ok(figures)
}

/// Adds a pair of runs to the measurements `figures`. Returns the names of omitted measurements: those that the other
/// revision lacks, and those without a finite value in one of the runs.
///
/// # Errors
///
/// When this tree's run lacks a measurement of the other revision's.
fn add_pair(
    figures: &mut BTreeMap<String, ComparedMeasurement>,
    now: Vec<Measurement>,
    then: Vec<Measurement>,
) -> Result<Vec<String>> {
    let mut left_out = Vec::new();
    let mut then: BTreeMap<String, Measurement> = then
        .into_iter()
        .map(|figure| (figure.what.clone(), figure))
        .collect();
    for of_now in now {
        let Some(of_then) = then.remove(&of_now.what) else {
            left_out.push(of_now.what);
            continue;
        };
        let (Some(score_now), Some(score_then)) = (of_now.score, of_then.score) else {
            left_out.push(of_now.what);
            continue;
        };
        let compared = figures.entry(of_now.what).or_default();
        compared.unit = of_now.unit;
        compared.current_values.extend(of_now.value);
        compared.base_values.extend(of_then.value);
        compared.ratios.push(score_now / score_then);
    }
    let missing: Vec<String> = then.into_keys().collect();
    ensure!(
        missing.is_empty(),
        "not measured any more: {}",
        missing.join("; ")
    );
    Ok(left_out)
}

fn comparison_outcome(figure: &ComparedMeasurement) -> Option<ComparisonOutcome> {
    Interval::confidence_interval(&figure.ratios).map(Interval::outcome)
}

fn is_undecided(figure: &ComparedMeasurement) -> bool {
    comparison_outcome(figure) == Some(ComparisonOutcome::Undecided)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints a line for each measurement: medians, the ratio (above 1 is better) with its interval, and the outcome.
#[expect(clippy::print_stdout, reason = "the table is what the command is for")]
fn print(figures: &BTreeMap<String, ComparedMeasurement>, left_out: &BTreeSet<String>) {
    println!(
        "\n{:<52} {:>10} {:>10} {:<8} {:>7} {:>15} {:>3}",
        "", "then", "now", "unit", "ratio", "95 %", "n"
    );
    for (what, figure) in figures {
        let (then, now) = (median(&figure.base_values), median(&figure.current_values));
        let (ratio, interval, outcome) = match Interval::confidence_interval(&figure.ratios) {
            Some(interval) => (
                format!("{:.3}", interval.middle),
                format!("{:.3} to {:.3}", interval.low, interval.high),
                match interval.outcome() {
                    ComparisonOutcome::Better => "better",
                    ComparisonOutcome::Equal => "equal",
                    ComparisonOutcome::Worse => "WORSE",
                    ComparisonOutcome::Undecided => "undecided",
                },
            ),
            None => ("-".to_owned(), "-".to_owned(), ""),
        };
        let (unit, pairs) = (&figure.unit, figure.ratios.len());
        println!(
            "{what:<52} {then:>10.2} {now:>10.2} {unit:<8} {ratio:>7} {interval:>15} {pairs:>3}  {outcome}"
        );
    }
    for what in left_out {
        println!("{what:<52} not compared: no finite figure of both");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(what: &str, score: Option<f64>) -> Measurement {
        Measurement {
            what: what.to_owned(),
            unit: "us".to_owned(),
            value: score,
            score,
        }
    }

    #[test]
    fn pairs_are_divided_figure_by_figure() {
        let mut figures = BTreeMap::new();
        let now = vec![
            measurement("a", Some(2.0)),
            measurement("b", None),
            measurement("c", Some(1.0)),
        ];
        let then = vec![measurement("b", Some(1.0)), measurement("a", Some(1.0))];
        assert_eq!(add_pair(&mut figures, now, then).unwrap(), ["b", "c"]);
        assert_eq!(figures.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(figures["a"].ratios, [2.0]);
        let vanished = add_pair(&mut figures, Vec::new(), vec![measurement("a", Some(1.0))]);
        assert!(vanished.is_err());
    }

    #[test]
    fn figures_that_differ_by_chance_are_measured_on() {
        let compared = |ratios: &[f64]| ComparedMeasurement {
            ratios: ratios.to_vec(),
            ..ComparedMeasurement::default()
        };
        assert!(is_undecided(&compared(&[0.7, 1.2, 0.9, 1.1])));
        assert!(!is_undecided(&compared(&[1.0, 1.01, 0.99, 1.0])));
        assert!(
            !is_undecided(&compared(&[1.0, -1.0])),
            "no interval will come"
        );
    }
}
