//! Traffic that a waypoint serves, and namespaces that may use it, as its Gateway declares.

use ambit_k8s_api::selector;

/// Traffic that a waypoint serves (`istio.io/waypoint-for`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedTraffic {
    /// The waypoint serves traffic to services.
    Services,
    /// The waypoint serves connections to the addresses of workloads, rather than of services.
    Workloads,
    /// The waypoint serves traffic to services and to workloads.
    All,
    /// The waypoint serves no traffic at all.
    None,
}

impl ServedTraffic {
    /// Parses a value of the label `istio.io/waypoint-for`; `None` if the value is unknown.
    pub(crate) fn read(text: &str) -> Option<Self> {
        match text {
            "service" => Some(Self::Services),
            "workload" => Some(Self::Workloads),
            "all" => Some(Self::All),
            "none" => Some(Self::None),
            _ => None,
        }
    }

    /// Whether the waypoint serves services.
    pub(crate) fn includes_services(self) -> bool {
        matches!(self, Self::Services | Self::All)
    }

    /// Whether the waypoint serves workloads.
    pub(crate) fn includes_workloads(self) -> bool {
        matches!(self, Self::Workloads | Self::All)
    }
}

/// Namespaces whose objects may use a waypoint (`allowedRoutes` of its listener).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum AllowedNamespaces {
    /// Objects of the waypoint's own namespace may use the waypoint.
    #[default]
    SameNamespace,
    /// Objects of all namespaces may use the waypoint.
    All,
    /// Objects of no namespace may use the waypoint.
    None,
    /// Objects of the namespaces that the label selector matches may use the waypoint.
    Selector(Box<selector::LabelSelector>),
}
