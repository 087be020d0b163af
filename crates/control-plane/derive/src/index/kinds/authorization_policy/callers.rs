//! Policies of node proxies that name callers, at pods behind a waypoint: what the waypoint delivers comes from the
//! waypoint there, so that an ALLOW of somebody else admits nobody through it, and a DENY stops nobody.

use std::collections::BTreeSet;

use ambit_k8s_api::istio::Rule as PolicyRule;
use ambit_model::{Authorization, GatewayName, Identity, Match, Scope, StringMatch};

use crate::{
    index::{Index, PolicyScope, names},
    problem::Note,
};

/// The first field of a policy that names callers.
pub(super) fn field(rules: &[PolicyRule]) -> Option<String> {
    let mut rules = rules.iter().enumerate();
    rules.find_map(|(number, rule)| {
        let at = format!("spec.rules[{number}]");
        let mut from = rule.from.iter();
        let from = from.position(|from| from.source.is_some());
        let when = || {
            let mut when = rule.when.iter();
            when.position(|when| when.key.starts_with("source."))
        };
        let from = from.map(|number| format!("{at}.from[{number}]"));
        from.or_else(|| Some(format!("{at}.when[{}]", when()?)))
    })
}

/// What is to be said of such a policy, if it applies to pods behind waypoints of which it does not speak.
pub(super) fn note(index: &Index, field: &str, policy: &Authorization) -> Option<Note> {
    let waypoints = waypoints(index, policy);
    let unnamed = waypoints
        .iter()
        .filter(|gateway| !speaks_of(index, policy, gateway));
    let names = names(unnamed)?;
    let message = format!(
        "pods that it applies to are behind the waypoint {names}: there, the waypoint is seen as the caller of all \
         that it delivers; to judge original callers, attach the policy with spec.targetRefs to the Gateway or Service"
    );
    Some(Note::new(field, message))
}

/// The waypoints of the pods that it applies to.
fn waypoints(index: &Index, policy: &Authorization) -> BTreeSet<GatewayName> {
    let behind = &index.behind;
    let of = |scope: PolicyScope| behind.waypoints(&scope).cloned().collect();
    match policy.scope {
        Scope::WorkloadSelector => {
            let name = arcstr::format!("{}/{}", policy.namespace, policy.name);
            of(PolicyScope::Listed(name))
        }
        Scope::Namespace => of(PolicyScope::Namespace(policy.namespace.clone())),
        Scope::Global => {
            let namespaces = index.all_objects().map(|(name, _)| name.clone());
            let namespaces = namespaces.map(PolicyScope::Namespace);
            namespaces.flat_map(of).collect()
        }
    }
}

/// Whether a policy names a waypoint itself: who wrote it knows who calls.
fn speaks_of(index: &Index, policy: &Authorization, gateway: &GatewayName) -> bool {
    let identities = index.identities(gateway);
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
