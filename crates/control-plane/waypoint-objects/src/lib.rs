//! Kubernetes objects of a Gateway's waypoint, as a pure function of the Gateway, the settings of
//! the installation and the ConfigMaps with overlays. The control plane applies them to a cluster,
//! and the lab runs them.
#![forbid(unsafe_code)]

mod error;
mod field_path;
mod merge;
mod objects;
mod overlay;
mod ownership;
mod parameters;
mod part;
mod permitted_fields;
mod pod;
mod settings;

pub use error::InvalidParameters;
pub use objects::{WaypointError, WaypointObjects, build_objects};
pub use ownership::{
    CONTROLLER_NAME, GATEWAY_CLASS, MANAGED_BY_VALUE, MANAGED_LABEL, is_deployed_automatically,
    is_managed_by_revision, is_waypoint_object,
};
pub use parameters::{ConfigMaps, Parameters, references_config_map};
pub use part::WaypointObjectKind;
pub use pod::{GATEWAY_NAME_LABEL, HBONE_PORT};
pub use settings::{Files, OpenTelemetry, SecretKey, Settings, WorkloadApi};
