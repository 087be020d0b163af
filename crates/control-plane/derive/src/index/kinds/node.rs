//! Nodes: where pods are.

use ambit_k8s_api::{Node, ObjectMeta, labels};
use ambit_model::{ArcStr, Locality};

use crate::{
    MeshConfig, PodDirectory,
    index::{
        Index, MeshView,
        kind::{Change, Extent, Followed, MeshKind, Read},
        references::Edge,
    },
    problem::FieldError,
};

impl Followed for Node {
    const EXTENT: Extent = Extent::Metadata;
}

impl MeshKind for Node {
    type Input = Locality;

    fn read(&self, _: &MeshConfig) -> Result<Read<Locality>, FieldError> {
        Ok(Read::plain(read(&self.metadata)))
    }

    fn changed(index: &mut Index, change: &Change<'_, Locality>, _: &mut PodDirectory) {
        let pods = index.view.references.of(Edge::OnNode, &change.key.name);
        let pods: Vec<_> = pods.cloned().collect();
        for pod in pods {
            index.mark(pod);
        }
    }
}

fn read(metadata: &ObjectMeta) -> Locality {
    let labels = metadata.labels.as_ref();
    let label = |name: &str| {
        let value = labels.and_then(|all| all.get(name));
        value.map(ArcStr::from).unwrap_or_default()
    };
    Locality {
        region: label(labels::REGION),
        zone: label(labels::ZONE),
        subzone: label(labels::SUBZONE),
    }
}

/// Where a node is; nowhere if it is not known.
pub(super) fn locality(view: &MeshView, name: &ArcStr) -> Locality {
    let nodes = view.objects("").map(|objects| objects.all::<Node>());
    let locality = nodes.and_then(|nodes| nodes.get(name));
    locality.cloned().unwrap_or_default()
}
