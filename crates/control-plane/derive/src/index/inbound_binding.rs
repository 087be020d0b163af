//! Sandwiched waypoints: waypoints of other controllers that speak no HBONE. Their pods are captured as others are, and
//! their node proxies, at which the tunnels end, hand the connections over, with the client and its destination in a
//! PROXY header.

use ambit_k8s_api::{ObjectMeta, Pod, labels};
use ambit_model::{AppTunnel, AppTunnelProtocol};

use super::{MeshView, kind::MeshKind};
use crate::problem::Note;

/// A pod as understood.
type PodInput = <Pod as MeshKind>::Input;

/// Binding in the annotation of a Gateway or of its class.
pub(super) fn read(metadata: &ObjectMeta, notes: &mut Vec<Note>) -> Option<AppTunnel> {
    let value = metadata
        .annotations
        .as_ref()?
        .get(labels::INBOUND_BINDING)?;
    let (protocol, port) = match value.split_once('/') {
        Some((protocol, port)) => (protocol, Some(port)),
        None => (value.as_str(), None),
    };
    let port = port.map(|port| port.parse().ok().filter(|port| *port != 0));
    let protocol = match protocol {
        "PROXY" => Some(AppTunnelProtocol::Proxy),
        "NONE" => Some(AppTunnelProtocol::None),
        _ => None,
    };
    match (protocol, port) {
        (Some(protocol), None | Some(Some(_))) => Some(AppTunnel {
            protocol,
            port: port.flatten(),
        }),
        _ => {
            let expected = "give PROXY or NONE, and a port behind a slash, as in PROXY/15088; without it the waypoint \
                            is taken to speak HBONE";
            notes.push(Note::new(
                format!("metadata.annotations[{}]", labels::INBOUND_BINDING),
                format!("{value:?} is not understood: {expected}"),
            ));
            None
        }
    }
}

/// On a Gateway of ours.
pub(super) fn without_effect() -> Note {
    Note::new(
        format!("metadata.annotations[{}]", labels::INBOUND_BINDING),
        "has no effect: the waypoint speaks HBONE",
    )
}

impl MeshView {
    /// How tunnels are handed over to a pod: by the setting of its Gateway, else of the Gateway's class. Our own
    /// waypoints speak HBONE.
    pub(super) fn inbound_binding(&self, pod: &PodInput) -> Option<AppTunnel> {
        let gateway = self.gateway(&self.gateway_of(pod)?)?;
        if self.is_waypoint(gateway) {
            return None;
        }
        let of_class = || self.class(&gateway.class)?.inbound_binding;
        gateway.inbound_binding.or_else(of_class)
    }
}
