//! The pods of Gateways: which of them are a waypoint, which only say so, and which could pass for one.
//!
//! What makes a pod part of a waypoint of ours is two things together, the label with the Gateway's name and the
//! service account that our controller made for it, which has the same name. Neither is enough:
//!
//! - The label alone may be set by every user who may create a pod in the namespace. The waypoint's Service selects by
//!   it, so such a pod would be sent requests; clients would refuse it for its identity, one after the other. It is no
//!   endpoint here, and is attached to waypoints as any other pod.
//! - The account alone is the waypoint's identity: to all others, what calls with it is the waypoint, and no proxy
//!   can tell the difference. The pod is no endpoint, is attached to waypoints as any other, and is named on the
//!   Gateway. The certificate authority signs for the account only when a pod with both asks itself, and xDS answers
//!   no other pod of it: its node's proxy cannot open or accept a tunnel for it.
//!
//! A user who may create pods with both controls the waypoint, without a visible difference: that permission is one
//! over the namespace's traffic, as it is over its secrets.

use ambit_k8s_api::{Pod, WorkloadEntry, labels};
use ambit_model::{ArcStr, GatewayName};

use crate::{
    names::listed, objects::pod::PodInput, problem::Note, relations::instances::label,
    view::MeshView,
};

impl MeshView {
    /// Whether a waypoint of ours has a pod that is ready.
    pub(crate) fn is_ready(&self, gateway: &GatewayName) -> bool {
        self.instances.any_ready(gateway)
    }

    /// Whether a pod of a waypoint of ours that is being deleted serves in the place of others, since none is ready.
    pub(crate) fn stands_in(&self, pod: &PodInput) -> bool {
        let gateway = self.gateway_of(pod).filter(|_| pod.serves_on);
        gateway.is_some_and(|gateway| {
            self.waypoint(&gateway).is_some()
                && pod.service_account == gateway.name
                && !self.is_ready(&gateway)
        })
    }

    /// The Gateway that a pod names in its label.
    pub(crate) fn gateway_of(&self, pod: &PodInput) -> Option<GatewayName> {
        let name = label(&pod.labels)?;
        Some(GatewayName::new(pod.namespace.clone(), name))
    }

    /// Whether a pod is part of a Gateway, so that no waypoint is in front of it. Of Gateways that are not ours, the
    /// label is all that is known.
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

    /// Whether a workload may be an endpoint of a Service: of a waypoint's own, only its pods are. `pod`: none if it
    /// is no pod.
    pub(crate) fn may_serve(
        &self,
        namespace: &ArcStr,
        service: &ArcStr,
        pod: Option<&PodInput>,
    ) -> bool {
        let gateway = GatewayName::new(namespace.clone(), service.clone());
        let is_part = |pod: &PodInput| {
            label(&pod.labels) == Some(service.as_str()) && pod.service_account == *service
        };
        self.waypoint(&gateway).is_none() || pod.is_some_and(is_part)
    }

    /// Notes on a Gateway about workloads that are not the waypoint and could be taken for it.
    pub(crate) fn strangers(&self, gateway: &GatewayName) -> Vec<Note> {
        let Some(objects) = self.objects(&gateway.namespace) else {
            return Vec::new();
        };
        let (mut claiming, mut passing) = (Vec::new(), Vec::new());
        let pods = objects.all::<Pod>().values();
        for pod in pods.filter(|pod| pod.is_published()) {
            let has_label = label(&pod.labels) == Some(gateway.name.as_str());
            let is = pod.service_account == gateway.name;
            match (has_label, is) {
                (true, false) => claiming.push(format!("Pod {}", pod.name)),
                (false, true) => passing.push(format!("Pod {}", pod.name)),
                _ => {}
            }
        }
        let entries = objects.all::<WorkloadEntry>().values();
        let of_account = entries.filter(|one| one.endpoint.service_account == gateway.name);
        passing.extend(of_account.map(|one| format!("WorkloadEntry {}", one.name)));
        let GatewayName { name, .. } = gateway;
        let claiming = listed(&claiming).map(|who| {
            format!(
                "{who} carries the label {}={name} under another service account than the waypoint's: it gets no \
                 connections as the waypoint; take the label off",
                labels::GATEWAY_NAME
            )
        });
        let passing = listed(&passing).map(|who| {
            format!(
                "{who} runs under the waypoint's service account {name} and is none of its pods: it gets no \
                 certificate, since everybody would take it for the waypoint; give it another account"
            )
        });
        let notes = claiming.into_iter().chain(passing);
        notes.map(|text| Note::new(".", text)).collect()
    }
}
