//! What a source of objects reports at once.

use ambit_k8s_api::ObjectEvent;

/// Events since the last change.
#[derive(Debug, Default)]
pub struct Change {
    /// Events in order.
    pub events: Vec<ObjectEvent>,
    /// Every manifest that cannot be read now, as text; `None` if that is as before.
    pub manifests: Option<Vec<String>>,
    /// Every kind whose definition in the cluster cannot be followed fully now, as text; `None` if that is as before.
    pub definitions: Option<Vec<String>>,
    /// Whether all objects that existed at the start have been reported.
    pub complete: bool,
}
