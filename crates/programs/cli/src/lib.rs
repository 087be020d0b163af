//! The `ambit` command line: looks into running node proxies and control planes, ours or Istio's, explains policies,
//! and runs the lab.
//!
//! The same binary also runs as the lab's helper processes: as its CNI plugin, if it is called by that name, and as the
//! stages of its supervisor.
#![forbid(unsafe_code)]

mod access_log;
mod answers;
mod args;
mod bug_report;
mod check;
mod cluster;
mod convert;
mod dashboard;
mod definition;
mod demo;
mod dump;
mod enrol;
mod error;
mod examples;
mod explain;
mod files;
mod flows;
mod http;
mod inspect;
mod install;
mod istio;
mod lab;
mod lab_tool;
mod labs;
mod lint;
mod manifest;
mod manual;
mod membership;
mod output;
mod pod;
mod problems;
mod reach;
mod readiness;
mod rehearsal;
mod rollout;
mod source;
mod status;
mod suggest;
mod version;
mod walk;
mod waypoint;

use std::{path::Path, process::ExitCode};

use clap::FromArgMatches as _;

use crate::{
    args::{Args, Command, PolicyCommand},
    definition::definition,
};
pub use error::{CliError, ErrorKind};

/// Parses the arguments and runs the command.
pub fn main() -> ExitCode {
    let name = std::env::args_os().next();
    #[cfg(target_os = "linux")]
    if name.as_deref().and_then(|name| Path::new(name).file_name())
        == Some(ambit_lab::PLUGIN_NAME.as_ref())
    {
        return ambit_lab::run_plugin();
    }
    let matches = definition(name.as_deref()).get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match args.command {
        Command::Lab { name, command } => lab::run(&name, command),
        Command::Workloads(args) => inspect::workloads(&args).map(done),
        Command::Services(args) => inspect::services(&args).map(done),
        Command::Policies(args) => inspect::policies(&args).map(done),
        Command::Certificates(args) => inspect::certificates(&args).map(done),
        Command::Connections(args) => inspect::connections(&args).map(done),
        Command::LogLevel(args) => inspect::log_level(&args).map(done),
        Command::Explain(args) => walk::run(&args),
        Command::Policy(PolicyCommand::Explain(args)) => explain::run(&args),
        Command::Policy(PolicyCommand::Suggest(args)) => suggest::run(&args).map(done),
        Command::Policy(PolicyCommand::Test(args)) => rehearsal::run(&args),
        Command::Flows(args) => flows::run(&args).map(done),
        Command::Waypoint(command) => waypoint::run(&command).map(done),
        Command::Install(args) => install::install(&args).map(done),
        Command::Upgrade(args) => install::upgrade(&args).map(done),
        Command::Uninstall(args) => install::uninstall(&args).map(done),
        Command::Enroll(args) => enrol::run(&args, true).map(done),
        Command::Unenroll(args) => enrol::run(&args, false).map(done),
        Command::Rollout(args) => rollout::run(&args).map(done),
        Command::Status(args) => status::run(&args).map(done),
        Command::Problems(args) => problems::run(&args).map(done),
        Command::Lint(args) => lint::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Dashboard(args) => dashboard::run(&args).map(done),
        Command::Pod(args) => pod::run(&args).map(done),
        Command::Check(args) => check::run(&args),
        Command::Completion { shell } => manual::completion(shell).map(done),
        Command::Man { directory } => manual::pages(&directory).map(done),
        Command::BugReport(args) => bug_report::run(&args).map(done),
        Command::Version(args) => version::run(&args).map(done),
        Command::LabTool { arguments } => Err(lab_tool::run(&arguments)),
    };
    match result {
        Ok(code) => code,
        Err(error) => error.report(),
    }
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
