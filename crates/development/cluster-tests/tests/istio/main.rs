//! Tests of Istio meshes that move to Ambit, and back, under load. Istio's control plane, node agent and plugin are its
//! own programs, installed by the objects that `istioctl` writes. Its node proxy and its waypoints are not available as
//! packages: in the DaemonSet `ztunnel` that `istioctl` writes, Ambit's node proxy stands in for Istio's.
#![expect(clippy::unwrap_used, reason = "tests")]

mod istio;
mod migration;
