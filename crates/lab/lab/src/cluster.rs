//! State machine that acts as a lab's API server, controllers and scheduler. It takes changes of manifests and of pods'
//! states, and returns effects: pods to start and stop, and objects to write.
//!
//! It does not use files, processes or namespaces; [`crate::supervisor`] executes its effects.

mod expand;
mod generated_fields;
mod pod;
mod rollout;
mod schedule;
mod service;
mod waypoints;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ambit_k8s_api::{Kind, Object, ObjectKey};
use ambit_manifests::ObjectEvent;
use ambit_waypoint_objects::{GATEWAY_NAME_LABEL, Settings};
use serde_json::{Value, json};

pub(crate) use pod::{ContainerObservation, ContainerState, Phase, PodObservation, PodPlan};
pub(crate) use schedule::NodeInfo;
pub(crate) use service::{PortView, ServiceView, container_port};
pub(crate) use waypoints::SYSTEM_NAMESPACE;

use pod::PodRecord;
use waypoints::Waypoints;

use crate::addresses::AddressPlan;

/// Desired and observed state of the lab's simulated cluster.
pub(crate) struct Cluster {
    addresses: AddressPlan,
    nodes: Vec<NodeInfo>,
    /// Objects from the lab's manifests.
    objects: BTreeMap<ObjectKey, Object>,
    waypoints: Waypoints,
    pods: BTreeMap<ObjectKey, PodRecord>,
    service_ips: BTreeMap<ObjectKey, Vec<IpAddr>>,
    next_service: u16,
    service_views: Vec<ServiceView>,
    written_fields: BTreeMap<ObjectKey, Value>,
    unschedulable: BTreeMap<ObjectKey, String>,
    /// Whether some Deployment's pods of an earlier template still run until their replacements are ready.
    is_rolling_out: bool,
    new_uid: Box<dyn FnMut() -> String + Send>,
}

/// Input of the cluster's state machine.
pub(crate) enum ClusterEvent {
    /// Objects of the manifests that were added, changed or deleted.
    ManifestsChanged(Vec<ObjectEvent>),
    /// New state of a pod, as the task that runs the pod reports it.
    PodObserved {
        uid: String,
        observed: PodObservation,
    },
    /// A pod has ended after a stop request.
    PodGone { uid: String },
}

/// Output of the cluster's state machine, which the supervisor carries out.
#[derive(Debug, PartialEq)]
pub(crate) enum ClusterEffect {
    /// Write the fields that the lab adds to an object, to be merged into its manifest.
    WriteObject(ObjectKey, Value),
    /// Remove the fields that the lab added to an object.
    RemoveAddedFields(ObjectKey),
    /// Start a pod, whose object has been written before.
    StartPod(PodPlan),
    /// Stop a pod, with the pod's termination grace period.
    StopPod { uid: String },
    /// Publish all services, with their current addresses and endpoints.
    PublishServices(Vec<ServiceView>),
}

/// Index of the first virtual address that the lab assigns to a service; lower ones are for addresses that manifests
/// set.
const FIRST_SERVICE_INDEX: u16 = 256;

impl Cluster {
    /// Creates a cluster; without waypoint settings, no waypoints are deployed.
    pub(crate) fn new(
        addresses: AddressPlan,
        nodes: Vec<NodeInfo>,
        waypoints: Option<Settings>,
        new_uid: Box<dyn FnMut() -> String + Send>,
    ) -> Self {
        Self {
            addresses,
            nodes,
            objects: BTreeMap::new(),
            waypoints: Waypoints::new(waypoints),
            pods: BTreeMap::new(),
            service_ips: BTreeMap::new(),
            next_service: FIRST_SERVICE_INDEX,
            service_views: Vec::new(),
            written_fields: BTreeMap::new(),
            unschedulable: BTreeMap::new(),
            is_rolling_out: false,
            new_uid,
        }
    }

    /// Applies an event, and returns the effects to carry out.
    pub(crate) fn apply(&mut self, event: ClusterEvent) -> Vec<ClusterEffect> {
        let mut effects = Vec::new();
        match event {
            ClusterEvent::ManifestsChanged(events) => {
                for event in events {
                    match event {
                        ObjectEvent::Applied { object, .. } => {
                            self.objects.insert(object.key(), object);
                        }
                        ObjectEvent::Invalid { key, .. } | ObjectEvent::Deleted(key) => {
                            self.objects.remove(&key);
                        }
                    }
                }
                self.waypoints.regenerate(&self.objects);
                self.reconcile(&mut effects);
            }
            ClusterEvent::PodObserved { uid, observed } => {
                if let Some(record) = self.pod_by_uid(&uid) {
                    record.observed = observed;
                }
                if self.is_rolling_out {
                    self.reconcile(&mut effects);
                }
            }
            ClusterEvent::PodGone { uid } => {
                self.pods.retain(|_, record| record.plan.uid != uid);
                self.reconcile(&mut effects);
            }
        }
        self.write_objects(&mut effects);
        self.publish_services(&mut effects);
        effects
    }

    /// Returns the pods that cannot be scheduled and the Gateways that cannot have a waypoint, with the reasons.
    pub(crate) fn problems(&self) -> Vec<String> {
        let gateways = self.waypoints.problems.iter();
        let gateways = gateways.map(|(key, problem)| (key, &problem.message));
        self.unschedulable
            .iter()
            .chain(gateways)
            .map(|(key, why)| format!("{key}: {why}"))
            .collect()
    }

    /// Returns all Gateways of the manifests, with the status that the lab adds to those for waypoints.
    pub(crate) fn gateways(&self) -> Vec<Value> {
        let all = self.objects.iter().filter_map(|(key, object)| {
            let Object::Gateway(gateway) = object else {
                return None;
            };
            let mut value = serde_json::to_value(&**gateway).ok()?;
            if let Some(made) = self.gateway_status(key) {
                json_patch::merge(&mut value, &json!({"status": made.get("status")}));
            }
            Some(value)
        });
        all.collect()
    }

    /// Returns the objects that determine to which workloads policies apply, with the fields that the lab adds.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let mut all: BTreeMap<_, _> = self
            .objects
            .iter()
            .filter_map(|(key, object)| Some((key, generated_fields::policy_object(object)?)))
            .collect();
        let added = self.written_fields.iter();
        for (key, more) in
            added.filter(|(key, _)| generated_fields::POLICY_SCOPE_KINDS.contains(&key.kind))
        {
            json_patch::merge(all.entry(key).or_insert(Value::Null), more);
        }
        all.into_values().collect()
    }

    /// Iterates over the objects of the manifests, and those that are generated for their Gateways.
    fn all_objects(&self) -> impl Iterator<Item = (&ObjectKey, &Object)> {
        let made = self.waypoints.generated.iter();
        let made = made.map(|(key, made)| (key, &made.object));
        self.objects.iter().chain(made)
    }

    fn pod_by_uid(&mut self, uid: &str) -> Option<&mut PodRecord> {
        self.pods.values_mut().find(|record| record.plan.uid == uid)
    }

    fn reconcile(&mut self, effects: &mut Vec<ClusterEffect>) {
        let mut desired = expand::desired_pods(self.all_objects());
        let staying = rollout::pods_to_keep(&self.pods, &desired);
        self.is_rolling_out = !staying.is_empty();
        for (key, record) in &mut self.pods {
            match desired.remove(key) {
                // Changes that do not restart a running pod: labels, annotations.
                Some(want) if want.pod.spec == record.plan.pod.spec => {
                    record.plan.pod = want.pod;
                }
                _ if record.terminating || staying.contains(key) => {}
                _ => {
                    record.terminating = true;
                    effects.push(ClusterEffect::StopPod {
                        uid: record.plan.uid.clone(),
                    });
                }
            }
        }
        self.unschedulable.clear();
        for (key, want) in desired {
            let placed: Vec<_> = self
                .pods
                .values()
                .filter(|record| !record.terminating)
                .map(|record| (record.plan.node.as_str(), record.plan.owner()))
                .collect();
            match schedule::choose_node(&self.nodes, &self.objects, &want.pod, &placed) {
                Ok(node) => {
                    let uid = want.uid().unwrap_or_else(|| (self.new_uid)());
                    let plan = PodPlan {
                        uid,
                        node,
                        pod: want.pod,
                        deployment: want.deployment.map(|asking| asking.key),
                    };
                    let record = PodRecord {
                        plan: plan.clone(),
                        observed: PodObservation::default(),
                        terminating: false,
                    };
                    self.pods.insert(key.clone(), record);
                    // Its object is written first: agents and control plane must know the pod.
                    self.write_objects(effects);
                    effects.push(ClusterEffect::StartPod(plan));
                }
                Err(why) => {
                    self.unschedulable.insert(key, why);
                }
            }
        }
        self.assign_service_ips();
    }

    fn assign_service_ips(&mut self) {
        let services: Vec<_> = self
            .all_objects()
            .filter_map(|(key, object)| match object {
                Object::Service(service) => Some((key.clone(), service.clone())),
                _ => None,
            })
            .collect();
        let keys: BTreeSet<_> = services.iter().map(|(key, _)| key.clone()).collect();
        self.service_ips.retain(|key, _| keys.contains(key));
        for (key, service) in services {
            let old = self.service_ips.get(&key).map_or(&[][..], Vec::as_slice);
            let next = self.next_service;
            let ips = service::service_addresses(&service, self.addresses, old, next);
            if ips != old
                && ips
                    .iter()
                    .any(|ip| self.addresses.service_addresses(next).contains(ip))
            {
                self.next_service = self.next_service.saturating_add(1);
            }
            self.service_ips.insert(key, ips);
        }
    }

    /// Adds the effects that write new and changed objects of the lab itself, and remove obsolete ones.
    fn write_objects(&mut self, effects: &mut Vec<ClusterEffect>) {
        let mut desired = BTreeMap::new();
        for node in &self.nodes {
            desired.insert(
                ObjectKey::new(Kind::Node, "", node.name.as_str()),
                generated_fields::node_object(node),
            );
        }
        let mut namespaces: BTreeSet<_> = self
            .objects
            .keys()
            .filter(|key| key.kind.is_namespaced())
            .map(|key| key.namespace.clone())
            .collect();
        namespaces.insert(arcstr::literal!("default"));
        for namespace in namespaces {
            let key = ObjectKey::new(Kind::Namespace, "", namespace.clone());
            desired.insert(key, generated_fields::namespace_object(&namespace));
        }
        for (key, made) in &self.waypoints.generated {
            desired.insert(key.clone(), made.manifest.clone());
        }
        for (key, ips) in &self.service_ips {
            if !ips.is_empty() {
                let made = self.waypoints.generated.get(key);
                let whole = made.map(|made| made.manifest.clone());
                desired.insert(
                    key.clone(),
                    generated_fields::service_object(key, whole, ips),
                );
            }
        }
        let refused = self.waypoints.problems.keys();
        for key in self.waypoints.gateways.iter().chain(refused) {
            let gateway = self.gateway_status(key);
            desired.extend(gateway.map(|gateway| (key.clone(), gateway)));
        }
        for (key, record) in &self.pods {
            let PodRecord {
                plan,
                observed,
                terminating,
            } = record;
            desired.insert(
                key.clone(),
                generated_fields::pod_object(key, plan, observed, *terminating),
            );
        }
        for key in self
            .written_fields
            .keys()
            .filter(|key| !desired.contains_key(key))
        {
            effects.push(ClusterEffect::RemoveAddedFields(key.clone()));
        }
        for (key, value) in &desired {
            if self.written_fields.get(key) != Some(value) {
                effects.push(ClusterEffect::WriteObject(key.clone(), value.clone()));
            }
        }
        self.written_fields = desired;
    }

    /// Returns the status (addresses and conditions) of a Gateway for a waypoint, also if the waypoint cannot be
    /// generated; `None` for Gateways that are not for waypoints.
    fn gateway_status(&self, key: &ObjectKey) -> Option<Value> {
        let problem = self.waypoints.problems.get(key);
        let is_gateway = self.waypoints.gateways.contains(key);
        if !is_gateway {
            return problem.map(|problem| generated_fields::rejected_gateway_status(key, problem));
        }
        let service = ObjectKey::new(Kind::Service, key.namespace.clone(), key.name.clone());
        let ips = self
            .service_ips
            .get(&service)
            .map_or(&[][..], Vec::as_slice);
        let ready = self.pods.values().any(|record| {
            let labels = record.plan.pod.metadata.labels.as_ref();
            let gateway = labels.and_then(|labels| labels.get(GATEWAY_NAME_LABEL));
            record.plan.namespace() == key.namespace
                && gateway.is_some_and(|gateway| *gateway == key.name)
                && !record.terminating
                && record.observed.is_ready()
        });
        let before = self.written_fields.get(key);
        let had = before.and_then(|value| value.pointer("/status/addresses/0"));
        let has_been_ready = ready || had.is_some();
        let host = self.waypoints.service_host(key);
        let mut gateway = generated_fields::gateway_status(key, &host, ips, ready, has_been_ready);
        if let Some(problem) = problem {
            generated_fields::set_condition(
                &mut gateway,
                generated_fields::not_accepted_condition(problem),
            );
        }
        if self.waypoints.with_autoscaler.contains(key) {
            generated_fields::set_condition(
                &mut gateway,
                generated_fields::no_autoscaler_condition(),
            );
        }
        Some(gateway)
    }

    fn publish_services(&mut self, effects: &mut Vec<ClusterEffect>) {
        let pods: Vec<_> = self
            .pods
            .values()
            .filter(|record| !record.terminating && !record.observed.ips.is_empty())
            .map(|record| (&record.plan, &record.observed))
            .collect();
        let views: Vec<_> = self
            .all_objects()
            .filter_map(|(key, object)| match object {
                Object::Service(spec) => {
                    let ips = self.service_ips.get(key).map_or(&[][..], Vec::as_slice);
                    service::service_view(key, spec, ips, &pods)
                }
                _ => None,
            })
            .collect();
        if views != self.service_views {
            self.service_views.clone_from(&views);
            effects.push(ClusterEffect::PublishServices(views));
        }
    }
}

#[cfg(test)]
mod tests;
