//! Findings of checks, with their severity.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Level {
    /// The mesh does not work, or traffic is lost.
    Error,
    /// A part of the mesh may not work.
    Warning,
    /// Information without a required action.
    Info,
}

/// Finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// Subject of the finding: an object, or the cluster.
    pub(crate) about: String,
    /// Text of the finding.
    pub(crate) finding: String,
    /// Advice on it.
    pub(crate) advice: String,
}

impl Finding {
    pub(super) fn new(
        level: Level,
        about: impl Into<String>,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            level,
            about: about.into(),
            finding: finding.into(),
            advice: advice.into(),
        }
    }
}
