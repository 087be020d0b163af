//! The `ambit` command line: inspects running node proxies and control planes, Ambit's or Istio's, explains policies,
//! and runs the lab.
//!
//! The same binary also runs as the lab's helper processes: as its CNI plugin, if it is called by that name, and as the
//! stages of its supervisor.
#![forbid(unsafe_code)]

mod access_log;
mod args;
mod bug_report;
mod check;
mod clap_command;
mod cluster;
mod convert;
mod dashboard;
mod debug_pages;
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
mod pod_access;
mod policy_test;
mod problems;
mod readiness;
mod request_explain;
mod rollout;
mod source;
mod status;
mod suggest;
mod version;
mod waypoint;

use std::{path::Path, process::ExitCode};

use clap::FromArgMatches as _;

use crate::{
    args::{Args, Command, PolicyCommand},
    clap_command::command_definition,
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
    let matches = command_definition(name.as_deref()).get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match args.command {
        Command::Lab { name, command } => lab::run(&name, command),
        Command::Workloads(args) => inspect::print_workloads(&args).map(success),
        Command::Services(args) => inspect::print_services(&args).map(success),
        Command::Policies(args) => inspect::print_policies(&args).map(success),
        Command::Certificates(args) => inspect::print_certificates(&args).map(success),
        Command::Connections(args) => inspect::print_connections(&args).map(success),
        Command::LogLevel(args) => inspect::show_or_set_log_level(&args).map(success),
        Command::Explain(args) => request_explain::run(&args),
        Command::Policy(PolicyCommand::Explain(args)) => explain::run(&args),
        Command::Policy(PolicyCommand::Suggest(args)) => suggest::run(&args).map(success),
        Command::Policy(PolicyCommand::Test(args)) => policy_test::run(&args),
        Command::Flows(args) => flows::run(&args).map(success),
        Command::Waypoint(command) => waypoint::run(&command).map(success),
        Command::Install(args) => install::install(&args).map(success),
        Command::Upgrade(args) => install::upgrade(&args).map(success),
        Command::Uninstall(args) => install::uninstall(&args).map(success),
        Command::Enroll(args) => enrol::run(&args, true).map(success),
        Command::Unenroll(args) => enrol::run(&args, false).map(success),
        Command::Rollout(args) => rollout::run(&args).map(success),
        Command::Status(args) => status::run(&args).map(success),
        Command::Problems(args) => problems::run(&args).map(success),
        Command::Lint(args) => lint::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Dashboard(args) => dashboard::run(&args).map(success),
        Command::Pod(args) => pod::run(&args).map(success),
        Command::Check(args) => check::run(&args),
        Command::Completion { shell } => manual::print_completion(shell).map(success),
        Command::Man { directory } => manual::write_man_pages(&directory).map(success),
        Command::BugReport(args) => bug_report::run(&args).map(success),
        Command::Version(args) => version::run(&args).map(success),
        Command::LabTool { arguments } => Err(lab_tool::run(&arguments)),
    };
    match result {
        Ok(code) => code,
        Err(error) => error.print_and_exit(),
    }
}

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
