//! Kinds of a waypoint's objects.

/// Kind of object of which a waypoint consists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WaypointObjectKind {
    /// ServiceAccount whose identity the waypoint has.
    ServiceAccount,
    /// Service under whose cluster IP proxies connect to the waypoint.
    Service,
    /// Deployment of the waypoint's pods.
    Deployment,
    /// HorizontalPodAutoscaler of the Deployment, if an overlay requests one.
    Autoscaler,
    /// PodDisruptionBudget of the waypoint's pods.
    DisruptionBudget,
}

impl WaypointObjectKind {
    /// All kinds of objects, in the order of creation.
    pub const ALL: [Self; 5] = [
        Self::ServiceAccount,
        Self::Service,
        Self::Deployment,
        Self::Autoscaler,
        Self::DisruptionBudget,
    ];

    /// Returns the API group and version of the kind.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::Service => "v1",
            Self::Deployment => "apps/v1",
            Self::Autoscaler => "autoscaling/v2",
            Self::DisruptionBudget => "policy/v1",
        }
    }

    /// Returns the kind of the object.
    pub fn kind(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::Service => "Service",
            Self::Deployment => "Deployment",
            Self::Autoscaler => "HorizontalPodAutoscaler",
            Self::DisruptionBudget => "PodDisruptionBudget",
        }
    }

    /// Returns the plural name in URL paths.
    pub fn plural(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceaccounts",
            Self::Service => "services",
            Self::Deployment => "deployments",
            Self::Autoscaler => "horizontalpodautoscalers",
            Self::DisruptionBudget => "poddisruptionbudgets",
        }
    }

    /// Returns the key of the object's overlays in ConfigMaps.
    pub fn overlay_key(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceAccount",
            Self::Service => "service",
            Self::Deployment => "deployment",
            Self::Autoscaler => "horizontalPodAutoscaler",
            Self::DisruptionBudget => "podDisruptionBudget",
        }
    }
}
