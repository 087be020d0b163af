//! Errors in parameters of waypoints.

/// Why the ConfigMaps of a Gateway are of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidParameters {
    /// Reference to something else than a ConfigMap.
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
        /// Namespace and name.
        map: String,
        /// Key in the ConfigMap.
        key: &'static str,
        /// Path of the field.
        place: String,
        /// Problem of the ConfigMap's content.
        why: String,
    },
}
