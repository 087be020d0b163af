//! Waypoints that the labels of an object name.

use ambit_k8s_api::{ObjectMeta, labels};
use ambit_model::GatewayName;

use crate::labels::Labels;

/// Binding that labels ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// No waypoint, whatever else would apply.
    Nothing,
    /// Binding to a Gateway.
    To(GatewayName),
}

impl Binding {
    /// The labels of an object of a namespace; `None`: they say nothing.
    pub(crate) fn of(all: &Labels, namespace: &str) -> Option<Self> {
        let name = all
            .get(labels::USE_WAYPOINT)
            .filter(|name| !name.is_empty())?;
        if name == "none" {
            return Some(Self::Nothing);
        }
        let elsewhere = all.get(labels::USE_WAYPOINT_NAMESPACE);
        let elsewhere = elsewhere.filter(|namespace| !namespace.is_empty());
        let namespace = elsewhere.map_or(namespace, String::as_str);
        Some(Self::To(GatewayName::new(namespace, name.as_str())))
    }

    /// The Gateway that is named.
    pub(crate) fn gateway(&self) -> Option<&GatewayName> {
        match self {
            Self::Nothing => None,
            Self::To(name) => Some(name),
        }
    }
}

/// A second waypoint for a share of the connections to services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Canary {
    /// The Gateway that is named.
    pub(crate) gateway: GatewayName,
    /// Its share in percent; as it was written if it is none.
    pub(crate) weight: Result<u32, String>,
}

impl Canary {
    /// Selection by the labels and annotations of an object of a namespace.
    pub(crate) fn of(metadata: &ObjectMeta, namespace: &str) -> Option<Self> {
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

/// Whether ingress gateways send through a service's waypoint, if labels say so or not.
pub(crate) fn ingress(metadata: &ObjectMeta) -> Option<bool> {
    let value = metadata
        .labels
        .as_ref()?
        .get(labels::INGRESS_USE_WAYPOINT)?;
    value.parse().ok()
}
