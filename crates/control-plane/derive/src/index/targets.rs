//! What objects are attached to by `targetRefs`: waypoints, or what waypoints serve. Which waypoints that makes, and what
//! stands on the object for it.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{
    Gateway, GatewayClass, Kind, ObjectKey, Service, ServiceEntry, gateway,
    istio::PolicyTargetReference,
};
use ambit_model::{ArcStr, GatewayName, NamespacedHostname};

use crate::{
    MeshConfig,
    condition::Verdict,
    index::{Index, names},
    problem::FieldError,
};

/// Most targets of one object.
const MAX_TARGETS: usize = 16;

/// The objects that one is attached to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Targets(pub(crate) Vec<ObjectKey>);

/// What an object concerns at one waypoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Concerned {
    pub(crate) for_gateway: bool,
    pub(crate) services: Vec<NamespacedHostname>,
}

/// `targetRef` and `targetRefs`, each with its field.
pub(crate) fn references<'a>(
    one: Option<&'a PolicyTargetReference>,
    several: &'a [PolicyTargetReference],
) -> Vec<(String, &'a PolicyTargetReference)> {
    let one = one.into_iter();
    let one = one.map(|reference| ("spec.targetRef".to_owned(), reference));
    let several = several.iter().enumerate();
    let several =
        several.map(|(index, reference)| (format!("spec.targetRefs[{index}]"), reference));
    one.chain(several).collect()
}

impl Targets {
    /// Those of an object of a namespace.
    pub(crate) fn read(
        references: Vec<(String, &PolicyTargetReference)>,
        namespace: &ArcStr,
        config: &MeshConfig,
    ) -> Result<Self, FieldError> {
        if references.len() > MAX_TARGETS {
            let message = format!("{} targets; at most {MAX_TARGETS}", references.len());
            return Err(FieldError::new("spec.targetRefs", message));
        }
        let mut targets = Vec::new();
        for (field, reference) in references {
            let target = target(reference, namespace, config);
            targets.push(target.map_err(|message| FieldError::new(field, message))?);
        }
        Ok(Self(targets))
    }

    /// Those that can be understood.
    pub(crate) fn understood(
        references: Vec<(String, &PolicyTargetReference)>,
        namespace: &ArcStr,
        config: &MeshConfig,
    ) -> Self {
        let targets = references.into_iter();
        let targets =
            targets.filter_map(|(_, reference)| target(reference, namespace, config).ok());
        Self(targets.collect())
    }

    /// What is concerned, at each waypoint.
    pub(crate) fn concerned(&self, index: &Index) -> BTreeMap<GatewayName, Concerned> {
        let mut waypoints: BTreeMap<GatewayName, Concerned> = BTreeMap::new();
        for target in &self.0 {
            match target.kind {
                Kind::Gateway | Kind::GatewayClass => {
                    for gateway in waypoints_of(index, target) {
                        waypoints.entry(gateway).or_default().for_gateway = true;
                    }
                }
                _ => {
                    for (gateway, service) in served(index, target) {
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

    /// At which waypoints an object is in force; `word` says what it is, and `how` what waypoints do with it.
    pub(crate) fn verdict(&self, index: &Index, word: &str, how: &str) -> Verdict {
        let (mut bound, mut unbound) = (BTreeSet::new(), Vec::new());
        let mut any_found = false;
        for target in &self.0 {
            let waypoints = match target.kind {
                Kind::Gateway | Kind::GatewayClass => waypoints_of(index, target),
                _ => served(index, target)
                    .into_iter()
                    .map(|(gateway, _)| gateway)
                    .collect(),
            };
            let found = exists(index, target);
            any_found |= found;
            if waypoints.is_empty() {
                let why = match (found, target.kind) {
                    (false, _) => "does not exist".to_owned(),
                    (true, Kind::Gateway) => "is no waypoint of this control plane".to_owned(),
                    (true, Kind::GatewayClass) => {
                        "has no waypoints of this control plane".to_owned()
                    }
                    (true, _) if has_foreign_waypoint(index, target) => format!(
                        "has a waypoint of another control plane, which this {word} is not sent to"
                    ),
                    (true, _) => "has no waypoint".to_owned(),
                };
                unbound.push(format!("{target} {why}"));
            }
            bound.extend(waypoints);
        }
        let at = names(&bound).map(|names| format!("{how} by {names}"));
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
        Verdict {
            is_true,
            reason,
            message,
            is_trouble: !is_true || !unbound.is_empty(),
        }
    }
}

fn exists(index: &Index, target: &ObjectKey) -> bool {
    match target.kind {
        Kind::Gateway => index.get::<Gateway>(target).is_some(),
        Kind::GatewayClass => {
            index.get::<GatewayClass>(target).is_some()
                || !index.gateways_of_class(&target.name).is_empty()
        }
        Kind::Service => index.get::<Service>(target).is_some(),
        _ => index.get::<ServiceEntry>(target).is_some(),
    }
}

/// The waypoints that a target of the Gateway API stands for.
fn waypoints_of(index: &Index, target: &ObjectKey) -> Vec<GatewayName> {
    let mut names = match target.kind {
        Kind::GatewayClass => index.gateways_of_class(&target.name),
        _ => vec![GatewayName::new(
            target.namespace.clone(),
            target.name.clone(),
        )],
    };
    names.retain(|name| index.waypoint(name).is_some());
    names
}

/// Whether a Service or ServiceEntry is bound to another controller's waypoint.
fn has_foreign_waypoint(index: &Index, target: &ObjectKey) -> bool {
    let attachment = index.waypoint_of_service(target);
    attachment.is_some_and(|attachment| attachment.foreign.is_some())
}

/// The services of a target, each with the waypoints that serve it.
fn served(index: &Index, target: &ObjectKey) -> Vec<(GatewayName, NamespacedHostname)> {
    let hosts: Vec<&ArcStr>;
    let own;
    match target.kind {
        Kind::Service => {
            let Some(service) = index.get::<Service>(target) else {
                return Vec::new();
            };
            own = service.hostname(&index.config.cluster_domain);
            hosts = vec![&own];
        }
        _ => {
            let Some(entry) = index.get::<ServiceEntry>(target) else {
                return Vec::new();
            };
            hosts = index.hosts_won(entry).collect();
        }
    }
    let of_host = |host: &ArcStr| {
        let name = NamespacedHostname::new(target.namespace.clone(), host.clone());
        let waypoints = index.waypoints_serving(target, host).into_iter();
        waypoints.map(move |gateway| (gateway, name.clone()))
    };
    hosts.into_iter().flat_map(of_host).collect()
}

/// The object that a reference names.
fn target(
    reference: &PolicyTargetReference,
    namespace: &ArcStr,
    config: &MeshConfig,
) -> Result<ObjectKey, String> {
    if let Some(other) = &reference.namespace
        && !other.is_empty()
        && *other != namespace.as_str()
    {
        return Err(format!(
            "a policy of {namespace} cannot be attached to an object of {other}"
        ));
    }
    let kind = match (reference.group.as_str(), reference.kind.as_str()) {
        ("" | "core", "Service") => Kind::Service,
        ("networking.istio.io", "ServiceEntry") => Kind::ServiceEntry,
        (gateway::GROUP, "Gateway") => Kind::Gateway,
        (gateway::GROUP, "GatewayClass") if *namespace == config.root_namespace => {
            Kind::GatewayClass
        }
        (gateway::GROUP, "GatewayClass") => {
            let root = &config.root_namespace;
            return Err(format!(
                "only policies of {root} can be attached to a GatewayClass"
            ));
        }
        (group, kind) => {
            return Err(format!(
                "{kind:?} of the group {group:?} is none of Service, ServiceEntry, Gateway and GatewayClass"
            ));
        }
    };
    Ok(ObjectKey::new(
        kind,
        namespace.clone(),
        reference.name.as_str(),
    ))
}
