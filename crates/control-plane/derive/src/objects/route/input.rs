//! Parsed routes of every kind.

use ambit_k8s_api::{Kind, ObjectKey, gateway::ParentReference};
use ambit_model::{ArcStr, GatewayName, RouteName};

use crate::objects::route::{
    backends::BackendInput, hosts::VirtualServiceScope, references::ServiceIdentifier,
    rules::RouteRuleInput, stream_rules::StreamInput, unsupported::UnsupportedPart,
};

/// Service that is a parent of a route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteParent {
    pub(crate) target: ObjectKey,
    /// Port of the parent reference; if `None`, the port that the reference's `sectionName` names, or all ports.
    pub(crate) port: Option<u16>,
    /// Parent reference as written in the object, which the status repeats.
    pub(crate) reference: ParentReference,
}

/// Parsed route of any kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteInput {
    pub(crate) kind: Kind,
    pub(crate) name: RouteName,
    pub(crate) created: String,
    pub(crate) parents: Vec<RouteParent>,
    /// Hosts of a VirtualService, which has no parents; `None` for other kinds.
    pub(crate) scope: Option<VirtualServiceScope>,
    pub(crate) rules: RouteRules,
}

/// Parsed rules of a route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RouteRules {
    /// Rules for HTTP requests.
    Http(Vec<RouteRuleInput>),
    /// Rules for TCP or TLS connections.
    Stream(StreamInput),
}

impl RouteRules {
    /// Returns the services of the backends and mirrors.
    fn service_identifiers(&self) -> impl Iterator<Item = &ServiceIdentifier> {
        let (http, stream) = match self {
            Self::Http(rules) => (Some(rules), None),
            Self::Stream(stream) => (None, Some(stream)),
        };
        let http = http
            .into_iter()
            .flatten()
            .flat_map(RouteRuleInput::service_identifiers);
        let stream = stream.into_iter().flat_map(StreamInput::backends);
        http.chain(stream.filter_map(|backend| backend.service.service_identifier()))
    }

    /// Returns the objects that `ExtensionRef` filters name.
    fn extension_targets(&self) -> impl Iterator<Item = &ObjectKey> {
        let http = match self {
            Self::Http(rules) => Some(rules),
            Self::Stream(_) => None,
        };
        let http = http.into_iter().flatten();
        http.flat_map(RouteRuleInput::extension_targets)
    }

    pub(crate) fn backends(&self) -> impl Iterator<Item = &BackendInput> {
        let (http, stream) = match self {
            Self::Http(rules) => (Some(rules), None),
            Self::Stream(stream) => (None, Some(stream)),
        };
        let http = http
            .into_iter()
            .flatten()
            .flat_map(RouteRuleInput::backends);
        http.chain(stream.into_iter().flat_map(StreamInput::backends))
    }

    /// Returns the unsupported parts of the rules.
    pub(crate) fn unsupported(&self) -> Vec<&UnsupportedPart> {
        match self {
            Self::Http(rules) => rules
                .iter()
                .filter_map(RouteRuleInput::unsupported)
                .collect(),
            Self::Stream(stream) => stream.unsupported().into_iter().collect(),
        }
    }
}

impl RouteInput {
    /// Returns the objects that the route refers to: its backends, mirrors and `ExtensionRef` filters.
    pub(crate) fn referenced_objects(&self) -> impl Iterator<Item = &ObjectKey> {
        let services = self
            .rules
            .service_identifiers()
            .filter_map(|named| match named {
                ServiceIdentifier::Object(key) => Some(key),
                ServiceIdentifier::Host(_) => None,
            });
        services.chain(self.rules.extension_targets())
    }

    /// Returns the hosts of backends and mirrors of the kind `Hostname`.
    pub(crate) fn referenced_hosts(&self) -> impl Iterator<Item = &ArcStr> {
        self.rules
            .service_identifiers()
            .filter_map(|named| match named {
                ServiceIdentifier::Host(host) => Some(host),
                ServiceIdentifier::Object(_) => None,
            })
    }

    pub(crate) fn namespace(&self) -> &ArcStr {
        &self.name.namespace
    }

    /// Returns the sort key of the route's precedence: age, then name. The smallest wins a conflict.
    pub(crate) fn precedence_key(&self) -> impl Ord + '_ {
        let RouteName {
            kind,
            namespace,
            name,
        } = &self.name;
        (&self.created, namespace, name, kind)
    }

    /// Whether a waypoint applies the route to all clients of a service (producer route): the route is in the namespace
    /// of the service or of the waypoint. Other routes are consumer routes, for clients of their own namespace.
    pub(crate) fn is_producer_route(&self, target: &ObjectKey, gateway: &GatewayName) -> bool {
        let own = &self.name.namespace;
        *own == target.namespace || *own == gateway.namespace
    }

    /// Returns the namespace of the clients that a consumer route is for; `None` for a producer route.
    pub(crate) fn consumer_namespace(
        &self,
        target: &ObjectKey,
        gateway: &GatewayName,
    ) -> Option<ArcStr> {
        (!self.is_producer_route(target, gateway)).then(|| self.name.namespace.clone())
    }
}
