//! Pods of Gateways: which pods are a waypoint, and which only have its label or only its service account.
//!
//! A pod is part of one of our waypoints if it has both the label with the Gateway's name and the service account that
//! our controller created for the waypoint, which has the same name. Neither is enough:
//!
//! - The label alone can be set by every user who may create a pod in the namespace. The waypoint's Service selects by
//!   it, so such a pod would receive requests, and clients would refuse its identity each time. Such a pod is not an
//!   endpoint here, and is attached to waypoints like any other pod.
//! - The service account alone is the waypoint's identity: no proxy could tell the pod from the waypoint. Such a pod is
//!   not an endpoint, is attached to waypoints like any other pod, and the Gateway's status names it. The certificate
//!   authority signs for the account only if a pod with both asks for itself, and xDS serves no other pod of the
//!   account: the node proxy can neither open nor accept a tunnel for it.
//!
//! A user who may create pods with both controls the waypoint, without a visible difference: the permission covers the
//! namespace's traffic, as it covers its Secrets.

use ambit_k8s_api::{Pod, WorkloadEntry, labels};
use ambit_model::{ArcStr, GatewayName};

use crate::{
    names::join_names, objects::pod::PodInput, problem::Note, relations::instances::gateway_label,
    view::MeshView,
};

impl MeshView {
    /// Whether one of our own waypoints has a ready pod.
    pub(crate) fn is_waypoint_ready(&self, gateway: &GatewayName) -> bool {
        self.instances.any_ready(gateway)
    }

    /// Whether a terminating pod of one of our waypoints keeps serving, since no other pod of the waypoint is ready.
    pub(crate) fn serves_while_terminating(&self, pod: &PodInput) -> bool {
        let gateway = self
            .gateway_of(pod)
            .filter(|_| pod.is_ready_while_terminating);
        gateway.is_some_and(|gateway| {
            self.waypoint(&gateway).is_some()
                && pod.service_account == gateway.name
                && !self.is_waypoint_ready(&gateway)
        })
    }

    /// Returns the Gateway that the label of a pod names.
    pub(crate) fn gateway_of(&self, pod: &PodInput) -> Option<GatewayName> {
        let name = gateway_label(&pod.labels)?;
        Some(GatewayName::new(pod.namespace.clone(), name))
    }

    /// Whether a pod is part of a Gateway, so that it has no waypoint itself. For Gateways of other controllers the
    /// label is sufficient.
    pub(crate) fn is_instance(&self, pod: &PodInput) -> bool {
        let Some(gateway) = self.gateway_of(pod) else {
            return false;
        };
        match self.gateway(&gateway) {
            Some(found) if self.is_waypoint(found) => {
                self.waypoint(&gateway).is_some() && pod.service_account == gateway.name
            }
            found => found.is_some(),
        }
    }

    /// Whether a workload may be an endpoint of a Service. The Service of one of our waypoints has only the waypoint's
    /// pods as endpoints; `pod` is `None` if the workload is not a pod.
    pub(crate) fn may_be_endpoint(
        &self,
        namespace: &ArcStr,
        service: &ArcStr,
        pod: Option<&PodInput>,
    ) -> bool {
        let gateway = GatewayName::new(namespace.clone(), service.clone());
        let is_part = |pod: &PodInput| {
            gateway_label(&pod.labels) == Some(service.as_str()) && pod.service_account == *service
        };
        self.waypoint(&gateway).is_none() || pod.is_some_and(is_part)
    }

    /// Builds the notes on a Gateway about workloads that have only the label or only the service account of its
    /// waypoint.
    pub(crate) fn mismatched_workload_notes(&self, gateway: &GatewayName) -> Vec<Note> {
        let Some(objects) = self.objects(&gateway.namespace) else {
            return Vec::new();
        };
        let (mut claiming, mut passing) = (Vec::new(), Vec::new());
        let pods = objects.all_of_kind::<Pod>().values();
        for pod in pods.filter(|pod| pod.is_published()) {
            let has_label = gateway_label(&pod.labels) == Some(gateway.name.as_str());
            let is = pod.service_account == gateway.name;
            match (has_label, is) {
                (true, false) => claiming.push(format!("Pod {}", pod.name)),
                (false, true) => passing.push(format!("Pod {}", pod.name)),
                _ => {}
            }
        }
        let entries = objects.all_of_kind::<WorkloadEntry>().values();
        let of_account = entries.filter(|one| one.endpoint.service_account == gateway.name);
        passing.extend(of_account.map(|one| format!("WorkloadEntry {}", one.name)));
        let GatewayName { name, .. } = gateway;
        let claiming = join_names(&claiming).map(|who| {
            format!(
                "{who} carries the label {}={name} under another service account than the waypoint's: it gets no \
                 connections as the waypoint; take the label off",
                labels::GATEWAY_NAME
            )
        });
        let passing = join_names(&passing).map(|who| {
            format!(
                "{who} runs under the waypoint's service account {name} and is none of its pods: it gets no \
                 certificate, since everybody would take it for the waypoint; give it another account"
            )
        });
        let notes = claiming.into_iter().chain(passing);
        notes.map(|text| Note::new(".", text)).collect()
    }
}
