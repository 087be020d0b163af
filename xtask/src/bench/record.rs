//! `cargo xtask bench PART --write`: keeps the last results of each part, with the machine on which they were measured,
//! and renders them as `docs/benchmarks.md`.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::measurement::Measurement;
use crate::shell;

/// Files of the results: as data, and as a page.
const DATA_FILE: &str = "docs/benchmarks.json";
const PAGE_FILE: &str = "docs/benchmarks.md";

/// Number of runs that are kept of each part.
const KEPT_RUNS: usize = 5;

/// Runs of each part, the newest first.
type Records = BTreeMap<String, Vec<Record>>;

/// Results of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    /// Day of the run (UTC), as year-month-day.
    day: String,
    /// Abbreviated commit, with `+` if the tree had changes.
    commit: String,
    machine: Machine,
    figures: Vec<Measurement>,
}

/// Machine and versions of programs with which a run was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Machine {
    processor: String,
    processors: usize,
    memory_gib: u64,
    kernel: String,
    rust: String,
}

/// Adds a run of `part` to the kept results and renders the page.
///
/// # Errors
/// When the results or the facts about the machine cannot be read, or a file cannot be written; the page is then
/// unchanged.
pub(super) fn write_record(part: &str, figures: Vec<Measurement>) -> Result<()> {
    let root = shell::workspace_root();
    let data = root.join(DATA_FILE);
    let mut records = read_records(&data)?;
    let record = Record {
        day: command_output("date", &["-u", "+%Y-%m-%d"])?,
        commit: current_commit()?,
        machine: describe_machine()?,
        figures,
    };
    add_record(&mut records, part, record);
    let json = serde_json::to_string_pretty(&records)? + "\n";
    for (file, text) in [(DATA_FILE, json), (PAGE_FILE, render_page(&records))] {
        fs::write(root.join(file), text).with_context(|| format!("cannot write {file}"))?;
    }
    eprintln!("==> wrote {PAGE_FILE}");
    Ok(())
}

fn read_records(data: &Path) -> Result<Records> {
    if !data.exists() {
        return Ok(Records::new());
    }
    let text = fs::read(data).with_context(|| format!("cannot read {DATA_FILE}"))?;
    serde_json::from_slice(&text)
        .with_context(|| format!("{DATA_FILE} is not what `bench --write` wrote"))
}

fn add_record(records: &mut Records, part: &str, record: Record) {
    let runs = records.entry(part.to_owned()).or_default();
    runs.insert(0, record);
    runs.truncate(KEPT_RUNS);
}

fn current_commit() -> Result<String> {
    let commit = command_output("git", &["rev-parse", "--short=8", "HEAD"])?;
    let is_changed =
        !command_output("git", &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(if is_changed { commit + "+" } else { commit })
}

fn describe_machine() -> Result<Machine> {
    let first = |file: &str, key: &str| -> Result<String> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        let value = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == key)
            .map(|(_, value)| value.trim().to_owned());
        value.with_context(|| format!("{file} has no {key:?}"))
    };
    let memory = first("/proc/meminfo", "MemTotal")?;
    let kib: u64 = memory.trim_end_matches(" kB").parse().context("MemTotal")?;
    Ok(Machine {
        processor: first("/proc/cpuinfo", "model name").unwrap_or_else(|_| "unknown".to_owned()),
        processors: std::thread::available_parallelism()?.get(),
        memory_gib: kib.div_ceil(1 << 20),
        kernel: command_output("uname", &["-r"])?,
        rust: command_output("rustc", &["--version"])?,
    })
}

fn command_output(program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let output = command
        .args(args)
        .current_dir(shell::workspace_root())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program} {args:?} failed");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Renders the newest run of each part, with the scores of the earlier ones in relation to it.
fn render_page(records: &Records) -> String {
    let mut page = "# Benchmarks\n\n\
        Written by `cargo xtask bench PART --write`; do not edit. Clients, servers and all proxies share one machine.\n\
        \"Ratio\" is Ambit's result divided by that of the same run without a mesh; for waypoints, the factor by which\n\
        Ambit is better than Envoy. \"Relays\" are two plain TCP relays (nginx) one after the other, \"existing\" is\n\
        Istio's node proxy or Envoy: ratios where Ambit's is one, else values. The last columns are earlier runs: above 1,\n\
        the newest is better. Runs of different days are not side by side; `--against REV` compares revisions that way.\n"
        .to_owned();
    for (part, runs) in records {
        let Some((newest, earlier)) = runs.split_first() else {
            continue;
        };
        let Machine {
            processor,
            processors,
            memory_gib,
            kernel,
            rust,
        } = &newest.machine;
        let _ = write!(
            page,
            "\n## {part}\n\n{} at `{}`: {processors} processors ({processor}), {memory_gib} GiB, Linux {kernel}, {rust}.\n\n\
             | | Ambit | unit | ratio | relays | existing |",
            newest.day, newest.commit
        );
        for run in earlier {
            let _ = write!(page, " {} `{}` |", run.day, run.commit);
        }
        page += "\n|---|---|---|---|---|---|";
        page += &"---|".repeat(earlier.len());
        page += "\n";
        for figure in &newest.figures {
            let Measurement {
                what,
                unit,
                value,
                ratio,
                relay,
                existing,
                ..
            } = figure;
            let cells = [*value, *ratio, *relay, *existing].map(format_number);
            let [value, ratio, relay, existing] = &cells;
            let _ = write!(
                page,
                "| {what} | {value} | {unit} | {ratio} | {relay} | {existing} |"
            );
            for run in earlier {
                let _ = write!(
                    page,
                    " {} |",
                    format_number(improvement_factor(figure, run))
                );
            }
            page += "\n";
        }
    }
    page
}

/// Returns the factor by which a result is better than the same one of an earlier run.
fn improvement_factor(figure: &Measurement, earlier: &Record) -> Option<f64> {
    let same = earlier.figures.iter().find(|one| one.what == figure.what)?;
    Some(figure.score? / same.score?)
}

fn format_number(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_record(day: &str, score: f64) -> Record {
        Record {
            day: day.to_owned(),
            commit: "0123abcd".to_owned(),
            machine: Machine {
                processor: "a processor".to_owned(),
                processors: 2,
                memory_gib: 24,
                kernel: "6.18".to_owned(),
                rust: "rustc 1.95".to_owned(),
            },
            figures: vec![Measurement {
                what: "requests".to_owned(),
                unit: "req/s".to_owned(),
                value: Some(50_000.0),
                ratio: Some(0.5),
                relay: None,
                existing: Some(12.34),
                score: Some(score),
            }],
        }
    }

    #[test]
    fn page_shows_the_newest_run_and_factors_to_earlier_ones() {
        let mut records = Records::new();
        add_record(&mut records, "traffic", test_record("2026-01-01", 0.4));
        add_record(&mut records, "traffic", test_record("2026-01-02", 0.5));
        let page = render_page(&records);
        assert!(
            page.contains("2026-01-02 at `0123abcd`: 2 processors (a processor), 24 GiB"),
            "{page}"
        );
        let row = "| requests | 50000 | req/s | 0.500 | – | 12.3 | 1.250 |";
        assert!(page.lines().any(|line| line == row), "{page}");
    }

    #[test]
    fn old_runs_are_dropped() {
        let mut records = Records::new();
        for day in 0..=KEPT_RUNS {
            add_record(&mut records, "traffic", test_record(&day.to_string(), 1.0));
        }
        let days: Vec<&str> = records["traffic"].iter().map(|run| &*run.day).collect();
        assert_eq!(days, ["5", "4", "3", "2", "1"]);
    }

    #[test]
    fn kept_runs_are_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("records.json");
        assert_eq!(read_records(&file).unwrap(), Records::new());
        let mut records = Records::new();
        add_record(&mut records, "traffic", test_record("2026-01-01", 0.4));
        fs::write(&file, serde_json::to_string(&records).unwrap()).unwrap();
        assert_eq!(read_records(&file).unwrap(), records);
        fs::write(&file, "[]").unwrap();
        assert!(
            read_records(&file)
                .unwrap_err()
                .to_string()
                .contains(DATA_FILE)
        );
    }
}
