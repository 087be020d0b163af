//! Parts of routes that this mesh does not support.

use ambit_model::ArcStr;

/// Reason of conditions for values that the API has and this mesh has not.
pub(in crate::index::kinds) const UNSUPPORTED_VALUE: &str = "UnsupportedValue";

/// Part of a rule that is not supported.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unsupported {
    /// Reason for a condition.
    pub(in crate::index::kinds) reason: &'static str,
    pub(in crate::index::kinds) text: ArcStr,
}
