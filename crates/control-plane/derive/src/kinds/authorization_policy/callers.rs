//! Layer 4 policies that compare the client's identity, on pods behind a waypoint. The node proxy sees the waypoint as
//! the client of connections that come through it: an ALLOW policy that names other clients refuses all of them, and a
//! DENY policy that names other clients refuses none.

use std::collections::BTreeSet;

use ambit_k8s_api::{AuthorizationPolicy, Kind, ObjectKey};
use ambit_model::{
    Action, ArcStr, Authorization, GatewayName, Identity, Match, Scope, StringMatch,
};

use crate::{
    index::Index,
    names::{listed, names},
    objects::authorization_policy::input::PolicyInput,
    problem::Note,
    relations::served::PolicyScope,
    view::MeshView,
};

/// Builds the note on a layer 4 policy that compares the client's identity, if it applies to pods behind waypoints that
/// it does not consider.
pub(crate) fn note(view: &MeshView, input: &PolicyInput) -> Option<Note> {
    let field = input.callers.as_deref()?;
    let policy = input.sent.as_ref()?;
    let waypoints = waypoints(view, policy);
    let names = names(
        waypoints
            .iter()
            .filter(|gateway| is_moot(view, input, gateway)),
    )?;
    let message = format!(
        "pods that it applies to are behind the waypoint {names}: there, the waypoint is seen as the caller of all \
         that it delivers; to judge original callers, attach the policy with spec.targetRefs to the Gateway or Service"
    );
    Some(Note::new(field, message))
}

/// Builds the note on a waypoint's Gateway about layer 4 policies that compare the client's identity, on the pods
/// behind the waypoint.
pub(crate) fn gateway_note(view: &MeshView, gateway: &GatewayName) -> Option<Note> {
    let mut found = BTreeSet::new();
    let mut check = |namespace: &str, name: Option<&str>, scope: Scope| {
        let all = view.objects(namespace).into_iter();
        let all = all.flat_map(|objects| objects.all::<AuthorizationPolicy>());
        let all = all.filter(|(of, _)| name.is_none_or(|name| name == of.as_str()));
        let is_of_scope = |input: &PolicyInput| {
            let sent = input.sent.as_ref();
            sent.is_some_and(|sent| sent.scope == scope)
        };
        for (name, _) in all.filter(|(_, one)| is_of_scope(one) && is_moot(view, one, gateway)) {
            found.insert(format!("AuthorizationPolicy {namespace}/{name}"));
        }
    };
    for scope in view.behind.of(gateway) {
        match scope {
            PolicyScope::Listed(name) => {
                if let Some((namespace, name)) = name.split_once('/') {
                    check(namespace, Some(name), Scope::WorkloadSelector);
                }
            }
            PolicyScope::Namespace(namespace) => {
                check(namespace, None, Scope::Namespace);
                check(&view.config.root_namespace, None, Scope::Global);
            }
        }
    }
    let found: Vec<_> = found.into_iter().collect();
    let names = listed(&found)?;
    let message = format!(
        "layer 4 policies that name callers see this waypoint as the caller of all its connections, and refuse it or \
         deny no caller: {names}; attach them with spec.targetRefs, and name the principal of the waypoint in them"
    );
    Some(Note::new("spec", message))
}

/// Whether a policy compares the client's identity, and neither it nor its counterpart considers the waypoint: for
/// ALLOW another policy for the same pods that names the waypoint, for DENY a waypoint policy with the suffix
/// `-waypoint`.
fn is_moot(view: &MeshView, input: &PolicyInput, gateway: &GatewayName) -> bool {
    let (Some(_), Some(policy)) = (&input.callers, &input.sent) else {
        return false;
    };
    if speaks_of(view, policy, gateway) {
        return false;
    }
    let objects = view.objects(&policy.namespace);
    let mut all = objects
        .into_iter()
        .flat_map(|objects| objects.all::<AuthorizationPolicy>());
    let is_migrated = match policy.action {
        Action::Allow => all.any(|(_, other)| {
            let sent = other.sent.as_ref();
            let sent = sent.filter(|sent| sent.action == Action::Allow && !sent.dry_run);
            other.selector == input.selector
                && sent.is_some_and(|sent| speaks_of(view, sent, gateway))
        }),
        Action::Deny => {
            let copy = format!("{}-waypoint", policy.name);
            all.any(|(name, other)| *name == copy.as_str() && other.attached.is_some())
        }
    };
    !is_migrated
}

/// Marks the policies of a namespace and the Gateways whose notes may change with a changed policy.
pub(crate) fn mark(index: &mut Index, namespace: &ArcStr, input: &PolicyInput) {
    let mut gateways = BTreeSet::new();
    let objects = index.view.objects(namespace).into_iter();
    let mut beside = Vec::new();
    for (name, other) in objects.flat_map(|objects| objects.all::<AuthorizationPolicy>()) {
        let is_beside = other.callers.is_some()
            && (input.attached.is_some() || other.selector == input.selector);
        if let Some(sent) = other.sent.as_ref().filter(|_| is_beside) {
            gateways.extend(waypoints(&index.view, sent));
            beside.push(name.clone());
        }
    }
    if let Some(sent) = input.sent.as_ref().filter(|_| input.callers.is_some()) {
        gateways.extend(waypoints(&index.view, sent));
    }
    for name in beside {
        let key = ObjectKey::new(Kind::AuthorizationPolicy, namespace.clone(), name);
        index.mark(key);
    }
    for gateway in gateways {
        index.mark(ObjectKey::new(
            Kind::Gateway,
            gateway.namespace,
            gateway.name,
        ));
    }
}

/// Returns the waypoints of the pods that a policy applies to.
fn waypoints(view: &MeshView, policy: &Authorization) -> BTreeSet<GatewayName> {
    let behind = &view.behind;
    let of = |scope: PolicyScope| behind.waypoints(&scope).cloned().collect();
    match policy.scope {
        Scope::WorkloadSelector => {
            let name = arcstr::format!("{}/{}", policy.namespace, policy.name);
            of(PolicyScope::Listed(name))
        }
        Scope::Namespace => of(PolicyScope::Namespace(policy.namespace.clone())),
        Scope::Global => {
            let namespaces = view.all_objects().map(|(name, _)| name.clone());
            let namespaces = namespaces.map(PolicyScope::Namespace);
            namespaces.flat_map(of).collect()
        }
    }
}

/// Whether a policy names an identity of a waypoint, so that its author expects the waypoint as client.
fn speaks_of(view: &MeshView, policy: &Authorization, gateway: &GatewayName) -> bool {
    let identities = view.identities(gateway);
    let is_any = |one: &Match| identities.iter().any(|identity| is_named(identity, one));
    policy.rules.iter().flatten().flatten().any(is_any)
}

fn is_named(identity: &Identity, by: &Match) -> bool {
    let text = identity.to_string();
    let principal = text.strip_prefix("spiffe://").unwrap_or(&text);
    let mut principals = by.principals.iter().chain(&by.not_principals);
    let accounts = by.service_accounts.iter();
    let mut accounts = accounts.chain(&by.not_service_accounts);
    principals.any(|one| matches!(one, StringMatch::Exact(text) if text == principal))
        || accounts.any(|one| {
            one.namespace == identity.namespace && one.service_account == identity.service_account
        })
}
