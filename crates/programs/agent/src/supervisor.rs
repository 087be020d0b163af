//! Supervisor process of the agent (process 1, see [`ambit_handover`]): it restarts a dead agent within milliseconds,
//! without kubelet's backoff, and stores the pods' descriptors for node proxies while all of a node proxy's containers
//! are dead.

use std::ffi::OsString;

use ambit_handover::{SupervisorSockets, WorkerProgram};
use ambit_rt::{Env, logging::LoggingError};

use crate::config::Args;

/// Name of the socket, beside the ZDS socket, by which node proxies store and fetch descriptors.
const HOLDER_SOCKET: &str = "ambit-holder.sock";

/// Error of starting the supervisor.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// Logging could not be set up.
    #[error("cannot set up logging")]
    Logging(#[from] LoggingError),
    /// The supervisor process failed.
    #[error("cannot run the agent")]
    Run(#[from] ambit_handover::RunError),
}

/// Runs the agent as a worker until it has exited for good; returns its exit code. `arguments` are those of this
/// process.
///
/// # Errors
/// When the process cannot start.
pub fn supervise(args: &Args, arguments: Vec<OsString>) -> Result<u8, SuperviseError> {
    let _logs = ambit_rt::logging::init(&Env::from_process())?;
    ambit_rt::panics::install_hook(ambit_rt::panics::PanicScope::Process);
    if let Some(parent) = args.zds_socket.parent() {
        // Failing to is reported by the agent, which needs it more.
        std::fs::create_dir_all(parent).ok();
    }
    let arguments = arguments.into_iter().chain(["--worker".into()]);
    Ok(ambit_handover::run(WorkerProgram {
        name: "ambit-agent",
        arguments: arguments.collect(),
        sockets: SupervisorSockets {
            hosted_holder: Some(args.zds_socket.with_file_name(HOLDER_SOCKET)),
            ..SupervisorSockets::default()
        },
    })?)
}
