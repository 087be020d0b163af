//! `cargo xtask tidy`: the rules of CONTRIBUTING.md as code, one file per subject. Each rule takes its input as a value
//! and returns its violations, so that its test can show it failing.

use std::fs;

use anyhow::{Result, ensure};

use crate::{book, shell};

mod claims;
mod cycles;
mod deny;
mod dockerfile;
mod files;
mod language;
mod layers;
mod modules;
mod paths;
mod profiles;
mod recipes;
mod source;
mod trees;
mod unused_dependencies;
mod workspace;

/// Checks all rules. The error lists every violation, one per line.
pub(crate) fn run() -> Result<()> {
    let workspace = workspace::read()?;
    let mut broken = layers::find_violations(&workspace);
    broken.extend(trees::find_violations(&workspace));
    broken.extend(deny::find_violations(&workspace)?);
    broken.extend(dockerfile::find_violations()?);
    broken.extend(profiles::find_violations()?);
    broken.extend(recipes::find_violations()?);
    broken.extend(book::find_problems()?);
    let manifest = fs::read_to_string(shell::workspace_root().join("Cargo.toml"))?;
    broken.extend(unused_dependencies::find_unused_in_workspace(
        &manifest, &workspace,
    )?);
    for package in workspace.workspace_members() {
        let sources = source::read_package(package)?;
        broken.extend(sources.iter().flat_map(files::find_violations));
        broken.extend(modules::find_violations(&sources));
        broken.extend(cycles::find_violations(package, &sources));
        broken.extend(language::find_violations(&sources));
        broken.extend(unused_dependencies::find_violations(package, &sources));
        broken.extend(claims::find_violations(package, &sources));
    }
    ensure!(broken.is_empty(), "tidy found:\n  {}", broken.join("\n  "));
    eprintln!(
        "==> tidy: {} crates in order",
        workspace.workspace_members().count()
    );
    Ok(())
}
