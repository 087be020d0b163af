//! Waypoints that the labels of an object select (`istio.io/use-waypoint` and the labels of canaries).

use ambit_k8s_api::{ObjectMeta, labels};
use ambit_model::GatewayName;

use crate::labels::Labels;

/// Waypoint that the label `istio.io/use-waypoint` of an object selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaypointSelection {
    /// The value `none`: no waypoint, even if the namespace's label names one.
    None,
    /// The waypoint of a Gateway.
    Gateway(GatewayName),
}

impl WaypointSelection {
    /// Parses the labels of an object in `namespace`; `None` if `istio.io/use-waypoint` is unset or empty.
    pub(crate) fn from_labels(all: &Labels, namespace: &str) -> Option<Self> {
        let name = all
            .get(labels::USE_WAYPOINT)
            .filter(|name| !name.is_empty())?;
        if name == "none" {
            return Some(Self::None);
        }
        let elsewhere = all.get(labels::USE_WAYPOINT_NAMESPACE);
        let elsewhere = elsewhere.filter(|namespace| !namespace.is_empty());
        let namespace = elsewhere.map_or(namespace, String::as_str);
        Some(Self::Gateway(GatewayName::new(namespace, name.as_str())))
    }

    /// Returns the Gateway that the label names; `None` if the value is `none`.
    pub(crate) fn gateway(&self) -> Option<&GatewayName> {
        match self {
            Self::None => None,
            Self::Gateway(name) => Some(name),
        }
    }
}

/// Canary waypoint, which receives a percentage of the connections to services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CanaryWaypoint {
    /// Gateway of the canary waypoint.
    pub(crate) gateway: GatewayName,
    /// Percentage of the connections that the canary receives; the text of the annotation if it is not a number from 0
    /// to 100.
    pub(crate) weight: Result<u32, String>,
}

impl CanaryWaypoint {
    /// Parses the canary's labels and its weight annotation of an object in `namespace`; `None` if no label names a
    /// canary.
    pub(crate) fn from_metadata(metadata: &ObjectMeta, namespace: &str) -> Option<Self> {
        let labels = metadata.labels.as_ref()?;
        let label = |name: &str| labels.get(name).filter(|value| !value.is_empty());
        let name = label(labels::USE_WAYPOINT_CANARY)?;
        let elsewhere = label(labels::USE_WAYPOINT_CANARY_NAMESPACE);
        let annotations = metadata.annotations.as_ref();
        let weight = annotations.and_then(|all| all.get(labels::USE_WAYPOINT_CANARY_WEIGHT));
        let share = |text: &String| {
            let number = text.parse().ok().filter(|number| *number <= 100);
            number.ok_or_else(|| text.clone())
        };
        Some(Self {
            gateway: GatewayName::new(elsewhere.map_or(namespace, String::as_str), name.as_str()),
            weight: weight.map_or(Ok(0), share),
        })
    }
}

/// Returns whether ingress gateways send requests through a service's waypoint (`istio.io/ingress-use-waypoint`);
/// `None` if the label is unset or invalid.
pub(crate) fn ingress_use_waypoint(metadata: &ObjectMeta) -> Option<bool> {
    let value = metadata
        .labels
        .as_ref()?
        .get(labels::INGRESS_USE_WAYPOINT)?;
    value.parse().ok()
}
