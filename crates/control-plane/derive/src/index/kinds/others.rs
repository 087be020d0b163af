//! Kinds that the lab reads and the control plane does not.

use ambit_k8s_api::{Deployment, ServiceAccount};

use crate::{
    MeshConfig, PodDirectory,
    index::{
        Index,
        kind::{Change, Extent, Followed, MeshKind, Read},
    },
    problem::FieldError,
};

macro_rules! not_read {
    ($($kind:ident)*) => {
        $(impl Followed for $kind {
            const EXTENT: Extent = Extent::Nothing;
        }

        impl MeshKind for $kind {
            type Input = ();

            fn read(&self, _: &MeshConfig) -> Result<Read<()>, FieldError> {
                Ok(Read::of(None, Vec::new()))
            }

            fn changed(_: &mut Index, _: &Change<'_, ()>, _: &mut PodDirectory) {}
        })*
    };
}

not_read! { Deployment ServiceAccount }
