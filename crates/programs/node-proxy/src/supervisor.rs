//! The proxy's process 1, and where it meets others: see [`ambit_handover`].

use std::path::{Path, PathBuf};

use ambit_handover::{Meeting, Program};
use ambit_rt::Env;
use anyhow::Context as _;

/// The argument that makes a process the worker.
pub const WORKER_ARGUMENT: &str = "worker";

/// Runs until the worker has ended for good; returns its exit code.
///
/// # Errors
/// When the process cannot start.
pub fn run(env: &Env) -> anyhow::Result<u8> {
    let _logs = ambit_rt::logging::init(env).context("cannot set up logging")?;
    ambit_rt::panics::follow(ambit_rt::panics::Ends::Process);
    Ok(ambit_handover::run(Program {
        name: "ambit-node-proxy",
        arguments: vec![WORKER_ARGUMENT.into()],
        meeting: meeting(env),
    })?)
}

/// `AMBIT_HANDOVER_UDS`, `AMBIT_HOLDER_UDS`: by default beside the node agent's socket. `AMBIT_PAIR_UDS`: by
/// default nowhere, there is no standby.
fn meeting(env: &Env) -> Meeting {
    let named = |variable| {
        env.get(variable)
            .filter(|path: &&str| !path.is_empty())
            .map(PathBuf::from)
    };
    let agent = crate::config::inpod_uds(env);
    let beside = |name: &str| Path::with_file_name(&agent, name);
    Meeting {
        handover: Some(
            named("AMBIT_HANDOVER_UDS").unwrap_or_else(|| beside("ambit-handover.sock")),
        ),
        holder: Some(named("AMBIT_HOLDER_UDS").unwrap_or_else(|| beside("ambit-holder.sock"))),
        pair: named("AMBIT_PAIR_UDS"),
        hold_for_others: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_met_beside_the_agents_socket() {
        let env = Env::from_pairs([("INPOD_UDS", "/run/x/ztunnel.sock")]);
        let Meeting {
            handover,
            holder,
            pair,
            ..
        } = meeting(&env);
        assert_eq!(handover, Some("/run/x/ambit-handover.sock".into()));
        assert_eq!(holder, Some("/run/x/ambit-holder.sock".into()));
        assert_eq!(pair, None);
        let env = Env::from_pairs([("AMBIT_HANDOVER_UDS", "/elsewhere")]);
        assert_eq!(meeting(&env).handover, Some("/elsewhere".into()));
    }
}
