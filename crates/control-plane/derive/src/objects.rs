//! Parsed objects: one file for each kind, with its parsed form and its parser, and the store of all objects. The list
//! of kinds in `ambit_k8s_api` generates the store: a kind in the list without a file here does not compile.

pub(crate) mod authorization_policy;
pub(crate) mod backend_tls_policy;
pub(crate) mod binding;
pub(crate) mod config_map;
pub(crate) mod destination_rule;
pub(crate) mod durations;
pub(crate) mod endpoint_slice;
pub(crate) mod export;
pub(crate) mod gateway;
pub(crate) mod gateway_address;
pub(crate) mod gateway_class;
pub(crate) mod http_fault;
pub(crate) mod inbound_binding;
pub(crate) mod key_source;
pub(crate) mod namespace;
pub(crate) mod node;
pub(crate) mod others;
pub(crate) mod peer_authentication;
pub(crate) mod pod;
pub(crate) mod rate_limit;
pub(crate) mod readable;
pub(crate) mod reference_grant;
pub(crate) mod replaced;
pub(crate) mod request_authentication;
pub(crate) mod root_certificates;
pub(crate) mod route;
pub(crate) mod secret;
pub(crate) mod serves;
pub(crate) mod service;
pub(crate) mod service_entry;
pub(crate) mod share;
pub(crate) mod targets;
pub(crate) mod telemetry;
pub(crate) mod trust_domain_names;
pub(crate) mod unread;
pub(crate) mod wasm_plugin;
pub(crate) mod workload_entry;

use std::collections::BTreeMap;

use ambit_k8s_api::{
    AuthorizationPolicy, BackendTLSPolicy, ConfigMap, Deployment, DestinationRule, EndpointSlice,
    EnvoyFilter, GRPCRoute, Gateway, GatewayClass, HTTPFault, HTTPRoute, Kind, Namespace, Node,
    ObjectKey, PeerAuthentication, Pod, RateLimit, ReferenceGrant, RequestAuthentication, Secret,
    Service, ServiceAccount, ServiceEntry, TCPRoute, TLSRoute, Telemetry, VirtualService,
    WasmPlugin, WorkloadEntry,
};
use ambit_model::ArcStr;

use readable::Readable;

/// Kind of object that [`Objects`] stores: gives access to the kind's map of parsed objects.
pub(crate) trait Stored: Readable {
    /// Returns the parsed objects of the kind, by name.
    fn of(objects: &Objects) -> &BTreeMap<ArcStr, Self::Input>;

    /// Returns the mutable map of the kind's parsed objects, by name.
    fn of_mut(objects: &mut Objects) -> &mut BTreeMap<ArcStr, Self::Input>;
}

macro_rules! table {
    ($($kind:ident, $namespaced:literal, $definition:ident, $doc:literal;)*) => {
        /// Parsed objects of one namespace, by kind and name; cluster-scoped objects are in the namespace with the
        /// empty name.
        #[derive(Debug, Default)]
        pub(crate) struct Objects {
            $($kind: BTreeMap<ArcStr, <$kind as Readable>::Input>,)*
        }

        impl Objects {
            /// Returns the keys of all objects of the namespace.
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
    };
}

ambit_k8s_api::for_each_kind!(table);

impl Objects {
    /// Returns the parsed objects of a kind, by name.
    pub(crate) fn all_of_kind<K: Stored>(&self) -> &BTreeMap<ArcStr, K::Input> {
        K::of(self)
    }
}
