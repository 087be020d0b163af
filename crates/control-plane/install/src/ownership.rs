//! Ownership of an installation's objects, which another installation may have taken over since
//! they were applied.

use kube::core::DynamicObject;

use crate::{
    cluster::{ClusterApi, ClusterError},
    object::{self, ObjectRef},
};

/// Current owner of an object that an installation has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The object has the label of Ambit's chart.
    OwnedByRelease,
    /// Another installation has taken the object over, or deleted and recreated it, as happens to Istio's DaemonSet
    /// `ztunnel` when a mesh moves back.
    OwnedByOther,
    /// The object does not exist.
    Missing,
}

/// Returns the current owner of an object.
///
/// # Errors
///
/// When the API server refuses or is unavailable.
pub(crate) async fn ownership(
    cluster: &ClusterApi,
    name: &ObjectRef,
) -> Result<Ownership, ClusterError> {
    let Some(object) = cluster.get(name).await? else {
        return Ok(Ownership::Missing);
    };
    let object = serde_json::from_value::<DynamicObject>(object);
    Ok(
        match object.is_ok_and(|object| object::is_managed_by_ambit(&object)) {
            true => Ownership::OwnedByRelease,
            false => Ownership::OwnedByOther,
        },
    )
}
