//! Errors that end a supervisor.

use std::{io, path::PathBuf};

/// Error that ends a supervisor.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Signals cannot be followed.
    #[error("cannot follow signals")]
    Signals(#[source] io::Error),
    /// The socket of the pair is unusable.
    #[error("cannot meet the other one of the pair: is {path} writable?")]
    Pair {
        /// Directory of the socket.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// Waiting for events failed.
    #[error("cannot wait for events")]
    Wait(#[source] io::Error),
}
