//! Kinds of objects that the control plane ignores, but that the lab's manifests contain.

use ambit_k8s_api::{Deployment, ServiceAccount};

use crate::{
    config::MeshConfig,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable},
    problem::FieldError,
};

macro_rules! not_read {
    ($($kind:ident)*) => {
        $(impl FetchedKind for $kind {
            const FETCH_EXTENT: FetchExtent = FetchExtent::Nothing;
        }

        impl Readable for $kind {
            type Input = ();

            fn read(&self, _: &MeshConfig) -> Result<Parsed<()>, FieldError> {
                Ok(Parsed::new(None, Vec::new()))
            }
        })*
    };
}

not_read! { Deployment ServiceAccount }
