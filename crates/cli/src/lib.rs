//! The `ambit` command line: looks into running node proxies and control planes, ours or Istio's,
//! explains policies, and runs the lab.
//!
//! The same binary is also the lab's helper processes: under the name of its CNI plugin, as the
//! stages of its supervisor, and as the small programs that example pods run.
#![forbid(unsafe_code)]

mod args;
mod error;
mod lab;
mod tool;

use std::{path::Path, process::ExitCode};

use clap::Parser as _;

use crate::args::{Args, Command};
pub use error::{CliError, ErrorKind};

/// Runs the command line.
pub fn main() -> ExitCode {
    let name = std::env::args_os().next();
    if name.as_deref().and_then(|name| Path::new(name).file_name()) == Some(ambit_lab::PLUGIN_NAME.as_ref()) {
        return ambit_lab::run_plugin();
    }
    let args = Args::parse();
    let done = match args.command {
        Command::Lab { name, command } => lab::run(&name, command),
        Command::LabTool(tool) => return tool::run(&tool),
    };
    match done {
        Ok(code) => code,
        Err(error) => error.report(),
    }
}
