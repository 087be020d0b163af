//! Failures of an instance of a Wasm module.

use std::time::Duration;

/// Reason why an instance failed or could not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// The instance could not be started.
    #[error("the module cannot be started: {0}")]
    Start(String),
    /// The module rejected its configuration in the callback of this name.
    #[error("the plugin refuses its configuration ({0} returned false)")]
    Configuration(&'static str),
    /// A callback trapped.
    #[error("the module trapped in {callback}: {why}")]
    Trapped {
        /// Name of the callback.
        callback: &'static str,
        /// Message of the trap.
        why: String,
    },
    /// A callback exceeded its timeout.
    #[error("the module took more than {limit:?} in {callback} and was ended")]
    TimedOut {
        /// Name of the callback.
        callback: &'static str,
        /// Timeout that the callback exceeded.
        limit: Duration,
    },
    /// The instance had failed before, during another request.
    #[error("the plugin failed before and is not yet started anew")]
    InstanceFailed,
}

impl VmError {
    /// Returns the reason for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Start(_) => "start",
            Self::Configuration(_) => "configuration",
            Self::Trapped { .. } => "trap",
            Self::TimedOut { .. } => "time",
            Self::InstanceFailed => "dead",
        }
    }
}
