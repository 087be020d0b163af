//! Parsing of GatewayClasses, whose controller decides whether Gateways of the class are waypoints.

use ambit_k8s_api::GatewayClass;
use ambit_model::{AppTunnel, ArcStr};

use crate::{
    config::MeshConfig,
    objects::{
        gateway, inbound_binding,
        readable::{FetchExtent, FetchedKind, Parsed, Readable},
        serves::ServedTraffic,
    },
    problem::FieldError,
};

impl FetchedKind for GatewayClass {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

/// Parsed GatewayClass object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GatewayClassInput {
    /// Controller of the class's Gateways (`spec.controllerName`).
    pub(crate) controller: ArcStr,
    /// Traffic that waypoints of the class serve, unless their own label `istio.io/waypoint-for` is set.
    pub(crate) served_traffic: Option<ServedTraffic>,
    /// Handover of HBONE tunnels from the node proxy to pods of the class's Gateways, unless a Gateway's own annotation
    /// sets it.
    pub(crate) inbound_binding: Option<AppTunnel>,
}

impl Readable for GatewayClass {
    type Input = GatewayClassInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<GatewayClassInput>, FieldError> {
        // Its Gateways are waypoints whatever its labels say.
        let mut notes = Vec::new();
        let serves =
            gateway::parse_waypoint_for(self.metadata.labels.as_ref()).unwrap_or_else(|note| {
                notes.push(note);
                None
            });
        let input = GatewayClassInput {
            controller: self.spec.controller_name.as_str().into(),
            served_traffic: serves,
            inbound_binding: inbound_binding::read(&self.metadata, &mut notes),
        };
        Ok(Parsed::new(Some(input), notes))
    }
}
/// Controller name of this mesh: all Gateways of classes with it are waypoints.
pub const CONTROLLER: &str = "istio.io/mesh-controller";
