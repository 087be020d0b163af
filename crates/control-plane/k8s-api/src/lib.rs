//! Kubernetes and Istio API types, labels and annotations as Ambit reads them.
//!
//! Core kinds are k8s-openapi's; Istio kinds are ours ([`istio`]) and reject unknown fields,
//! because a misspelt field of a policy must not silently widen it. The list of kinds is
//! [`for_each_kind`]. This crate uses no files, clients or tasks.
#![forbid(unsafe_code)]

pub mod ambit;
pub mod destination;
mod duration;
pub mod enablement;
mod event;
pub mod gateway;
pub mod istio;
pub mod labels;
mod object;
mod release;
pub mod revisions;
pub mod secret;
pub mod selector;
pub mod status;
pub mod telemetry;
pub mod unread;
pub mod virtual_service;
pub mod wasm;

pub use ambit::{HTTPFault, RateLimit};
pub use destination::DestinationRule;
pub use duration::parse_istio_duration;
pub use event::{ManifestPosition, ObjectEvent};
pub use gateway::{
    BackendTLSPolicy, GRPCRoute, Gateway, GatewayClass, HTTPRoute, ReferenceGrant, TCPRoute,
    TLSRoute,
};
pub use istio::{
    AuthorizationPolicy, PeerAuthentication, RequestAuthentication, ServiceEntry, WorkloadEntry,
};
pub use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace, Node, Pod, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
pub use object::{
    Definition, InvalidObject, Kind, Object, ObjectKey, ObjectKeyError, ObjectType, created,
    is_dns_name,
};
pub use release::{BUNDLE_VERSION, UnknownRelease, check_release};
pub use secret::Secret;
pub use status::Status;
pub use telemetry::Telemetry;
pub use unread::EnvoyFilter;
pub use virtual_service::VirtualService;
pub use wasm::WasmPlugin;
