//! Runs the commands of documents as tests: README.md and the pages of the book (`docs/src`).
//!
//! A comment before a block of commands names its runner: `<!-- run: lab -->` or `<!-- run: cluster
//! -->`. A comment that contains commands itself, below `<!-- run: lab`, has steps that readers do
//! not see, for instance to provoke a symptom. `<!-- not run: REASON -->` is for a block that no
//! test runs. A line `$ COMMAND` begins a step; lines below it are its output, in which `…`
//! replaces parts that differ from run to run.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Output,
    thread,
    time::{Duration, Instant},
};

/// Pause between two attempts of a step.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Delimiter that starts a here-document: the command writes a file from the lines below it.
const HERE_DOCUMENT: &str = "<<'END'";

/// Command of a document, with the output that the document shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentStep {
    /// Line number in the document, from 1.
    pub line: usize,
    /// Shell command, including its here-document.
    pub command: String,
    /// Output lines that the document shows below the command.
    pub output: Vec<String>,
}

/// Returns the path of the repository's root directory.
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Returns the steps for one runner in a document, whose path is relative to the repository.
pub fn parse_file_steps(path: &str, runner: &str) -> Vec<DocumentStep> {
    let file = repository_root().join(path);
    let text = fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
    let steps = parse_steps(&text, runner);
    assert!(!steps.is_empty(), "{path} has no commands for {runner}");
    steps
}

/// Returns the steps for one runner in a document's text.
pub fn parse_steps(text: &str, runner: &str) -> Vec<DocumentStep> {
    let shown = format!("<!-- run: {runner} -->");
    let hidden = format!("<!-- run: {runner}");
    let mut steps = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let end = if line == shown {
            let fence = lines.next().map(|(_, line)| line);
            assert_eq!(fence, Some("```console"), "no commands follow {line:?}");
            "```"
        } else if line == hidden {
            "-->"
        } else {
            continue;
        };
        let block = lines.by_ref().take_while(|(_, line)| *line != end);
        parse_block(block, &mut steps);
    }
    steps
}

/// Parses the steps of one block of commands.
fn parse_block<'a>(block: impl Iterator<Item = (usize, &'a str)>, steps: &mut Vec<DocumentStep>) {
    let mut in_document = false;
    for (index, line) in block {
        if in_document {
            let step = steps.last_mut().expect("a command precedes its document");
            let _infallible = write!(step.command, "\n{line}");
            in_document = line != "END";
        } else if let Some(command) = line.strip_prefix("$ ") {
            let command = command.split("  #").next().unwrap_or_default().trim_end();
            in_document = command.contains(HERE_DOCUMENT);
            steps.push(DocumentStep {
                line: index + 1,
                command: command.to_owned(),
                output: Vec::new(),
            });
        } else {
            let step = steps.last_mut().expect("a command precedes its output");
            step.output.push(line.to_owned());
        }
    }
}

impl DocumentStep {
    /// Returns the first shown line that the output lacks. For a command without shown output, the exit status must be
    /// success.
    fn missing_output(&self, output: &Output) -> Option<String> {
        let text = text_of(output);
        let has = |shown: &&String| text.lines().any(|line| matches_line(line, shown));
        match self.output.iter().find(|shown| !has(shown)) {
            Some(line) => Some(format!("no line {line:?}")),
            None if self.output.is_empty() && !output.status.success() => {
                Some(output.status.to_string())
            }
            None => None,
        }
    }
}

/// Returns whether a line of output matches a line of the document, regardless of the widths of
/// columns.
fn matches_line(line: &str, shown: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = words(line);
    let mut rest = line.as_str();
    shown.split('…').all(|part| {
        let found = rest.split_once(words(part).as_str());
        rest = found.map_or("", |(_, after)| after);
        found.is_some()
    })
}

fn text_of(output: &Output) -> String {
    let text = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// Runs steps in order. Each is repeated until its output is as shown, since the mesh needs a moment for changes;
/// panics with the last output if a step takes longer than `timeout`.
pub fn run_steps(steps: &[DocumentStep], timeout: Duration, run: impl Fn(&str) -> Output) {
    for step in steps {
        let deadline = Instant::now() + timeout;
        loop {
            let output = run(&step.command);
            let Some(missing) = step.missing_output(&output) else {
                break;
            };
            assert!(
                Instant::now() < deadline,
                "line {}: {}: {missing} in:\n{}",
                step.line,
                step.command,
                text_of(&output)
            );
            thread::sleep(RETRY_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const PAGE: &str = "# Page
<!-- run: lab
$ touch a
-->
<!-- run: lab -->
```console
$ cat > b <<'END'
$ not a command
END
$ ls /tmp     # comment
a … c
…
```
<!-- run: cluster -->
```console
$ kubectl get pods
```
<!-- not run: needs a registry -->
```console
$ docker push
```
";

    fn shell(command: &str) -> Output {
        Command::new("sh").args(["-c", command]).output().unwrap()
    }

    #[test]
    fn steps_are_those_of_one_runner_in_order() {
        let all = parse_steps(PAGE, "lab");
        let commands: Vec<_> = all.iter().map(|step| step.command.as_str()).collect();
        let document = "cat > b <<'END'\n$ not a command\nEND";
        assert_eq!(commands, ["touch a", document, "ls /tmp"]);
        assert_eq!(all[2].output, ["a … c", "…"]);
        assert_eq!((all[0].line, all[2].line), (3, 10));
        assert_eq!(parse_steps(PAGE, "cluster").len(), 1);
        assert!(parse_steps(PAGE, "registry").is_empty());
    }

    #[test]
    fn output_may_differ_only_where_the_document_leaves_it_out() {
        for (line, shown, is_shown) in [
            ("a   b  c", "a b … c", true),
            ("a b 17 c", "a b … c", true),
            ("a b", "a b c", false),
            ("c a b", "a b … c", false),
            ("anything", "…", true),
        ] {
            assert_eq!(matches_line(line, shown), is_shown, "{line:?} {shown:?}");
        }
    }

    #[test]
    fn shown_failure_is_accepted() {
        let step = |command: &str, output: &[&str]| DocumentStep {
            line: 1,
            command: command.to_owned(),
            output: output.iter().map(|line| (*line).to_owned()).collect(),
        };
        let missing = |step: &DocumentStep| step.missing_output(&shell(&step.command));
        assert_eq!(missing(&step("echo DENIED >&2; exit 1", &["DENIED"])), None);
        assert!(missing(&step("exit 1", &[])).is_some());
        assert!(missing(&step("echo ALLOWED", &["DENIED"])).is_some());
    }

    #[test]
    #[should_panic(expected = "line 1: echo a: no line \"b\" in:\na")]
    fn missing_output_names_the_step() {
        let steps = parse_steps("<!-- run: lab\n$ echo a\nb\n-->", "lab");
        // The line number is that of the command.
        assert_eq!(steps[0].line, 2);
        let first = DocumentStep {
            line: 1,
            ..steps[0].clone()
        };
        run_steps(&[first], Duration::ZERO, shell);
    }
}
