//! Selection of the readings that have to match.

/// Which readings of a text have to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Any interpretation matches; for denials and limits.
    Any,
    /// All interpretations, ignoring override headers; for allowing.
    All,
    /// All interpretations, including override headers; for exceptions from a denial.
    Exception,
}
