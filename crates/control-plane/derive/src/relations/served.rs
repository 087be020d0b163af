//! Waypoints in front of services and policies, because of their workloads: in front of a service, the waypoints of its
//! endpoints; in front of a policy, those of its pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use ambit_model::{
    ArcStr, Destination, EndpointWaypoint, GatewayName, NamespacedHostname, Workload, WorkloadUid,
};

/// Pods that a policy of node proxies applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PolicyScope {
    /// Pods that list the policy, by its `namespace/name`.
    Listed(ArcStr),
    /// All pods of a namespace.
    Namespace(ArcStr),
}

/// Services or policies behind waypoints.
#[derive(Debug)]
pub(crate) struct Served<K> {
    /// Workloads that have a waypoint, with what they belong to.
    by_workload: HashMap<WorkloadUid, (GatewayName, Vec<K>)>,
    /// How many workloads have each waypoint.
    by_key: HashMap<K, BTreeMap<GatewayName, usize>>,
}

impl<K> Default for Served<K> {
    fn default() -> Self {
        Self {
            by_workload: HashMap::new(),
            by_key: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> Served<K> {
    /// Follows a workload. Returns the keys that have other waypoints than before.
    pub(crate) fn update(
        &mut self,
        uid: &WorkloadUid,
        new: Option<(GatewayName, Vec<K>)>,
    ) -> BTreeSet<K> {
        let old = match new.clone() {
            Some(new) => self.by_workload.insert(uid.clone(), new),
            None => self.by_workload.remove(uid),
        };
        let mut changed = BTreeSet::new();
        if old == new {
            return changed;
        }
        // Before the old ones go, or something would seem to lose a waypoint that it keeps.
        if let Some((gateway, keys)) = new {
            for key in keys {
                let waypoints = self.by_key.entry(key.clone()).or_default();
                let count = waypoints.entry(gateway.clone()).or_default();
                *count += 1;
                if *count == 1 {
                    changed.insert(key);
                }
            }
        }
        if let Some((gateway, keys)) = old {
            for key in keys {
                if self.remove(&gateway, &key) {
                    changed.insert(key);
                }
            }
        }
        changed
    }

    /// Whether it was the last workload with this waypoint.
    fn remove(&mut self, gateway: &GatewayName, key: &K) -> bool {
        let Some(waypoints) = self.by_key.get_mut(key) else {
            return false;
        };
        let Some(count) = waypoints.get_mut(gateway) else {
            return false;
        };
        *count -= 1;
        let was_last = *count == 0;
        if was_last {
            waypoints.remove(gateway);
        }
        if waypoints.is_empty() {
            self.by_key.remove(key);
        }
        was_last
    }

    /// Returns the keys behind a waypoint.
    pub(crate) fn of(&self, gateway: &GatewayName) -> impl Iterator<Item = &K> {
        let all = self.by_key.iter();
        let of_it = all.filter(move |(_, waypoints)| waypoints.contains_key(gateway));
        of_it.map(|(key, _)| key)
    }

    /// Returns the waypoints in front of a key.
    pub(crate) fn waypoints(&self, key: &K) -> impl Iterator<Item = &GatewayName> {
        let waypoints = self.by_key.get(key).into_iter();
        waypoints.flat_map(BTreeMap::keys)
    }
}

/// The waypoint through which a workload is reached as an endpoint, with the service as target, and its services.
pub(crate) fn as_endpoint(
    workload: Option<&Workload>,
) -> Option<(GatewayName, Vec<NamespacedHostname>)> {
    let workload = workload?;
    let waypoint = workload.endpoint_waypoint.as_ref();
    let waypoint = waypoint.filter(|waypoint| waypoint.for_services)?;
    Some((
        gateway(waypoint)?,
        workload.services.keys().cloned().collect(),
    ))
}

/// The waypoint that a workload is behind, and the policies that apply to it. `foreign`: the Gateway of another
/// controller at an address.
pub(crate) fn as_target(
    workload: Option<&Workload>,
    foreign: impl FnOnce(&Destination) -> Option<GatewayName>,
) -> Option<(GatewayName, Vec<PolicyScope>)> {
    let workload = workload?;
    let waypoint = workload.endpoint_waypoint.as_ref()?;
    let gateway = match waypoint.refuse {
        true => foreign(&waypoint.waypoint.destination),
        false => gateway(waypoint),
    }?;
    let listed = workload.authorization_policies.iter().cloned();
    let listed = listed.map(PolicyScope::Listed);
    let of_namespace = PolicyScope::Namespace(workload.namespace.clone());
    Some((gateway, listed.chain([of_namespace]).collect()))
}

/// The Gateway of a waypoint of ours: its account has the Gateway's name.
fn gateway(of: &EndpointWaypoint) -> Option<GatewayName> {
    let identity = of.identities.first()?;
    Some(GatewayName::new(
        identity.namespace.clone(),
        identity.service_account.clone(),
    ))
}
