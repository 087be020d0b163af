//! Desired waypoints and their existing objects. Does no IO: takes observations, and returns writes.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{
    Gateway,
    revisions::{ControlPlane, Revisions},
    selector::{self, LabelSelector},
};
use ambit_waypoint_objects::{
    self as waypoint, CONTROLLER_NAME, ConfigMaps, GATEWAY_CLASS, MANAGED_LABEL, Parameters,
    Settings, WaypointObjectKind, is_deployed_automatically, is_managed_by_revision,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::{
    release::GatewayApiRelease,
    status::{self, DeploymentProgress, GatewayState},
};

/// Field manager of all writes of this crate, except for [`REPLICAS_FIELD_MANAGER`].
pub(crate) const FIELD_MANAGER: &str = "ambit-waypoints";
/// Field manager of a Deployment's `replicas` between the time when an autoscaler takes over and its first write: a
/// field without a manager would fall back to one pod.
pub(crate) const REPLICAS_FIELD_MANAGER: &str = "ambit-waypoint-replicas";

/// Namespace and name of a Gateway, and of all its objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GatewayName {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
}

/// GatewayClass `istio-waypoint`, as observed in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GatewayClassState {
    pub(crate) controller: String,
    /// Generation of the spec.
    pub(crate) generation: Option<i64>,
    /// Whether the class has the condition `Accepted` for this generation.
    pub(crate) is_accepted: bool,
    /// Release of the Gateway API that the class's status names.
    pub(crate) release: Option<GatewayApiRelease>,
}

/// Existing object of a waypoint, reduced to the fields that decide about writes. A change of any field except the
/// resource version causes another reconciliation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ExistingObject {
    /// Another field manager that applies the object, if there is one.
    pub(crate) other_manager: Option<String>,
    /// UID of the Gateway that owns the object, if we applied it.
    pub(crate) gateway_uid: Option<String>,
    /// UID of the object.
    pub(crate) uid: Option<String>,
    /// Generation of the spec.
    pub(crate) generation: Option<i64>,
    /// Resource version, which changes with every write, also of the status.
    pub(crate) resource_version: Option<String>,
    /// Labels of the object.
    pub(crate) labels: BTreeMap<String, String>,
    /// Whether our field manager owns a Deployment's `replicas`; an autoscaler or user that scales the Deployment takes
    /// the field over.
    pub(crate) owns_replicas: bool,
    /// Value of a Deployment's `replicas`.
    pub(crate) replicas: Option<i32>,
    /// Cluster IPs of a Service.
    pub(crate) ips: Vec<String>,
    /// Load balancer addresses in a Service's status.
    pub(crate) load_balancers: Vec<String>,
    /// Whether a Deployment has a ready pod.
    pub(crate) is_ready: bool,
}

impl ExistingObject {
    /// Returns the fields that objects of all kinds have.
    pub(crate) fn from_metadata(metadata: &ObjectMeta) -> Self {
        Self {
            other_manager: other_manager(metadata),
            gateway_uid: gateway_uid(metadata),
            uid: metadata.uid.clone(),
            generation: metadata.generation,
            resource_version: metadata.resource_version.clone(),
            labels: metadata.labels.clone().unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Returns whether nothing but the resource version differs from `before`.
    fn is_equivalent_to(&self, before: &Self) -> bool {
        let version = before.resource_version.clone();
        let of_that_version = Self {
            resource_version: version,
            ..self.clone()
        };
        of_that_version == *before
    }
}

/// Returns the field managers that own the label which marks an object as a waypoint's.
fn field_managers(metadata: &ObjectMeta) -> impl Iterator<Item = &str> {
    let label = format!("f:{MANAGED_LABEL}");
    let entries = metadata.managed_fields.iter().flatten();
    let appliers = entries.filter(move |entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let labels = fields.and_then(|fields| fields.pointer("/f:metadata/f:labels"));
        entry.operation.as_deref() == Some("Apply")
            && labels.is_some_and(|labels| labels.get(&label).is_some())
    });
    appliers.map(|entry| entry.manager.as_deref().unwrap_or_default())
}

/// Returns the field manager, other than [`FIELD_MANAGER`], that owns the label which marks an object as a waypoint's.
fn other_manager(metadata: &ObjectMeta) -> Option<String> {
    let other = field_managers(metadata).find(|manager| *manager != FIELD_MANAGER);
    other.map(str::to_owned)
}

/// Returns the UID of the Gateway that owns an object which this crate applied.
fn gateway_uid(metadata: &ObjectMeta) -> Option<String> {
    field_managers(metadata).find(|manager| *manager == FIELD_MANAGER)?;
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.kind == "Gateway")?;
    Some(owner.uid.clone())
}

/// Returns whether our field manager owns a Deployment's `replicas`.
pub(crate) fn owns_replicas(metadata: &ObjectMeta) -> bool {
    let mut entries = metadata.managed_fields.iter().flatten();
    entries.any(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        entry.manager.as_deref() == Some(FIELD_MANAGER)
            && fields.is_some_and(|fields| fields.pointer("/f:spec/f:replicas").is_some())
    })
}

/// Write that the GatewayClass of waypoints needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClassAction<'a> {
    /// Create the missing GatewayClass.
    Create,
    /// Write the status conditions of the GatewayClass for this generation: `Accepted`, and whether the release of the
    /// Gateway API is supported.
    Accept(&'a GatewayApiRelease, Option<i64>),
}

/// Planned writes for a Gateway and its objects.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeploymentPlan {
    /// Apply the objects of the first list, then delete those of the second. An object that is marked as new must not
    /// exist under another owner.
    Apply(Vec<ObjectWrite>, Vec<ObjectRemoval>),
    /// Write only the Gateway's status, with this state.
    WriteStatus(GatewayState),
    /// The Gateway is no longer a waypoint: delete its objects and our part of its status.
    Undeploy(Vec<ObjectRemoval>),
}

/// Deletion of one object of a waypoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRemoval {
    pub(crate) object_kind: WaypointObjectKind,
    /// UID of the observed object, so that no object which replaced it is deleted.
    pub(crate) uid: Option<String>,
}

/// Server-side apply of one object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObjectWrite {
    pub(crate) object_kind: WaypointObjectKind,
    pub(crate) object: Value,
    pub(crate) is_new: bool,
    /// Field manager of the write.
    pub(crate) manager: &'static str,
    /// Resource version that the object must still have when it is written; only for Deployments. A write that omits
    /// `replicas` would otherwise scale a Deployment to one pod if our field manager has become the field's owner, and
    /// a write with `replicas` would undo a later scaling.
    pub(crate) required_version: Option<String>,
}

/// Gateways and their objects, as observed in the cluster.
#[derive(Debug)]
pub(crate) struct GatewayTable {
    settings: Settings,
    revisions: Revisions,
    /// Namespace of the control planes, which discovery selectors cannot exclude.
    system_namespace: Box<str>,
    /// Discovery selectors, of which a namespace must match one.
    discovery_selectors: Vec<LabelSelector>,
    /// Release of the Gateway API's installed CRDs.
    gateway_api_release: GatewayApiRelease,
    class: Option<GatewayClassState>,
    /// Labels of each namespace.
    namespace_labels: BTreeMap<Box<str>, BTreeMap<String, String>>,
    /// Gateways of every class.
    gateways: BTreeMap<GatewayName, Gateway>,
    existing_objects: BTreeMap<(WaypointObjectKind, GatewayName), ExistingObject>,
    config_maps: ConfigMaps,
    due_gateways: BTreeSet<GatewayName>,
}

impl GatewayTable {
    pub(crate) fn new(
        settings: Settings,
        revision: &str,
        release: GatewayApiRelease,
        system_namespace: &str,
    ) -> Self {
        Self {
            settings,
            revisions: Revisions::new(revision),
            system_namespace: system_namespace.into(),
            discovery_selectors: Vec::new(),
            gateway_api_release: release,
            class: None,
            namespace_labels: BTreeMap::new(),
            gateways: BTreeMap::new(),
            existing_objects: BTreeMap::new(),
            config_maps: ConfigMaps::new(system_namespace),
            due_gateways: BTreeSet::new(),
        }
    }

    /// Updates the observed GatewayClass of waypoints; `None` if it does not exist.
    pub(crate) fn set_class(&mut self, class: Option<GatewayClassState>) {
        if self.class != class {
            self.class = class;
            self.due_gateways = self.gateways.keys().cloned().collect();
        }
    }

    /// Returns the write that the GatewayClass of waypoints needs, if any.
    pub(crate) fn class_action(&self) -> Option<ClassAction<'_>> {
        match &self.class {
            None => Some(ClassAction::Create),
            Some(class) if class.controller != CONTROLLER_NAME => None,
            Some(class) => {
                let says_so =
                    class.is_accepted && class.release.as_ref() == Some(&self.gateway_api_release);
                (!says_so).then_some(ClassAction::Accept(
                    &self.gateway_api_release,
                    class.generation,
                ))
            }
        }
    }

    /// Updates the observed Service of a control plane, which may now manage other Gateways.
    pub(crate) fn set_control_plane(&mut self, service: &str, of: Option<ControlPlane>) {
        if self.revisions.set_control_plane(service, of) {
            self.due_gateways = self.gateways.keys().cloned().collect();
        }
    }

    /// Sets the discovery selectors of namespaces.
    pub(crate) fn set_discovery_selectors(&mut self, selectors: Vec<LabelSelector>) {
        if self.discovery_selectors != selectors {
            self.discovery_selectors = selectors;
            self.due_gateways = self.gateways.keys().cloned().collect();
        }
    }

    pub(crate) fn set_namespace(
        &mut self,
        name: Box<str>,
        labels: Option<BTreeMap<String, String>>,
    ) {
        let inside = self.gateways.keys().filter(|key| key.namespace == name);
        self.due_gateways.extend(inside.cloned());
        match labels {
            Some(labels) => drop(self.namespace_labels.insert(name, labels)),
            None => drop(self.namespace_labels.remove(&name)),
        }
    }

    pub(crate) fn set_gateway(&mut self, name: GatewayName, gateway: Option<Gateway>) {
        match gateway {
            Some(gateway) => {
                self.due_gateways.insert(name.clone());
                self.gateways.insert(name, gateway);
            }
            None => {
                self.due_gateways.remove(&name);
                self.gateways.remove(&name);
            }
        }
    }

    pub(crate) fn set_config_map(&mut self, map: &GatewayName, parameters: Option<Parameters>) {
        let concerns_all = self.config_maps.set(&map.namespace, &map.name, parameters);
        let concerned = self.gateways.iter().filter(|(_, gateway)| {
            concerns_all || waypoint::references_config_map(gateway, &map.namespace, &map.name)
        });
        self.due_gateways
            .extend(concerned.map(|(name, _)| name.clone()));
    }

    pub(crate) fn set_object(
        &mut self,
        part: WaypointObjectKind,
        name: GatewayName,
        existing: Option<ExistingObject>,
    ) {
        let key = (part, name.clone());
        let before = match existing.clone() {
            Some(existing) => self.existing_objects.insert(key, existing),
            None => self.existing_objects.remove(&key),
        };
        let is_same = match (&before, &existing) {
            (Some(before), Some(now)) => now.is_equivalent_to(before),
            (before, now) => before.is_none() && now.is_none(),
        };
        if !is_same && self.gateways.contains_key(&name) {
            self.due_gateways.insert(name);
        }
    }

    /// Takes the Gateways that are due for reconciliation; each is returned once.
    pub(crate) fn take_due_gateways(&mut self) -> BTreeSet<GatewayName> {
        std::mem::take(&mut self.due_gateways)
    }

    /// Schedules a further reconciliation of a Gateway.
    pub(crate) fn requeue(&mut self, name: GatewayName) {
        if self.gateways.contains_key(&name) {
            self.due_gateways.insert(name);
        }
    }

    /// Plans the writes for a Gateway; `None` if another control plane manages the Gateway, and with it the objects.
    pub(crate) fn plan(&self, name: &GatewayName) -> Option<DeploymentPlan> {
        let gateway = self.gateways.get(name)?;
        let none = BTreeMap::new();
        let namespace = self.namespace_labels.get(&name.namespace).unwrap_or(&none);
        let is_discovered = name.namespace == self.system_namespace
            || selector::selects_namespace(&self.discovery_selectors, &name.namespace, namespace);
        if !is_discovered || !is_managed_by_revision(gateway, namespace, &self.revisions) {
            return None;
        }
        if gateway.spec.gateway_class_name != GATEWAY_CLASS {
            return self.undeploy_plan(name, gateway);
        }
        let class = self.class.as_ref()?;
        if class.controller != CONTROLLER_NAME || !is_deployed_automatically(gateway) {
            return None;
        }
        let parts = || WaypointObjectKind::ALL.into_iter();
        let others =
            parts().filter_map(|part| self.existing_object(part, name)?.other_manager.clone());
        if let Some(other) = others.into_iter().next() {
            return Some(DeploymentPlan::WriteStatus(GatewayState::ManagedByOther(
                other,
            )));
        }
        let objects = match waypoint::build_objects(gateway, &self.settings, &self.config_maps) {
            Ok(objects) => objects,
            Err(why) => {
                // Existing objects stay.
                let existing_object =
                    self.is_owned_by_gateway(WaypointObjectKind::Deployment, name, gateway);
                let progress = existing_object.then(|| self.progress(name));
                return Some(DeploymentPlan::WriteStatus(GatewayState::Invalid(
                    why, progress,
                )));
            }
        };
        let mut writes = Vec::new();
        if objects.autoscaler.is_some() {
            writes.extend(self.replicas_handover_write(name));
        }
        writes.extend(objects.all().into_iter().map(|(part, object)| ObjectWrite {
            object_kind: part,
            object: object.clone(),
            is_new: self.existing_object(part, name).is_none(),
            manager: FIELD_MANAGER,
            required_version: self.required_version(part, name),
        }));
        let unwanted =
            |part: &WaypointObjectKind| !objects.all().iter().any(|(wanted, _)| wanted == part);
        let removals = self.object_removals(name, gateway, unwanted);
        let was_autoscaled = removals
            .iter()
            .any(|of| of.object_kind == WaypointObjectKind::Autoscaler);
        let deployment = self.existing_object(WaypointObjectKind::Deployment, name);
        let is_scaled = deployment.is_some_and(|existing| !existing.owns_replicas);
        if is_scaled && !was_autoscaled && !objects.sets_replicas {
            for write in writes
                .iter_mut()
                .filter(|write| write.object_kind == WaypointObjectKind::Deployment)
            {
                let spec = write.object.get_mut("spec").and_then(Value::as_object_mut);
                drop(spec.and_then(|spec| spec.remove("replicas")));
            }
        }
        Some(DeploymentPlan::Apply(writes, removals))
    }

    /// Returns the write that hands the current `replicas` of a Deployment to [`REPLICAS_FIELD_MANAGER`], if necessary.
    fn replicas_handover_write(&self, name: &GatewayName) -> Option<ObjectWrite> {
        let existing = self.existing_object(WaypointObjectKind::Deployment, name)?;
        let replicas = existing.replicas.filter(|_| existing.owns_replicas)?;
        let part = WaypointObjectKind::Deployment;
        Some(ObjectWrite {
            object_kind: part,
            object: json!({
                "apiVersion": part.api_version(),
                "kind": part.kind(),
                "metadata": {"name": &*name.name, "namespace": &*name.namespace},
                "spec": {"replicas": replicas},
            }),
            is_new: false,
            manager: REPLICAS_FIELD_MANAGER,
            required_version: self.required_version(part, name),
        })
    }

    /// Returns the resource version that a write of a Deployment requires; `None` for other kinds of objects.
    fn required_version(&self, part: WaypointObjectKind, name: &GatewayName) -> Option<String> {
        let existing = self.existing_object(part, name)?;
        let version = existing.resource_version.clone();
        version.filter(|_| part == WaypointObjectKind::Deployment)
    }

    /// Plans the removal of the objects of a Gateway that was a waypoint and now has another class.
    fn undeploy_plan(&self, name: &GatewayName, gateway: &Gateway) -> Option<DeploymentPlan> {
        let removals = self.object_removals(name, gateway, |_| true);
        (!removals.is_empty()).then_some(DeploymentPlan::Undeploy(removals))
    }

    /// Returns deletions of a Gateway's objects, of those kinds that `parts` selects.
    fn object_removals(
        &self,
        name: &GatewayName,
        gateway: &Gateway,
        parts: impl Fn(&WaypointObjectKind) -> bool,
    ) -> Vec<ObjectRemoval> {
        let of_it = WaypointObjectKind::ALL.into_iter().filter(parts);
        let of_it = of_it.filter(|part| self.is_owned_by_gateway(*part, name, gateway));
        let removal = |part| {
            let uid = self.existing_object(part, name)?.uid.clone();
            Some(ObjectRemoval {
                object_kind: part,
                uid,
            })
        };
        of_it.filter_map(removal).collect()
    }

    /// Returns whether this crate created an object for exactly this Gateway, by the Gateway's UID.
    fn is_owned_by_gateway(
        &self,
        part: WaypointObjectKind,
        name: &GatewayName,
        gateway: &Gateway,
    ) -> bool {
        let gateway_uid = self
            .existing_object(part, name)
            .and_then(|of| of.gateway_uid.as_deref());
        gateway_uid.is_some() && gateway_uid == gateway.metadata.uid.as_deref()
    }

    /// Returns the desired status of a Gateway; `None` if the Gateway has it already.
    pub(crate) fn status(&self, name: &GatewayName, state: &GatewayState) -> Option<Value> {
        let gateway = self.gateways.get(name)?;
        status::status_patch(gateway, state)
    }

    /// Returns the deployment progress of a waypoint whose objects are written.
    pub(crate) fn progress(&self, name: &GatewayName) -> DeploymentProgress {
        let service = self.existing_object(WaypointObjectKind::Service, name);
        DeploymentProgress {
            hostname: format!(
                "{}.{}.svc.{}",
                name.name, name.namespace, self.settings.cluster_domain
            ),
            ips: service
                .map(|service| service.ips.clone())
                .unwrap_or_default(),
            load_balancers: service
                .map(|service| service.load_balancers.clone())
                .unwrap_or_default(),
            is_ready: self
                .existing_object(WaypointObjectKind::Deployment, name)
                .is_some_and(|of| of.is_ready),
        }
    }

    fn existing_object(
        &self,
        part: WaypointObjectKind,
        name: &GatewayName,
    ) -> Option<&ExistingObject> {
        self.existing_objects.get(&(part, name.clone()))
    }
}

#[cfg(test)]
mod tests;
