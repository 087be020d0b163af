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

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ambit_k8s_api::{Gateway, Kind, ObjectKey, Pod, WorkloadEntry, labels};
use ambit_model::{ArcStr, GatewayName};

use super::{
    Index, MeshView,
    kind::{Change, MeshKind},
};
use crate::{Labels, problem::Note};

/// A pod as understood.
type PodInput = <Pod as MeshKind>::Input;

/// How many pods a message names.
const NAMED: usize = 3;

/// Pods that carry the label of a Gateway of their namespace, by that Gateway and their own name.
#[derive(Debug, Default)]
pub(super) struct Instances(HashMap<GatewayName, BTreeMap<ArcStr, Instance>>);

#[derive(Debug, PartialEq)]
struct Instance {
    account: ArcStr,
    ready: bool,
}

impl Instances {
    fn of(&self, gateway: &GatewayName) -> impl Iterator<Item = (&ArcStr, &Instance)> {
        self.0.get(gateway).into_iter().flatten()
    }

    /// Whether a pod of a waypoint of ours is ready.
    fn any_ready(&self, gateway: &GatewayName) -> bool {
        let mut pods = self.of(gateway);
        pods.any(|(_, pod)| pod.ready && pod.account == gateway.name)
    }

    /// Whether any pod with the label is ready.
    pub(super) fn any_claims_ready(&self, gateway: &GatewayName) -> bool {
        self.of(gateway).any(|(_, pod)| pod.ready)
    }

    /// The accounts that pods with the label run under.
    pub(super) fn accounts(&self, gateway: &GatewayName) -> BTreeSet<ArcStr> {
        let pods = self.of(gateway);
        pods.map(|(_, pod)| pod.account.clone()).collect()
    }

    fn replace(&mut self, name: &ArcStr, old: Option<GatewayName>, new: Option<&PodInput>) {
        if let Some(gateway) = old
            && let Some(pods) = self.0.get_mut(&gateway)
        {
            pods.remove(name);
            if pods.is_empty() {
                self.0.remove(&gateway);
            }
        }
        if let Some(pod) = new
            && let Some(gateway) = claimed(pod)
        {
            let instance = Instance {
                account: pod.service_account.clone(),
                ready: pod.ready,
            };
            let pods = self.0.entry(gateway).or_default();
            pods.insert(name.clone(), instance);
        }
    }
}

/// The Gateway whose label a pod carries.
fn claimed(pod: &PodInput) -> Option<GatewayName> {
    let name = label(&pod.labels).filter(|_| pod.is_published())?;
    Some(GatewayName::new(pod.namespace.clone(), name))
}

fn label(labels: &Labels) -> Option<&str> {
    let name = labels.get(labels::GATEWAY_NAME)?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}

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
    pub(super) fn gateway_of(&self, pod: &PodInput) -> Option<GatewayName> {
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

impl Index {
    /// A pod changed: Gateways that it speaks of, or whose account it has, may be concerned.
    pub(crate) fn follow_instance(&mut self, change: &Change<'_, PodInput>) {
        let account =
            |pod: &PodInput| GatewayName::new(pod.namespace.clone(), pod.service_account.clone());
        let gateways = change
            .both()
            .flat_map(|pod| claimed(pod).into_iter().chain([account(pod)]));
        let gateways: BTreeSet<GatewayName> = gateways.collect();
        let state = |index: &Self, gateway: &GatewayName| {
            let instances = &index.view.instances;
            let ready = [
                instances.any_ready(gateway),
                instances.any_claims_ready(gateway),
            ];
            (ready, instances.accounts(gateway))
        };
        let before: Vec<_> = gateways.iter().map(|one| state(self, one)).collect();
        let old = change.old.and_then(claimed);
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
                self.mark(key);
            } else {
                self.mark_gateway(gateway, &class);
            }
        }
    }

    /// A workload runs under an account: the Gateway of that name may have to say so.
    pub(crate) fn mark_gateway_of_account(&mut self, namespace: &ArcStr, account: &ArcStr) {
        let key = ObjectKey::new(Kind::Gateway, namespace.clone(), account.clone());
        if self.view.get::<Gateway>(&key).is_some() {
            self.mark(key);
        }
    }

    /// All pods that carry the label of a Gateway.
    pub(crate) fn mark_instances(&mut self, gateway: &GatewayName) {
        let pods = self.view.instances.of(gateway).map(|(pod, _)| pod.clone());
        let pods: Vec<_> = pods.collect();
        for pod in pods {
            self.mark(ObjectKey::new(Kind::Pod, gateway.namespace.clone(), pod));
        }
    }
}

/// The first of some names, and how many more there are.
pub(crate) fn listed(names: &[String]) -> Option<String> {
    let first = names.get(..NAMED.min(names.len()))?.join(", ");
    match names.len() {
        0 => None,
        all if all > NAMED => Some(format!("{first} and {} more", all - NAMED)),
        _ => Some(first),
    }
}
