//! Result of fetching a key set.

use ambit_model::ArcStr;

/// Result of fetching a key set: the last keys, and the last error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySetState {
    /// Key set of the last successful fetch.
    pub keys: Option<ArcStr>,
    /// Error of the last attempt to fetch the key set; `None` if it succeeded.
    pub last_error: Option<ArcStr>,
}
