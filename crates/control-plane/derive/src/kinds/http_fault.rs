//! HTTPFaults: a change marks the routes that name the object.

use ambit_k8s_api::{HTTPFault, ObjectKey};
use ambit_model::HttpFault;

use crate::{
    condition::{ConditionType, FAULT_USED, Standing},
    index::{Index, change::Change},
    kinds::{extensions, kind::MeshKind},
    pod_directory::PodDirectory,
    view::MeshView,
};

impl MeshKind for HTTPFault {
    const CONDITIONS: &'static [ConditionType] = &[FAULT_USED];

    fn changed(index: &mut Index, change: &Change<'_, HttpFault>, _: &mut PodDirectory) {
        extensions::mark(index, change.key);
    }

    fn standing(view: &MeshView, key: &ObjectKey, _: &HttpFault) -> Option<Standing> {
        Some(extensions::standing(view, key))
    }
}
