//! Parsing of Nodes: their labels determine the locality of the pods that run on them.

use ambit_k8s_api::{Node, ObjectMeta, labels};
use ambit_model::{ArcStr, Locality};

use crate::{
    config::MeshConfig,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable},
    problem::FieldError,
};

impl FetchedKind for Node {
    const FETCH_EXTENT: FetchExtent = FetchExtent::MetadataOnly;
}

impl Readable for Node {
    type Input = Locality;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<Locality>, FieldError> {
        Ok(Parsed::without_notes(read(&self.metadata)))
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
