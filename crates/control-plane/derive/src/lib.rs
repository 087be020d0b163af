//! From Kubernetes objects to the records of the mesh, and to the desired conditions of objects.
//!
//! Pure and incremental: [`Index`] is fed with objects, keeps the parsed input of each, and returns the changed records
//! on [`Index::flush`]. Work follows the change, not the size of the mesh. An object that cannot be used is refused as
//! a whole, with a [`Problem`] that names the field; its last good version stays in force and nothing else is touched.
//!
//! Layers, each of which knows the ones above it in this list:
//!
//! - `objects`: the input that is stored of each kind of object, and how it is read;
//! - `relations`: data that is derived from many objects, for instance the graph of their references;
//! - `view`: [`MeshView`], which has both, and answers questions about the mesh. Records and conditions are rendered from
//!   it alone, so that rendering cannot mark, report or publish;
//! - `index`: [`Index`], which has the view, and marks the records that a change makes stale;
//! - `kinds`: for each kind of object, the marks of its changes, its records and its conditions;
//! - `derivation`: the table of the kinds, by which objects come in, and records and conditions go out.
//!
//! Of objects' status only input is read: the state of pods and nodes, and addresses of ServiceEntries. Of conditions that
//! this control plane writes only that of waypoints that have been ready is read here.
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
pub use derivation::table::{KindVisitor, conditions, is_attached, parts, visit_kinds};
pub use index::Index;
pub use labels::{Labels, selects};
pub use objects::gateway_class::CONTROLLER;
pub use objects::key_source::{KeyForm, KeySource};
pub use objects::readable::{Extent, Followed};
pub use pod_directory::{PodDirectory, PodEntry, PodFacts};
pub use problem::{FieldError, Problem, Severity};
pub use records::{Changed, Delta, ServiceRecord};
pub use relations::key_state::KeyState;
pub use view::MeshView;
pub use view::registry::{RegisteredPort, RegisteredService};
pub use view::trust_domains::AcceptedTrustDomains;

#[cfg(test)]
mod tests;
