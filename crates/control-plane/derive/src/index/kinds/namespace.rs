//! Namespaces: defaults for what is in them, and the cluster's network, which the root namespace names.

use ambit_k8s_api::{Namespace, Pod, labels};
use ambit_model::ArcStr;

use crate::{
    Labels, MeshConfig, PodDirectory,
    index::{
        Binding, Index, MeshView,
        binding::{self, Canary},
        kind::{Change, Extent, Followed, MeshKind, Read},
    },
    problem::FieldError,
};

/// A namespace as the mesh sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NamespaceInput {
    /// Traffic distribution of services that say nothing about it themselves.
    distribution: Option<String>,
    network: ArcStr,
    pub(crate) labels: Labels,
    /// The waypoint that its labels name.
    pub(crate) binding: Option<Binding>,
    /// A second one for services that its labels name.
    pub(crate) canary: Option<Canary>,
    /// Whether ingress gateways send through the waypoints of its services.
    pub(crate) ingress: Option<bool>,
}

impl Followed for Namespace {
    const EXTENT: Extent = Extent::Metadata;
}

impl MeshKind for Namespace {
    type Input = NamespaceInput;

    fn read(&self, _: &MeshConfig) -> Result<Read<NamespaceInput>, FieldError> {
        let annotations = self.metadata.annotations.as_ref();
        let distribution = annotations.and_then(|all| all.get(labels::TRAFFIC_DISTRIBUTION));
        let labels = self.metadata.labels.as_ref();
        let network = labels.and_then(|all| all.get(labels::NETWORK));
        Ok(Read::plain(NamespaceInput {
            distribution: distribution.cloned(),
            network: network.map(ArcStr::from).unwrap_or_default(),
            binding: labels.and_then(|all| {
                let name = self.metadata.name.as_deref().unwrap_or_default();
                Binding::of(all, name)
            }),
            canary: Canary::of(
                &self.metadata,
                self.metadata.name.as_deref().unwrap_or_default(),
            ),
            ingress: binding::ingress(&self.metadata),
            labels: labels.cloned().unwrap_or_default(),
        }))
    }

    fn changed(index: &mut Index, change: &Change<'_, NamespaceInput>, pods: &mut PodDirectory) {
        let name = &change.key.name;
        let nothing = NamespaceInput::default();
        let old = change.old.unwrap_or(&nothing);
        let new = change.new.unwrap_or(&nothing);
        if change.old.is_none() || change.new.is_none() {
            index.mark_short_names_of(name);
        }
        index.bind(change.key, old.binding.as_ref(), new.binding.as_ref());
        index.bind_canary(change.key, old.canary.as_ref(), new.canary.as_ref());
        index.discover(pods);
        // Gateways of other namespaces may allow those with certain labels.
        let other_waypoint = old.labels != new.labels;
        let other_canary = old.canary != new.canary;
        if other_waypoint || other_canary || old.distribution != new.distribution {
            index.mark_hosts_of_namespace(name);
        }
        if other_waypoint {
            // Its labels decide which of its pods belong to the mesh.
            let objects = index.view.objects(name);
            for pod in objects.iter().flat_map(|all| all.all::<Pod>().values()) {
                pods.insert(name, &pod.name, pod.facts(&index.view));
            }
            index.mark_namespace(name);
            index.mark_passed_gateways();
            if index.view.has_telemetry() {
                index.mark_telemetry();
            }
        }
        // Gateways may have become another control plane's, or ours.
        if old.labels.get(labels::REVISION) != new.labels.get(labels::REVISION) {
            index.mark_gateways_of(name);
        }
        if *name == index.view.config.root_namespace && index.view.network != new.network {
            index.view.network = new.network.clone();
            index.mark_mesh();
        }
    }
}

/// The traffic distribution of a namespace's annotation.
pub(super) fn distribution<'a>(view: &'a MeshView, namespace: &ArcStr) -> Option<&'a str> {
    let namespaces = view.objects("")?.all::<Namespace>();
    namespaces.get(namespace)?.distribution.as_deref()
}
