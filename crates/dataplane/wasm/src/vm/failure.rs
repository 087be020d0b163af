//! Failures of an instance.

use std::time::Duration;

/// Reason why an instance failed or could not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Failed start of an instance.
    #[error("the module cannot be started: {0}")]
    Start(String),
    /// Module that rejects its configuration.
    #[error("the plugin refuses its configuration ({0} returned false)")]
    Configuration(&'static str),
    /// Instance that trapped.
    #[error("the module trapped in {callback}: {why}")]
    Trapped {
        /// Name of the running callback.
        callback: &'static str,
        /// Message of the trap.
        why: String,
    },
    /// Callback that took too long.
    #[error("the module took more than {limit:?} in {callback} and was ended")]
    TooLong {
        /// Name of the running callback.
        callback: &'static str,
        /// Time limit that the callback exceeded.
        limit: Duration,
    },
    /// Instance that failed before, in another request.
    #[error("the plugin failed before and is not yet started anew")]
    Dead,
}

impl Failure {
    /// Reason for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Start(_) => "start",
            Self::Configuration(_) => "configuration",
            Self::Trapped { .. } => "trap",
            Self::TooLong { .. } => "time",
            Self::Dead => "dead",
        }
    }
}
