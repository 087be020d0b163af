//! Policies that are attached to waypoints, or to what waypoints serve: each waypoint that a policy concerns is
//! sent it, with what it concerns there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ambit_k8s_api::{
    AuthorizationPolicy, Gateway, GatewayClass, Kind, ObjectKey, Service, ServiceEntry, gateway,
    istio::PolicyTargetReference,
};
use ambit_model::{ArcStr, GatewayName, HttpPolicy, NamespacedHostname};

use super::{http, namespace_of};
use crate::{
    MeshConfig,
    condition::Verdict,
    index::{Index, kinds::gateway as gateways, names},
    problem::{FieldError, Note},
};

/// Most targets of one policy.
pub(in crate::index) const MAX_TARGETS: usize = 16;

/// A policy with what it is attached to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attached {
    pub(crate) targets: Vec<ObjectKey>,
    policy: HttpPolicy,
    /// Who is asked, of a CUSTOM policy.
    pub(super) provider: Option<ArcStr>,
}

impl Attached {
    pub(super) fn read(
        policy: &AuthorizationPolicy,
        config: &MeshConfig,
        notes: &mut Vec<Note>,
    ) -> Result<Self, FieldError> {
        let references = references(policy);
        if references.len() > MAX_TARGETS {
            let message = format!("{} targets; at most {MAX_TARGETS}", references.len());
            return Err(FieldError::new("spec.targetRefs", message));
        }
        let mut targets = Vec::new();
        for (field, reference) in references {
            let target = target(reference, &namespace_of(policy), config);
            targets.push(target.map_err(|message| FieldError::new(field, message))?);
        }
        let of = policy;
        let (policy, of_policy) = http::http_policy(of)?;
        notes.extend(of_policy);
        Ok(Self {
            targets,
            policy,
            provider: http::provider(of)?,
        })
    }

    /// Denies everything at those of its targets that can be understood.
    pub(super) fn substitute(policy: &AuthorizationPolicy, config: &MeshConfig) -> Self {
        let namespace = namespace_of(policy);
        let targets = references(policy).into_iter();
        Self {
            targets: targets
                .filter_map(|(_, reference)| target(reference, &namespace, config).ok())
                .collect(),
            policy: http::substitute(policy, "the policy cannot be used as it is written"),
            provider: None,
        }
    }

    /// What each waypoint is sent.
    pub(super) fn render(&self, index: &Index) -> Vec<(GatewayName, HttpPolicy)> {
        let mut waypoints: BTreeMap<GatewayName, HttpPolicy> = BTreeMap::new();
        for target in &self.targets {
            let (gateways, services) = match target.kind {
                Kind::Gateway | Kind::GatewayClass => (waypoints_of(index, target), Vec::new()),
                _ => (Vec::new(), served(index, target)),
            };
            for gateway in gateways {
                let policy = waypoints.entry(gateway);
                let policy = policy.or_insert_with(|| self.policy.clone());
                policy.for_gateway = true;
            }
            for (gateway, service) in services {
                let policy = waypoints.entry(gateway);
                let policy = policy.or_insert_with(|| self.policy.clone());
                policy.services.push(service);
            }
        }
        let provider = self.provider.as_ref();
        let provider = provider.map(|name| Arc::new(index.authorizer(name)));
        for policy in waypoints.values_mut() {
            policy.provider.clone_from(&provider);
            policy.services.sort_unstable();
            policy.services.dedup();
        }
        waypoints.into_iter().collect()
    }
}

impl Attached {
    /// What keeps its provider from being asked.
    pub(super) fn note(&self, index: &Index) -> Option<Note> {
        let provider = index.authorizer(self.provider.as_ref()?);
        let why = provider.place.err()?;
        let message = format!("{why}: all that the policy is attached to is denied");
        Some(Note::new("spec.provider.name", message))
    }

    /// At which waypoints it is in force.
    pub(super) fn verdict(&self, index: &Index) -> Verdict {
        verdict(index, &self.targets)
    }
}

/// At which waypoints what is attached to these targets is in force.
pub(in crate::index) fn verdict(index: &Index, targets: &[ObjectKey]) -> Verdict {
    let (mut bound, mut unbound) = (BTreeSet::new(), Vec::new());
    let mut any_found = false;
    for target in targets {
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
                (false, _) => "does not exist",
                (true, Kind::Gateway) => "is no waypoint of this control plane",
                (true, Kind::GatewayClass) => "has no waypoints of this control plane",
                (true, _) if has_foreign_waypoint(index, target) => {
                    "has a waypoint of another control plane, which this policy is not sent to"
                }
                (true, _) => "has no waypoint",
            };
            unbound.push(format!("{target} {why}"));
        }
        bound.extend(waypoints);
    }
    let at = names(&bound).map(|names| format!("enforced by {names}"));
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
        None => format!("{without}: the policy has no effect"),
    };
    Verdict {
        is_true,
        reason,
        message,
        is_trouble: !is_true || !unbound.is_empty(),
    }
}

fn exists(index: &Index, target: &ObjectKey) -> bool {
    match target.kind {
        Kind::Gateway => index.get::<Gateway>(target).is_some(),
        Kind::GatewayClass => {
            index.get::<GatewayClass>(target).is_some()
                || !gateways::of_class(index, &target.name).is_empty()
        }
        Kind::Service => index.get::<Service>(target).is_some(),
        _ => index.get::<ServiceEntry>(target).is_some(),
    }
}

/// The waypoints that a target of the Gateway API stands for.
pub(in crate::index) fn waypoints_of(index: &Index, target: &ObjectKey) -> Vec<GatewayName> {
    let mut names = match target.kind {
        Kind::GatewayClass => gateways::of_class(index, &target.name),
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
pub(in crate::index) fn served(
    index: &Index,
    target: &ObjectKey,
) -> Vec<(GatewayName, NamespacedHostname)> {
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

/// The references of a policy with their fields.
fn references(policy: &AuthorizationPolicy) -> Vec<(String, &PolicyTargetReference)> {
    let spec = &policy.spec;
    let one = spec.target_ref.iter();
    let one = one.map(|reference| ("spec.targetRef".to_owned(), reference));
    let several = spec.target_refs.iter().enumerate();
    let several =
        several.map(|(index, reference)| (format!("spec.targetRefs[{index}]"), reference));
    one.chain(several).collect()
}

/// The object that a reference of a policy of a namespace names.
pub(in crate::index) fn target(
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
