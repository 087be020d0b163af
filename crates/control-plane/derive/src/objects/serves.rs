//! Traffic and namespaces that a waypoint serves, as its Gateway declares them.

use ambit_k8s_api::selector;

/// Traffic that a waypoint serves (`istio.io/waypoint-for`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// Traffic to services.
    Services,
    /// Workloads that are called themselves.
    Workloads,
    /// Traffic to services and to pods.
    All,
    /// No traffic at all.
    Nothing,
}

impl Serves {
    /// Returns the traffic that a value of the label means.
    pub(crate) fn read(text: &str) -> Option<Self> {
        match text {
            "service" => Some(Self::Services),
            "workload" => Some(Self::Workloads),
            "all" => Some(Self::All),
            "none" => Some(Self::Nothing),
            _ => None,
        }
    }

    /// Whether the waypoint serves services.
    pub(crate) fn services(self) -> bool {
        matches!(self, Self::Services | Self::All)
    }

    /// Whether the waypoint serves workloads.
    pub(crate) fn workloads(self) -> bool {
        matches!(self, Self::Workloads | Self::All)
    }
}

/// Namespaces whose objects may use a waypoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Consent {
    /// Objects of the waypoint's own namespace.
    #[default]
    Same,
    /// Objects of all namespaces.
    All,
    /// Objects of no namespace.
    Nobody,
    /// Namespaces with such labels.
    Selected(Box<selector::LabelSelector>),
}
