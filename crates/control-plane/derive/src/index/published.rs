//! The records as last published, and what made each.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use ambit_model::{
    Authentication, Authorization, GatewayName, HttpPolicy, NamespacedHostname, PolicyKey,
    RateLimit, TelemetryScope, WaypointDestination, WaypointExtension, WaypointGateway,
    WaypointService, WaypointTelemetry, Workload, WorkloadUid,
};

use super::Maker;
use crate::{Changed, Delta, ServiceRecord, index::kind::Rendered};

/// All records.
#[derive(Debug, Default)]
pub(super) struct Published {
    workloads: Records<WorkloadUid, Workload>,
    services: Records<NamespacedHostname, ServiceRecord>,
    policies: Records<PolicyKey, Authorization>,
    waypoint_gateways: Records<GatewayName, WaypointGateway>,
    waypoint_services: Records<(GatewayName, NamespacedHostname), WaypointService>,
    waypoint_policies: Records<(GatewayName, PolicyKey), HttpPolicy>,
    waypoint_destinations: Records<(GatewayName, NamespacedHostname), WaypointDestination>,
    waypoint_authentications: Records<(GatewayName, PolicyKey), Authentication>,
    waypoint_rate_limits: Records<(GatewayName, PolicyKey), RateLimit>,
    waypoint_telemetry: Records<(GatewayName, TelemetryScope), WaypointTelemetry>,
    waypoint_extensions: Records<(GatewayName, PolicyKey), WaypointExtension>,
}

impl Published {
    /// Replaces all that something made; `delta` gets what differs.
    pub(super) fn replace(&mut self, maker: &Maker, new: Rendered, delta: &mut Delta) {
        let Rendered {
            workloads,
            services,
            policies,
            waypoint_gateways,
            waypoint_services,
            waypoint_policies,
            waypoint_destinations,
            waypoint_authentications,
            waypoint_rate_limits,
            waypoint_telemetry,
            waypoint_extensions,
            conflicts: _,
        } = new;
        let named = workloads.into_iter().map(|one| (one.uid.clone(), one));
        self.workloads.replace(maker, named, &mut delta.workloads);
        let named = services.into_iter();
        let named = named.map(|one| (one.service.namespaced_hostname(), one));
        self.services.replace(maker, named, &mut delta.services);
        let named = policies.into_iter().map(|one| (one.key(), one));
        self.policies.replace(maker, named, &mut delta.policies);
        let named = waypoint_gateways.into_iter();
        let named = named.map(|one| (one.gateway.clone(), one));
        self.waypoint_gateways
            .replace(maker, named, &mut delta.waypoint_gateways);
        let named = waypoint_services.into_iter();
        let named = named.map(|(gateway, one)| ((gateway, one.service.clone()), one));
        self.waypoint_services
            .replace(maker, named, &mut delta.waypoint_services);
        let named = waypoint_policies.into_iter();
        let named = named.map(|(gateway, one)| ((gateway, one.key.clone()), one));
        self.waypoint_policies
            .replace(maker, named, &mut delta.waypoint_policies);
        let named = waypoint_destinations.into_iter();
        let named = named.map(|(gateway, one)| ((gateway, one.service.clone()), one));
        self.waypoint_destinations
            .replace(maker, named, &mut delta.waypoint_destinations);
        let named = waypoint_authentications.into_iter();
        let named = named.map(|(gateway, one)| ((gateway, one.key.clone()), one));
        self.waypoint_authentications
            .replace(maker, named, &mut delta.waypoint_authentications);
        let named = waypoint_rate_limits.into_iter();
        let named = named.map(|(gateway, one)| ((gateway, one.key.clone()), one));
        self.waypoint_rate_limits
            .replace(maker, named, &mut delta.waypoint_rate_limits);
        let named = waypoint_telemetry.into_iter();
        let named = named.map(|(gateway, one)| ((gateway, one.scope.clone()), one));
        self.waypoint_telemetry
            .replace(maker, named, &mut delta.waypoint_telemetry);
        let named = waypoint_extensions.into_iter();
        let named = named.map(|(gateway, one)| ((gateway, PolicyKey::of_record(&one.key())), one));
        self.waypoint_extensions
            .replace(maker, named, &mut delta.waypoint_extensions);
    }
}

/// The records of one type.
#[derive(Debug)]
struct Records<N, R> {
    by_name: HashMap<N, Arc<R>>,
    made_by: HashMap<Maker, Vec<N>>,
}

impl<N, R> Default for Records<N, R> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
            made_by: HashMap::new(),
        }
    }
}

impl<N: Clone + Eq + Hash, R: PartialEq> Records<N, R> {
    fn replace(
        &mut self,
        maker: &Maker,
        new: impl Iterator<Item = (N, R)>,
        delta: &mut Changed<N, R>,
    ) {
        let new: Vec<(N, R)> = new.collect();
        let names: Vec<N> = new.iter().map(|(name, _)| name.clone()).collect();
        let old = if names.is_empty() {
            self.made_by.remove(maker)
        } else {
            self.made_by.insert(maker.clone(), names.clone())
        };
        let old = old.into_iter().flatten();
        for gone in old.filter(|name| !names.contains(name)) {
            self.by_name.remove(&gone);
            delta.push((gone, None));
        }
        for (name, record) in new {
            let same = self.by_name.get(&name).is_some_and(|old| **old == record);
            if !same {
                let record = Arc::new(record);
                self.by_name.insert(name.clone(), Arc::clone(&record));
                delta.push((name, Some(record)));
            }
        }
    }
}
