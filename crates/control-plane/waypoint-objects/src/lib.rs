//! The Kubernetes objects that make a Gateway's waypoint run, as a pure function of the Gateway and the
//! settings of the installation. The control plane applies them to a cluster, and the lab runs them.
#![forbid(unsafe_code)]

mod objects;
mod ours;
mod pod;
mod settings;

pub use objects::{Unusable, WaypointObjects, objects, says_replicas};
pub use ours::{CLASS, CONTROLLER, MANAGED, MANAGED_BY, is_managed, is_ours};
pub use pod::{GATEWAY_NAME, HBONE_PORT};
pub use settings::{Files, Settings};
