//! What was applied, kept in the cluster itself: an upgrade takes away what it no longer has, and an
//! uninstallation takes away exactly what there is.

use ambit_k8s_api::revisions;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    object::{ObjectRef, rank},
    values,
};

/// Name of the ConfigMap that holds the default revision's.
const NAME: &str = "ambit-inventory";

/// Its entry there.
const KEY: &str = "inventory.json";

/// Objects and settings of an installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// Version of the mesh.
    pub version: String,
    /// Values that the user set.
    pub values: Value,
    /// Revision of the control plane; each has an inventory.
    #[serde(default = "default_revision")]
    pub revision: String,
    /// Whether the namespace was made by the installation.
    pub made_namespace: bool,
    /// Definitions that the installation made.
    pub crds: Vec<ObjectRef>,
    /// All other objects.
    pub objects: Vec<ObjectRef>,
}

/// An inventory that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the ConfigMap with the inventory of the installation cannot be read")]
pub struct InventoryError(#[source] Option<serde_json::Error>);

fn default_revision() -> String {
    revisions::DEFAULT.to_owned()
}

/// Name of the ConfigMap that holds the inventory of a revision.
pub fn name(revision: &str) -> String {
    format!("{NAME}{}", revisions::suffix(revision))
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
    /// Reads it from its ConfigMap.
    ///
    /// # Errors
    /// When it has changed meanwhile.
    pub fn read(config_map: &ConfigMap) -> Result<Self, InventoryError> {
        let data = config_map.data.as_ref().ok_or(InventoryError(None))?;
        let text = data.get(KEY).ok_or(InventoryError(None))?;
        serde_json::from_str(text).map_err(|error| InventoryError(Some(error)))
    }

    /// The platform that the user chose; empty for none.
    pub fn platform(&self) -> &str {
        values::text(&self.values, &["global", "platform"]).unwrap_or_default()
    }

    /// ConfigMap that keeps the inventory.
    pub fn config_map(&self, namespace: &str) -> Value {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name(&self.revision),
                "namespace": namespace,
                "labels": labels(),
            },
            "data": { KEY: text },
        })
    }

    /// Whether the installation has the parts on nodes, which capture pods.
    pub fn has_node_parts(&self) -> bool {
        self.objects.iter().any(|object| object.kind == "DaemonSet")
    }

    /// Objects that this one has and `next` has not, in the order in which to delete.
    pub fn pruned(&self, next: &[ObjectRef]) -> Vec<ObjectRef> {
        let gone = self
            .objects
            .iter()
            .filter(|object| !next.iter().any(|other| other.same(object)));
        removal_order(gone.cloned().collect())
    }

    /// With the objects of both: what holds during an upgrade, so that one that fails
    /// half way can still be taken away whole.
    #[must_use]
    pub fn with(mut self, next: &[ObjectRef]) -> Self {
        for object in next {
            if !self.objects.iter().any(|known| known.same(object)) {
                self.objects.push(object.clone());
            }
        }
        self
    }
}

/// Labels of what the command line makes besides the chart.
pub fn labels() -> Value {
    json!({
        "app.kubernetes.io/part-of": "ambit",
        "app.kubernetes.io/managed-by": "ambit",
    })
}

/// Sorts objects so that those that depend on others go before them. The node agents go first of all: they unenrol the
/// pods, which needs the node proxies.
pub fn removal_order(mut objects: Vec<ObjectRef>) -> Vec<ObjectRef> {
    objects.sort_by(|a, b| rank(&b.kind).cmp(&rank(&a.kind)).then_with(|| a.cmp(b)));
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
    fn an_inventory_survives_its_configmap() {
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
        assert_eq!(name(&earlier.revision), "ambit-inventory");
        assert!(read(json!({"data": {"inventory.json": "{"}})).is_err());
        assert!(read(json!({})).is_err());
    }

    #[test]
    fn what_is_no_longer_wanted_is_pruned_dependents_first() {
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
        let names: Vec<_> = old.pruned(&next).iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "DaemonSet mesh/b",
                "Service mesh/c",
                "ServiceAccount mesh/a"
            ]
        );
        let both = old.with(&next);
        assert_eq!(both.objects.len(), 5);
        assert_eq!(both.pruned(&both.objects), []);
    }

    #[test]
    fn agents_go_before_proxies() {
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
