//! Hand-over of tunnels to the pods of other controllers' waypoints.

use ambit_model::AppTunnel;

use crate::{objects::pod::PodInput, view::MeshView};

impl MeshView {
    /// How tunnels are handed over to a pod: by the setting of its Gateway, else of the Gateway's class. Our own
    /// waypoints speak HBONE.
    pub(crate) fn inbound_binding(&self, pod: &PodInput) -> Option<AppTunnel> {
        let gateway = self.gateway(&self.gateway_of(pod)?)?;
        if self.is_waypoint(gateway) {
            return None;
        }
        let of_class = || self.class(&gateway.class)?.inbound_binding;
        gateway.inbound_binding.or_else(of_class)
    }
}
