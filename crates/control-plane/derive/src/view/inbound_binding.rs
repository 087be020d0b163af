//! Handover of HBONE tunnels from node proxies to the pods of other controllers' waypoints (sandwiched waypoints).

use ambit_model::AppTunnel;

use crate::{objects::pod::PodInput, view::MeshView};

impl MeshView {
    /// Returns how a node proxy hands connections from HBONE tunnels over to a pod, by the annotation of its Gateway or
    /// else of the Gateway's class; `None` for our own waypoints, which speak HBONE.
    pub(crate) fn inbound_binding(&self, pod: &PodInput) -> Option<AppTunnel> {
        let gateway = self.gateway(&self.gateway_of(pod)?)?;
        if self.is_waypoint(gateway) {
            return None;
        }
        let of_class = || self.gateway_class(&gateway.class)?.inbound_binding;
        gateway.inbound_binding.or_else(of_class)
    }
}
