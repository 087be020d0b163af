//! Decision of the policies about one recorded call.

/// Decision of the policies about a recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallDecision {
    /// The policies allow the call.
    Allowed,
    /// The policies listed in `by` deny the call.
    Refused { by: String, why: String },
    /// The records do not suffice to decide, for this reason.
    Undecided(String),
}
