//! Kinds of objects that the control plane ignores, but that the lab's manifests contain.

use ambit_k8s_api::{Deployment, ServiceAccount};

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    pod_directory::PodDirectory,
};

macro_rules! not_read {
    ($($kind:ident)*) => {
        $(impl MeshKind for $kind {
            fn on_change(_: &mut Index, _: &Change<'_, ()>, _: &mut PodDirectory) {}
        })*
    };
}

not_read! { Deployment ServiceAccount }
