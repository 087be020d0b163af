//! EnvoyFilters, which have no effect: the control plane stores only that they exist.

use ambit_k8s_api::EnvoyFilter;

use crate::{
    config::MeshConfig,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable},
    problem::FieldError,
};

impl FetchedKind for EnvoyFilter {
    const FETCH_EXTENT: FetchExtent = FetchExtent::ExistenceOnly;
}

impl Readable for EnvoyFilter {
    type Input = ();

    fn read(&self, _: &MeshConfig) -> Result<Parsed<()>, FieldError> {
        Ok(Parsed::without_notes(()))
    }
}
