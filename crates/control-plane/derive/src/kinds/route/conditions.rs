//! Status conditions of a route by parent: whether it is accepted, whether its references resolve, and the waypoints
//! that apply it.

pub(crate) mod conflicts;
pub(crate) mod serving;

use std::collections::BTreeMap;

use ambit_k8s_api::gateway::ParentReference;
use ambit_model::GatewayName;
use serde_json::{Map, Value, json};

use crate::{
    condition::{Part, Standing, Verdict},
    kinds::route::{conditions::serving::serving, ports::declared_ports, references::Unresolved},
    names::names,
    objects::{
        gateway_class::CONTROLLER,
        route::{
            backends::BackendInput,
            input::{Parent, RouteInput, Rules},
            unsupported::Unsupported,
        },
    },
    view::MeshView,
};

fn good(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict {
        is_true: true,
        reason,
        message: message.into(),
        is_trouble: false,
    }
}

fn bad(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict {
        is_true: false,
        is_trouble: true,
        ..good(reason, message)
    }
}

pub(crate) fn of(view: &MeshView, route: &RouteInput) -> Standing {
    let part = |parent: &Parent| Part {
        identity: BTreeMap::from([
            ("parentRef", json(&parent.reference)),
            ("controllerName", CONTROLLER.into()),
        ]),
        fields: BTreeMap::new(),
        conditions: vec![
            ("Accepted", accepted(view, route, parent)),
            ("ResolvedRefs", resolved(view, route, parent)),
            ("ResolvedWaypoints", at_waypoints(view, route, parent)),
        ],
    };
    Standing {
        parts: route.parents.iter().map(part).collect(),
        ..Standing::default()
    }
}

/// Serializes a parent reference for the status.
fn json(reference: &ParentReference) -> Value {
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

fn accepted(view: &MeshView, route: &RouteInput, parent: &Parent) -> Verdict {
    let target = &parent.target;
    let meant = match parent.ports(view) {
        Ok(meant) => meant,
        Err(why) => return bad("NoMatchingParent", why),
    };
    let unsupported = route.rules.unsupported();
    if let Some(Unsupported { reason, .. }) = unsupported.first() {
        let texts: Vec<_> = unsupported.iter().map(|one| one.text.as_str()).collect();
        let what = texts.join("; ");
        let message = match route.rules {
            Rules::Http(_) => {
                format!("{what}; requests that these rules match are answered with an error")
            }
            Rules::Stream(_) => format!("{what}; connections that the route is for are refused"),
        };
        return bad(reason, message);
    }
    let mut ports = declared_ports(view, target).unwrap_or_default();
    ports.sort_by_key(|(_, port, _)| *port);
    let ports = ports
        .iter()
        .filter(|(_, port, _)| meant.is_empty() || meant.contains(port));
    let judged: Vec<_> = ports
        .map(|(_, port, protocol)| conflicts::of(view, route, target, (*port, *protocol)))
        .collect();
    let lost: Vec<_> = judged.iter().flatten().collect();
    let texts: Vec<_> = lost.iter().map(|one| one.text.as_str()).collect();
    match lost.first() {
        None => good("Accepted", "the route is followed"),
        Some(first) if lost.len() == judged.len() => bad(first.reason, texts.join("; ")),
        Some(_) => good(
            "Accepted",
            format!("the route is followed, but: {}", texts.join("; ")),
        ),
    }
}

fn resolved(view: &MeshView, route: &RouteInput, parent: &Parent) -> Verdict {
    let attached = route.attached_to(&parent.target);
    let backends = route.rules.backends();
    let serving = serving(view, &parent.target);
    let find = |backend: &BackendInput| -> Result<(), Unresolved> {
        backend.to.find(view, attached)?;
        // Whether there are its endpoints is up to each of them.
        let mut all = serving.iter();
        all.try_for_each(|gateway| backend.find(view, attached, gateway).map(drop))
    };
    let errors = backends.filter_map(|backend| find(backend).err());
    let errors: Vec<Unresolved> = errors.collect();
    let mirrors = route.rules.mirror_errors(view, attached);
    let filters = route.rules.filter_errors(view);
    let mut all = errors.iter().chain(&filters).chain(&mirrors);
    let Some(Unresolved { reason, .. }) = all.next() else {
        return good("ResolvedRefs", "every backend is found");
    };
    let summary = |of: &[Unresolved], what: &str| {
        let texts: Vec<_> = of.iter().map(|error| error.text.as_str()).collect();
        (!of.is_empty()).then(|| format!("{}; {what}", texts.join("; ")))
    };
    let share = match route.rules {
        Rules::Http(_) => "their share of requests is answered with an error",
        Rules::Stream(_) => "their share of connections is refused",
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
    bad(reason, message.join("; "))
}

fn at_waypoints(view: &MeshView, route: &RouteInput, parent: &Parent) -> Verdict {
    let target = &parent.target;
    let of = &route.name.namespace;
    let serving = serving(view, target);
    let is_for_all = |gateway: &GatewayName| route.is_for_all(target, gateway);
    match names(&serving) {
        Some(names) if serving.iter().any(is_for_all) => {
            good("ResolvedWaypoints", format!("followed by {names}"))
        }
        Some(names) => good(
            "ResolvedWaypoints",
            format!("followed by {names} for clients of {of}"),
        ),
        None => bad(
            "NoWaypoint",
            format!("{target} has no waypoint that follows the route: it has no effect"),
        ),
    }
}
