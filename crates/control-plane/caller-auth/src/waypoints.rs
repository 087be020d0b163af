//! Waypoints and their service accounts. A waypoint's account may read only the configuration of
//! its own Gateway, and may call on behalf of namespaces whose objects are attached to it.

use std::collections::{BTreeMap, BTreeSet};

use ambit_derive::Delta;
use ambit_k8s_api::Kind;
use ambit_model::{
    GatewayName, PolicyKey, RateLimit, WaypointExtension, WaypointGateway, WaypointRecordKey,
};
use parking_lot::RwLock;

use crate::token::Caller;

/// Gateways whose waypoints this control plane configures; `None` until the initial objects are known.
#[derive(Debug, Default)]
pub struct WaypointRegistry(RwLock<Option<RegistryState>>);

#[derive(Debug, Default)]
struct RegistryState {
    gateways: BTreeSet<GatewayName>,
    /// Objects on whose behalf a waypoint makes calls, by the waypoint's Gateway.
    objects_with_calls: BTreeMap<GatewayName, BTreeSet<(Kind, PolicyKey)>>,
}

impl WaypointRegistry {
    /// Applies changes of derived records. Returns whether they change waypoints' records, or are the first records.
    pub fn update(&self, delta: &Delta) -> bool {
        let mut known = self.0.write();
        let mut is_news = known.is_none();
        let known = known.get_or_insert_default();
        for (key, record) in delta.waypoint_records_of::<WaypointGateway>() {
            is_news = true;
            match record {
                Some(_) => known.gateways.insert(key.gateway.clone()),
                None => known.gateways.remove(&key.gateway),
            };
        }
        for (key, record) in delta.waypoint_records_of::<WaypointExtension>() {
            is_news = true;
            known.record_calls(key, Kind::WasmPlugin, record.is_some());
        }
        for (key, record) in delta.waypoint_records_of::<RateLimit>() {
            is_news = true;
            let calls = record.is_some_and(|limit| limit.global.is_some());
            known.record_calls(key, Kind::RateLimit, calls);
        }
        is_news
    }

    /// Returns whether the initial objects are known.
    pub fn is_synced(&self) -> bool {
        self.0.read().is_some()
    }

    /// Returns the waypoint that runs under the caller's service account, which has the Gateway's name.
    pub fn waypoint_of_caller(&self, caller: &Caller) -> Option<GatewayName> {
        self.waypoint_of_account(&caller.namespace, &caller.service_account)
    }

    /// Returns the waypoint that runs under this service account.
    pub fn waypoint_of_account(&self, namespace: &str, account: &str) -> Option<GatewayName> {
        let name = GatewayName::new(namespace, account);
        let known = self.0.read();
        known.as_ref()?.gateways.contains(&name).then_some(name)
    }

    /// Returns whether the waypoint of a Gateway makes calls on behalf of objects of a namespace.
    pub fn makes_calls_for(&self, gateway: &GatewayName, namespace: &str) -> bool {
        let known = self.0.read();
        let callers = known
            .as_ref()
            .and_then(|known| known.objects_with_calls.get(gateway));
        callers.is_some_and(|all| all.iter().any(|(_, object)| object.namespace == namespace))
    }
}

impl RegistryState {
    /// Records whether a waypoint makes calls on behalf of the object of a waypoint record.
    fn record_calls(&mut self, key: &WaypointRecordKey, kind: Kind, calls: bool) {
        let (gateway, object) = (
            &key.gateway,
            (kind, PolicyKey::from_resource_name(&key.name)),
        );
        if calls {
            self.objects_with_calls
                .entry(gateway.clone())
                .or_default()
                .insert(object);
        } else if let Some(callers) = self.objects_with_calls.get_mut(gateway) {
            callers.remove(&object);
            if callers.is_empty() {
                self.objects_with_calls.remove(gateway);
            }
        }
    }
}
