//! `ambit completion` and `ambit man`: completion scripts and manual pages, generated from the command line's
//! definition.

use std::{fs, io, path::Path};

use clap_complete::Shell;

use crate::{CliError, ErrorKind, clap_command::command_definition};

/// Prints the completion script of a shell.
pub(crate) fn print_completion(shell: Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command_definition(None), "ambit", &mut script);
    match io::Write::write_all(&mut io::stdout(), &script) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(ErrorKind::Failed, "cannot write").with_source(error))
        }
        _ => Ok(()),
    }
}

/// Writes a page of the manual for each command.
pub(crate) fn write_man_pages(directory: &Path) -> Result<(), CliError> {
    let written = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command_definition(None), directory));
    written.map_err(|error| {
        let what = format!("cannot write manual pages to {}", directory.display());
        CliError::new(ErrorKind::Failed, what).with_source(error)
    })
}
