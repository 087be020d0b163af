//! What is said of one connection or request.

/// What policies make of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// By which policies, and why.
    Refused {
        by: String,
        why: String,
    },
    /// Why it cannot be said.
    Undecided(String),
}
