//! Change of an object, as watches report it.

use std::sync::Arc;

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) collection: String,
    pub(super) kind: ChangeKind,
    pub(super) object: Arc<Value>,
}
