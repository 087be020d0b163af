//! Which client sees which collection, and which records of it.
//!
//! Node proxies see the mesh. A waypoint sees all records of its Gateway, and of the mesh those that it subscribes to
//! by name.

use ambit_model::{ArcStr, GatewayName};

use crate::{
    entry::{Collection, Entry},
    resource::{Audience, ResourceType},
};

/// Client, with the attributes that determine its view.
#[derive(Clone, Debug)]
pub struct Client {
    /// Kubernetes node of the client, whose workloads it receives without a subscription; may be empty.
    pub node: ArcStr,
    /// Gateway of the client, if it is a waypoint.
    pub waypoint: Option<GatewayName>,
}

impl Client {
    /// View of a type of resource; `None`: nothing, as if the type were not served.
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
    /// Records of a Gateway: its name, and those below it.
    Gateway(ArcStr),
}

/// View that a client has of a type of resource. Clients with equal views share what is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    of: ResourceType,
    scope: Scope,
}

impl View {
    /// Type of the resources.
    pub fn resource_type(&self) -> ResourceType {
        self.of
    }

    /// Returns the collection of the view's records.
    pub(crate) fn collection(&self) -> Collection {
        self.of.collection()
    }

    /// Whether the client may have everything that it sees without naming it.
    pub(crate) fn may_be_wildcard(&self) -> bool {
        self.scope != Scope::Named
    }

    /// Whether a name is one that the client sees, or would see if it were there.
    pub(crate) fn covers(&self, name: &str) -> bool {
        match &self.scope {
            Scope::All | Scope::Named => true,
            Scope::Gateway(gateway) => {
                let rest = name.strip_prefix(gateway.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }

    /// Whether the client sees a record.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        self.covers(&entry.name) && self.of.has(entry)
    }
}
