//! Decides which records of each collection a client may see.
//!
//! Node proxies see the whole mesh. A waypoint sees all records of its Gateway, and those records
//! of the mesh that it subscribes to by name.

use ambit_model::{ArcStr, GatewayName};

use crate::{
    encoded_record::{Collection, EncodedRecord},
    resource::{ResourceType, Subscribers},
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
        let scope = match (&self.waypoint, of.subscribers()) {
            (None, Subscribers::NodeProxies | Subscribers::NodeProxiesAndWaypoints) => Scope::All,
            (Some(_), Subscribers::NodeProxiesAndWaypoints) => Scope::SubscribedNames,
            (Some(gateway), Subscribers::Waypoints) => Scope::Gateway(gateway.to_string().into()),
            (None, Subscribers::Waypoints) | (Some(_), Subscribers::NodeProxies) => return None,
        };
        Some(View {
            resource_type: of,
            scope,
        })
    }
}

/// Records of a collection that a view includes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    /// All records of the type.
    All,
    /// Records that are subscribed to by name.
    SubscribedNames,
    /// Records for the waypoint of a Gateway: the record of that name, and records whose names are below it.
    Gateway(ArcStr),
}

/// Client's view of a resource type. Clients with equal views share responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    resource_type: ResourceType,
    scope: Scope,
}

impl View {
    /// Returns the resource type of the view.
    pub fn resource_type(&self) -> ResourceType {
        self.resource_type
    }

    /// Returns the collection that has the view's records.
    pub(crate) fn collection(&self) -> Collection {
        self.resource_type.collection()
    }

    /// Returns whether the client may subscribe to the whole view by wildcard.
    pub(crate) fn may_be_wildcard(&self) -> bool {
        self.scope != Scope::SubscribedNames
    }

    /// Returns whether the view would include a record of this name; the record need not exist.
    pub(crate) fn covers(&self, name: &str) -> bool {
        match &self.scope {
            Scope::All | Scope::SubscribedNames => true,
            Scope::Gateway(gateway) => {
                let rest = name.strip_prefix(gateway.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }

    /// Returns whether the view includes a record.
    pub(crate) fn contains(&self, entry: &EncodedRecord) -> bool {
        self.covers(&entry.name) && self.resource_type.contains(entry)
    }
}
