//! The objects of a waypoint, by what they are.

/// One of the objects of a waypoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The account whose identity the waypoint has.
    ServiceAccount,
    /// Where clients find it.
    Service,
    /// Deployment with the pods.
    Deployment,
    /// Autoscaler, if an overlay requests one.
    Autoscaler,
    /// How many of its pods may be evicted at once.
    DisruptionBudget,
}

impl Part {
    /// All of them, in the order in which they are made.
    pub const ALL: [Self; 5] = [
        Self::ServiceAccount,
        Self::Service,
        Self::Deployment,
        Self::Autoscaler,
        Self::DisruptionBudget,
    ];

    /// Its API's group and version.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::Service => "v1",
            Self::Deployment => "apps/v1",
            Self::Autoscaler => "autoscaling/v2",
            Self::DisruptionBudget => "policy/v1",
        }
    }

    /// Kind of the object.
    pub fn kind(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::Service => "Service",
            Self::Deployment => "Deployment",
            Self::Autoscaler => "HorizontalPodAutoscaler",
            Self::DisruptionBudget => "PodDisruptionBudget",
        }
    }

    /// Its kind in paths.
    pub fn plural(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceaccounts",
            Self::Service => "services",
            Self::Deployment => "deployments",
            Self::Autoscaler => "horizontalpodautoscalers",
            Self::DisruptionBudget => "poddisruptionbudgets",
        }
    }

    /// The key of a ConfigMap that holds overlays of it.
    pub fn key(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceAccount",
            Self::Service => "service",
            Self::Deployment => "deployment",
            Self::Autoscaler => "horizontalPodAutoscaler",
            Self::DisruptionBudget => "podDisruptionBudget",
        }
    }
}
