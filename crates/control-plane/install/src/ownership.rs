//! Ownership of an installation's objects, which another installation may have taken over since
//! they were applied.

use kube::core::DynamicObject;

use crate::{
    cluster::{Cluster, ClusterError},
    object::{self, ObjectRef},
};

/// Current owner of an object that an installation has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The object has the label of Ambit's chart.
    Ours,
    /// Another installation has taken the object over, or deleted and recreated it, as happens to Istio's DaemonSet
    /// `ztunnel` when a mesh moves back.
    Another,
    /// The object does not exist.
    Gone,
}

/// Returns the current owner of an object.
///
/// # Errors
///
/// When the API server refuses or is unavailable.
pub(crate) async fn ownership(
    cluster: &Cluster,
    name: &ObjectRef,
) -> Result<Ownership, ClusterError> {
    let Some(object) = cluster.get(name).await? else {
        return Ok(Ownership::Gone);
    };
    let object = serde_json::from_value::<DynamicObject>(object);
    Ok(match object.is_ok_and(|object| object::is_ours(&object)) {
        true => Ownership::Ours,
        false => Ownership::Another,
    })
}
