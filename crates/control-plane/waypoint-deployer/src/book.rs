//! Desired waypoints, and their observed objects. Pure: observations go in, writes come out.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{
    Gateway,
    revisions::{ControlPlane, Revisions},
    selector::{self, LabelSelector},
};
use ambit_waypoint_objects::{
    self as waypoint, CLASS, CONTROLLER, ConfigMaps, MANAGED, Parameters, Part, Settings,
    is_deployed, is_of_revision,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::{
    release::Release,
    status::{self, Progress, Verdict},
};

/// The field manager of everything that is written here.
pub(crate) const MANAGER: &str = "ambit-waypoints";
/// Field manager of a Deployment's number of pods, from the moment when an autoscaler decides it until the autoscaler
/// has written it: a field without a manager would fall back to one pod.
pub(crate) const REPLICAS_MANAGER: &str = "ambit-waypoint-replicas";

/// Namespace and name: those of a Gateway and of all its objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
}

/// The class of waypoints, as observed in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) controller: String,
    /// The generation of its spec.
    pub(crate) generation: Option<i64>,
    /// Whether its conditions of this generation say so.
    pub(crate) is_accepted: bool,
    /// Release of the definitions that its status names.
    pub(crate) release: Option<Release>,
}

/// An object that was made for a waypoint, as far as it matters here. What differs is looked at again, but for its
/// version alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Standing {
    /// Other manager that applies it, if there is one.
    pub(crate) other: Option<String>,
    /// Of one that we applied: the Gateway that it was made for, by its unique number.
    pub(crate) made_for: Option<String>,
    /// Its own unique number.
    pub(crate) uid: Option<String>,
    /// Counts changes of what is wished.
    pub(crate) generation: Option<i64>,
    /// Changes with everything, its status too.
    pub(crate) resource_version: Option<String>,
    /// Labels of the object.
    pub(crate) labels: BTreeMap<String, String>,
    /// Of a Deployment: whether the number of pods is still ours to say; scaling takes it over.
    pub(crate) replicas_ours: bool,
    /// Of a Deployment: that number.
    pub(crate) replicas: Option<i32>,
    /// Of a Service: its addresses in the cluster.
    pub(crate) ips: Vec<String>,
    /// Of a Service: its addresses at load balancers.
    pub(crate) outside: Vec<String>,
    /// Of a Deployment: whether a pod is ready.
    pub(crate) is_ready: bool,
}

impl Standing {
    /// Fields that all kinds have.
    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            other: other_manager(metadata),
            made_for: made_for(metadata),
            uid: metadata.uid.clone(),
            generation: metadata.generation,
            resource_version: metadata.resource_version.clone(),
            labels: metadata.labels.clone().unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Whether nothing but its version changed.
    fn is_as(&self, before: &Self) -> bool {
        let version = before.resource_version.clone();
        let of_that_version = Self {
            resource_version: version,
            ..self.clone()
        };
        of_that_version == *before
    }
}

/// Field managers of the label that marks an object as a waypoint's.
fn managers(metadata: &ObjectMeta) -> impl Iterator<Item = &str> {
    let label = format!("f:{MANAGED}");
    let entries = metadata.managed_fields.iter().flatten();
    let appliers = entries.filter(move |entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let labels = fields.and_then(|fields| fields.pointer("/f:metadata/f:labels"));
        entry.operation.as_deref() == Some("Apply")
            && labels.is_some_and(|labels| labels.get(&label).is_some())
    });
    appliers.map(|entry| entry.manager.as_deref().unwrap_or_default())
}

/// Field manager of that label other than our own.
fn other_manager(metadata: &ObjectMeta) -> Option<String> {
    let other = managers(metadata).find(|manager| *manager != MANAGER);
    other.map(str::to_owned)
}

/// The Gateway that owns an object of ours.
fn made_for(metadata: &ObjectMeta) -> Option<String> {
    managers(metadata).find(|manager| *manager == MANAGER)?;
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.kind == "Gateway")?;
    Some(owner.uid.clone())
}

/// Whether we were the last to set a Deployment's number of pods.
pub(crate) fn replicas_ours(metadata: &ObjectMeta) -> bool {
    let mut entries = metadata.managed_fields.iter().flatten();
    entries.any(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        entry.manager.as_deref() == Some(MANAGER)
            && fields.is_some_and(|fields| fields.pointer("/f:spec/f:replicas").is_some())
    })
}

/// Work of [`Book::class_work`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClassWork<'a> {
    /// Class that is missing.
    Make,
    /// Its conditions of this generation do not say that waypoints are made, and whether the release of the definitions is
    /// known.
    Say(&'a Release, Option<i64>),
}

/// Plan for a Gateway.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// Write these, and then remove those. An object that is marked as new must not exist under another owner.
    Apply(Vec<Write>, Vec<Removal>),
    /// Nothing; and what its status is to say.
    Refuse(Verdict),
    /// Gateway that is a waypoint no longer: its status is left alone, and what was made for it is removed.
    Release(Vec<Removal>),
}

/// One object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Removal {
    pub(crate) part: Part,
    /// Of the very object that was seen.
    pub(crate) uid: Option<String>,
}

/// One object to apply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) part: Part,
    pub(crate) object: Value,
    pub(crate) is_new: bool,
    /// The field manager.
    pub(crate) manager: &'static str,
    /// The version of the object that this was decided by, where it depends on it: an object that has changed since is
    /// left as it is. A number of pods that is omitted because the Deployment seems to have been scaled would fall to
    /// one if it is ours by now; and one that is written would undo a later scaling.
    pub(crate) decided_by: Option<String>,
}

/// State of Gateways and their objects, as described for the module.
#[derive(Debug)]
pub(crate) struct Book {
    settings: Settings,
    revisions: Revisions,
    /// Namespace of the control planes, which is always discovered.
    system_namespace: Box<str>,
    /// Selectors of the namespaces that are discovered.
    selectors: Vec<LabelSelector>,
    /// Of the definitions.
    release: Release,
    class: Option<Class>,
    /// Labels of namespaces.
    namespaces: BTreeMap<Box<str>, BTreeMap<String, String>>,
    /// Of every class.
    gateways: BTreeMap<Name, Gateway>,
    standing: BTreeMap<(Part, Name), Standing>,
    maps: ConfigMaps,
    due: BTreeSet<Name>,
}

impl Book {
    pub(crate) fn new(
        settings: Settings,
        revision: &str,
        release: Release,
        system_namespace: &str,
    ) -> Self {
        Self {
            settings,
            revisions: Revisions::new(revision),
            system_namespace: system_namespace.into(),
            selectors: Vec::new(),
            release,
            class: None,
            namespaces: BTreeMap::new(),
            gateways: BTreeMap::new(),
            standing: BTreeMap::new(),
            maps: ConfigMaps::new(system_namespace),
            due: BTreeSet::new(),
        }
    }

    /// The class of waypoints is this, or is not there.
    pub(crate) fn class(&mut self, class: Option<Class>) {
        if self.class != class {
            self.class = class;
            self.due = self.gateways.keys().cloned().collect();
        }
    }

    /// Work that is due for the class of waypoints.
    pub(crate) fn class_work(&self) -> Option<ClassWork<'_>> {
        match &self.class {
            None => Some(ClassWork::Make),
            Some(class) if class.controller != CONTROLLER => None,
            Some(class) => {
                let says_so = class.is_accepted && class.release.as_ref() == Some(&self.release);
                (!says_so).then_some(ClassWork::Say(&self.release, class.generation))
            }
        }
    }

    /// Takes in the Service of a control plane, which may have become responsible for other Gateways.
    pub(crate) fn control_plane(&mut self, service: &str, of: Option<ControlPlane>) {
        if self.revisions.set(service, of) {
            self.due = self.gateways.keys().cloned().collect();
        }
    }

    /// Sets which namespaces are discovered.
    pub(crate) fn discover(&mut self, selectors: Vec<LabelSelector>) {
        if self.selectors != selectors {
            self.selectors = selectors;
            self.due = self.gateways.keys().cloned().collect();
        }
    }

    pub(crate) fn namespace(&mut self, name: Box<str>, labels: Option<BTreeMap<String, String>>) {
        let inside = self.gateways.keys().filter(|key| key.namespace == name);
        self.due.extend(inside.cloned());
        match labels {
            Some(labels) => drop(self.namespaces.insert(name, labels)),
            None => drop(self.namespaces.remove(&name)),
        }
    }

    pub(crate) fn gateway(&mut self, name: Name, gateway: Option<Gateway>) {
        match gateway {
            Some(gateway) => {
                self.due.insert(name.clone());
                self.gateways.insert(name, gateway);
            }
            None => {
                self.due.remove(&name);
                self.gateways.remove(&name);
            }
        }
    }

    pub(crate) fn config_map(&mut self, map: &Name, parameters: Option<Parameters>) {
        let concerns_all = self.maps.set(&map.namespace, &map.name, parameters);
        let concerned = self.gateways.iter().filter(|(_, gateway)| {
            concerns_all || waypoint::refers_to(gateway, &map.namespace, &map.name)
        });
        self.due.extend(concerned.map(|(name, _)| name.clone()));
    }

    pub(crate) fn object(&mut self, part: Part, name: Name, standing: Option<Standing>) {
        let key = (part, name.clone());
        let before = match standing.clone() {
            Some(standing) => self.standing.insert(key, standing),
            None => self.standing.remove(&key),
        };
        let is_same = match (&before, &standing) {
            (Some(before), Some(now)) => now.is_as(before),
            (before, now) => before.is_none() && now.is_none(),
        };
        if !is_same && self.gateways.contains_key(&name) {
            self.due.insert(name);
        }
    }

    /// The Gateways that are to be looked at; each is returned once.
    pub(crate) fn take_due(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.due)
    }

    /// Look at a Gateway again.
    pub(crate) fn again(&mut self, name: Name) {
        if self.gateways.contains_key(&name) {
            self.due.insert(name);
        }
    }

    /// Plan for a Gateway; none if it is not ours: what was made for it is left to the control plane that takes it over.
    pub(crate) fn plan(&self, name: &Name) -> Option<Plan> {
        let gateway = self.gateways.get(name)?;
        let none = BTreeMap::new();
        let namespace = self.namespaces.get(&name.namespace).unwrap_or(&none);
        let is_discovered = name.namespace == self.system_namespace
            || selector::select_namespace(&self.selectors, &name.namespace, namespace);
        if !is_discovered || !is_of_revision(gateway, namespace, &self.revisions) {
            return None;
        }
        if gateway.spec.gateway_class_name != CLASS {
            return self.release(name, gateway);
        }
        let class = self.class.as_ref()?;
        if class.controller != CONTROLLER || !is_deployed(gateway) {
            return None;
        }
        let parts = || Part::ALL.into_iter();
        let others = parts().filter_map(|part| self.stands(part, name)?.other.clone());
        if let Some(other) = others.into_iter().next() {
            return Some(Plan::Refuse(Verdict::Other(other)));
        }
        let objects = match waypoint::objects(gateway, &self.settings, &self.maps) {
            Ok(objects) => objects,
            Err(why) => {
                // What was made before stays.
                let stands = self.is_its(Part::Deployment, name, gateway);
                let progress = stands.then(|| self.progress(name));
                return Some(Plan::Refuse(Verdict::Unusable(why, progress)));
            }
        };
        let mut writes = Vec::new();
        if objects.autoscaler.is_some() {
            writes.extend(self.hand_over(name));
        }
        writes.extend(objects.all().into_iter().map(|(part, object)| Write {
            part,
            object: object.clone(),
            is_new: self.stands(part, name).is_none(),
            manager: MANAGER,
            decided_by: self.decided_by(part, name),
        }));
        let unwanted = |part: &Part| !objects.all().iter().any(|(wanted, _)| wanted == part);
        let removals = self.removals(name, gateway, unwanted);
        let was_autoscaled = removals.iter().any(|of| of.part == Part::Autoscaler);
        let deployment = self.stands(Part::Deployment, name);
        let is_scaled = deployment.is_some_and(|standing| !standing.replicas_ours);
        if is_scaled && !was_autoscaled && !objects.says_replicas {
            for write in writes
                .iter_mut()
                .filter(|write| write.part == Part::Deployment)
            {
                let spec = write.object.get_mut("spec").and_then(Value::as_object_mut);
                drop(spec.and_then(|spec| spec.remove("replicas")));
            }
        }
        Some(Plan::Apply(writes, removals))
    }

    /// The current number of pods of a Deployment, applied once more by another manager: see [`REPLICAS_MANAGER`].
    fn hand_over(&self, name: &Name) -> Option<Write> {
        let standing = self.stands(Part::Deployment, name)?;
        let replicas = standing.replicas.filter(|_| standing.replicas_ours)?;
        let part = Part::Deployment;
        Some(Write {
            part,
            object: json!({
                "apiVersion": part.api_version(),
                "kind": part.kind(),
                "metadata": {"name": &*name.name, "namespace": &*name.namespace},
                "spec": {"replicas": replicas},
            }),
            is_new: false,
            manager: REPLICAS_MANAGER,
            decided_by: self.decided_by(part, name),
        })
    }

    /// Origin of a value, see [`Write::decided_by`].
    fn decided_by(&self, part: Part, name: &Name) -> Option<String> {
        let standing = self.stands(part, name)?;
        let version = standing.resource_version.clone();
        version.filter(|_| part == Part::Deployment)
    }

    /// For a Gateway of another class: away with what was made for it while it was a waypoint.
    fn release(&self, name: &Name, gateway: &Gateway) -> Option<Plan> {
        let removals = self.removals(name, gateway, |_| true);
        (!removals.is_empty()).then_some(Plan::Release(removals))
    }

    /// Objects that were made for a Gateway, of those parts.
    fn removals(
        &self,
        name: &Name,
        gateway: &Gateway,
        parts: impl Fn(&Part) -> bool,
    ) -> Vec<Removal> {
        let of_it = Part::ALL.into_iter().filter(parts);
        let of_it = of_it.filter(|part| self.is_its(*part, name, gateway));
        let removal = |part| {
            let uid = self.stands(part, name)?.uid.clone();
            Some(Removal { part, uid })
        };
        of_it.filter_map(removal).collect()
    }

    /// Whether an object was made by us for this very Gateway.
    fn is_its(&self, part: Part, name: &Name, gateway: &Gateway) -> bool {
        let made_for = self
            .stands(part, name)
            .and_then(|of| of.made_for.as_deref());
        made_for.is_some() && made_for == gateway.metadata.uid.as_deref()
    }

    /// Status that a Gateway should have; none if it has it.
    pub(crate) fn status(&self, name: &Name, verdict: &Verdict) -> Option<Value> {
        let gateway = self.gateways.get(name)?;
        status::differing(gateway, verdict)
    }

    /// How far the waypoint is whose objects are written.
    pub(crate) fn progress(&self, name: &Name) -> Progress {
        let service = self.stands(Part::Service, name);
        Progress {
            hostname: format!(
                "{}.{}.svc.{}",
                name.name, name.namespace, self.settings.cluster_domain
            ),
            ips: service
                .map(|service| service.ips.clone())
                .unwrap_or_default(),
            outside: service
                .map(|service| service.outside.clone())
                .unwrap_or_default(),
            is_ready: self
                .stands(Part::Deployment, name)
                .is_some_and(|of| of.is_ready),
        }
    }

    fn stands(&self, part: Part, name: &Name) -> Option<&Standing> {
        self.standing.get(&(part, name.clone()))
    }
}

#[cfg(test)]
mod tests;
