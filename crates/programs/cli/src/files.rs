//! Reads the files that command-line flags name.

use std::{fs, io, path::Path};

use crate::{CliError, ErrorKind};

/// Creates the error for a file that cannot be read.
pub(crate) fn unreadable_file_error(
    path: &Path,
    error: impl std::error::Error + Send + Sync + 'static,
) -> CliError {
    let what = format!("cannot read {}", path.display());
    CliError::new(ErrorKind::NotFound, what).with_source(error)
}

/// Reads the text of a file, or standard input for `-`.
pub(crate) fn read_text(path: &Path) -> Result<String, CliError> {
    let text = match path.to_str() {
        Some("-") => io::read_to_string(io::stdin()),
        _ => fs::read_to_string(path),
    };
    text.map_err(|error| unreadable_file_error(path, error))
}
