//! Decides which records of each collection a client may see.
//!
//! Node proxies see the whole mesh. A waypoint sees all records of its Gateway, and those records
//! of the mesh that it subscribes to by name.

use ambit_model::{ArcStr, GatewayName};

use crate::{
    entry::{Collection, Entry},
    resource::{Audience, ResourceType},
};

/// Client, with the attributes that determine its view.
#[derive(Clone, Debug)]
pub struct Client {
    /// Kubernetes node of the client, whose workloads it gets without a subscription; may be empty.
    pub node: ArcStr,
    /// Gateway of the client, if it is a waypoint.
    pub waypoint: Option<GatewayName>,
}

impl Client {
    /// Returns the client's view of a type of resource; `None` if it may see nothing, as if the
    /// type were not served.
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

/// Scope of a client's view.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    /// All records of the type.
    All,
    /// Records that are subscribed to by name.
    Named,
    /// Records of a Gateway: the record of its name, and those below it.
    Gateway(ArcStr),
}

/// A client's view of a type of resource. Clients with equal views share responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    of: ResourceType,
    scope: Scope,
}

impl View {
    /// Returns the type of the resources.
    pub fn resource_type(&self) -> ResourceType {
        self.of
    }

    /// Returns the collection of the view's records.
    pub(crate) fn collection(&self) -> Collection {
        self.of.collection()
    }

    /// Returns whether the client may have a wildcard subscription to everything in the view.
    pub(crate) fn may_be_wildcard(&self) -> bool {
        self.scope != Scope::Named
    }

    /// Returns whether the client may see a record of this name, whether or not it exists.
    pub(crate) fn covers(&self, name: &str) -> bool {
        match &self.scope {
            Scope::All | Scope::Named => true,
            Scope::Gateway(gateway) => {
                let rest = name.strip_prefix(gateway.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }

    /// Returns whether the client may see a record.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        self.covers(&entry.name) && self.of.has(entry)
    }
}
