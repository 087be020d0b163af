//! Errors that end a supervisor process.

use std::{io, path::PathBuf};

/// Fatal error of a supervisor process.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The signal handlers cannot be installed.
    #[error("cannot follow signals")]
    SignalHandlers(#[source] io::Error),
    /// The socket or the file lock that the active supervisor shares with its standby cannot be used.
    #[error("cannot meet the other one of the pair: is {path} writable?")]
    StandbyPair {
        /// Path of the socket at which the standby connects.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The supervisor's `poll` call failed.
    #[error("cannot wait for events")]
    Poll(#[source] io::Error),
}
