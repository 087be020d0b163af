//! Errors in the ConfigMaps with waypoints' parameters.

/// Reason why the ConfigMaps of a Gateway cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidParameters {
    /// Reference to an object that is not a ConfigMap.
    #[error(
        "spec.infrastructure.parametersRef: {0} is no ConfigMap: give group \"\", kind ConfigMap and a name"
    )]
    Reference(String),
    /// Reference to a missing ConfigMap.
    #[error("spec.infrastructure.parametersRef: there is no ConfigMap {0}")]
    Missing(String),
    /// Overlay that cannot be merged into the object.
    #[error("ConfigMap {map}, key {key}: {place}: {why}")]
    Overlay {
        /// Namespace and name of the ConfigMap.
        map: String,
        /// Key in the ConfigMap.
        key: &'static str,
        /// Path of the field.
        place: String,
        /// Problem of the ConfigMap's content.
        why: String,
    },
}
