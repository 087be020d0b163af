//! Status of pods: readiness, capture, restarts, and addresses.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Annotation that the agent sets on captured pods.
const REDIRECTION: &str = "ambient.istio.io/redirection";

/// Returns whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the number of restarts of a pod's containers.
pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter());
    statuses.flatten().map(|status| status.restart_count).sum()
}

/// Returns whether a pod is annotated as captured.
pub fn is_captured(pod: &Pod) -> bool {
    let none = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    annotations
        .get(REDIRECTION)
        .is_some_and(|state| state == "enabled")
}

/// Returns the first address of a running pod.
pub fn address(pod: &Pod) -> IpAddr {
    pod.status
        .as_ref()
        .and_then(|status| status.pod_ip.as_ref())
        .and_then(|ip| ip.parse().ok())
        .unwrap_or_else(|| panic!("{} has no address", pod.name_any()))
}

/// Returns all addresses of a pod in both families.
pub(crate) fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let ips = pod.status.iter().flat_map(|status| &status.pod_ips);
    ips.flatten().filter_map(|ip| ip.ip.parse().ok()).collect()
}

/// Returns the addresses of a pod's node: its own, and the first of its pod CIDR, which is on the side of its pods.
pub(crate) fn node_addresses(pod: &Pod) -> Vec<IpAddr> {
    let ips = pod.status.iter().flat_map(|status| &status.host_ips);
    let own = ips.flatten().filter_map(|ip| ip.ip.parse().ok());
    let first = addresses(pod).into_iter().map(|ip| match ip {
        IpAddr::V4(ip) => IpAddr::from((u32::from(ip) & !0xff | 1).to_be_bytes()),
        IpAddr::V6(ip) => IpAddr::from((u128::from(ip) >> 64 << 64 | 1).to_be_bytes()),
    });
    own.chain(first).collect()
}
