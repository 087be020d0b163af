//! `cargo xtask tidy`: the rules of CONTRIBUTING.md as code, one file per subject. Each rule takes its input as a value
//! and returns its violations, so that its test can show it failing.

use std::fs;

use anyhow::{Result, ensure};

use crate::{book, shell};

mod claims;
mod cycles;
mod deny;
mod files;
mod images;
mod language;
mod layers;
mod modules;
mod paths;
mod recipes;
mod source;
mod trees;
mod unused;
mod workspace;

/// Checks all rules. The error lists every violation, one per line.
pub(crate) fn run() -> Result<()> {
    let workspace = workspace::read()?;
    let mut broken = layers::broken(&workspace);
    broken.extend(trees::broken(&workspace));
    broken.extend(deny::broken(&workspace)?);
    broken.extend(images::broken()?);
    broken.extend(recipes::broken()?);
    broken.extend(book::broken()?);
    let manifest = fs::read_to_string(shell::root().join("Cargo.toml"))?;
    broken.extend(unused::of_workspace(&manifest, &workspace)?);
    for package in workspace.ours() {
        let sources = source::of(package)?;
        broken.extend(sources.iter().flat_map(files::broken));
        broken.extend(modules::broken(&sources));
        broken.extend(cycles::broken(package, &sources));
        broken.extend(language::broken(&sources));
        broken.extend(unused::broken(package, &sources));
        broken.extend(claims::broken(package, &sources));
    }
    ensure!(broken.is_empty(), "tidy found:\n  {}", broken.join("\n  "));
    eprintln!("==> tidy: {} crates in order", workspace.ours().count());
    Ok(())
}
