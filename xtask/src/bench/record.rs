//! `cargo xtask bench PART --write`: adds a run's table to the benchmarks' page of the book, with the machine and the
//! versions, and keeps the last ones of each part.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::shell;

/// Number of runs of a part that the page keeps.
const KEPT_RUNS: usize = 4;
const PART_HEADING: &str = "\n## ";
const RUN_HEADING: &str = "\n### ";

/// Runs the benchmark, prints its table, and adds the table to the page.
#[expect(clippy::print_stdout, reason = "the table is what the command is for")]
pub(super) fn run_and_record(part: &str, bench: &mut Command) -> Result<()> {
    let output = bench
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot start the benchmark")?;
    let table = String::from_utf8_lossy(&output.stdout);
    print!("{table}");
    ensure!(output.status.success(), "benchmark: {}", output.status);
    let page = shell::workspace_root().join("docs/src/benchmarks.md");
    let text =
        fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    let text = add_run(&text, part, &describe_run()?, &table);
    fs::write(&page, text).with_context(|| format!("cannot write {}", page.display()))
}

/// Adds a run to a part of the page as the part's first, and removes the part's oldest runs.
fn add_run(page: &str, part: &str, description: &str, table: &str) -> String {
    let run = format!("\n{description}\n\n```text\n{}\n```\n", table.trim());
    let mut sections = page.split(PART_HEADING);
    let mut text = sections.next().unwrap_or_default().trim_end().to_owned() + "\n";
    let mut is_added = false;
    for section in sections {
        let (heading, body) = section.split_once('\n').unwrap_or((section, ""));
        text += &format!("{PART_HEADING}{heading}\n");
        if heading != part {
            text += body;
            continue;
        }
        is_added = true;
        let mut runs = body.split(RUN_HEADING);
        text += runs.next().unwrap_or_default();
        text += &format!("{RUN_HEADING}{}", run.trim_start());
        for earlier in runs.take(KEPT_RUNS - 1) {
            text += &format!("{RUN_HEADING}{}\n", earlier.trim_end());
        }
    }
    if !is_added {
        text += &format!("{PART_HEADING}{part}\n{RUN_HEADING}{}", run.trim_start());
    }
    text
}

/// Returns date, revision, machine, kernel and compiler of a run.
fn describe_run() -> Result<String> {
    let date = output("date", &["--utc", "+%F"])?;
    let revision = output("git", &["describe", "--always", "--dirty"])?;
    let kernel = output("uname", &["-rm"])?;
    let rustc = output("rustc", &["--version"])?;
    let processors = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let models: Vec<&str> = processors
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, model)| model)
        .collect();
    let model = models.first().copied().unwrap_or("unknown processor");
    let count = models.len();
    Ok(format!(
        "{date}, revision {revision}\n\n{count} processors ({model}), Linux {kernel}, {rustc}."
    ))
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(shell::workspace_root());
    let output = command
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_run_of_a_part_is_first_and_the_oldest_go() {
        let mut page = "# Benchmarks\n\nText.\n\n## memory\n\n### other\n".to_owned();
        for run in 0..=KEPT_RUNS {
            page = add_run(&page, "paths", &format!("run {run}\n\nmachine"), "1 | 2\n");
        }
        assert!(page.starts_with("# Benchmarks\n\nText.\n\n## memory\n\n### other\n"));
        let (_, paths) = page.split_once("## paths\n").unwrap();
        let runs: Vec<&str> = paths.split("### ").skip(1).collect();
        assert_eq!(runs.len(), KEPT_RUNS);
        assert_eq!(runs[0], "run 4\n\nmachine\n\n```text\n1 | 2\n```\n\n");
        assert!(runs[KEPT_RUNS - 1].starts_with("run 1\n"));
    }

    #[test]
    fn runs_describe_machine_and_revision() {
        let description = describe_run().unwrap();
        assert!(description.starts_with("20"), "{description}");
        assert!(description.contains("processors"), "{description}");
        assert!(description.contains("rustc 1."), "{description}");
    }
}
