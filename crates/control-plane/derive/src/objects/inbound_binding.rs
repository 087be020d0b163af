//! Sandwiched waypoints: waypoints of other controllers that do not speak HBONE. Their pods are captured like others;
//! their node proxies terminate the HBONE tunnels and hand the connections over, with the addresses of client and
//! destination in a PROXY protocol header.

use ambit_k8s_api::{ObjectMeta, labels};
use ambit_model::{AppTunnel, AppTunnelProtocol};

use crate::problem::Note;

/// Parses the annotation `ambient.istio.io/waypoint-inbound-binding` of a Gateway or its class; invalid values are
/// noted.
pub(crate) fn read(metadata: &ObjectMeta, notes: &mut Vec<Note>) -> Option<AppTunnel> {
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

/// Returns the note on a Gateway of this mesh whose annotation for sandwiched waypoints has no effect.
pub(crate) fn no_effect_note() -> Note {
    Note::new(
        format!("metadata.annotations[{}]", labels::INBOUND_BINDING),
        "has no effect: the waypoint speaks HBONE",
    )
}
