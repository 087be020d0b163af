//! What a command says when it fails: what happened, why, and what to try.

use std::{error::Error, fmt, process::ExitCode};

/// What kind of failure, which is also the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Something failed on the way (exit code 1).
    Failed,
    /// The command makes no sense as given (exit code 2).
    Usage,
    /// What was asked for does not exist (exit code 3).
    NotFound,
    /// Nobody answers (exit code 4).
    Unreachable,
}

/// A failed command.
#[derive(Debug)]
pub struct CliError {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    hints: Vec<String>,
}

impl CliError {
    /// A failure of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
            hints: Vec::new(),
        }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds what the user may try.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The exit code of the kind.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind {
            ErrorKind::Failed => 1,
            ErrorKind::Usage => 2,
            ErrorKind::NotFound => 3,
            ErrorKind::Unreachable => 4,
        })
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        let mut source = self.source.as_deref().map(|source| source as &dyn Error);
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        for hint in &self.hints {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl Error for CliError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_cause_and_hint() {
        let error = CliError::new(ErrorKind::Unreachable, "cannot reach the node proxy")
            .because(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
            .hint("is it running?");
        assert_eq!(
            error.to_string(),
            "cannot reach the node proxy: connection refused\nhint: is it running?"
        );
    }
}
