//! Parses the command line, which selects the role of the process: supervisor or worker.

use ambit_handover::{Meeting, Program};
use ambit_proxy::admin;
use ambit_rt::Env;
use anyhow::Context as _;

use crate::{
    app::{self, StartedBy},
    config,
};

/// Text of `--help`.
const HELP: &str = "ambit-node-proxy: the node's proxy of an ambient mesh

Usage: ambit-node-proxy [--no-supervisor] [proxy [ztunnel] | version | help]

Configured by the environment variables that Istio's ztunnel reads.

  --no-supervisor  run the proxy itself, without the process that holds the pods' sockets
                   and replaces a proxy that died (also AMBIT_SUPERVISOR=false)
";

/// Argument that starts the worker process.
const WORKER: &str = "worker";

/// Outcome of the command line, for `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
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
pub fn run(arguments: &[&str], env: &Env) -> anyhow::Result<Outcome> {
    let (alone, rest) = match arguments {
        ["--no-supervisor", rest @ ..] => (true, rest),
        rest => (env.flag("AMBIT_SUPERVISOR")? == Some(false), rest),
    };
    match rest {
        [] | ["proxy"] | ["proxy", "ztunnel"] if alone => work(env, StartedBy::Unsupervised),
        [] | ["proxy"] | ["proxy", "ztunnel"] => supervise(env).map(Outcome::Exit),
        [WORKER] => work(env, StartedBy::Supervisor),
        ["version" | "--version"] => Ok(Outcome::Print(format!("{:#}\n", admin::version()))),
        ["help" | "--help" | "-h"] => Ok(Outcome::Print(HELP.to_owned())),
        other => anyhow::bail!("unknown arguments {other:?}\n\n{HELP}"),
    }
}

/// Runs the supervisor until its worker has exited for good; returns its exit code.
fn supervise(env: &Env) -> anyhow::Result<u8> {
    let _logs = ambit_rt::logging::init(env).context("cannot set up logging")?;
    ambit_rt::panics::follow(ambit_rt::panics::Ends::Process);
    Ok(ambit_handover::run(Program {
        name: "ambit-node-proxy",
        arguments: vec![WORKER.into()],
        meeting: Meeting::from_env(env, &config::inpod_uds(env)),
    })?)
}

fn work(env: &Env, by: StartedBy) -> anyhow::Result<Outcome> {
    app::run(env, by).map(|()| Outcome::Exit(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_arguments_print_the_help() {
        let env = Env::from_pairs::<&str, &str>([]);
        let error = run(&["prxy"], &env).unwrap_err().to_string();
        assert!(error.contains("prxy") && error.contains("Usage"), "{error}");
        assert_eq!(
            run(&["help"], &env).unwrap(),
            Outcome::Print(HELP.to_owned())
        );
        let env = Env::from_pairs([("AMBIT_SUPERVISOR", "perhaps")]);
        assert!(run(&[], &env).is_err());
    }
}
