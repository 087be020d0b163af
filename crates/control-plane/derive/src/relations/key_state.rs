//! State of a key set that is fetched.

use ambit_model::ArcStr;

/// State of a key set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The set, as it was last had.
    pub keys: Option<ArcStr>,
    /// Why the last attempt to have it failed.
    pub trouble: Option<ArcStr>,
}
