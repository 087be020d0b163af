//! Object of any kind that the mesh reads, and its key.

use std::{fmt, sync::Arc};

use arcstr::ArcStr;
use k8s_openapi::{Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    AuthorizationPolicy, BackendTLSPolicy, ConfigMap, Deployment, DestinationRule, EndpointSlice,
    EnvoyFilter, GRPCRoute, Gateway, GatewayClass, HTTPFault, HTTPRoute, Namespace, Node,
    PeerAuthentication, Pod, RateLimit, ReferenceGrant, RequestAuthentication, Secret, Service,
    ServiceAccount, ServiceEntry, Status, TCPRoute, TLSRoute, Telemetry, VirtualService,
    WasmPlugin, WorkloadEntry,
};

/// Default namespace of namespaced objects.
const DEFAULT_NAMESPACE: ArcStr = arcstr::literal!("default");

/// Lists every kind of object that the mesh reads, in the order of the initial sync. Invokes the given macro with the
/// type, whether the kind is namespaced, its `Definition`, and a description. This list generates all code by kind.
#[macro_export]
macro_rules! for_each_kind {
    ($then:ident) => {
        $then! {
            Namespace, false, BuiltIn, "A namespace.";
            Node, false, BuiltIn, "A node.";
            ServiceAccount, true, BuiltIn, "A service account.";
            ConfigMap, true, BuiltIn, "Settings of the mesh, and overlays of a waypoint's objects.";
            Secret, true, BuiltIn, "Credentials of the registries that modules of plugins come from.";
            Pod, true, BuiltIn, "A pod.";
            Deployment, true, BuiltIn, "A deployment (expanded to pods by the lab or by Kubernetes).";
            Service, true, BuiltIn, "A service.";
            EndpointSlice, true, BuiltIn, "Endpoints of a service.";
            ServiceEntry, true, Custom, "A service outside Kubernetes.";
            WorkloadEntry, true, Custom, "A workload outside Kubernetes.";
            GatewayClass, false, Custom, "Who takes care of gateways.";
            Gateway, true, Custom, "A waypoint, if its class is one of waypoints.";
            ReferenceGrant, true, Custom, "Permitted references from other namespaces to its own.";
            RateLimit, true, Custom, "How many requests waypoints let pass.";
            HTTPFault, true, Custom, "Faults that rules of routes inject.";
            HTTPRoute, true, Custom, "Where requests to a service go.";
            DestinationRule, true, Custom, "How backends are called.";
            BackendTLSPolicy, true, Custom, "TLS with backends.";
            GRPCRoute, true, Custom, "Where gRPC requests to a service go.";
            TLSRoute, true, Custom, "Where TLS connections to a service go.";
            TCPRoute, true, Custom, "Where connections to a service go.";
            VirtualService, true, Custom, "Routes of Istio's own API.";
            AuthorizationPolicy, true, Custom, "Allowed and denied callers of workloads.";
            PeerAuthentication, true, Custom, "Whether plaintext is accepted.";
            RequestAuthentication, true, Custom, "Who requests come from, by JSON web tokens.";
            Telemetry, true, Custom, "What is measured, logged and traced.";
            WasmPlugin, true, Custom, "Code that runs in waypoints.";
            EnvoyFilter, true, PresenceOnly, "Changes of Envoy's configuration.";
        }
    };
}

/// Source of a kind's API definition: built into Kubernetes, or a CRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// Built into Kubernetes, always available.
    BuiltIn,
    /// CustomResourceDefinition, which may be missing, added or removed at run time.
    Custom,
    /// CustomResourceDefinition of a kind without an effect, of which only the existence of objects is read.
    PresenceOnly,
}

/// Rust type of one kind of object.
pub trait ObjectType:
    Status
    + k8s_openapi::Resource
    + k8s_openapi::Metadata<Ty = ObjectMeta>
    + Into<Object>
    + Clone
    + fmt::Debug
    + Default
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Kind of the objects.
    const OBJECT_KIND: Kind;
}

macro_rules! kinds {
    ($($kind:ident, $namespaced:literal, $definition:ident, $doc:literal;)*) => {
        /// Kind of object that the mesh reads.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $(#[doc = $doc] $kind,)* }

        impl Kind {
            /// Every kind, in the order of the initial sync.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Returns the name of the kind, as in the field `kind`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$kind => stringify!($kind),)* }
            }

            /// Returns the API group of the kind; empty for the core group.
            pub fn group(self) -> &'static str {
                match self { $(Self::$kind => <$kind as Resource>::GROUP,)* }
            }

            /// Returns the API version that objects of the kind are read in.
            pub fn version(self) -> &'static str {
                match self { $(Self::$kind => <$kind as Resource>::VERSION,)* }
            }

            /// Returns the plural name of the kind, as in URL paths.
            pub fn plural(self) -> &'static str {
                match self { $(Self::$kind => <$kind as Resource>::URL_PATH_SEGMENT,)* }
            }

            /// Returns the source of the kind's definition.
            pub fn definition(self) -> Definition {
                match self { $(Self::$kind => Definition::$definition,)* }
            }

            /// Returns whether objects of the kind have a namespace.
            pub fn is_namespaced(self) -> bool {
                match self { $(Self::$kind => $namespaced,)* }
            }
        }

        /// Object of any kind, which is cheap to clone.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Object { $(#[doc = $doc] $kind(Arc<$kind>),)* }

        impl Object {
            /// Returns the kind of the object.
            pub fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind,)* }
            }

            /// Returns the metadata of the object.
            pub fn metadata(&self) -> &ObjectMeta {
                match self { $(Self::$kind(object) => &object.metadata,)* }
            }

            /// Returns the status of the object.
            pub fn status(&self) -> &dyn Status {
                match self { $(Self::$kind(object) => &**object,)* }
            }

            /// Parses an object of `kind` from JSON; the error names the field.
            pub fn from_value(kind: Kind, value: &Value) -> Result<Self, InvalidObject> {
                check_nulls(kind, value)?;
                match kind { $(Kind::$kind => read(value).map(|object| Self::$kind(Arc::new(object))),)* }
            }
        }

        $(impl From<$kind> for Object {
            fn from(object: $kind) -> Self {
                Self::$kind(Arc::new(object))
            }
        }

        impl ObjectType for $kind {
            const OBJECT_KIND: Kind = Kind::$kind;
        })*
    };
}

for_each_kind!(kinds);

impl Kind {
    /// Returns the kind that `apiVersion` and `kind` name; `None` if the mesh does not read it. A
    /// manifest that only changes an object may leave `apiVersion` out.
    pub fn from_api_version(api_version: Option<&str>, kind: &str) -> Option<Self> {
        let group =
            api_version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
        Self::ALL.iter().copied().find(|known| {
            known.as_str() == kind && group.is_none_or(|group| group == known.group())
        })
    }

    /// Returns whether the kind is Istio's, which has its own conventions.
    pub fn is_istio(self) -> bool {
        self.group().ends_with(".istio.io")
    }

    /// Returns whether `null` in the spec of the kind is an error.
    fn rejects_nulls(self) -> bool {
        (self.is_istio() && self.definition() != Definition::PresenceOnly)
            || self.group() == crate::ambit::GROUP
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Key of an object: kind, namespace and name, independent of the API version. Displayed as `Kind namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Kind of the object.
    pub kind: Kind,
    /// Namespace of the object; empty for cluster-scoped kinds.
    pub namespace: ArcStr,
    /// Name of the object.
    pub name: ArcStr,
}

/// Reason why a document has no [`ObjectKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectKeyError {
    /// The document is not a JSON object.
    #[error("is not an object with kind and metadata")]
    NotAnObject,
    /// The document has no `kind`.
    #[error("has no kind")]
    NoKind,
    /// The mesh does not read objects of this kind, which is no error of the document.
    #[error("is a {0}, which the mesh does not read")]
    UnreadKind(String),
    /// The object has no name.
    #[error("{0} has no metadata.name")]
    NoName(Kind),
    /// The object has a name or namespace that Kubernetes would also reject.
    #[error(
        "{kind} has the invalid {field} {value:?}: lower-case letters, digits, '-' and '.' are allowed"
    )]
    InvalidName {
        /// Kind of the object.
        kind: Kind,
        /// Path of the invalid field: `metadata.name` or `metadata.namespace`.
        field: &'static str,
        /// Invalid value, truncated to 64 characters.
        value: String,
    },
}

impl ObjectKey {
    /// Builds a key from its parts; the namespace of kinds without one is dropped.
    pub fn new(kind: Kind, namespace: impl Into<ArcStr>, name: impl Into<ArcStr>) -> Self {
        let namespace = if kind.is_namespaced() {
            namespace.into()
        } else {
            ArcStr::new()
        };
        Self {
            kind,
            namespace,
            name: name.into(),
        }
    }

    /// Parses the key of an object in JSON.
    pub fn read(value: &Value) -> Result<Self, ObjectKeyError> {
        let object = value.as_object().ok_or(ObjectKeyError::NotAnObject)?;
        let text = |field: &str| object.get(field).and_then(Value::as_str);
        let kind_name = text("kind")
            .filter(|kind| !kind.is_empty())
            .ok_or(ObjectKeyError::NoKind)?;
        let kind = Kind::from_api_version(text("apiVersion"), kind_name).ok_or_else(|| {
            ObjectKeyError::UnreadKind(match text("apiVersion") {
                Some(version) => format!("{version} {kind_name}"),
                None => kind_name.to_owned(),
            })
        })?;
        let metadata = object.get("metadata");
        let meta = |field: &str| {
            metadata
                .and_then(|meta| meta.get(field))
                .and_then(Value::as_str)
        };
        let name = meta("name")
            .filter(|name| !name.is_empty())
            .ok_or(ObjectKeyError::NoName(kind))?;
        let namespace = match meta("namespace") {
            Some(namespace) if !namespace.is_empty() => ArcStr::from(namespace),
            _ => DEFAULT_NAMESPACE,
        };
        let bad = |field, value: &str| ObjectKeyError::InvalidName {
            kind,
            field,
            value: value.chars().take(64).collect(),
        };
        if !is_dns_name(name, 253) {
            return Err(bad("metadata.name", name));
        }
        if !is_dns_name(&namespace, 63) || namespace.contains('.') {
            return Err(bad("metadata.namespace", &namespace));
        }
        Ok(Self::new(kind, namespace, name))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        if namespace.is_empty() {
            write!(f, "{kind} {name}")
        } else {
            write!(f, "{kind} {namespace}/{name}")
        }
    }
}

/// Error in a field of an object that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidObject {
    /// Path of the field, for instance `spec.rules[0].from`; `.` for the object itself.
    pub field: String,
    /// Description of the problem with the field.
    pub message: String,
}

impl Object {
    /// Returns the key of the object. Objects from Kubernetes always have a name.
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        let namespace = metadata
            .namespace
            .as_deref()
            .filter(|ns| !ns.is_empty())
            .map_or(DEFAULT_NAMESPACE, ArcStr::from);
        ObjectKey::new(
            self.kind(),
            namespace,
            metadata.name.as_deref().unwrap_or_default(),
        )
    }
}

/// Finds the first `null` below `value`, and extends `path` to it. In a policy, an empty `from:` would otherwise count
/// as absent, which allows every client.
fn find_null(value: &Value, path: &mut String) -> bool {
    let length = path.len();
    let found = |child: &Value, step: String, path: &mut String| {
        path.push_str(&step);
        if find_null(child, path) {
            return true;
        }
        path.truncate(length);
        false
    };
    match value {
        Value::Null => true,
        Value::Object(members) => members
            .iter()
            .any(|(name, child)| found(child, format!(".{name}"), path)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .any(|(index, child)| found(child, format!("[{index}]"), path)),
        _ => false,
    }
}

/// Rejects `null` in the specification of kinds for which an absent field and an empty one differ.
fn check_nulls(kind: Kind, value: &Value) -> Result<(), InvalidObject> {
    let mut path = "spec".to_owned();
    match value.get("spec") {
        Some(spec) if kind.rejects_nulls() && find_null(spec, &mut path) => Err(InvalidObject {
            field: path,
            message: "is null; give a value, or leave it out".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, InvalidObject> {
    serde_path_to_error::deserialize(value).map_err(|error| InvalidObject {
        field: error.path().to_string(),
        message: error.into_inner().to_string(),
    })
}

/// Returns the creation time as sortable text; objects without it sort first.
pub fn created(metadata: &ObjectMeta) -> String {
    let time = metadata.creation_timestamp.as_ref();
    time.map(|time| time.0.to_string()).unwrap_or_default()
}

/// Returns whether a text is a valid name in Kubernetes (RFC 1123), at most `max` bytes long.
pub fn is_dns_name(text: &str, max: usize) -> bool {
    let allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
    };
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bytes = text.as_bytes();
    bytes.len() <= max
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| allowed(*byte))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn key_ignores_the_api_version() {
        for version in ["security.istio.io/v1", "security.istio.io/v1beta1"] {
            let value = json!({"apiVersion": version, "kind": "AuthorizationPolicy",
                "metadata": {"name": "p", "namespace": "shop"}});
            let key = ObjectKey::read(&value).unwrap();
            assert_eq!(key.to_string(), "AuthorizationPolicy shop/p");
        }
    }

    #[test]
    fn same_kind_of_another_group_is_not_read() {
        let value = json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "a"}});
        assert_eq!(
            ObjectKey::read(&value),
            Err(ObjectKeyError::UnreadKind(
                "serving.knative.dev/v1 Service".into()
            ))
        );
    }

    #[test]
    fn namespace_defaults_and_cluster_kinds_have_none() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
        assert_eq!(ObjectKey::read(&pod).unwrap().to_string(), "Pod default/a");
        let node = json!({"kind": "Node", "metadata": {"name": "n1", "namespace": "x"}});
        assert_eq!(ObjectKey::read(&node).unwrap().to_string(), "Node n1");
    }

    #[test]
    fn invalid_names_are_rejected() {
        for name in ["a/b", "", "A", "-a", "a b", "spiffe://x", &"a".repeat(254)] {
            let value = json!({"kind": "Pod", "metadata": {"name": name}});
            assert!(ObjectKey::read(&value).is_err(), "{name:?}");
        }
    }

    #[test]
    fn error_names_the_field() {
        let value = json!({"kind": "AuthorizationPolicy", "metadata": {"name": "p"},
            "spec": {"rules": [{"form": []}]}});
        let error = Object::from_value(Kind::AuthorizationPolicy, &value).unwrap_err();
        assert!(error.field.starts_with("spec.rules[0]"), "{error}");
        assert!(error.message.contains("form"), "{error}");
    }
}
