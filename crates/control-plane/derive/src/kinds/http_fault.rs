//! HTTPFaults: a change marks as stale the routes that name the object.

use ambit_k8s_api::{HTTPFault, ObjectKey};
use ambit_model::HttpFault;

use crate::{
    condition::{ConditionType, DerivedStatus, HTTP_FAULT_USED},
    index::{Index, change::Change},
    kinds::{extensions, kind::MeshKind},
    pod_directory::PodDirectory,
    view::MeshView,
};

impl MeshKind for HTTPFault {
    const CONDITIONS: &'static [ConditionType] = &[HTTP_FAULT_USED];

    fn on_change(index: &mut Index, change: &Change<'_, HttpFault>, _: &mut PodDirectory) {
        extensions::mark_extension_routes_stale(index, change.key);
    }

    fn derived_status(view: &MeshView, key: &ObjectKey, _: &HttpFault) -> Option<DerivedStatus> {
        Some(extensions::derived_status(view, key))
    }
}
