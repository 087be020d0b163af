//! Definition of the command line, with the examples of each command.

use std::{ffi::OsStr, path::Path};

use clap::{Command, CommandFactory as _};

use crate::{args::Args, examples};

/// Name under which kubectl finds a program as its plugin `kubectl ambit`.
const KUBECTL_PLUGIN: &str = "kubectl-ambit";

/// Builds the definition of the command line for a program that was started as `name`.
pub(crate) fn command_definition(name: Option<&OsStr>) -> Command {
    let definition = examples::add_examples(Args::command());
    let file = name.and_then(|name| Path::new(name).file_name());
    match file == Some(KUBECTL_PLUGIN.as_ref()) {
        true => definition.bin_name("kubectl ambit"),
        false => definition,
    }
}
