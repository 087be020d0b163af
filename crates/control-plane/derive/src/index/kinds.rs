//! One file a kind, and the table of them, made from the list in `ambit_k8s_api`: a kind that is listed there
//! and has no file here does not compile.

mod authorization_policy;
mod backend_tls_policy;
mod callers;
mod config_map;
mod destination_rule;
mod durations;
mod endpoint_slice;
mod gateway;
mod gateway_class;
mod http_fault;
mod namespace;
mod node;
mod others;
mod peer_authentication;
mod pod;
mod rate_limit;
mod reference_grant;
mod request_authentication;
mod route;
mod secret;
pub(crate) mod service;
pub(crate) mod service_entry;
mod share;
mod telemetry;
mod unread;
mod wasm_plugin;
mod workload_entry;

use std::collections::BTreeMap;

use ambit_k8s_api::ObjectMeta;
use ambit_k8s_api::{
    AuthorizationPolicy, BackendTLSPolicy, ConfigMap, Deployment, DestinationRule, EndpointSlice,
    EnvoyFilter, GRPCRoute, Gateway, GatewayClass, HTTPFault, HTTPRoute, Kind, Namespace, Node,
    Object, ObjectKey, PeerAuthentication, Pod, RateLimit, ReferenceGrant, RequestAuthentication,
    Secret, Service, ServiceAccount, ServiceEntry, TCPRoute, TLSRoute, Telemetry, VirtualService,
    WasmPlugin, WorkloadEntry,
};
use ambit_model::ArcStr;
use serde_json::Value;

use super::{
    Index, MeshView,
    kind::{Claim, Followed, MeshKind, Rendered, field},
};
use crate::{
    PodDirectory,
    condition::{ConditionType, PartsType, Standing},
};

pub(crate) use peer_authentication::{any_plaintext_refused, static_strict};
pub use service::ServiceRecord;
#[cfg(test)]
pub(crate) use service::app_protocol;

/// A kind with its place among the objects of a namespace.
pub(crate) trait Stored: MeshKind {
    /// Its objects, by name.
    fn of(objects: &Objects) -> &BTreeMap<ArcStr, Self::Input>;

    /// Its objects, by name.
    fn of_mut(objects: &mut Objects) -> &mut BTreeMap<ArcStr, Self::Input>;
}

/// Functions for an object of which only the key is at hand.
pub(crate) struct Functions {
    pub(crate) conditions: &'static [ConditionType],
    pub(crate) parts: Option<PartsType>,
    pub(crate) standing: fn(&MeshView, &ObjectKey) -> Option<Standing>,
    pub(crate) is_in_force: fn(&MeshView, &ObjectKey) -> bool,
    pub(crate) remove: fn(&mut Index, &ObjectKey, &mut PodDirectory),
    /// Puts the substitute of an object that cannot be read in its place; see [`Index::put_substitute`].
    pub(crate) refuse: fn(&mut Index, &ObjectKey, &Value, &mut PodDirectory) -> &'static str,
    pub(crate) render: fn(&MeshView, &ObjectKey) -> Rendered,
    pub(crate) claim: for<'a> fn(&'a MeshView, &ObjectKey, &ArcStr) -> Option<Claim<'a>>,
    pub(crate) service: fn(&MeshView, &ObjectKey, &ArcStr) -> Option<ServiceRecord>,
}

impl Functions {
    pub(crate) const fn of<K: Stored>() -> Self {
        Self {
            conditions: K::CONDITIONS,
            parts: K::PARTS,
            standing: |view, key| K::standing(view, key, view.get::<K>(key)?),
            is_in_force: |view, key| view.get::<K>(key).is_some_and(K::is_in_force),
            remove: |index, key, pods| index.put::<K>(key, None, pods),
            refuse: |index, key, value, pods| {
                let part = readable_part::<K>(key, value);
                index.put_substitute::<K>(part.as_ref(), key, pods)
            },
            render: |view, key| {
                let input = view.get::<K>(key);
                input.map_or_else(Rendered::default, |input| K::render(view, key, input))
            },
            claim: |view, key, host| K::claim(view, view.get::<K>(key)?, host),
            service: |view, key, host| K::service(view, view.get::<K>(key)?, host),
        }
    }
}

fn readable_part<K: MeshKind>(key: &ObjectKey, value: &Value) -> Option<K> {
    let metadata = ObjectMeta {
        name: Some(key.name.to_string()),
        namespace: Some(key.namespace.to_string()),
        annotations: field(value.get("metadata"), "annotations"),
        creation_timestamp: field(value.get("metadata"), "creationTimestamp"),
        ..ObjectMeta::default()
    };
    K::readable_part(metadata, value.get("spec"))
}

/// Visitor of kinds, each with its type.
pub trait KindVisitor {
    /// Called once for each kind.
    fn visit<K: Followed>(&mut self);
}

macro_rules! table {
    ($($kind:ident, $namespaced:literal, $definition:ident, $doc:literal;)*) => {
        /// The objects of one namespace as understood, by name; in the namespace without a name, those that
        /// are in none.
        #[derive(Debug, Default)]
        pub(crate) struct Objects {
            $($kind: BTreeMap<ArcStr, <$kind as MeshKind>::Input>,)*
        }

        impl Objects {
            /// The keys of all.
            pub(crate) fn keys(&self, namespace: &ArcStr) -> Vec<ObjectKey> {
                let mut keys = Vec::new();
                $(
                    let names = self.$kind.keys();
                    keys.extend(names.map(|name| {
                        ObjectKey::new(Kind::$kind, namespace.clone(), name.clone())
                    }));
                )*
                keys
            }
        }

        $(impl Stored for $kind {
            fn of(objects: &Objects) -> &BTreeMap<ArcStr, Self::Input> {
                &objects.$kind
            }

            fn of_mut(objects: &mut Objects) -> &mut BTreeMap<ArcStr, Self::Input> {
                &mut objects.$kind
            }
        })*

        /// Functions for objects of a kind.
        pub(crate) fn functions(kind: Kind) -> &'static Functions {
            match kind {
                $(Kind::$kind => const { &Functions::of::<$kind>() },)*
            }
        }

        /// The conditions that objects of a kind have.
        pub fn conditions(kind: Kind) -> &'static [ConditionType] {
            functions(kind).conditions
        }

        /// The parts of objects of a kind that have conditions of their own.
        pub fn parts(kind: Kind) -> Option<PartsType> {
            functions(kind).parts
        }

        /// Shows every kind to a visitor.
        pub fn visit_kinds(visitor: &mut impl KindVisitor) {
            $(visitor.visit::<$kind>();)*
        }

        /// Whether an object is attached to others, of which waypoints take care.
        pub fn is_attached(object: &Object) -> bool {
            match object {
                $(Object::$kind(object) => MeshKind::is_attached(&**object),)*
            }
        }

        impl Index {
            /// Reads an object and puts what was understood in its place.
            pub(crate) fn take(
                &mut self,
                object: &Object,
                key: &ObjectKey,
                origin: Option<&str>,
                pods: &mut PodDirectory,
            ) {
                match object {
                    $(Object::$kind(object) => self.apply_as::<$kind>(object, key, origin, pods),)*
                }
            }
        }
    };
}

ambit_k8s_api::for_each_kind!(table);

impl Objects {
    /// All of a kind, by name.
    pub(crate) fn all<K: Stored>(&self) -> &BTreeMap<ArcStr, K::Input> {
        K::of(self)
    }
}
