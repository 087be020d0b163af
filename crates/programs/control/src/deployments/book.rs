//! Which waypoints there should be, and what stands of them. Pure: what watches see goes in, writes come out.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::Gateway;
use ambit_waypoint_objects::{self as waypoint, CONTROLLER, MANAGED, Settings, is_ours};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::status::{self, Verdict};

/// The field manager of everything that is written here.
pub(super) const MANAGER: &str = "ambit-waypoints";

/// One of the objects of a waypoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Part {
    ServiceAccount,
    Service,
    Deployment,
    DisruptionBudget,
}

impl Part {
    pub(super) const ALL: [Self; 4] = [
        Self::ServiceAccount,
        Self::Service,
        Self::Deployment,
        Self::DisruptionBudget,
    ];
}

/// Namespace and name: those of a Gateway and of all its objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
}

/// The class of waypoints, as it stands in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) controller: String,
    pub(super) is_accepted: bool,
}

/// An object that was made for a waypoint, as far as it matters here. What differs is looked at again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Standing {
    /// Who else applies it, if anybody does.
    pub(super) other: Option<String>,
    /// Counts changes of what is wished.
    pub(super) generation: Option<i64>,
    /// Its labels.
    pub(super) labels: BTreeMap<String, String>,
    /// Of a Deployment: whether the number of pods is still ours to say; scaling takes it over.
    pub(super) replicas_ours: bool,
    /// Of a Service: its addresses.
    pub(super) ips: Vec<String>,
    /// Of a Deployment: whether a pod is ready.
    pub(super) is_ready: bool,
}

impl Standing {
    /// What all kinds have.
    pub(super) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            other: other_manager(metadata),
            generation: metadata.generation,
            labels: metadata.labels.clone().unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// Who else than we applies the label that says that an object is a waypoint's.
fn other_manager(metadata: &ObjectMeta) -> Option<String> {
    let label = format!("f:{MANAGED}");
    let entries = metadata.managed_fields.iter().flatten();
    let mut others = entries.filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let labels = fields.and_then(|fields| fields.pointer("/f:metadata/f:labels"));
        entry.operation.as_deref() == Some("Apply")
            && entry.manager.as_deref() != Some(MANAGER)
            && labels.is_some_and(|labels| labels.get(&label).is_some())
    });
    others
        .next()
        .map(|entry| entry.manager.clone().unwrap_or_default())
}

/// Whether we said last how many pods a Deployment has.
pub(super) fn replicas_ours(metadata: &ObjectMeta) -> bool {
    let mut entries = metadata.managed_fields.iter().flatten();
    entries.any(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        entry.manager.as_deref() == Some(MANAGER)
            && fields.is_some_and(|fields| fields.pointer("/f:spec/f:replicas").is_some())
    })
}

/// What is to be done for a Gateway.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Plan {
    /// Write these. Those marked as new must not exist as objects of somebody else.
    Apply(Vec<Write>),
    /// Nothing; and what its status is to say.
    Refuse(Verdict),
}

/// One object to apply.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    pub(super) part: Part,
    pub(super) object: Value,
    pub(super) is_new: bool,
}

/// See the module above.
#[derive(Debug)]
pub(super) struct Book {
    settings: Settings,
    revision: String,
    class: Option<Class>,
    /// Labels of namespaces.
    namespaces: BTreeMap<Box<str>, BTreeMap<String, String>>,
    gateways: BTreeMap<Name, Gateway>,
    standing: BTreeMap<(Part, Name), Standing>,
    due: BTreeSet<Name>,
}

impl Book {
    pub(super) fn new(settings: Settings, revision: String) -> Self {
        Self {
            settings,
            revision,
            class: None,
            namespaces: BTreeMap::new(),
            gateways: BTreeMap::new(),
            standing: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    /// The class of waypoints is this, or is not there.
    pub(super) fn class(&mut self, class: Option<Class>) {
        if self.class != class {
            self.class = class;
            self.due = self.gateways.keys().cloned().collect();
        }
    }

    /// The class of waypoints as it stands.
    pub(super) fn known_class(&self) -> Option<&Class> {
        self.class.as_ref()
    }

    pub(super) fn namespace(&mut self, name: Box<str>, labels: Option<BTreeMap<String, String>>) {
        let inside = self.gateways.keys().filter(|key| key.namespace == name);
        self.due.extend(inside.cloned());
        match labels {
            Some(labels) => drop(self.namespaces.insert(name, labels)),
            None => drop(self.namespaces.remove(&name)),
        }
    }

    pub(super) fn gateway(&mut self, name: Name, gateway: Option<Gateway>) {
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

    pub(super) fn object(&mut self, part: Part, name: Name, standing: Option<Standing>) {
        let key = (part, name.clone());
        let before = match standing.clone() {
            Some(standing) => self.standing.insert(key, standing),
            None => self.standing.remove(&key),
        };
        if before != standing && self.gateways.contains_key(&name) {
            self.due.insert(name);
        }
    }

    /// The Gateways that are to be looked at; each is returned once.
    pub(super) fn take_due(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.due)
    }

    /// Look at a Gateway again.
    pub(super) fn again(&mut self, name: Name) {
        if self.gateways.contains_key(&name) {
            self.due.insert(name);
        }
    }

    /// What is to be done for a Gateway; nothing if it is not ours.
    pub(super) fn plan(&self, name: &Name) -> Option<Plan> {
        let gateway = self.gateways.get(name)?;
        let none = BTreeMap::new();
        let namespace = self.namespaces.get(&name.namespace).unwrap_or(&none);
        let class = self.class.as_ref()?;
        if class.controller != CONTROLLER || !is_ours(gateway, namespace, &self.revision) {
            return None;
        }
        let parts = || Part::ALL.into_iter();
        let others = parts().filter_map(|part| self.stands(part, name)?.other.clone());
        if let Some(other) = others.into_iter().next() {
            return Some(Plan::Refuse(Verdict::Other(other)));
        }
        let objects = match waypoint::objects(gateway, &self.settings) {
            Ok(objects) => objects,
            Err(why) => return Some(Plan::Refuse(Verdict::Unusable(why))),
        };
        let all = objects.all().into_iter().cloned();
        let mut writes: Vec<_> = parts()
            .zip(all)
            .map(|(part, object)| Write {
                part,
                object,
                is_new: self.stands(part, name).is_none(),
            })
            .collect();
        let deployment = self.stands(Part::Deployment, name);
        let is_scaled = deployment.is_some_and(|standing| !standing.replicas_ours);
        if is_scaled && !waypoint::says_replicas(gateway) {
            for write in writes
                .iter_mut()
                .filter(|write| write.part == Part::Deployment)
            {
                let spec = write.object.get_mut("spec").and_then(Value::as_object_mut);
                drop(spec.and_then(|spec| spec.remove("replicas")));
            }
        }
        Some(Plan::Apply(writes))
    }

    /// What a Gateway's status is to say; nothing if it says so.
    pub(super) fn status(&self, name: &Name, verdict: &Verdict) -> Option<Value> {
        let gateway = self.gateways.get(name)?;
        status::differing(gateway, verdict)
    }

    /// How far the waypoint is whose objects are written.
    pub(super) fn progress(&self, name: &Name) -> Verdict {
        let service = self.stands(Part::Service, name);
        Verdict::Made {
            hostname: format!(
                "{}.{}.svc.{}",
                name.name, name.namespace, self.settings.cluster_domain
            ),
            ips: service
                .map(|service| service.ips.clone())
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
