//! Decision about one connection or request.

/// Verdict of policies on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// By which policies, and why.
    Refused {
        by: String,
        why: String,
    },
    /// Why it is undecided.
    Undecided(String),
}
