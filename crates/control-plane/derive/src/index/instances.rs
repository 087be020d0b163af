//! Updates the pods of Gateways, and marks as stale the Gateways and pods that depend on them.

use std::collections::BTreeSet;

use ambit_k8s_api::{Gateway, Kind, ObjectKey};
use ambit_model::{ArcStr, GatewayName};

use crate::{
    index::{Index, change::Change},
    objects::pod::PodInput,
    relations::instances::labelled_gateway,
};

impl Index {
    /// Updates the pods of Gateways after a change of a pod, and marks as stale the Gateways that its label or its
    /// service account names.
    pub(crate) fn update_instance(&mut self, change: &Change<'_, PodInput>) {
        let account =
            |pod: &PodInput| GatewayName::new(pod.namespace.clone(), pod.service_account.clone());
        let gateways = change
            .both_versions()
            .flat_map(|pod| labelled_gateway(pod).into_iter().chain([account(pod)]));
        let gateways: BTreeSet<GatewayName> = gateways.collect();
        let state = |index: &Self, gateway: &GatewayName| {
            let instances = &index.view.instances;
            let ready = [
                instances.any_ready(gateway),
                instances.any_labelled_ready(gateway),
            ];
            (ready, instances.accounts(gateway))
        };
        let before: Vec<_> = gateways.iter().map(|one| state(self, one)).collect();
        let old = change.old.and_then(labelled_gateway);
        self.view
            .instances
            .replace(&change.key.name, old, change.new);
        for (gateway, before) in gateways.iter().zip(before) {
            let (namespace, name) = (gateway.namespace.clone(), gateway.name.clone());
            let key = ObjectKey::new(Kind::Gateway, namespace, name);
            let Some(class) = self.view.get::<Gateway>(&key).map(|one| one.class.clone()) else {
                continue;
            };
            if state(self, gateway) == before {
                self.mark_object_stale(key);
            } else {
                self.mark_gateway_dependents_stale(gateway, &class);
            }
        }
    }

    /// Marks as stale the Gateway that has the name of a workload's service account, since its conditions may report
    /// the workload.
    pub(crate) fn mark_account_gateway_stale(&mut self, namespace: &ArcStr, account: &ArcStr) {
        let key = ObjectKey::new(Kind::Gateway, namespace.clone(), account.clone());
        if self.view.get::<Gateway>(&key).is_some() {
            self.mark_object_stale(key);
        }
    }

    /// Marks as stale the pods whose label names a Gateway.
    pub(crate) fn mark_gateway_pods_stale(&mut self, gateway: &GatewayName) {
        let pods = self
            .view
            .instances
            .pods_of(gateway)
            .map(|(pod, _)| pod.clone());
        let pods: Vec<_> = pods.collect();
        for pod in pods {
            self.mark_object_stale(ObjectKey::new(Kind::Pod, gateway.namespace.clone(), pod));
        }
    }
}
