//! Status conditions of a route by parent: whether it is accepted, whether its references resolve, and the waypoints
//! that apply it.

pub(crate) mod conflicts;
pub(crate) mod serving;

use std::collections::BTreeMap;

use ambit_k8s_api::gateway::ParentReference;
use ambit_model::GatewayName;
use serde_json::{Map, Value, json};

use crate::{
    condition::{ConditionContent, DerivedStatus, StatusEntry},
    kinds::route::{
        conditions::serving::serving_waypoints, ports::declared_ports,
        references::UnresolvedReference,
    },
    names::join_gateway_names,
    objects::{
        gateway_class::CONTROLLER,
        route::{
            backends::BackendInput,
            input::{RouteInput, RouteParent, RouteRules},
            unsupported::UnsupportedPart,
        },
    },
    view::MeshView,
};

fn condition_true(reason: &'static str, message: impl Into<String>) -> ConditionContent {
    ConditionContent {
        is_true: true,
        reason,
        message: message.into(),
        needs_attention: false,
    }
}

fn condition_false(reason: &'static str, message: impl Into<String>) -> ConditionContent {
    ConditionContent {
        is_true: false,
        needs_attention: true,
        ..condition_true(reason, message)
    }
}

pub(crate) fn derived_status(view: &MeshView, route: &RouteInput) -> DerivedStatus {
    let part = |parent: &RouteParent| StatusEntry {
        identity: BTreeMap::from([
            ("parentRef", parent_reference_json(&parent.reference)),
            ("controllerName", CONTROLLER.into()),
        ]),
        other_fields: BTreeMap::new(),
        conditions: vec![
            ("Accepted", accepted_condition(view, route, parent)),
            ("ResolvedRefs", resolved_refs_condition(view, route, parent)),
            ("ResolvedWaypoints", waypoint_condition(view, route, parent)),
        ],
    };
    DerivedStatus {
        entries: route.parents.iter().map(part).collect(),
        ..DerivedStatus::default()
    }
}

/// Serializes a parent reference for the status.
fn parent_reference_json(reference: &ParentReference) -> Value {
    let mut fields = Map::new();
    let texts = [
        ("group", &reference.group),
        ("kind", &reference.kind),
        ("namespace", &reference.namespace),
        ("sectionName", &reference.section_name),
    ];
    for (name, value) in texts {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value.as_str().into());
        }
    }
    fields.insert("name".to_owned(), reference.name.as_str().into());
    if let Some(port) = reference.port {
        fields.insert("port".to_owned(), json!(port));
    }
    fields.into()
}

fn accepted_condition(
    view: &MeshView,
    route: &RouteInput,
    parent: &RouteParent,
) -> ConditionContent {
    let target = &parent.target;
    let meant = match parent.selected_ports(view) {
        Ok(meant) => meant,
        Err(why) => return condition_false("NoMatchingParent", why),
    };
    let unsupported = route.rules.unsupported();
    if let Some(UnsupportedPart { reason, .. }) = unsupported.first() {
        let texts: Vec<_> = unsupported.iter().map(|one| one.text.as_str()).collect();
        let what = texts.join("; ");
        let message = match route.rules {
            RouteRules::Http(_) => {
                format!("{what}; requests that these rules match are answered with an error")
            }
            RouteRules::Stream(_) => {
                format!("{what}; connections that the route is for are refused")
            }
        };
        return condition_false(reason, message);
    }
    let mut ports = declared_ports(view, target).unwrap_or_default();
    ports.sort_by_key(|(_, port, _)| *port);
    let ports = ports
        .iter()
        .filter(|(_, port, _)| meant.is_empty() || meant.contains(port));
    let judged: Vec<_> = ports
        .map(|(_, port, protocol)| {
            conflicts::find_conflict(view, route, target, (*port, *protocol))
        })
        .collect();
    let lost: Vec<_> = judged.iter().flatten().collect();
    let texts: Vec<_> = lost.iter().map(|one| one.text.as_str()).collect();
    match lost.first() {
        None => condition_true("Accepted", "the route is followed"),
        Some(first) if lost.len() == judged.len() => {
            condition_false(first.reason, texts.join("; "))
        }
        Some(_) => condition_true(
            "Accepted",
            format!("the route is followed, but: {}", texts.join("; ")),
        ),
    }
}

fn resolved_refs_condition(
    view: &MeshView,
    route: &RouteInput,
    parent: &RouteParent,
) -> ConditionContent {
    let attached = route.attached_to(&parent.target);
    let backends = route.rules.backends();
    let serving = serving_waypoints(view, &parent.target);
    let find = |backend: &BackendInput| -> Result<(), UnresolvedReference> {
        backend.service.resolve(view, attached)?;
        // Whether there are its endpoints is up to each of them.
        let mut all = serving.iter();
        all.try_for_each(|gateway| backend.resolve(view, attached, gateway).map(drop))
    };
    let errors = backends.filter_map(|backend| find(backend).err());
    let errors: Vec<UnresolvedReference> = errors.collect();
    let mirrors = route.rules.mirror_errors(view, attached);
    let filters = route.rules.filter_errors(view);
    let mut all = errors.iter().chain(&filters).chain(&mirrors);
    let Some(UnresolvedReference { reason, .. }) = all.next() else {
        return condition_true("ResolvedRefs", "every backend is found");
    };
    let summary = |of: &[UnresolvedReference], what: &str| {
        let texts: Vec<_> = of.iter().map(|error| error.text.as_str()).collect();
        (!of.is_empty()).then(|| format!("{}; {what}", texts.join("; ")))
    };
    let share = match route.rules {
        RouteRules::Http(_) => "their share of requests is answered with an error",
        RouteRules::Stream(_) => "their share of connections is refused",
    };
    let both = [
        summary(&errors, share),
        summary(
            &filters,
            "requests that would pass such a filter are answered with an error",
        ),
        summary(&mirrors, "nothing is mirrored there"),
    ];
    let message: Vec<_> = both.into_iter().flatten().collect();
    condition_false(reason, message.join("; "))
}

fn waypoint_condition(
    view: &MeshView,
    route: &RouteInput,
    parent: &RouteParent,
) -> ConditionContent {
    let target = &parent.target;
    let of = &route.name.namespace;
    let serving = serving_waypoints(view, target);
    let is_for_all = |gateway: &GatewayName| route.is_producer_route(target, gateway);
    match join_gateway_names(&serving) {
        Some(names) if serving.iter().any(is_for_all) => {
            condition_true("ResolvedWaypoints", format!("followed by {names}"))
        }
        Some(names) => condition_true(
            "ResolvedWaypoints",
            format!("followed by {names} for clients of {of}"),
        ),
        None => condition_false(
            "NoWaypoint",
            format!("{target} has no waypoint that follows the route: it has no effect"),
        ),
    }
}
