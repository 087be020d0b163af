//! Decision about one connection or request.

/// Decision of the policies about a recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallDecision {
    /// All policies allow the call.
    Allowed,
    /// A policy denies the call; `by` lists the policies.
    Refused { by: String, why: String },
    /// The records do not suffice; the text is the reason.
    Undecided(String),
}
