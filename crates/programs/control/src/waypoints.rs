//! The waypoints that there are: an account of one may read what concerns its Gateway, and nothing else.

use std::collections::BTreeSet;

use ambit_derive::Delta;
use ambit_model::GatewayName;
use parking_lot::RwLock;

use crate::auth::Caller;

/// See the module above.
#[derive(Debug, Default)]
pub struct Waypoints(RwLock<BTreeSet<GatewayName>>);

impl Waypoints {
    /// Takes over what changed.
    pub fn update(&self, delta: &Delta) {
        if delta.waypoint_gateways.is_empty() {
            return;
        }
        let mut names = self.0.write();
        for (name, gateway) in &delta.waypoint_gateways {
            match gateway {
                Some(_) => names.insert(name.clone()),
                None => names.remove(name),
            };
        }
    }

    /// The waypoint that a caller is an instance of: its account has the Gateway's name.
    pub fn of(&self, caller: &Caller) -> Option<GatewayName> {
        let name = GatewayName::new(caller.namespace.clone(), caller.service_account.clone());
        self.0.read().contains(&name).then_some(name)
    }
}
