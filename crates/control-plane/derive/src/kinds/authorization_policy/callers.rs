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
    names::{join_gateway_names, join_names},
    objects::authorization_policy::input::PolicyInput,
    problem::Note,
    relations::workload_waypoints::PolicyScope,
    view::MeshView,
};

/// Builds the note on a layer 4 policy that compares the client's identity, if it applies to pods behind waypoints that
/// it does not consider.
pub(crate) fn client_identity_note(view: &MeshView, input: &PolicyInput) -> Option<Note> {
    let field = input.client_field.as_deref()?;
    let policy = input.node_proxy_policy.as_ref()?;
    let waypoints = waypoints_of_policy(view, policy);
    let names = join_gateway_names(
        waypoints
            .iter()
            .filter(|gateway| ignores_waypoint(view, input, gateway)),
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
        let all = all.flat_map(|objects| objects.all_of_kind::<AuthorizationPolicy>());
        let all = all.filter(|(of, _)| name.is_none_or(|name| name == of.as_str()));
        let is_of_scope = |input: &PolicyInput| {
            let node_proxy_policy = input.node_proxy_policy.as_ref();
            node_proxy_policy.is_some_and(|node_proxy_policy| node_proxy_policy.scope == scope)
        };
        for (name, _) in
            all.filter(|(_, one)| is_of_scope(one) && ignores_waypoint(view, one, gateway))
        {
            found.insert(format!("AuthorizationPolicy {namespace}/{name}"));
        }
    };
    for scope in view.policy_waypoints.keys_at_waypoint(gateway) {
        match scope {
            PolicyScope::Policy(name) => {
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
    let names = join_names(&found)?;
    let message = format!(
        "layer 4 policies that name callers see this waypoint as the caller of all its connections, and refuse it or \
         deny no caller: {names}; attach them with spec.targetRefs, and name the principal of the waypoint in them"
    );
    Some(Note::new("spec", message))
}

/// Whether a policy compares the client's identity, and neither it nor its counterpart considers the waypoint: for
/// ALLOW another policy for the same pods that names the waypoint, for DENY a waypoint policy with the suffix
/// `-waypoint`.
fn ignores_waypoint(view: &MeshView, input: &PolicyInput, gateway: &GatewayName) -> bool {
    let (Some(_), Some(policy)) = (&input.client_field, &input.node_proxy_policy) else {
        return false;
    };
    if names_waypoint_identity(view, policy, gateway) {
        return false;
    }
    let objects = view.objects(&policy.namespace);
    let mut all = objects
        .into_iter()
        .flat_map(|objects| objects.all_of_kind::<AuthorizationPolicy>());
    let is_migrated = match policy.action {
        Action::Allow => all.any(|(_, other)| {
            let node_proxy_policy = other.node_proxy_policy.as_ref();
            let node_proxy_policy = node_proxy_policy.filter(|node_proxy_policy| {
                node_proxy_policy.action == Action::Allow && !node_proxy_policy.dry_run
            });
            other.selector == input.selector
                && node_proxy_policy.is_some_and(|node_proxy_policy| {
                    names_waypoint_identity(view, node_proxy_policy, gateway)
                })
        }),
        Action::Deny => {
            let copy = format!("{}-waypoint", policy.name);
            all.any(|(name, other)| *name == copy.as_str() && other.attached.is_some())
        }
    };
    !is_migrated
}

/// Marks as stale the policies of a namespace and the Gateways whose notes may change with a changed policy.
pub(crate) fn mark_client_notes_stale(index: &mut Index, namespace: &ArcStr, input: &PolicyInput) {
    let mut gateways = BTreeSet::new();
    let objects = index.view.objects(namespace).into_iter();
    let mut beside = Vec::new();
    for (name, other) in objects.flat_map(|objects| objects.all_of_kind::<AuthorizationPolicy>()) {
        let is_beside = other.client_field.is_some()
            && (input.attached.is_some() || other.selector == input.selector);
        if let Some(node_proxy_policy) = other.node_proxy_policy.as_ref().filter(|_| is_beside) {
            gateways.extend(waypoints_of_policy(&index.view, node_proxy_policy));
            beside.push(name.clone());
        }
    }
    if let Some(node_proxy_policy) = input
        .node_proxy_policy
        .as_ref()
        .filter(|_| input.client_field.is_some())
    {
        gateways.extend(waypoints_of_policy(&index.view, node_proxy_policy));
    }
    for name in beside {
        let key = ObjectKey::new(Kind::AuthorizationPolicy, namespace.clone(), name);
        index.mark_object_stale(key);
    }
    for gateway in gateways {
        index.mark_object_stale(ObjectKey::new(
            Kind::Gateway,
            gateway.namespace,
            gateway.name,
        ));
    }
}

/// Returns the waypoints of the pods that a policy applies to.
fn waypoints_of_policy(view: &MeshView, policy: &Authorization) -> BTreeSet<GatewayName> {
    let behind = &view.policy_waypoints;
    let of = |scope: PolicyScope| behind.waypoints(&scope).cloned().collect();
    match policy.scope {
        Scope::WorkloadSelector => {
            let name = arcstr::format!("{}/{}", policy.namespace, policy.name);
            of(PolicyScope::Policy(name))
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
fn names_waypoint_identity(view: &MeshView, policy: &Authorization, gateway: &GatewayName) -> bool {
    let identities = view.waypoint_identities(gateway);
    let is_any = |one: &Match| {
        identities
            .iter()
            .any(|identity| matches_identity(identity, one))
    };
    policy.rules.iter().flatten().flatten().any(is_any)
}

fn matches_identity(identity: &Identity, by: &Match) -> bool {
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
