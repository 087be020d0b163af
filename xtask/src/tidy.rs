//! `cargo xtask tidy`: the rules of CONTRIBUTING.md as code, one file per subject. Each rule takes its input as a value
//! and returns its violations, so that its test can show it failing.

use std::{fs, thread};

use anyhow::{Result, anyhow, ensure};

use crate::{book, shell};
use workspace::Package;

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
mod test_features;
mod trees;
mod unused_dependencies;
mod workspace;

/// Checks all rules. The error lists every violation, one per line.
pub(crate) fn run() -> Result<()> {
    let workspace = workspace::read()?;
    let mut broken = layers::find_violations(&workspace);
    broken.extend(trees::find_violations(&workspace));
    broken.extend(test_features::find_unlisted(&workspace));
    broken.extend(deny::find_violations(&workspace)?);
    broken.extend(dockerfile::find_violations()?);
    broken.extend(profiles::find_violations()?);
    broken.extend(recipes::find_violations()?);
    broken.extend(book::find_problems()?);
    let manifest = fs::read_to_string(shell::workspace_root().join("Cargo.toml"))?;
    broken.extend(unused_dependencies::find_unused_in_workspace(
        &manifest, &workspace,
    )?);
    let members: Vec<_> = workspace.workspace_members().collect();
    broken.extend(find_violations_in_sources(&members)?);
    ensure!(broken.is_empty(), "tidy found:\n  {}", broken.join("\n  "));
    eprintln!("==> tidy: {} crates in order", members.len());
    Ok(())
}

/// Checks the rules for sources, on all processors.
fn find_violations_in_sources(packages: &[&Package]) -> Result<Vec<String>> {
    let processors = thread::available_parallelism()?.get();
    let of_packages = thread::scope(|scope| {
        let check = |packages: Vec<&Package>| -> Result<Vec<String>> {
            let found = packages.into_iter().map(find_violations_in_package);
            Ok(found.collect::<Result<Vec<_>>>()?.concat())
        };
        let threads: Vec<_> = (0..processors)
            .map(|first| packages.iter().copied().skip(first).step_by(processors))
            .map(|packages| scope.spawn(move || check(packages.collect())))
            .collect();
        let results = threads.into_iter().map(|thread| {
            let result = thread.join();
            result.map_err(|_| anyhow!("a thread that checks sources panicked"))?
        });
        results.collect::<Result<Vec<_>>>()
    })?;
    Ok(of_packages.concat())
}

fn find_violations_in_package(package: &Package) -> Result<Vec<String>> {
    let sources = source::read_package(package)?;
    let mut broken: Vec<_> = sources.iter().flat_map(files::find_violations).collect();
    broken.extend(modules::find_violations(&sources));
    broken.extend(cycles::find_violations(package, &sources));
    broken.extend(language::find_violations(&sources));
    broken.extend(unused_dependencies::find_violations(package, &sources));
    broken.extend(claims::find_violations(package, &sources));
    broken.extend(test_features::find_violations(package, &sources));
    Ok(broken)
}
