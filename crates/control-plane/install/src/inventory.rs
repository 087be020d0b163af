//! Inventory of applied objects, stored in the cluster: an upgrade removes objects that are no
//! longer in the chart, and an uninstallation removes exactly the applied ones.

use ambit_k8s_api::revisions;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    object::{ObjectRef, install_rank},
    values,
};

/// Name of the ConfigMap with the default revision's inventory.
const CONFIG_MAP_NAME: &str = "ambit-inventory";

/// Key of the inventory in the ConfigMap.
const CONFIG_MAP_KEY: &str = "inventory.json";

/// Objects and values of an installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// Version of the mesh.
    pub version: String,
    /// Values that the user set.
    pub values: Value,
    /// Revision of the control plane; each has its own inventory.
    #[serde(default = "default_revision")]
    pub revision: String,
    /// Whether the installation created the mesh's namespace.
    pub made_namespace: bool,
    /// CRDs that the installation created.
    pub crds: Vec<ObjectRef>,
    /// Applied objects other than CRDs.
    pub objects: Vec<ObjectRef>,
}

/// Error of reading the inventory from its ConfigMap; without a cause if the key is missing.
#[derive(Debug, thiserror::Error)]
#[error("the ConfigMap with the inventory of the installation cannot be read")]
pub struct InventoryError(#[source] Option<serde_json::Error>);

fn default_revision() -> String {
    revisions::DEFAULT_REVISION.to_owned()
}

/// Returns the name of the ConfigMap with the inventory of a revision.
pub fn config_map_name(revision: &str) -> String {
    format!("{CONFIG_MAP_NAME}{}", revisions::name_suffix(revision))
}

impl Default for Inventory {
    fn default() -> Self {
        Self {
            version: String::new(),
            values: Value::Null,
            revision: default_revision(),
            made_namespace: false,
            crds: Vec::new(),
            objects: Vec::new(),
        }
    }
}

impl Inventory {
    /// Reads the inventory from its ConfigMap.
    ///
    /// # Errors
    ///
    /// When it was edited and is invalid.
    pub fn read(config_map: &ConfigMap) -> Result<Self, InventoryError> {
        let data = config_map.data.as_ref().ok_or(InventoryError(None))?;
        let text = data.get(CONFIG_MAP_KEY).ok_or(InventoryError(None))?;
        serde_json::from_str(text).map_err(|error| InventoryError(Some(error)))
    }

    /// Returns the platform that the user's values set; empty if they set none.
    pub fn platform(&self) -> &str {
        values::string_at(&self.values, &["global", "platform"]).unwrap_or_default()
    }

    /// Returns the ConfigMap that stores the inventory.
    pub fn config_map(&self, namespace: &str) -> Value {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": config_map_name(&self.revision),
                "namespace": namespace,
                "labels": labels(),
            },
            "data": { CONFIG_MAP_KEY: text },
        })
    }

    /// Returns whether the installation includes the node agents and node proxies, which capture pods.
    pub fn has_node_components(&self) -> bool {
        self.objects.iter().any(|object| object.kind == "DaemonSet")
    }

    /// Returns the objects of this inventory that are not in `next`, in the order of deletion.
    pub fn objects_to_prune(&self, next: &[ObjectRef]) -> Vec<ObjectRef> {
        let gone = self
            .objects
            .iter()
            .filter(|object| !next.iter().any(|other| other.is_same_object(object)));
        removal_order(gone.cloned().collect())
    }

    /// Returns the union of this inventory with `next`. It is stored during an upgrade, so that an interrupted upgrade
    /// can still be removed completely.
    #[must_use]
    pub fn with_objects(mut self, next: &[ObjectRef]) -> Self {
        for object in next {
            if !self
                .objects
                .iter()
                .any(|known| known.is_same_object(object))
            {
                self.objects.push(object.clone());
            }
        }
        self
    }
}

/// Returns the labels of objects that the command line creates without the chart.
pub fn labels() -> Value {
    json!({
        "app.kubernetes.io/part-of": "ambit",
        "app.kubernetes.io/managed-by": "ambit",
    })
}

/// Sorts objects so that dependents precede their dependencies. Node agents come first: they
/// unenrol the pods, which needs the node proxies.
pub fn removal_order(mut objects: Vec<ObjectRef>) -> Vec<ObjectRef> {
    objects.sort_by(|a, b| {
        install_rank(&b.kind)
            .cmp(&install_rank(&a.kind))
            .then_with(|| a.cmp(b))
    });
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str) -> ObjectRef {
        ObjectRef {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            namespace: Some("mesh".to_owned()),
            name: name.to_owned(),
        }
    }

    #[test]
    fn inventory_round_trips_through_its_configmap() {
        let inventory = Inventory {
            version: "1".to_owned(),
            values: json!({"a": 1}),
            revision: "canary".to_owned(),
            made_namespace: true,
            crds: vec![],
            objects: vec![object("Service", "a")],
        };
        let read = |map| Inventory::read(&serde_json::from_value(map).unwrap());
        let map = inventory.config_map("mesh");
        assert_eq!(map["metadata"]["name"], "ambit-inventory-canary");
        assert_eq!(read(map).unwrap(), inventory);
        let earlier =
            r#"{"version": "1", "values": {}, "madeNamespace": true, "crds": [], "objects": []}"#;
        let earlier = read(json!({"data": {"inventory.json": earlier}})).unwrap();
        assert_eq!(config_map_name(&earlier.revision), "ambit-inventory");
        assert!(read(json!({"data": {"inventory.json": "{"}})).is_err());
        assert!(read(json!({})).is_err());
    }

    #[test]
    fn removed_objects_are_pruned_dependents_first() {
        let old = Inventory {
            objects: vec![
                object("ServiceAccount", "a"),
                object("ConfigMap", "kept"),
                object("DaemonSet", "b"),
                object("Service", "c"),
            ],
            ..Inventory::default()
        };
        let next = [object("ConfigMap", "kept"), object("ConfigMap", "new")];
        let names: Vec<_> = old
            .objects_to_prune(&next)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            names,
            [
                "DaemonSet mesh/b",
                "Service mesh/c",
                "ServiceAccount mesh/a"
            ]
        );
        let both = old.with_objects(&next);
        assert_eq!(both.objects.len(), 5);
        assert_eq!(both.objects_to_prune(&both.objects), []);
    }

    #[test]
    fn agents_are_removed_before_proxies() {
        let order = removal_order(vec![
            object("Deployment", "ambit-control"),
            object("DaemonSet", "ztunnel"),
            object("DaemonSet", "ambit-agent"),
            object("Namespace", "mesh"),
        ]);
        let names: Vec<_> = order.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, ["ambit-agent", "ztunnel", "ambit-control", "mesh"]);
    }
}
