//! GatewayClasses: a change marks as stale the Gateways of the class.

use ambit_k8s_api::GatewayClass;

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::gateway_class::GatewayClassInput,
    pod_directory::PodDirectory,
};

impl MeshKind for GatewayClass {
    fn on_change(index: &mut Index, change: &Change<'_, GatewayClassInput>, _: &mut PodDirectory) {
        for gateway in index.view.gateways_of_class(&change.key.name) {
            index.mark_gateway_dependents_stale(&gateway, &change.key.name);
        }
    }
}
