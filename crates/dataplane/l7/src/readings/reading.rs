//! Selection of the readings of an attribute that must match.

/// Readings of an attribute that must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Any reading: for denials and rate limits.
    Any,
    /// All readings except those from override headers: for permissions.
    All,
    /// All readings including those from override headers: for exceptions from a denial.
    Exception,
}
