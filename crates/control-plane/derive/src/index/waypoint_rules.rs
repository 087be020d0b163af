//! Marks pods as stale if their records list layer 7 rules of their waypoint, after a change of a rule.

use std::collections::BTreeSet;

use ambit_k8s_api::{Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::{ArcStr, GatewayName};

use crate::{
    index::Index,
    labels::Labels,
    relations::{references::ReferenceKind, workload_waypoints::PolicyScope},
};

impl Index {
    /// Updates the targets of a changed policy, and marks as stale the pods that it could apply to.
    pub(crate) fn update_policy_targets(
        &mut self,
        key: &ObjectKey,
        old: Vec<ObjectKey>,
        new: Vec<ObjectKey>,
    ) {
        let targets: BTreeSet<_> = old.iter().chain(&new).cloned().collect();
        self.view
            .references
            .replace(ReferenceKind::PolicyTarget, key, old, new);
        for target in targets {
            self.mark_target_pods_stale(&target);
        }
    }

    /// Marks as stale the pods that a policy attached to `target` could apply to.
    fn mark_target_pods_stale(&mut self, target: &ObjectKey) {
        let ObjectKey {
            namespace, name, ..
        } = target;
        match target.kind {
            Kind::Gateway => {
                self.mark_waypoint_pods_stale(&GatewayName::new(namespace.clone(), name.clone()))
            }
            Kind::GatewayClass => {
                for gateway in self.view.gateways_of_class(name) {
                    self.mark_waypoint_pods_stale(&gateway);
                }
            }
            Kind::Service => {
                let service = self.view.get::<Service>(target);
                let selector = service.and_then(|service| service.selector.clone());
                self.mark_service_endpoints_stale(namespace, selector.as_ref());
            }
            _ => {
                let entry = self.view.get::<ServiceEntry>(target);
                let selector = entry.and_then(|entry| entry.selector.clone());
                self.mark_service_endpoints_stale(namespace, selector.as_ref());
            }
        }
    }

    /// Marks as stale the endpoints of a service; without a selector, all workloads of the namespace, since
    /// EndpointSlices may name them.
    fn mark_service_endpoints_stale(&mut self, namespace: &ArcStr, selector: Option<&Labels>) {
        match selector {
            Some(_) => self.mark_selected_workloads_stale(namespace, selector),
            None => self.mark_namespace_workloads_stale(namespace),
        }
    }

    fn mark_waypoint_pods_stale(&mut self, gateway: &GatewayName) {
        let namespaces: BTreeSet<ArcStr> = self
            .view
            .policy_waypoints
            .keys_at_waypoint(gateway)
            .filter_map(|scope| match scope {
                PolicyScope::Namespace(namespace) => Some(namespace.clone()),
                PolicyScope::Policy(_) => None,
            })
            .collect();
        for namespace in namespaces {
            self.mark_namespace_workloads_stale(&namespace);
        }
    }
}
