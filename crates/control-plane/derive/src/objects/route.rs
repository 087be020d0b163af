//! Parsing of routes whose parents are services, of every kind. The rules of each kind are parsed in its own file.

pub(crate) mod backends;
pub(crate) mod cors;
pub(crate) mod extension;
pub(crate) mod filters;
pub(crate) mod grpc_route;
pub(crate) mod hosts;
pub(crate) mod http_route;
pub(crate) mod input;
pub(crate) mod mirrors;
pub(crate) mod object;
pub(crate) mod reader;
pub(crate) mod references;
pub(crate) mod retries;
pub(crate) mod rules;
pub(crate) mod session;
pub(crate) mod stream_route;
pub(crate) mod stream_rules;
pub(crate) mod unsupported;
pub(crate) mod virtual_service;

use ambit_k8s_api::{GRPCRoute, HTTPRoute, ObjectMeta, TCPRoute, TLSRoute};
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
    problem::FieldError,
};
use input::RouteInput;
use object::{RouteObject, namespace, parents, read, route};

macro_rules! routes {
    ($($kind:ident)*) => {
        $(impl FetchedKind for $kind {
            const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
        }

        impl Readable for $kind {
            type Input = RouteInput;

            fn read(&self, _: &MeshConfig) -> Result<Parsed<RouteInput>, FieldError> {
                read(self)
            }

            /// Builds the fail-closed substitute: requests and connections that the route may be for are refused until
            /// the route is valid.
            fn substitute(&self, _: &MeshConfig) -> Option<RouteInput> {
                let parents = parents(self.parent_refs(), namespace(&self.metadata)).ok()?;
                (!parents.is_empty()).then(|| route(self, parents, self.unusable()))
            }

            fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
                let mut part = Self { metadata, ..Self::default() };
                part.set_readable(deserialize_field(spec, "parentRefs").unwrap_or_default(), spec);
                Some(part)
            }
        })*
    };
}

routes! { HTTPRoute GRPCRoute TLSRoute TCPRoute }
