//! Parsing of Namespaces.

use ambit_k8s_api::{Namespace, labels};
use ambit_model::ArcStr;

use crate::{
    config::MeshConfig,
    labels::Labels,
    objects::{
        binding::{self, CanaryWaypoint, WaypointSelection},
        readable::{FetchExtent, FetchedKind, Parsed, Readable},
    },
    problem::FieldError,
};

/// Parsed Namespace object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NamespaceInput {
    /// Traffic distribution of the namespace's services that do not set their own.
    pub(crate) traffic_distribution: Option<String>,
    pub(crate) network: ArcStr,
    pub(crate) labels: Labels,
    /// Waypoint that the namespace's labels select.
    pub(crate) binding: Option<WaypointSelection>,
    /// Canary waypoint that the namespace's labels select for its services.
    pub(crate) canary: Option<CanaryWaypoint>,
    /// Whether ingress gateways send requests through the waypoints of the namespace's services; `None` if the label is
    /// unset.
    pub(crate) ingress_use_waypoint: Option<bool>,
}

impl FetchedKind for Namespace {
    const FETCH_EXTENT: FetchExtent = FetchExtent::MetadataOnly;
}

impl Readable for Namespace {
    type Input = NamespaceInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<NamespaceInput>, FieldError> {
        let annotations = self.metadata.annotations.as_ref();
        let distribution = annotations.and_then(|all| all.get(labels::TRAFFIC_DISTRIBUTION));
        let labels = self.metadata.labels.as_ref();
        let network = labels.and_then(|all| all.get(labels::NETWORK));
        Ok(Parsed::without_notes(NamespaceInput {
            traffic_distribution: distribution.cloned(),
            network: network.map(ArcStr::from).unwrap_or_default(),
            binding: labels.and_then(|all| {
                let name = self.metadata.name.as_deref().unwrap_or_default();
                WaypointSelection::from_labels(all, name)
            }),
            canary: CanaryWaypoint::from_metadata(
                &self.metadata,
                self.metadata.name.as_deref().unwrap_or_default(),
            ),
            ingress_use_waypoint: binding::ingress_use_waypoint(&self.metadata),
            labels: labels.cloned().unwrap_or_default(),
        }))
    }
}
