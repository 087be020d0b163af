//! Parts of routes that this mesh does not support.

use ambit_model::ArcStr;

/// Reason of conditions for values that the API has and this mesh has not.
pub(crate) const UNSUPPORTED_VALUE: &str = "UnsupportedValue";

/// Part of a rule that is not supported.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unsupported {
    /// Reason for a condition.
    pub(crate) reason: &'static str,
    pub(crate) text: ArcStr,
}
