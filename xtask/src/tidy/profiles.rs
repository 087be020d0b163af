//! Rule for `build/profiles`: a profile of another compiler's version names no function that this one builds.

use std::fs;

use anyhow::{Context as _, Result};

use crate::{profile, shell};

pub(super) fn find_violations() -> Result<Vec<String>> {
    let path = shell::workspace_root().join("rust-toolchain.toml");
    let toolchain = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(check(&profile::recorded_toolchain()?, &toolchain))
}

fn check(recorded: &str, toolchain: &str) -> Vec<String> {
    if recorded == toolchain {
        return Vec::new();
    }
    vec![
        "build/profiles was recorded with another rust-toolchain.toml: run `cargo xtask profile`"
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_another_toolchain_are_reported() {
        assert!(check("channel = \"1.95.0\"", "channel = \"1.95.0\"").is_empty());
        assert_eq!(
            check("channel = \"1.95.0\"", "channel = \"1.96.0\"").len(),
            1
        );
    }
}
