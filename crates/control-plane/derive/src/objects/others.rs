//! Kinds that manifests of the lab contain and the control plane ignores.

use ambit_k8s_api::{Deployment, ServiceAccount};

use crate::{
    config::MeshConfig,
    objects::readable::{Extent, Followed, Read, Readable},
    problem::FieldError,
};

macro_rules! not_read {
    ($($kind:ident)*) => {
        $(impl Followed for $kind {
            const EXTENT: Extent = Extent::Nothing;
        }

        impl Readable for $kind {
            type Input = ();

            fn read(&self, _: &MeshConfig) -> Result<Read<()>, FieldError> {
                Ok(Read::of(None, Vec::new()))
            }
        })*
    };
}

not_read! { Deployment ServiceAccount }
