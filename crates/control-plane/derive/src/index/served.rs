//! Which waypoints serve a service because of its endpoints: an endpoint with a waypoint of its own is reached
//! through it with the service as target.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ambit_model::{
    ArcStr, EndpointWaypoint, GatewayName, NamespacedHostname, Workload, WorkloadUid,
};

/// See the module above.
#[derive(Debug, Default)]
pub(super) struct Served {
    /// Workloads that have such a waypoint, with their services.
    by_workload: HashMap<WorkloadUid, (GatewayName, Vec<NamespacedHostname>)>,
    /// How many endpoints of a service have each waypoint.
    by_service: HashMap<NamespacedHostname, BTreeMap<GatewayName, usize>>,
}

impl Served {
    /// A workload is as it is now. Returns the hosts of the services that have other waypoints than before.
    pub(super) fn update(
        &mut self,
        uid: &WorkloadUid,
        workload: Option<&Arc<Workload>>,
    ) -> BTreeSet<ArcStr> {
        let new = workload.and_then(|workload| {
            let gateway = gateway(workload.endpoint_waypoint.as_ref()?)?;
            Some((gateway, workload.services.keys().cloned().collect()))
        });
        let old = match new.clone() {
            Some(new) => self.by_workload.insert(uid.clone(), new),
            None => self.by_workload.remove(uid),
        };
        let mut changed = BTreeSet::new();
        if old == new {
            return changed;
        }
        // Before the old ones go, or a service would seem to lose a waypoint that it keeps.
        if let Some((gateway, services)) = new {
            for service in services {
                let waypoints = self.by_service.entry(service.clone()).or_default();
                let count = waypoints.entry(gateway.clone()).or_default();
                *count += 1;
                if *count == 1 {
                    changed.insert(service.hostname);
                }
            }
        }
        if let Some((gateway, services)) = old {
            for service in services {
                if self.remove(&gateway, &service) {
                    changed.insert(service.hostname);
                }
            }
        }
        changed
    }

    /// Whether it was the last endpoint of the service with this waypoint.
    fn remove(&mut self, gateway: &GatewayName, service: &NamespacedHostname) -> bool {
        let Some(waypoints) = self.by_service.get_mut(service) else {
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
            self.by_service.remove(service);
        }
        was_last
    }

    /// The hosts of the services that a waypoint serves because of endpoints.
    pub(super) fn services_of(&self, gateway: &GatewayName) -> impl Iterator<Item = ArcStr> {
        let all = self.by_service.iter();
        let of_it = all.filter(move |(_, waypoints)| waypoints.contains_key(gateway));
        of_it.map(|(service, _)| service.hostname.clone())
    }

    /// The waypoints of a service's endpoints.
    pub(super) fn waypoints(
        &self,
        service: &NamespacedHostname,
    ) -> impl Iterator<Item = &GatewayName> {
        let waypoints = self.by_service.get(service).into_iter();
        waypoints.flat_map(BTreeMap::keys)
    }
}

/// The Gateway of an endpoint's waypoint, if that serves services: its account has the Gateway's name.
fn gateway(of: &EndpointWaypoint) -> Option<GatewayName> {
    let identity = of.identities.first().filter(|_| of.for_services)?;
    Some(GatewayName::new(
        identity.namespace.clone(),
        identity.service_account.clone(),
    ))
}
