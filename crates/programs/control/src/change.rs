//! Batch of changes from a source of objects.

use ambit_k8s_api::ObjectEvent;

/// Events since the last change, and current problems of the source.
#[derive(Debug, Default)]
pub struct Change {
    /// Events in order.
    pub events: Vec<ObjectEvent>,
    /// Problems of all manifests that cannot be parsed now; `None` if unchanged since the last change.
    pub manifest_problems: Option<Vec<String>>,
    /// Problems of all kinds whose CRD cannot be fully followed now; `None` if unchanged since the last change.
    pub crd_problems: Option<Vec<String>>,
    /// Whether all objects that existed at the start have been reported.
    pub is_complete: bool,
}
