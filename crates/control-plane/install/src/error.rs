//! Errors of installing, upgrading and uninstalling.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    cluster::ClusterError, inventory::InventoryError, object::ObjectRef, render::RenderError,
    values::ValuesError,
};

/// Error of an installation, upgrade or uninstallation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Error in the values.
    #[error(transparent)]
    Values(#[from] ValuesError),
    /// Error in the templates.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// Error of the API server.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Error in the inventory of applied objects.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// There is no installation of the revision to upgrade or remove.
    #[error("there is no installation of the revision {revision} in the namespace {namespace}")]
    NotInstalled {
        /// Namespace of the mesh.
        namespace: String,
        /// Revision of the control plane.
        revision: String,
    },
    /// An object of the plan belongs to another owner, such as Helm or Istio.
    #[error("{0} exists already, {1}; --force-conflicts takes it over")]
    ForeignObject(ObjectRef, String),
    /// Images that kubelets cannot pull, with the error of each.
    #[error("{}", format_images(.0))]
    MissingImages(BTreeMap<String, String>),
    /// Workloads that were not ready in time.
    #[error("not ready after {} s:\n{}", .0.as_secs(), .1.join("\n"))]
    NotReady(Duration, Vec<String>),
}

fn format_images(images: &BTreeMap<String, String>) -> String {
    let lines = images
        .iter()
        .map(|(image, why)| format!("the image {image} cannot be pulled: {why}"));
    let lines: Vec<_> = lines.collect();
    lines.join("\n")
}
