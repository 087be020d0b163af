//! Routes of every kind as they are stored.

use ambit_k8s_api::{Kind, ObjectKey, gateway::ParentReference};
use ambit_model::{ArcStr, GatewayName, RouteName};

use crate::objects::route::{
    backends::BackendInput, hosts::HostScope, references::Named, rules::RuleInput,
    stream_rules::StreamInput, unsupported::Unsupported,
};

/// Service that a route is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parent {
    pub(crate) target: ObjectKey,
    /// Port of the service; if `None`, the one that the reference names, or all.
    pub(crate) port: Option<u16>,
    /// Reference as it was written.
    pub(crate) reference: ParentReference,
}

/// A route as the mesh sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteInput {
    pub(crate) kind: Kind,
    pub(crate) name: RouteName,
    pub(crate) created: String,
    pub(crate) parents: Vec<Parent>,
    /// Hosts that a VirtualService is for, in the place of parents.
    pub(crate) scope: Option<HostScope>,
    pub(crate) rules: Rules,
}

/// Rules of a route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rules {
    /// Rules for requests.
    Http(Vec<RuleInput>),
    /// Rules for connections.
    Stream(StreamInput),
}

impl Rules {
    /// Returns the services of the backends and mirrors.
    fn named(&self) -> impl Iterator<Item = &Named> {
        let (http, stream) = match self {
            Self::Http(rules) => (Some(rules), None),
            Self::Stream(stream) => (None, Some(stream)),
        };
        let http = http.into_iter().flatten().flat_map(RuleInput::named);
        let stream = stream.into_iter().flat_map(StreamInput::backends);
        http.chain(stream.filter_map(|backend| backend.to.named()))
    }

    /// Returns the objects that filters name.
    fn extension_targets(&self) -> impl Iterator<Item = &ObjectKey> {
        let http = match self {
            Self::Http(rules) => Some(rules),
            Self::Stream(_) => None,
        };
        let http = http.into_iter().flatten();
        http.flat_map(RuleInput::extension_targets)
    }

    pub(crate) fn backends(&self) -> impl Iterator<Item = &BackendInput> {
        let (http, stream) = match self {
            Self::Http(rules) => (Some(rules), None),
            Self::Stream(stream) => (None, Some(stream)),
        };
        let http = http.into_iter().flatten().flat_map(RuleInput::backends);
        http.chain(stream.into_iter().flat_map(StreamInput::backends))
    }

    /// Returns the parts of the rules that are not supported.
    pub(crate) fn unsupported(&self) -> Vec<&Unsupported> {
        match self {
            Self::Http(rules) => rules.iter().filter_map(RuleInput::unsupported).collect(),
            Self::Stream(stream) => stream.unsupported().into_iter().collect(),
        }
    }
}

impl RouteInput {
    /// Returns the backends, and the objects that filters name.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &ObjectKey> {
        let services = self.rules.named().filter_map(|named| match named {
            Named::Object(key) => Some(key),
            Named::Host(_) => None,
        });
        services.chain(self.rules.extension_targets())
    }

    /// Returns the backends of the kind Hostname.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &ArcStr> {
        self.rules.named().filter_map(|named| match named {
            Named::Host(host) => Some(host),
            Named::Object(_) => None,
        })
    }

    pub(crate) fn namespace(&self) -> &ArcStr {
        &self.name.namespace
    }

    /// Returns the rank of the route: where only one can be followed, the smallest is.
    pub(crate) fn age(&self) -> impl Ord + '_ {
        let RouteName {
            kind,
            namespace,
            name,
        } = &self.name;
        (&self.created, namespace, name, kind)
    }

    /// Whether a waypoint follows the route for all clients of a service: those of others than the service's and the
    /// waypoint's own namespaces are for clients of theirs.
    pub(crate) fn is_for_all(&self, target: &ObjectKey, gateway: &GatewayName) -> bool {
        let own = &self.name.namespace;
        *own == target.namespace || *own == gateway.namespace
    }

    /// Returns the namespace of the clients that the route is for, unless it is for all.
    pub(crate) fn clients(&self, target: &ObjectKey, gateway: &GatewayName) -> Option<ArcStr> {
        (!self.is_for_all(target, gateway)).then(|| self.name.namespace.clone())
    }
}
