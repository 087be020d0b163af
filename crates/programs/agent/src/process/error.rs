//! Errors that end the agent's process.

use std::{io, path::PathBuf};

use ambit_handover::SupervisorError;
use ambit_otlp_export::SettingsError;
use ambit_rt::{http::ListenError, logging::LoggingError};

use crate::{actions::ActionError, config::ConfigError, status::dir::StatusError};

/// Fatal error of the agent's process.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings are invalid.
    #[error("the settings cannot be used")]
    Config(#[from] ConfigError),
    /// The worker cannot connect to its supervisor.
    #[error("cannot follow the supervisor")]
    Supervisor(#[from] SupervisorError),
    /// Environment variables of OpenTelemetry are invalid or not supported.
    #[error("cannot export metrics and logs")]
    Export(#[from] SettingsError),
    /// Logging could not be set up.
    #[error("cannot set up logging")]
    Logging(#[from] LoggingError),
    /// The async runtime or the signal handlers failed.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// A socket could not be opened.
    #[error("cannot listen at {path}")]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// A port could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The directory for pods' status cannot be used.
    #[error("cannot keep the pods' status")]
    Status(#[from] StatusError),
    /// The manifests cannot be read.
    #[error("cannot follow the manifests")]
    Source(#[from] ambit_manifests::OpenError),
    /// The client of the API server cannot be created.
    #[error("cannot follow the Kubernetes API")]
    Client(#[from] ambit_kube_kit::ClientError),
    /// The source of pods ended unexpectedly.
    #[error("the source of pods and namespaces has ended")]
    SourceEnded,
    /// The node's probe rules cannot be installed.
    #[error("cannot prepare the node")]
    Host(#[source] ActionError),
}
