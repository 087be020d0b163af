//! Parsing of GatewayClasses, whose controller decides whether Gateways of the class are waypoints.

use ambit_k8s_api::GatewayClass;
use ambit_model::{AppTunnel, ArcStr};

use crate::{
    config::MeshConfig,
    objects::{
        gateway, inbound_binding,
        readable::{Extent, Followed, Read, Readable},
        serves::Serves,
    },
    problem::FieldError,
};

impl Followed for GatewayClass {
    const EXTENT: Extent = Extent::Whole { labels: None };
}

/// Parsed GatewayClass object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClassInput {
    /// Controller of the class's Gateways (`spec.controllerName`).
    pub(crate) controller: ArcStr,
    /// Traffic that waypoints of the class serve, unless their own label `istio.io/waypoint-for` is set.
    pub(crate) serves: Option<Serves>,
    /// Handover of HBONE tunnels from the node proxy to pods of the class's Gateways, unless a Gateway's own annotation
    /// sets it.
    pub(crate) inbound_binding: Option<AppTunnel>,
}

impl Readable for GatewayClass {
    type Input = ClassInput;

    fn read(&self, _: &MeshConfig) -> Result<Read<ClassInput>, FieldError> {
        // Its Gateways are waypoints whatever its labels say.
        let mut notes = Vec::new();
        let serves = gateway::serves(self.metadata.labels.as_ref()).unwrap_or_else(|note| {
            notes.push(note);
            None
        });
        let input = ClassInput {
            controller: self.spec.controller_name.as_str().into(),
            serves,
            inbound_binding: inbound_binding::read(&self.metadata, &mut notes),
        };
        Ok(Read::of(Some(input), notes))
    }
}
/// Controller name of this mesh: all Gateways of classes with it are waypoints.
pub const CONTROLLER: &str = "istio.io/mesh-controller";
