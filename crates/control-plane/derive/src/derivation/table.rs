//! Table of functions by kind, for objects of which only the key is known. The list of kinds in `ambit_k8s_api`
//! generates it: a kind in the list without a file in `kinds` does not compile.

use ambit_k8s_api::{
    AuthorizationPolicy, BackendTLSPolicy, ConfigMap, Deployment, DestinationRule, EndpointSlice,
    EnvoyFilter, GRPCRoute, Gateway, GatewayClass, HTTPFault, HTTPRoute, Kind, Namespace, Node,
    Object, ObjectKey, ObjectMeta, PeerAuthentication, Pod, RateLimit, ReferenceGrant,
    RequestAuthentication, Secret, Service, ServiceAccount, ServiceEntry, TCPRoute, TLSRoute,
    Telemetry, VirtualService, WasmPlugin, WorkloadEntry,
};
use ambit_model::ArcStr;
use serde_json::Value;

use crate::{
    condition::{ConditionType, DerivedStatus, StatusListType},
    index::Index,
    kinds::kind::{HostClaim, MeshKind},
    objects::readable::{FetchedKind, Readable, deserialize_field},
    pod_directory::PodDirectory,
    records::ServiceRecord,
    view::{MeshView, rendered::RenderedRecords},
};

/// Table of functions for one kind of object; each function takes the key of the object.
pub(crate) struct KindFunctions {
    pub(crate) conditions: &'static [ConditionType],
    pub(crate) status_list: Option<StatusListType>,
    pub(crate) derived_status: fn(&MeshView, &ObjectKey) -> Option<DerivedStatus>,
    pub(crate) is_in_force: fn(&MeshView, &ObjectKey) -> bool,
    pub(crate) remove: fn(&mut Index, &ObjectKey, &mut PodDirectory),
    /// Stores the substitute of an object that cannot be deserialized; see [`Index::put_substitute`].
    pub(crate) store_substitute:
        fn(&mut Index, &ObjectKey, &Value, &mut PodDirectory) -> &'static str,
    pub(crate) render: fn(&MeshView, &ObjectKey) -> RenderedRecords,
    pub(crate) host_claim: for<'a> fn(&'a MeshView, &ObjectKey, &ArcStr) -> Option<HostClaim<'a>>,
    pub(crate) service_record: fn(&MeshView, &ObjectKey, &ArcStr) -> Option<ServiceRecord>,
}

impl KindFunctions {
    pub(crate) const fn of<K: MeshKind>() -> Self {
        Self {
            conditions: K::CONDITIONS,
            status_list: K::STATUS_LIST,
            derived_status: |view, key| K::derived_status(view, key, view.get::<K>(key)?),
            is_in_force: |view, key| view.get::<K>(key).is_some_and(K::is_in_force),
            remove: |index, key, pods| index.store_parsed::<K>(key, None, pods),
            store_substitute: |index, key, value, pods| {
                let part = readable_part::<K>(key, value);
                index.put_substitute::<K>(part.as_ref(), key, pods)
            },
            render: |view, key| {
                let input = view.get::<K>(key);
                input.map_or_else(RenderedRecords::default, |input| {
                    K::render(view, key, input)
                })
            },
            host_claim: |view, key, host| K::host_claim(view, view.get::<K>(key)?, host),
            service_record: |view, key, host| K::service_record(view, view.get::<K>(key)?, host),
        }
    }
}

fn readable_part<K: MeshKind>(key: &ObjectKey, value: &Value) -> Option<K> {
    let metadata = ObjectMeta {
        name: Some(key.name.to_string()),
        namespace: Some(key.namespace.to_string()),
        annotations: deserialize_field(value.get("metadata"), "annotations"),
        creation_timestamp: deserialize_field(value.get("metadata"), "creationTimestamp"),
        ..ObjectMeta::default()
    };
    K::readable_part(metadata, value.get("spec"))
}

/// Visitor of the fetched kinds: [`visit_kinds`] calls it once for each kind, with the kind's Rust type.
pub trait KindVisitor {
    /// Visits the kind `K`.
    fn visit<K: FetchedKind>(&mut self);
}

macro_rules! table {
    ($($kind:ident, $namespaced:literal, $definition:ident, $doc:literal;)*) => {
        /// Returns the functions for objects of a kind.
        pub(crate) fn kind_functions(kind: Kind) -> &'static KindFunctions {
            match kind {
                $(Kind::$kind => const { &KindFunctions::of::<$kind>() },)*
            }
        }

        /// Returns the types of status conditions that objects of a kind have.
        pub fn conditions(kind: Kind) -> &'static [ConditionType] {
            kind_functions(kind).conditions
        }

        /// Returns the list in the status of objects of a kind whose entries have conditions; `None` if there is none.
        pub fn status_list(kind: Kind) -> Option<StatusListType> {
            kind_functions(kind).status_list
        }

        /// Calls a visitor for each kind.
        pub fn visit_kinds(visitor: &mut impl KindVisitor) {
            $(visitor.visit::<$kind>();)*
        }

        /// Whether an object has `targetRefs`, so that waypoints enforce it.
        pub fn is_attached(object: &Object) -> bool {
            match object {
                $(Object::$kind(object) => Readable::is_attached(&**object),)*
            }
        }

        impl Index {
            /// Parses an object by its kind, and stores its parsed form.
            pub(crate) fn parse_and_store(
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

impl MeshView {
    /// Whether any rule of a policy is in effect.
    pub fn is_in_force(&self, key: &ObjectKey) -> bool {
        (kind_functions(key.kind).is_in_force)(self, key)
    }
}
