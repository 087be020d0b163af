//! The objects that Gateways of the manifests are served by, as the control plane makes them on a cluster.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{Gateway, Kind, Object, ObjectKey};
use ambit_waypoint_objects::{self as waypoint, Settings, is_ours};
use serde_json::Value;

/// The revision of the lab's control plane.
const REVISION: &str = "default";

/// What is made for Gateways.
pub(super) struct Waypoints {
    settings: Option<Settings>,
    /// The objects.
    pub(super) made: BTreeMap<ObjectKey, Made>,
    /// The Gateways that have a waypoint.
    pub(super) gateways: BTreeSet<ObjectKey>,
    /// Gateways that have none, and why.
    pub(super) problems: BTreeMap<ObjectKey, String>,
}

/// One object.
pub(super) struct Made {
    pub(super) object: Object,
    /// The same as a manifest.
    pub(super) manifest: Value,
}

impl Waypoints {
    pub(super) fn new(settings: Option<Settings>) -> Self {
        Self {
            settings,
            made: BTreeMap::new(),
            gateways: BTreeSet::new(),
            problems: BTreeMap::new(),
        }
    }

    /// The name of a Gateway's service.
    pub(super) fn host(&self, gateway: &ObjectKey) -> String {
        let settings = self.settings.as_ref();
        let domain = settings.map_or("", |settings| settings.cluster_domain.as_str());
        format!("{}.{}.svc.{domain}", gateway.name, gateway.namespace)
    }

    /// Makes everything anew from what the manifests say.
    pub(super) fn follow(&mut self, objects: &BTreeMap<ObjectKey, Object>) {
        self.made.clear();
        self.gateways.clear();
        self.problems.clear();
        let Some(settings) = self.settings.clone() else {
            return;
        };
        for (key, object) in objects {
            let Object::Gateway(gateway) = object else {
                continue;
            };
            if !is_ours(gateway, &namespace_labels(objects, key), REVISION) {
                continue;
            }
            match make(gateway, &settings, objects) {
                Ok(made) => {
                    self.made.extend(made);
                    self.gateways.insert(key.clone());
                }
                Err(why) => drop(self.problems.insert(key.clone(), why)),
            }
        }
    }
}

fn make(
    gateway: &Gateway,
    settings: &Settings,
    objects: &BTreeMap<ObjectKey, Object>,
) -> Result<Vec<(ObjectKey, Made)>, String> {
    let manifests = waypoint::objects(gateway, settings).map_err(|error| error.to_string())?;
    let mut made = Vec::new();
    // The others are for what a lab has not: evictions.
    for (kind, manifest) in [
        (Kind::ServiceAccount, manifests.service_account),
        (Kind::Service, manifests.service),
        (Kind::Deployment, manifests.deployment),
    ] {
        let object = Object::from_value(kind, &manifest).map_err(|error| error.to_string())?;
        let key = object.key();
        if objects.contains_key(&key) {
            return Err(format!(
                "there is a {key} in the manifests already: rename the Gateway or that object"
            ));
        }
        made.push((key, Made { object, manifest }));
    }
    Ok(made)
}

fn namespace_labels(
    objects: &BTreeMap<ObjectKey, Object>,
    of: &ObjectKey,
) -> BTreeMap<String, String> {
    let namespace = objects.get(&ObjectKey::new(Kind::Namespace, "", of.namespace.clone()));
    let labels = namespace.and_then(|namespace| namespace.metadata().labels.clone());
    labels.unwrap_or_default()
}
