//! EnvoyFilters, of which the control plane stores only that they exist.

use ambit_k8s_api::EnvoyFilter;

use crate::{
    config::MeshConfig,
    objects::readable::{Extent, Followed, Read, Readable},
    problem::FieldError,
};

impl Followed for EnvoyFilter {
    const EXTENT: Extent = Extent::Presence;
}

impl Readable for EnvoyFilter {
    type Input = ();

    fn read(&self, _: &MeshConfig) -> Result<Read<()>, FieldError> {
        Ok(Read::plain(()))
    }
}
