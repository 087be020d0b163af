//! References to Kubernetes objects, and the order in which objects are applied.

use std::fmt;

use kube::{
    Resource,
    core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta, TypeMeta},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Reference to an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// API version, such as `apps/v1`.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Namespace; `None` for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

impl ObjectRef {
    /// Returns the reference to an object; `None` if it has no kind or name.
    pub fn from_object(object: &Value) -> Option<Self> {
        let PartialObjectMeta::<DynamicObject> {
            types, metadata, ..
        } = PartialObjectMeta::deserialize(object).ok()?;
        let TypeMeta { api_version, kind } = types?;
        Some(Self {
            api_version,
            kind,
            namespace: metadata.namespace,
            name: metadata.name?,
        })
    }

    /// Returns a reference to an object of a typed kind.
    pub fn for_kind<K: k8s_openapi::Resource>(namespace: Option<&str>, name: &str) -> Self {
        Self {
            api_version: K::API_VERSION.to_owned(),
            kind: K::KIND.to_owned(),
            namespace: namespace.map(ToOwned::to_owned),
            name: name.to_owned(),
        }
    }

    /// Returns whether both references name the same object, regardless of the API version.
    pub fn is_same_object(&self, other: &Self) -> bool {
        (&self.kind, &self.namespace, &self.name, self.group())
            == (&other.kind, &other.namespace, &other.name, other.group())
    }

    /// Returns the API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version
            .rsplit_once('/')
            .map_or("", |(group, _)| group)
    }

    /// Returns the API resource of the object's kind.
    pub fn resource(&self) -> ApiResource {
        let version = self
            .api_version
            .rsplit_once('/')
            .map_or(self.api_version.as_str(), |(_, version)| version);
        ApiResource::from_gvk(&GroupVersionKind::gvk(self.group(), version, &self.kind))
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// Returns an object's name; empty if it has none yet.
pub fn name(object: &impl Resource) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// Returns an object's namespace; empty if it has none.
pub fn namespace_of(object: &impl Resource) -> &str {
    object.meta().namespace.as_deref().unwrap_or_default()
}

/// Returns the value of a label, if the object has it.
pub fn label<'a>(object: &'a impl Resource, key: &str) -> Option<&'a str> {
    let labels = object.meta().labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

/// Returns the value of an annotation, if the object has it.
pub fn annotation<'a>(object: &'a impl Resource, key: &str) -> Option<&'a str> {
    let annotations = object.meta().annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// Returns whether the object belongs to Ambit, by the label `app.kubernetes.io/part-of`, which has another value in
/// Istio's objects.
pub fn is_managed_by_ambit(object: &impl Resource) -> bool {
    label(object, "app.kubernetes.io/part-of") == Some("ambit")
}

/// Returns whether the object is a Helm hook, which Helm creates only for a step of an installation.
pub fn is_helm_hook(object: &Value) -> bool {
    let object = PartialObjectMeta::<DynamicObject>::deserialize(object);
    object.is_ok_and(|object| annotation(&object, "helm.sh/hook").is_some())
}

/// Returns the kind of an object; empty if it has none.
pub fn kind(object: &Value) -> String {
    TypeMeta::deserialize(object).unwrap_or_default().kind
}

/// Returns the position of a kind in the order of applying, in which dependencies come first.
pub fn install_rank(kind: &str) -> usize {
    const INSTALL_ORDER: &[&str] = &[
        "Namespace",
        "CustomResourceDefinition",
        "ResourceQuota",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "Secret",
        "ConfigMap",
        "NetworkPolicy",
        "Service",
        "PodDisruptionBudget",
        "Deployment",
        "DaemonSet",
    ];
    INSTALL_ORDER
        .iter()
        .position(|known| *known == kind)
        .unwrap_or(INSTALL_ORDER.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn object_refs_are_displayed_by_kind_and_name() {
        let object = json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "a", "namespace": "b"}});
        let name = ObjectRef::from_object(&object).unwrap();
        assert_eq!(name.to_string(), "DaemonSet b/a");
        assert_eq!(
            (name.group(), name.resource().plural.as_str()),
            ("apps", "daemonsets")
        );
        let core = ObjectRef::from_object(&json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "a"}}));
        assert_eq!(core.unwrap().to_string(), "Namespace a");
        let policy = ObjectRef {
            api_version: "networking.k8s.io/v1".into(),
            kind: "NetworkPolicy".into(),
            ..name.clone()
        };
        assert_eq!(policy.resource().plural, "networkpolicies");
        assert!(name.is_same_object(&ObjectRef {
            api_version: "apps/v1beta1".into(),
            ..name.clone()
        }));
        assert!(!name.is_same_object(&ObjectRef {
            api_version: "v1".into(),
            ..name.clone()
        }));
        assert_eq!(ObjectRef::from_object(&json!({"kind": "x"})), None);
    }
}
