//! Generates the objects of waypoints for Gateways of the manifests, as the control plane does on a cluster.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{
    Gateway, Kind, Object, ObjectKey,
    revisions::{self, Revisions},
};
use ambit_waypoint_objects::{
    self as waypoint, ConfigMaps, Parameters, Settings, is_deployed_automatically,
    is_managed_by_revision,
};
use serde_json::{Value, json};

/// Namespace of the mesh's own components.
pub(crate) const SYSTEM_NAMESPACE: &str = "istio-system";

/// Waypoints that are generated for the Gateways of the manifests.
pub(super) struct Waypoints {
    settings: Option<Settings>,
    /// Generated objects of all waypoints.
    pub(super) generated: BTreeMap<ObjectKey, GeneratedObject>,
    /// Gateways for which a waypoint is generated.
    pub(super) gateways: BTreeSet<ObjectKey>,
    /// Gateways whose current spec cannot have a waypoint, with the reason. Some keep the waypoint of an earlier spec.
    pub(super) problems: BTreeMap<ObjectKey, GatewayProblem>,
    /// Gateways that request an autoscaler, which a lab does not have.
    pub(super) with_autoscaler: BTreeSet<ObjectKey>,
}

/// Reason why a Gateway cannot have a waypoint.
pub(super) struct GatewayProblem {
    /// Reason for the status condition, such as `Invalid`.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Object that is generated for a Gateway, such as a Deployment.
#[derive(Clone)]
pub(super) struct GeneratedObject {
    /// Key of the Gateway for which the object was generated.
    gateway: ObjectKey,
    pub(super) object: Object,
    /// JSON of the generated object, as the lab writes it.
    pub(super) manifest: Value,
}

impl Waypoints {
    pub(super) fn new(settings: Option<Settings>) -> Self {
        Self {
            settings,
            generated: BTreeMap::new(),
            gateways: BTreeSet::new(),
            problems: BTreeMap::new(),
            with_autoscaler: BTreeSet::new(),
        }
    }

    /// Returns the host name of a Gateway's service.
    pub(super) fn service_host(&self, gateway: &ObjectKey) -> String {
        let settings = self.settings.as_ref();
        let domain = settings.map_or("", |settings| settings.cluster_domain.as_str());
        format!("{}.{}.svc.{domain}", gateway.name, gateway.namespace)
    }

    /// Generates the objects of all waypoints again, from the current objects of the manifests.
    pub(super) fn regenerate(&mut self, objects: &BTreeMap<ObjectKey, Object>) {
        let before = std::mem::take(&mut self.generated);
        self.gateways.clear();
        self.problems.clear();
        let were_autoscaled = std::mem::take(&mut self.with_autoscaler);
        let Some(settings) = self.settings.clone() else {
            return;
        };
        let maps = config_maps(objects);
        let revisions = Revisions::new(revisions::DEFAULT_REVISION);
        for (key, object) in objects {
            let Object::Gateway(gateway) = object else {
                continue;
            };
            let labels = namespace_labels(objects, key);
            if !is_deployed_automatically(gateway)
                || !is_managed_by_revision(gateway, &labels, &revisions)
            {
                continue;
            }
            match generate_waypoint(gateway, &settings, &maps, objects) {
                Ok(Waypoint {
                    objects,
                    is_autoscaled,
                }) => {
                    self.generated.extend(objects);
                    self.gateways.insert(key.clone());
                    if is_autoscaled {
                        self.with_autoscaler.insert(key.clone());
                    }
                }
                Err(problem) => {
                    // What was made before stays, unless the manifests bring their own now.
                    let of_it = before.iter().filter(|(_, made)| made.gateway == *key);
                    let of_it: Vec<_> = of_it.collect();
                    let is_free = of_it.iter().all(|(name, _)| !objects.contains_key(*name));
                    if is_free && !of_it.is_empty() {
                        let of_it = of_it.into_iter();
                        self.generated
                            .extend(of_it.map(|(name, made)| (name.clone(), made.clone())));
                        self.gateways.insert(key.clone());
                        if were_autoscaled.contains(key) {
                            self.with_autoscaler.insert(key.clone());
                        }
                    }
                    self.problems.insert(key.clone(), problem);
                }
            }
        }
    }
}

/// Collects the ConfigMaps of the manifests, which hold parameters of Gateways.
fn config_maps(objects: &BTreeMap<ObjectKey, Object>) -> ConfigMaps {
    let mut maps = ConfigMaps::new(SYSTEM_NAMESPACE);
    for (key, object) in objects {
        if let Object::ConfigMap(map) = object {
            maps.set(
                &key.namespace,
                &key.name,
                Some(Parameters::from_config_map(map)),
            );
        }
    }
    maps
}

/// Objects that are generated for one Gateway.
struct Waypoint {
    objects: Vec<(ObjectKey, GeneratedObject)>,
    is_autoscaled: bool,
}

fn generate_waypoint(
    gateway: &Gateway,
    settings: &Settings,
    maps: &ConfigMaps,
    objects: &BTreeMap<ObjectKey, Object>,
) -> Result<Waypoint, GatewayProblem> {
    let manifests =
        waypoint::build_objects(gateway, settings, maps).map_err(|error| GatewayProblem {
            reason: error.reason(),
            message: error.to_string(),
        })?;
    let invalid = |why: String| GatewayProblem {
        reason: "Invalid",
        message: why,
    };
    let mut deployment = manifests.deployment;
    if let Some(scaler) = &manifests.autoscaler {
        let least = scaler.pointer("/spec/minReplicas").cloned();
        json_patch::merge(
            &mut deployment,
            &json!({"spec": {"replicas": least.unwrap_or_else(|| 1.into())}}),
        );
    }
    let mut made = Vec::new();
    // The others are for what a lab has not: evictions and autoscalers.
    for (kind, manifest) in [
        (Kind::ServiceAccount, manifests.service_account),
        (Kind::Service, manifests.service),
        (Kind::Deployment, deployment),
    ] {
        let object =
            Object::from_value(kind, &manifest).map_err(|error| invalid(error.to_string()))?;
        let key = object.key();
        if objects.contains_key(&key) {
            return Err(invalid(format!(
                "there is a {key} in the manifests already: rename the Gateway or that object"
            )));
        }
        let gateway = ObjectKey::new(
            Kind::Gateway,
            key.namespace.clone(),
            gateway.metadata.name.as_deref().unwrap_or_default(),
        );
        let made_for_it = GeneratedObject {
            gateway,
            object,
            manifest,
        };
        made.push((key, made_for_it));
    }
    Ok(Waypoint {
        objects: made,
        is_autoscaled: manifests.autoscaler.is_some(),
    })
}

fn namespace_labels(
    objects: &BTreeMap<ObjectKey, Object>,
    of: &ObjectKey,
) -> BTreeMap<String, String> {
    let namespace = objects.get(&ObjectKey::new(Kind::Namespace, "", of.namespace.clone()));
    let labels = namespace.and_then(|namespace| namespace.metadata().labels.clone());
    labels.unwrap_or_default()
}
