//! Ownership of an installation's objects: another installation may have taken them over since they were applied.

use kube::core::DynamicObject;

use crate::{
    cluster::{Cluster, ClusterError},
    object::{self, ObjectRef},
};

/// Owner of an object that was applied once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Ours: it has the label of the chart's objects.
    Ours,
    /// Another's: it was taken over, or deleted and made anew, as Istio's DaemonSet `ztunnel` is when a mesh moves back.
    Another,
    /// Neither: the object does not exist.
    Gone,
}

/// Returns the present owner of an object.
///
/// # Errors
/// When the API server refuses or is away.
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
