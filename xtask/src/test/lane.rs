//! Lanes: queues of test suites and commands. A lane runs its steps in order, one or a few concurrently; lanes run in
//! parallel.

use std::{
    collections::VecDeque,
    io::{self, Write as _},
    process::{Command, Output},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};

use super::{durations::Durations, suite::Suite};
use crate::shell;

/// Queue of test suites and commands that are started in order.
pub(super) struct Lane {
    name: &'static str,
    priority: Priority,
    /// Maximum number of the lane's concurrent steps.
    max_concurrent_steps: usize,
    steps: VecDeque<Step>,
}

/// Scheduling priority of a lane's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    Normal,
    /// For tests that compute: less of a busy processor than normal ones, but enough for the deadlines in them.
    Low,
}

struct Step {
    name: String,
    command: Command,
    is_suite: bool,
}

impl Lane {
    /// Builds a lane whose steps run these test suites.
    pub(super) fn suite_lane(name: &'static str, priority: Priority, suites: Vec<Suite>) -> Self {
        let step = |suite: Suite| Step {
            command: suite.command(),
            name: suite.name,
            is_suite: true,
        };
        Self {
            name,
            priority,
            max_concurrent_steps: 1,
            steps: suites.into_iter().map(step).collect(),
        }
    }

    /// Sets the maximum number of concurrent steps.
    pub(super) fn max_parallel(mut self, steps: usize) -> Self {
        self.max_concurrent_steps = steps;
        self
    }

    /// Adds a command as the lane's last step.
    pub(super) fn command(mut self, name: &str, command: Command) -> Self {
        self.steps.push_back(Step {
            name: name.to_owned(),
            command,
            is_suite: false,
        });
        self
    }
}

/// Runs the lanes in parallel; in each, a step starts when an earlier one ends. Concurrent steps have different values
/// of `AMBIT_TEST_PLACE`, counted from 0. The output of a step is printed in one piece when it ends; at the end the
/// slowest suites and tests are printed.
///
/// # Errors
///
/// The error names every failed step; a failed step does not stop later ones.
pub(super) fn run(lanes: Vec<Lane>) -> Result<()> {
    let durations = Mutex::new(Durations::default());
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for lane in lanes {
            let (durations, failed) = (&durations, &failed);
            scope.spawn(move || {
                let start = Instant::now();
                let (name, priority) = (lane.name, lane.priority);
                let steps = Mutex::new(lane.steps);
                let next = || lock(&steps).pop_front();
                thread::scope(|scope| {
                    for place in 0..lane.max_concurrent_steps {
                        let next = &next;
                        scope.spawn(move || {
                            while let Some(mut step) = next() {
                                let name = step.name.clone();
                                step.command.env("AMBIT_TEST_PLACE", place.to_string());
                                if let Err(error) = run_step(step, priority, durations) {
                                    eprintln!("==> FAILED: {name}: {error:#}");
                                    lock(failed).push(name);
                                }
                            }
                        });
                    }
                });
                let seconds = start.elapsed().as_secs_f64();
                eprintln!("==> all of the lane {name}: {seconds:.1} s");
            });
        }
    });
    let failed = failed
        .into_inner()
        .map_err(|_| anyhow!("a lane panicked"))?;
    let durations = durations
        .into_inner()
        .map_err(|_| anyhow!("a lane panicked"))?;
    durations.print();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn run_step(step: Step, priority: Priority, durations: &Mutex<Durations>) -> Result<()> {
    let mut command = match priority {
        Priority::Normal => step.command,
        Priority::Low => shell::nice(&step.command, 5),
    };
    let start = Instant::now();
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", step.name))?;
    let elapsed = start.elapsed();
    print(&step.name, elapsed, &output, step.is_suite);
    if step.is_suite {
        let text = String::from_utf8_lossy(&output.stdout);
        lock(durations).add(&step.name, elapsed, &text);
    }
    if !output.status.success() {
        bail!("{}", output.status);
    }
    Ok(())
}

/// Prints the output of a step: all of it for a suite, since CI parses it, and for other commands only if they failed.
fn print(name: &str, elapsed: Duration, output: &Output, is_suite: bool) {
    let mut text = format!("==> {name}: {:.1} s\n", elapsed.as_secs_f64()).into_bytes();
    if is_suite || !output.status.success() {
        text.extend_from_slice(&output.stdout);
        text.extend_from_slice(&output.stderr);
    }
    // One call under the lock of standard output, so that lines of different lanes do not mix.
    if let Err(error) = io::stdout().lock().write_all(&text) {
        eprintln!("cannot print the results of {name}: {error}");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell_step(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn a_lane_runs_as_many_steps_at_once_as_it_has_places() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        // Each step waits for a file of the other, so that they only succeed in parallel.
        let meet = |own: &str, other: &str| {
            shell_step(&format!(
                "touch {}; for _ in $(seq 1000); do test -e {} && exit; sleep 0.01; done; exit 1",
                at(own),
                at(other)
            ))
        };
        let lane = Lane::suite_lane("test", Priority::Normal, Vec::new())
            .max_parallel(2)
            .command("first", meet("a", "b"))
            .command("second", meet("b", "a"));
        assert!(run(vec![lane]).is_ok());
    }

    #[test]
    fn a_failed_step_is_named_and_later_steps_run() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ran");
        let lane = Lane::suite_lane("test", Priority::Low, Vec::new())
            .command("first", shell_step("exit 3"))
            .command("second", shell_step(&format!("touch {}", file.display())));
        let error = run(vec![lane]).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("failed: first"));
        assert!(file.exists());
    }
}
