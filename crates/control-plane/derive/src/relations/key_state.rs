//! State of a key set that is fetched.

use ambit_model::ArcStr;

/// State of a key set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// Key set of the last successful attempt to fetch it.
    pub keys: Option<ArcStr>,
    /// Error of the last attempt to fetch it, if that failed.
    pub trouble: Option<ArcStr>,
}
