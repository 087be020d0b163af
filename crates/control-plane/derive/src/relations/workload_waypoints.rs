//! Waypoints that services and policies have because of their workloads: a service has the waypoints of its endpoints,
//! a policy the waypoints of the pods that it applies to.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use ambit_model::{
    ArcStr, EndpointWaypoint, GatewayDestination, GatewayName, NamespacedHostname, Workload,
    WorkloadUid,
};

/// Pods that a layer 4 policy applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PolicyScope {
    /// Pods whose workload record lists the policy, by its `namespace/name`.
    Policy(ArcStr),
    /// All pods of a namespace.
    Namespace(ArcStr),
}

/// Services or policies (`K`), with the waypoints of their workloads.
#[derive(Debug)]
pub(crate) struct WaypointsByWorkload<K> {
    /// Workloads that have a waypoint, with the services or policies of each.
    by_workload: HashMap<WorkloadUid, (GatewayName, Vec<K>)>,
    /// Number of workloads by service or policy, and by their waypoint.
    by_key: HashMap<K, BTreeMap<GatewayName, usize>>,
}

impl<K> Default for WaypointsByWorkload<K> {
    fn default() -> Self {
        Self {
            by_workload: HashMap::new(),
            by_key: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> WaypointsByWorkload<K> {
    /// Updates the waypoint and the keys of a workload. Returns the services or policies whose set of waypoints
    /// changed.
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

    /// Removes one workload of a service or policy from the count of a waypoint. Returns whether it was the last
    /// workload with this waypoint.
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

    /// Returns the services or policies that have a workload with this waypoint.
    pub(crate) fn keys_at_waypoint(&self, gateway: &GatewayName) -> impl Iterator<Item = &K> {
        let all = self.by_key.iter();
        let of_it = all.filter(move |(_, waypoints)| waypoints.contains_key(gateway));
        of_it.map(|(key, _)| key)
    }

    /// Returns the waypoints of the workloads of a service or policy.
    pub(crate) fn waypoints(&self, key: &K) -> impl Iterator<Item = &GatewayName> {
        let waypoints = self.by_key.get(key).into_iter();
        waypoints.flat_map(BTreeMap::keys)
    }
}

/// Returns the waypoint that serves requests to a workload as an endpoint of its services, and these services; `None`
/// if the workload's waypoint does not serve services.
pub(crate) fn endpoint_services(
    workload: Option<&Workload>,
) -> Option<(GatewayName, Vec<NamespacedHostname>)> {
    let workload = workload?;
    let waypoint = workload.endpoint_waypoint.as_ref();
    let waypoint = waypoint.filter(|waypoint| waypoint.for_services)?;
    Some((
        own_gateway(waypoint)?,
        workload.services.keys().cloned().collect(),
    ))
}

/// Returns the waypoint of a workload, and the scopes of policies that apply to it. `foreign` finds the Gateway of
/// another controller by its address.
pub(crate) fn policy_scopes(
    workload: Option<&Workload>,
    foreign: impl FnOnce(&GatewayDestination) -> Option<GatewayName>,
) -> Option<(GatewayName, Vec<PolicyScope>)> {
    let workload = workload?;
    let waypoint = workload.endpoint_waypoint.as_ref()?;
    let gateway = match waypoint.refuse {
        true => foreign(&waypoint.waypoint.destination),
        false => own_gateway(waypoint),
    }?;
    let join_names = workload.authorization_policies.iter().cloned();
    let join_names = join_names.map(PolicyScope::Policy);
    let of_namespace = PolicyScope::Namespace(workload.namespace.clone());
    Some((gateway, join_names.chain([of_namespace]).collect()))
}

/// Returns the Gateway of one of our own waypoints, whose service account has the Gateway's name.
fn own_gateway(of: &EndpointWaypoint) -> Option<GatewayName> {
    let identity = of.identities.first()?;
    Some(GatewayName::new(
        identity.namespace.clone(),
        identity.service_account.clone(),
    ))
}
