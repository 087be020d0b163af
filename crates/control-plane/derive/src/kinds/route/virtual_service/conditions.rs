//! Status condition of a VirtualService: the waypoints that apply it, and the hosts for which it has no effect.

use std::collections::BTreeSet;

use ambit_k8s_api::ObjectKey;
use ambit_model::{ArcStr, GatewayName};

use crate::{
    condition::{ConditionContent, DerivedStatus},
    kinds::route::{
        attached::AttachedRoute, ports::declared_ports, references::UnresolvedReference,
    },
    names::join_gateway_names,
    objects::route::{hosts::VirtualServiceScope, input::RouteInput, rules::RouteRuleInput},
    relations::references::ReferenceKind,
    view::MeshView,
};

/// Reason why a VirtualService has no effect on a host: `reason` and `message` of the status condition.
type UnusedReason = (&'static str, String);

pub(crate) fn derived_status(view: &MeshView, route: &RouteInput) -> Option<DerivedStatus> {
    let scope = route.scope.as_ref()?;
    if !scope.is_for_mesh {
        let why = "spec.gateways does not contain mesh: it is for ingress and egress gateways, and has no effect on \
                   waypoints";
        return Some(used_status(false, "NotForMesh", why.to_owned(), true));
    }
    if route.http_rules().is_empty() {
        let why = "there are no rules for HTTP: it has no effect";
        return Some(used_status(false, "NoRules", why.to_owned(), true));
    }
    let mut gateways = BTreeSet::new();
    let mut obstacles: Vec<UnusedReason> = Vec::new();
    for host in scope.hosts() {
        match waypoints_applying(view, route, host) {
            Ok(of_host) => gateways.extend(of_host),
            Err(obstacle) => obstacles.push(obstacle),
        }
    }
    let unresolved = unresolved_references(view, route, scope);
    let mut texts: Vec<String> = obstacles.iter().map(|(_, text)| text.clone()).collect();
    if !unresolved.is_empty() {
        let why: Vec<_> = unresolved.iter().map(|one| one.text.as_str()).collect();
        let share =
            "their share of requests is answered with an error, and nothing is mirrored there";
        texts.push(format!("{}; {share}", why.join("; ")));
    }
    let needs_attention = !texts.is_empty();
    Some(match (join_gateway_names(&gateways), obstacles.first()) {
        (Some(names), _) => {
            texts.insert(0, format!("followed by {names}"));
            let reason = if needs_attention {
                "PartiallyUsed"
            } else {
                "Used"
            };
            used_status(true, reason, texts.join("; "), needs_attention)
        }
        (None, Some((reason, _))) => used_status(false, reason, texts.join("; "), true),
        (None, None) => {
            let why = "spec.hosts names no service: it has no effect";
            used_status(false, "HostNotFound", why.to_owned(), true)
        }
    })
}

fn used_status(
    is_true: bool,
    reason: &'static str,
    message: String,
    needs_attention: bool,
) -> DerivedStatus {
    DerivedStatus {
        condition: Some(ConditionContent {
            is_true,
            reason,
            message,
            needs_attention,
        }),
        ..DerivedStatus::default()
    }
}

/// Returns the waypoints that apply a VirtualService to a host, or the reason why none does.
fn waypoints_applying(
    view: &MeshView,
    route: &RouteInput,
    host: &ArcStr,
) -> Result<BTreeSet<GatewayName>, UnusedReason> {
    let mut followed = BTreeSet::new();
    let mut obstacle: UnusedReason = (
        "HostNotFound",
        format!("no service has the host {host}: it has no effect"),
    );
    for (target, _) in view.record_owners(host) {
        let gateways = view.waypoints_serving(target, host);
        if gateways.is_empty() && obstacle.0 == "HostNotFound" {
            let text = format!(
                "no waypoint reaches the host {host}: the VirtualService has no effect on it"
            );
            obstacle = ("NoWaypoint", text);
        }
        for gateway in gateways {
            match check_waypoint(view, route, host, (target, &gateway)) {
                Ok(()) => drop(followed.insert(gateway)),
                Err(why) => obstacle = why,
            }
        }
    }
    if followed.is_empty() {
        return Err(obstacle);
    }
    Ok(followed)
}

/// Checks that a waypoint applies a VirtualService to a host of a service; the error is the reason why it does not.
fn check_waypoint(
    view: &MeshView,
    route: &RouteInput,
    host: &ArcStr,
    (target, gateway): (&ObjectKey, &GatewayName),
) -> Result<(), UnusedReason> {
    if !route.is_applied_by(target, gateway) {
        let text = format!(
            "exportTo does not contain {}, whose waypoint serves {host}: it has no effect there",
            gateway.namespace
        );
        return Err(("NotExported", text));
    }
    let rivals = view.preceding_routes(target, gateway);
    let clients = route.consumer_namespace(target, gateway);
    let ports = declared_ports(view, target).unwrap_or_default();
    let in_place: Vec<_> = ports
        .iter()
        .map(|(_, port, _)| {
            rivals
                .iter()
                .find(|rival| rival.precedes(clients.as_ref(), *port))
        })
        .collect();
    if let Some(Some(rival)) = in_place.first()
        && in_place.iter().all(Option::is_some)
    {
        let text = format!(
            "{} is followed for {host} in its place, so that it has no effect: routes of the Gateway API go before \
             VirtualServices",
            rival.name
        );
        return Err(("Conflict", text));
    }
    let catch_alls = view.references.referrers(ReferenceKind::CatchAllHost, host);
    let mut catch_alls = catch_alls.filter_map(|key| view.route(key));
    let older = catch_alls.find(|one| {
        one.precedence_key() < route.precedence_key()
            && one.is_applied_by(target, gateway)
            && one.consumer_namespace(target, gateway) == clients
    });
    match older {
        Some(older) => {
            let text = format!(
                "{} is older, and has a rule for all requests to {host}: this one has no effect on it",
                older.name
            );
            Err(("Conflict", text))
        }
        None => Ok(()),
    }
}

/// Returns the reasons why backends and mirrors of a VirtualService cannot be resolved, without duplicates.
fn unresolved_references(
    view: &MeshView,
    route: &RouteInput,
    scope: &VirtualServiceScope,
) -> Vec<UnresolvedReference> {
    let mut all = Vec::new();
    for host in scope.hosts() {
        for (target, _) in view.record_owners(host) {
            for gateway in view.waypoints_serving(target, host) {
                if route.is_applied_by(target, &gateway) {
                    all.extend(unresolved_references_at(view, route, target, &gateway));
                }
            }
        }
    }
    let mut seen = BTreeSet::new();
    all.retain(|one| seen.insert(one.text.clone()));
    all
}

fn unresolved_references_at(
    view: &MeshView,
    route: &RouteInput,
    parent: &ObjectKey,
    gateway: &GatewayName,
) -> Vec<UnresolvedReference> {
    let ports = declared_ports(view, parent).unwrap_or_default();
    let attached = ports.iter().map(|(_, port, _)| AttachedRoute {
        route,
        parent,
        port: Some(*port),
    });
    let errors = attached.flat_map(|attached| {
        let rules = route.http_rules();
        let backends = rules.iter().flat_map(RouteRuleInput::backends);
        let backends = backends.filter_map(move |one| one.resolve(view, attached, gateway).err());
        let mirrors = rules.iter();
        let mirrors = mirrors.flat_map(move |rule| rule.mirror_errors(view, attached));
        backends.chain(mirrors)
    });
    errors.collect()
}
