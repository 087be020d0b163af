//! `ambit lab-tool`: executes `ambit-lab-tool`, for manifests whose pods have `ambit` as their command.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use ambit_lab::LAB_TOOL;

use crate::{CliError, ErrorKind};

/// Replaces this process by `ambit-lab-tool` from the directory of `ambit`, or from `PATH`; returns only if neither has
/// it.
pub(crate) fn run(arguments: &[OsString]) -> CliError {
    let beside = std::env::current_exe().map(|ambit| ambit.with_file_name(LAB_TOOL));
    let program = beside.ok().filter(|path| path.is_file());
    let mut command = Command::new(program.unwrap_or_else(|| LAB_TOOL.into()));
    let error = command.args(arguments).exec();
    CliError::new(ErrorKind::NotFound, format!("cannot run {LAB_TOOL}"))
        .with_source(error)
        .with_hint(
            "it is a program of its own: put it beside ambit; `cargo build --bins` builds it",
        )
}
