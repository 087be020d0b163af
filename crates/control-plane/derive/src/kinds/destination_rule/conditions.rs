//! Status condition of a DestinationRule, which lists the waypoints that apply it.

use std::collections::BTreeSet;

use ambit_k8s_api::ObjectKey;
use ambit_model::{GatewayName, NamespacedHostname};

use crate::{
    condition::{ConditionContent, DerivedStatus},
    names::join_gateway_names,
    objects::destination_rule::input::DestinationRuleInput,
    view::MeshView,
};

pub(crate) fn derived_status(view: &MeshView, rule: &DestinationRuleInput) -> DerivedStatus {
    let mut followed: BTreeSet<GatewayName> = BTreeSet::new();
    let mut instead: BTreeSet<&ObjectKey> = BTreeSet::new();
    let (mut any_host, mut any_waypoint) = (false, false);
    for host in view.hosts_matching(&rule.host) {
        for key in view.objects_declaring(&host) {
            any_host = true;
            let service = NamespacedHostname::new(key.namespace.clone(), host.clone());
            for gateway in view.waypoints_reaching(key, &host) {
                any_waypoint = true;
                match view.rule_for(&service, &gateway) {
                    Some(one) if one.key == rule.key => drop(followed.insert(gateway)),
                    Some(other) => drop(instead.insert(&other.key)),
                    None => {}
                }
            }
        }
    }
    let (is_true, reason, message) = match (join_gateway_names(&followed), instead.first()) {
        (Some(names), _) => (true, "Used", format!("followed by {names}")),
        (None, Some(other)) => (
            false,
            "Conflict",
            format!("{other} is followed in its place: of several rules for a host one counts"),
        ),
        (None, None) if any_waypoint => (
            false,
            "NotExported",
            "the waypoints of the host do not see the rule: it is of another namespace than theirs, the service's and the root one, or not exported to theirs".to_owned(),
        ),
        (None, None) if any_host => (
            false,
            "NoWaypoint",
            "no waypoint reaches the host: the rule has no effect, since node proxies follow none".to_owned(),
        ),
        (None, None) => (
            false,
            "HostNotFound",
            format!("no service has the host {}", rule.host),
        ),
    };
    DerivedStatus {
        condition: Some(ConditionContent {
            is_true,
            reason,
            message,
            needs_attention: !is_true,
        }),
        ..DerivedStatus::default()
    }
}
