//! What the labels of an object say of the waypoint to use.

use ambit_k8s_api::labels;
use ambit_model::GatewayName;

use crate::Labels;

/// What labels ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// No waypoint, whatever else would apply.
    Nothing,
    /// That of a Gateway.
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
