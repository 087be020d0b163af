//! Traffic that a waypoint serves, and namespaces that may use it, as its Gateway declares.

use ambit_k8s_api::selector;

/// Traffic that a waypoint serves (`istio.io/waypoint-for`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// Traffic to services.
    Services,
    /// Connections to the addresses of workloads, rather than of services.
    Workloads,
    /// Traffic to services and to workloads.
    All,
    /// No traffic at all.
    Nothing,
}

impl Serves {
    /// Parses a value of the label; `None` if the value is unknown.
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

/// Namespaces whose objects may use a waypoint (`allowedRoutes` of its listener).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Consent {
    /// Objects of the waypoint's own namespace.
    #[default]
    Same,
    /// Objects of all namespaces.
    All,
    /// Objects of no namespace.
    Nobody,
    /// Objects of the namespaces that the label selector matches.
    Selected(Box<selector::LabelSelector>),
}
