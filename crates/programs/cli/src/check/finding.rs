//! Findings of checks, with their severity.

use serde::Serialize;

/// Severity of a finding, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FindingLevel {
    /// The mesh does not work, or loses traffic.
    Error,
    /// A part of the mesh may not work.
    Warning,
    /// Information without a required action.
    Info,
}

/// Problem or fact that a check found in a cluster or on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    pub(crate) level: FindingLevel,
    /// Object that the finding is about, or the cluster.
    pub(crate) about: String,
    /// Text that describes the problem or fact.
    pub(crate) finding: String,
    /// How to solve the problem; empty if there is nothing to do.
    pub(crate) advice: String,
}

impl Finding {
    pub(super) fn new(
        level: FindingLevel,
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
