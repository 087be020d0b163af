//! Errors in the ConfigMaps with waypoints' parameters.

/// Reason why the ConfigMaps to which a Gateway refers cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidParameters {
    /// The Gateway's `parametersRef` does not name a ConfigMap.
    #[error(
        "spec.infrastructure.parametersRef: {0} is no ConfigMap: give group \"\", kind ConfigMap and a name"
    )]
    InvalidReference(String),
    /// The ConfigMap to which the Gateway refers does not exist.
    #[error("spec.infrastructure.parametersRef: there is no ConfigMap {0}")]
    MissingConfigMap(String),
    /// An overlay in a ConfigMap cannot be merged into the object.
    #[error("ConfigMap {map}, key {key}: {place}: {why}")]
    InvalidOverlay {
        /// Namespace and name of the ConfigMap.
        map: String,
        /// Key of the overlay in the ConfigMap.
        key: &'static str,
        /// Path of the invalid field.
        place: String,
        /// Reason why the overlay is invalid.
        why: String,
    },
}
