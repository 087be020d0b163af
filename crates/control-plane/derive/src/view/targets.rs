//! Resolution of `targetRefs`: the waypoints that enforce a policy, for which services, and the policy's status
//! condition.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{Gateway, GatewayClass, Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::{ArcStr, GatewayName, NamespacedHostname};

use crate::{
    condition::ConditionContent, config::ServicePolicyScope, names::join_gateway_names,
    objects::targets::PolicyTargets, view::MeshView,
};

/// Part of a policy's targets that one waypoint serves: the waypoint as a whole, or some services.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WaypointTargets {
    pub(crate) targets_gateway: bool,
    pub(crate) services: Vec<NamespacedHostname>,
}

impl PolicyTargets {
    /// Resolves the targets to waypoints: for each, whether it is a target itself, and the targeted services that it
    /// serves.
    pub(crate) fn by_waypoint(&self, view: &MeshView) -> BTreeMap<GatewayName, WaypointTargets> {
        let mut waypoints: BTreeMap<GatewayName, WaypointTargets> = BTreeMap::new();
        for target in &self.0 {
            match target.kind {
                Kind::Gateway | Kind::GatewayClass => {
                    for gateway in waypoints_of_target(view, target) {
                        waypoints.entry(gateway).or_default().targets_gateway = true;
                    }
                }
                _ => {
                    for (gateway, service) in served_hosts(view, target) {
                        waypoints.entry(gateway).or_default().services.push(service);
                    }
                }
            }
        }
        for concerned in waypoints.values_mut() {
            concerned.services.sort_unstable();
            concerned.services.dedup();
        }
        waypoints
    }

    /// Returns the text of a warning about requests to pods' own addresses, which a policy of their Service does not
    /// apply to because the Service's waypoint serves services only.
    fn pod_address_warning(&self, view: &MeshView) -> Option<String> {
        let waypoints = self
            .0
            .iter()
            .filter_map(|target| services_only_waypoint(view, target));
        let waypoints: BTreeSet<GatewayName> = waypoints.collect();
        let names = join_gateway_names(&waypoints)?;
        Some(format!(
            ", not for requests to the pods' own addresses: {names} serves services alone (istio.io/waypoint-for: all takes their pods, too)"
        ))
    }

    /// Builds the status condition that lists the waypoints at which a policy is in effect; `word` names the kind of
    /// policy, and `how` is the verb (such as "enforced").
    pub(crate) fn waypoints_condition(
        &self,
        view: &MeshView,
        word: &str,
        how: &str,
    ) -> ConditionContent {
        let (mut bound, mut unbound) = (BTreeSet::new(), Vec::new());
        let mut any_found = false;
        for target in &self.0 {
            let waypoints = match target.kind {
                Kind::Gateway | Kind::GatewayClass => waypoints_of_target(view, target),
                _ => served_hosts(view, target)
                    .into_iter()
                    .map(|(gateway, _)| gateway)
                    .collect(),
            };
            let found = target_exists(view, target);
            any_found |= found;
            if waypoints.is_empty() {
                let why = match (found, target.kind) {
                    (false, _) => "does not exist".to_owned(),
                    (true, Kind::Gateway) => "is no waypoint of this control plane".to_owned(),
                    (true, Kind::GatewayClass) => {
                        "has no waypoints of this control plane".to_owned()
                    }
                    (true, _) if has_foreign_waypoint(view, target) => format!(
                        "has a waypoint of another control plane, which this {word} is not sent to"
                    ),
                    (true, _) => "has no waypoint".to_owned(),
                };
                unbound.push(format!("{target} {why}"));
            }
            bound.extend(waypoints);
        }
        let is_of_services =
            |target: &ObjectKey| !matches!(target.kind, Kind::Gateway | Kind::GatewayClass);
        let passes_pods = view.config.service_policy_scope == ServicePolicyScope::ServiceOnly
            && self.0.iter().any(is_of_services);
        let limit = match passes_pods {
            true => {
                ", not for requests to pods' own addresses (global.waypoint.servicePolicyScope: istio)"
                    .to_owned()
            }
            false => self.pod_address_warning(view).unwrap_or_default(),
        };
        let at = join_gateway_names(&bound).map(|names| format!("{how} by {names}{limit}"));
        let (is_true, reason) = match (&at, unbound.is_empty()) {
            (Some(_), true) => (true, "Accepted"),
            (Some(_), false) => (true, "PartiallyInvalid"),
            (None, _) if any_found => (false, "AncestorNotBound"),
            (None, _) => (false, "TargetNotFound"),
        };
        let without = unbound.join(", ");
        let message = match at {
            Some(at) if unbound.is_empty() => at,
            Some(at) => format!("{at}; {without}"),
            None => format!("{without}: the {word} has no effect"),
        };
        ConditionContent {
            is_true,
            reason,
            message,
            needs_attention: !is_true || !unbound.is_empty(),
        }
    }
}

fn target_exists(view: &MeshView, target: &ObjectKey) -> bool {
    match target.kind {
        Kind::Gateway => view.get::<Gateway>(target).is_some(),
        Kind::GatewayClass => {
            view.get::<GatewayClass>(target).is_some()
                || !view.gateways_of_class(&target.name).is_empty()
        }
        Kind::Service => view.get::<Service>(target).is_some(),
        _ => view.get::<ServiceEntry>(target).is_some(),
    }
}

/// Returns our own waypoints that a Gateway or GatewayClass as target stands for.
fn waypoints_of_target(view: &MeshView, target: &ObjectKey) -> Vec<GatewayName> {
    let mut names = match target.kind {
        Kind::GatewayClass => view.gateways_of_class(&target.name),
        _ => vec![GatewayName::new(
            target.namespace.clone(),
            target.name.clone(),
        )],
    };
    names.retain(|name| view.waypoint(name).is_some());
    names
}

/// Returns the waypoint of a Service or ServiceEntry with pods, if that waypoint serves services only.
fn services_only_waypoint(view: &MeshView, target: &ObjectKey) -> Option<GatewayName> {
    let selects_pods = match target.kind {
        Kind::Service => view.get::<Service>(target)?.selector.is_some(),
        Kind::ServiceEntry => view.get::<ServiceEntry>(target)?.selector.is_some(),
        _ => false,
    };
    let attachment = view.waypoint_of_service(target).filter(|_| selects_pods)?;
    let serves = attachment.outcome.ok()?;
    let gateway = attachment.own_gateway()?;
    (!serves.includes_workloads()).then(|| gateway.clone())
}

/// Whether a Service or ServiceEntry is attached to another controller's waypoint.
fn has_foreign_waypoint(view: &MeshView, target: &ObjectKey) -> bool {
    let attachment = view.waypoint_of_service(target);
    attachment.is_some_and(|attachment| attachment.foreign_waypoint.is_some())
}

/// Returns the hosts of a Service or ServiceEntry, each with a waypoint that serves it.
fn served_hosts(view: &MeshView, target: &ObjectKey) -> Vec<(GatewayName, NamespacedHostname)> {
    let hosts: Vec<&ArcStr>;
    let own;
    match target.kind {
        Kind::Service => {
            let Some(service) = view.get::<Service>(target) else {
                return Vec::new();
            };
            own = service.hostname(&view.config.cluster_domain);
            hosts = vec![&own];
        }
        _ => {
            let Some(entry) = view.get::<ServiceEntry>(target) else {
                return Vec::new();
            };
            hosts = view.owned_hosts(entry).collect();
        }
    }
    let of_host = |host: &ArcStr| {
        let name = NamespacedHostname::new(target.namespace.clone(), host.clone());
        let waypoints = view.waypoints_serving(target, host).into_iter();
        waypoints.map(move |gateway| (gateway, name.clone()))
    };
    hosts.into_iter().flat_map(of_host).collect()
}
