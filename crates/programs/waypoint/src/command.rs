//! Parses the command line, which selects the role of the process: supervisor or worker.

use ambit_handover::{SupervisorSockets, WorkerProgram};
use ambit_proxy::admin;
use ambit_rt::Env;
use anyhow::Context as _;

use crate::app::{self, StartedBy};

/// Text of `--help`.
const HELP: &str = "ambit-waypoint: the layer 7 proxy of an ambient mesh

Usage: ambit-waypoint [--no-supervisor] [proxy [waypoint] | version | help]

Configured by environment variables: those that node proxies read, and GATEWAY_NAME.

  --no-supervisor  run the proxy itself, without the process that holds its sockets and
                   replaces a proxy that died (also AMBIT_SUPERVISOR=false)
";

/// Argument that starts the worker process.
const WORKER: &str = "worker";

/// Outcome of the command line, for `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The process exits with this code.
    Exit(u8),
    /// The process prints this text and exits.
    Print(String),
}

/// Runs the command that the arguments select; they do not include the program's name.
///
/// # Errors
///
/// When the arguments are invalid, or the process cannot start.
pub fn run(arguments: &[&str], env: &Env) -> anyhow::Result<CommandOutcome> {
    let (alone, rest) = match arguments {
        ["--no-supervisor", rest @ ..] => (true, rest),
        rest => (env.flag("AMBIT_SUPERVISOR")? == Some(false), rest),
    };
    match rest {
        [] | ["proxy"] | ["proxy", "waypoint"] if alone => run_worker(env, StartedBy::Unsupervised),
        [] | ["proxy"] | ["proxy", "waypoint"] => supervise(env).map(CommandOutcome::Exit),
        [WORKER] => run_worker(env, StartedBy::Supervisor),
        ["version" | "--version"] => Ok(CommandOutcome::Print(format!("{:#}\n", admin::version()))),
        ["help" | "--help" | "-h"] => Ok(CommandOutcome::Print(HELP.to_owned())),
        other => anyhow::bail!("unknown arguments {other:?}\n\n{HELP}"),
    }
}

/// Runs the supervisor until its worker has exited for good; returns its exit code. It has no peer supervisor: each
/// replica of a waypoint has its own sockets.
fn supervise(env: &Env) -> anyhow::Result<u8> {
    let _logs = ambit_rt::logging::init(env).context("cannot set up logging")?;
    ambit_rt::panics::install_hook(ambit_rt::panics::PanicScope::Process);
    Ok(ambit_handover::run(WorkerProgram {
        name: "ambit-waypoint",
        arguments: vec![WORKER.into()],
        sockets: SupervisorSockets::default(),
    })?)
}

fn run_worker(env: &Env, started_by: StartedBy) -> anyhow::Result<CommandOutcome> {
    app::run(env, started_by).map(|()| CommandOutcome::Exit(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_arguments_print_the_help() {
        let env = Env::from_pairs::<&str, &str>([]);
        let error = run(&["proxy", "ztunnel"], &env).unwrap_err().to_string();
        assert!(
            error.contains("ztunnel") && error.contains("Usage"),
            "{error}"
        );
        assert_eq!(
            run(&["help"], &env).unwrap(),
            CommandOutcome::Print(HELP.to_owned())
        );
    }
}
