//! Rules for `build/Dockerfile`: builds use the lock file, and base images are pinned by digest.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result};

use crate::shell;

/// Cargo commands that resolve dependencies.
const RESOLVING_COMMANDS: [&str; 5] = ["build", "rustc", "install", "run", "test"];

pub(super) fn find_violations() -> Result<Vec<String>> {
    let path = shell::workspace_root().join("build/Dockerfile");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(check_dockerfile(&text))
}

fn check_dockerfile(text: &str) -> Vec<String> {
    // A line that ends with a backslash continues on the next one.
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(str::trim);
    let mut stages = BTreeSet::from(["scratch"]);
    let mut broken = Vec::new();
    for line in lines.filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if words.next() == Some("FROM") {
            let mut words = words.filter(|word| !word.starts_with("--"));
            let base = words.next().unwrap_or_default();
            if !stages.contains(base) && !is_pinned(base) {
                broken.push(format!(
                    "build/Dockerfile: the base {base} is named by a tag, which can be moved; name its digest"
                ));
            }
            stages.extend(words.nth(1));
        }
        for command in line.split("&&").map(str::trim) {
            let command = command.strip_prefix("RUN ").unwrap_or(command);
            let words: Vec<_> = command.split_whitespace().collect();
            if let ["cargo", what, rest @ ..] = words.as_slice()
                && RESOLVING_COMMANDS.contains(what)
                && !rest.contains(&"--locked")
            {
                broken.push(format!("build/Dockerfile: `cargo {what}` without --locked"));
            }
        }
    }
    broken
}

/// Returns whether a base image is pinned by a digest, or by an argument for a digest without a default.
fn is_pinned(base: &str) -> bool {
    base.split_once('@').is_some_and(|(_, digest)| {
        digest.starts_with("sha256:") || (digest.starts_with("${") && digest.ends_with("_DIGEST}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_without_a_digest_and_builds_without_the_lock_are_found() {
        for (text, problems) in [
            ("FROM rust:1", 1),
            ("FROM --platform=linux/amd64 rust:1 AS a", 1),
            ("FROM rust@latest", 1),
            (
                "FROM rust:1@sha256:00 AS a\nFROM a AS b\nFROM scratch\nCOPY --from=b / /",
                0,
            ),
            ("ARG X_DIGEST\nFROM rust:1@${X_DIGEST} AS a", 0),
            ("RUN cargo build --release", 1),
            ("RUN cargo build \\\n  --release \\\n  --locked", 0),
            ("RUN true && cargo install x && cargo rustc --locked", 1),
            ("# FROM rust:1", 0),
        ] {
            assert_eq!(
                check_dockerfile(text).len(),
                problems,
                "{text}: {:?}",
                check_dockerfile(text)
            );
        }
    }
}
