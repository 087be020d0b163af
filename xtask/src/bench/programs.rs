//! Copies of built programs, in separate directories.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

/// Copies the programs among a directory's build outputs to another directory.
pub(super) fn copy_programs(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|name| is_program(name)) {
            replace_program(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn is_program(name: &str) -> bool {
    name.starts_with("ambit") && !name.contains('.')
}

/// Replaces a program by renaming, since a running executable cannot be written to.
pub(crate) fn replace_program(from: &Path, to: &Path) -> Result<()> {
    let beside = to.with_extension("new");
    fs::copy(from, &beside)
        .and_then(|_| fs::rename(&beside, to))
        .with_context(|| format!("cannot copy {}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_distinguished_from_other_build_outputs() {
        assert!(is_program("ambit") && is_program("ambit-node-proxy"));
        assert!(!is_program("ambit-agent.d") && !is_program("libambit_rt.rlib"));
        assert!(!is_program("deps") && !is_program("ambit-agent.new"));
    }
}
