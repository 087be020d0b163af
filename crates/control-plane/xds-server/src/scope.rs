//! Decides which records of each collection a client may see.
//!
//! Node proxies see the whole mesh. A waypoint sees all records of its Gateway, and those records
//! of the mesh that it subscribes to by name.

use ambit_model::{ArcStr, GatewayName};

use crate::{
    entry::{Collection, Entry},
    resource::{Audience, ResourceType},
};

/// xDS client, with the attributes that determine its views.
#[derive(Clone, Debug)]
pub struct Client {
    /// Name of the client's Kubernetes node, whose workloads it gets without a subscription; may be empty.
    pub node: ArcStr,
    /// Gateway of the client, if it is a waypoint.
    pub waypoint: Option<GatewayName>,
}

impl Client {
    /// Returns the client's view of a resource type; `None` if the client may not see the type, which it cannot
    /// distinguish from a type that is not served.
    pub fn view(&self, of: ResourceType) -> Option<View> {
        let scope = match (&self.waypoint, of.audience()) {
            (None, Audience::NodeProxies | Audience::Everybody) => Scope::All,
            (Some(_), Audience::Everybody) => Scope::Named,
            (Some(gateway), Audience::Waypoints) => Scope::Gateway(gateway.to_string().into()),
            (None, Audience::Waypoints) | (Some(_), Audience::NodeProxies) => return None,
        };
        Some(View { of, scope })
    }
}

/// Records of a collection that a view includes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    /// All records of the type.
    All,
    /// Records that are subscribed to by name.
    Named,
    /// Records for the waypoint of a Gateway: the record of that name, and records whose names are below it.
    Gateway(ArcStr),
}

/// Client's view of a resource type. Clients with equal views share responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    of: ResourceType,
    scope: Scope,
}

impl View {
    /// Returns the resource type of the view.
    pub fn resource_type(&self) -> ResourceType {
        self.of
    }

    /// Returns the collection that has the view's records.
    pub(crate) fn collection(&self) -> Collection {
        self.of.collection()
    }

    /// Returns whether the client may subscribe to the whole view by wildcard.
    pub(crate) fn may_be_wildcard(&self) -> bool {
        self.scope != Scope::Named
    }

    /// Returns whether the view includes a record of this name, whether or not it exists.
    pub(crate) fn covers(&self, name: &str) -> bool {
        match &self.scope {
            Scope::All | Scope::Named => true,
            Scope::Gateway(gateway) => {
                let rest = name.strip_prefix(gateway.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }

    /// Returns whether the view includes a record.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        self.covers(&entry.name) && self.of.has(entry)
    }
}
