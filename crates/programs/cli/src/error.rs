//! Error of a command: kind (and so the exit code), cause, and hints for the user.

use std::{error::Error, process::ExitCode};

use ambit_rt::ErrorChain;

/// Kind of an error, which decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Invalid usage of the command.
    Usage,
    /// A named object, file or lab does not exist.
    NotFound,
    /// A server is unreachable, or sent an invalid response.
    Unreachable,
    /// The command failed for any other reason.
    Failed,
}

impl ErrorKind {
    fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Unreachable => 4,
        }
    }
}

/// Error of a command, with its cause and hints for the user.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    hints: Vec<String>,
}

impl CliError {
    /// Creates an error with a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
            hints: Vec::new(),
        }
    }

    /// Adds the cause of the error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds a hint for the user.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Formats the error with all causes and hints, one on each line.
    pub fn message_with_sources(&self) -> String {
        let mut text = format!("error: {}", ErrorChain(self));
        for hint in &self.hints {
            text.push_str(&format!("\nhint: {hint}"));
        }
        text
    }

    #[expect(clippy::print_stderr, reason = "the command line speaks there")]
    pub(crate) fn print_and_exit(&self) -> ExitCode {
        eprintln!("{}", self.message_with_sources());
        ExitCode::from(self.kind.exit_code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_cause_and_hint() {
        let error = CliError::new(ErrorKind::Unreachable, "cannot reach the node proxy")
            .with_source(std::io::Error::other("connection refused"))
            .with_hint("use --node");
        assert_eq!(
            error.message_with_sources(),
            "error: cannot reach the node proxy: connection refused\nhint: use --node"
        );
    }
}
