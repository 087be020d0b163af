//! Derivation of the mesh's records, and of objects' desired status conditions, from Kubernetes objects.
//!
//! Pure and incremental: [`Index`] receives changed objects, stores the parsed form of each, and returns the changed
//! records on [`Index::flush`]. The work is proportional to the change, not to the size of the mesh. An invalid object
//! is rejected as a whole, with a [`Problem`] that names the field; its last valid version stays in effect, and other
//! objects are not affected.
//!
//! Layers, each of which uses only the ones above it in this list:
//!
//! - `objects`: the parsed form of each kind of object, and its parser;
//! - `relations`: data derived from many objects, such as the references between them;
//! - `view`: [`MeshView`], which has both, and answers queries about the mesh. Records and conditions are rendered from
//!   it alone, so that rendering cannot mark, report or publish anything;
//! - `index`: [`Index`], which has the view, and marks the records that a change makes stale;
//! - `kinds`: for each kind of object, which records a change makes stale, its records and its conditions;
//! - `derivation`: applies changed objects, and renders records and conditions, by the table of the kinds.
//!
//! From the status of objects only inputs are read: the state of pods, addresses of ServiceEntries and of other
//! controllers' Gateways, and the conditions by which this control plane records that waypoints have been ready.
#![forbid(unsafe_code)]

pub mod condition;
mod config;
mod derivation;
mod index;
mod kinds;
mod labels;
mod names;
mod objects;
mod pod_directory;
pub mod problem;
mod records;
mod relations;
mod view;

pub use config::{
    MeshConfig, ReferenceGrants, ServicePolicyScope, WaypointAttachment, WaypointBinding,
    WaypointMissing, WorkloadWaypoints,
};
pub use derivation::table::{KindVisitor, conditions, is_attached, status_list, visit_kinds};
pub use index::Index;
pub use labels::{Labels, selects};
pub use objects::gateway_class::CONTROLLER;
pub use objects::key_source::{KeyFormat, KeySource};
pub use objects::readable::{FetchExtent, FetchedKind};
pub use pod_directory::{PodDirectory, PodEntry, PodFacts};
pub use problem::{FieldError, Problem, Severity};
pub use records::{ChangedRecords, Delta, ServiceRecord};
pub use relations::key_set_state::KeySetState;
pub use view::MeshView;
pub use view::registry::{RegisteredPort, RegisteredService};
pub use view::trust_domains::AcceptedTrustDomains;

#[cfg(test)]
mod tests;
