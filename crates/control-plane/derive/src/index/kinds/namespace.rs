//! Namespaces: defaults for what is in them, and the cluster's network, which the root namespace names.

use ambit_k8s_api::{Namespace, Service, ServiceEntry, labels};
use ambit_model::ArcStr;

use crate::{
    MeshConfig, PodDirectory,
    index::{
        Index,
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
        }))
    }

    fn changed(index: &mut Index, change: &Change<'_, NamespaceInput>, _: &mut PodDirectory) {
        let name = &change.key.name;
        let nothing = NamespaceInput::default();
        let old = change.old.unwrap_or(&nothing);
        let new = change.new.unwrap_or(&nothing);
        if old.distribution != new.distribution {
            for host in hosts(index, name) {
                index.mark_host(host);
            }
        }
        if *name == index.config.root_namespace && index.network != new.network {
            index.network = new.network.clone();
            index.mark_mesh();
        }
    }
}

/// The hosts that objects of a namespace declare.
fn hosts(index: &Index, namespace: &str) -> Vec<ArcStr> {
    let Some(objects) = index.objects(namespace) else {
        return Vec::new();
    };
    let domain = &index.config.cluster_domain;
    let services = objects.all::<Service>().values();
    let services = services.map(|service| service.hostname(domain));
    let entries = objects.all::<ServiceEntry>().values();
    let entries = entries.flat_map(|entry| entry.hosts.iter().cloned());
    services.chain(entries).collect()
}

/// The traffic distribution that a namespace asks for.
pub(super) fn distribution<'a>(index: &'a Index, namespace: &ArcStr) -> Option<&'a str> {
    let namespaces = index.objects("")?.all::<Namespace>();
    namespaces.get(namespace)?.distribution.as_deref()
}
