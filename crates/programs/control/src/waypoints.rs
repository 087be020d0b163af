//! The waypoints that there are: an account of one may read what concerns its Gateway, and nothing else, and call for the
//! objects of namespaces that are attached to it.

use std::collections::{BTreeMap, BTreeSet};

use ambit_derive::Delta;
use ambit_k8s_api::Kind;
use ambit_model::{GatewayName, PolicyKey};
use parking_lot::RwLock;

use crate::auth::Caller;

/// The Gateways that this control plane runs waypoints for; `None` until the objects at the start are known.
#[derive(Debug, Default)]
pub struct Waypoints(RwLock<Option<Known>>);

#[derive(Debug, Default)]
struct Known {
    gateways: BTreeSet<GatewayName>,
    /// Objects for which the waypoints of a Gateway make calls.
    callers: BTreeMap<GatewayName, BTreeSet<(Kind, PolicyKey)>>,
}

impl Waypoints {
    /// Takes over what changed. Returns whether there was anything to learn.
    pub fn update(&self, delta: &Delta) -> bool {
        let mut known = self.0.write();
        let is_news = known.is_none()
            || !delta.waypoint_gateways.is_empty()
            || !delta.waypoint_extensions.is_empty()
            || !delta.waypoint_rate_limits.is_empty();
        let known = known.get_or_insert_default();
        for (name, gateway) in &delta.waypoint_gateways {
            match gateway {
                Some(_) => known.gateways.insert(name.clone()),
                None => known.gateways.remove(name),
            };
        }
        for ((gateway, plugin), record) in &delta.waypoint_extensions {
            known.set(gateway, (Kind::WasmPlugin, plugin), record.is_some());
        }
        for ((gateway, limit), record) in &delta.waypoint_rate_limits {
            let calls = record.as_ref().is_some_and(|limit| limit.global.is_some());
            known.set(gateway, (Kind::RateLimit, limit), calls);
        }
        is_news
    }

    /// Whether all that exist are known.
    pub fn are_known(&self) -> bool {
        self.0.read().is_some()
    }

    /// The waypoint whose account the caller has: it has the Gateway's name.
    pub fn of(&self, caller: &Caller) -> Option<GatewayName> {
        self.of_account(&caller.namespace, &caller.service_account)
    }

    /// The waypoint whose account this is.
    pub fn of_account(&self, namespace: &str, account: &str) -> Option<GatewayName> {
        let name = GatewayName::new(namespace, account);
        let known = self.0.read();
        known.as_ref()?.gateways.contains(&name).then_some(name)
    }

    /// Whether objects of a namespace for which waypoints make calls are attached to a Gateway.
    pub fn call_for(&self, gateway: &GatewayName, namespace: &str) -> bool {
        let known = self.0.read();
        let callers = known.as_ref().and_then(|known| known.callers.get(gateway));
        callers.is_some_and(|all| all.iter().any(|(_, object)| object.namespace == namespace))
    }
}

impl Known {
    fn set(&mut self, gateway: &GatewayName, (kind, object): (Kind, &PolicyKey), calls: bool) {
        let object = (kind, object.clone());
        if calls {
            self.callers
                .entry(gateway.clone())
                .or_default()
                .insert(object);
        } else if let Some(callers) = self.callers.get_mut(gateway) {
            callers.remove(&object);
            if callers.is_empty() {
                self.callers.remove(gateway);
            }
        }
    }
}
