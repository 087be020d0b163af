//! Derives policies from observed traffic. Pure: observations and objects in, manifests out.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{
    AuthorizationPolicy, Kind, Object, ObjectEvent, ObjectMeta, Pod,
    istio::{
        AuthorizationPolicySpec, Operation, PolicyAction, PolicyTargetReference, Rule, RuleFrom,
        RuleTo, Source, WorkloadSelector, selected_labels,
    },
};
use k8s_openapi::Resource as _;
use serde_json::Value;

use super::observations::{ClientMatcher, MAX_PATHS, Observations, PolicyTarget, Usage};
use crate::{manifest, output::escape_unprintable};

#[cfg(test)]
mod tests;

/// Labels that a suggested selector must not have, since they are unique to a pod or change with each rollout.
const EPHEMERAL_LABELS: [&str; 5] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];
/// Maximum length of a Kubernetes object's name.
const MAX_NAME_LENGTH: usize = 253;

/// Options from the command line, and the mesh's root namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuggestOptions<'a> {
    pub(super) namespaces: &'a [String],
    pub(super) paths: bool,
    pub(super) dry_run: bool,
    pub(super) root_namespace: &'a str,
}

/// Suggested policies, and notes about them for the user.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Suggestions {
    pub(super) policies: Vec<AuthorizationPolicy>,
    /// Notes about gaps in the observation, and about targets without a suggested policy.
    pub(super) notes: Vec<String>,
}

/// Returns policies that allow exactly the observed traffic, one for each target.
pub(super) fn suggest(
    seen: &Observations,
    objects: &[ObjectEvent],
    options: &SuggestOptions<'_>,
) -> Suggestions {
    let mesh = MeshObjects::of(objects);
    let mut suggestions = Suggestions::default();
    add_gap_notes(seen, &mut suggestions.notes);
    for (target, clients) in &seen.usage {
        let (PolicyTarget::Pods(namespace, name) | PolicyTarget::Service(namespace, name)) = target;
        if !options.namespaces.is_empty() && !options.namespaces.contains(namespace) {
            continue;
        }
        let mut note = |text: String| {
            let text = escape_unprintable(&format!("{namespace}/{name}: {text}"));
            suggestions.notes.push(text);
        };
        if seen.targets_over_limit.contains(target) {
            note("no policy, it has too many callers to name each".to_owned());
            continue;
        }
        let scope = match target {
            PolicyTarget::Pods(..) => mesh.selector(namespace, seen.pods_of(target)),
            PolicyTarget::Service(..) => Ok(AuthorizationPolicySpec {
                target_refs: vec![PolicyTargetReference {
                    kind: Kind::Service.to_string(),
                    name: name.clone(),
                    ..PolicyTargetReference::default()
                }],
                ..AuthorizationPolicySpec::default()
            }),
        };
        let scope = match scope {
            Ok(scope) => scope,
            Err(why) => {
                note(format!("no policy, {why}"));
                continue;
            }
        };
        if let Some(policy) = mesh.find_allow_policy(namespace, &scope, options.root_namespace) {
            note(format!(
                "no policy, since {policy} already allows the callers that it names and no others"
            ));
            continue;
        }
        for client in clients.keys() {
            if let ClientMatcher::Address(address) = client {
                note(format!(
                    "{address} calls in plaintext, and is known by its address alone: enrol it, or remove its rule"
                ));
            }
        }
        let kind = match target {
            PolicyTarget::Pods(..) => "callers",
            PolicyTarget::Service(..) => "requests",
        };
        let policy = build_policy((namespace, name, kind), scope, clients, options);
        suggestions.policies.push(policy);
    }
    suggestions
}

/// Adds notes about traffic that the observation may have missed.
fn add_gap_notes(observations: &Observations, notes: &mut Vec<String>) {
    let first =
        "What was not seen is not allowed. Rehearse with `ambit policy test` after a further while";
    notes.push(first.to_owned());
    if observations
        .usage
        .keys()
        .any(|target| matches!(target, PolicyTarget::Service(..)))
    {
        let note = "Requests and connections that waypoints carried from before to after the watch make no event";
        notes.push(note.to_owned());
    }
    if observations.lost != (0, 0) {
        let (events, refusals) = observations.lost;
        notes.push(format!(
            "GAP: {events} events and {refusals} refusals were not seen, since too many came at once: \
             callers that only they show are missing"
        ));
    }
    for proxy in &observations.interrupted {
        notes.push(format!(
            "GAP: events of {proxy} were missing for a while: callers that only they show are missing"
        ));
    }
    for pod in &observations.directly_called_pods {
        notes.push(escape_unprintable(&format!(
            "{pod} is called by its own address, through a waypoint: attach a policy to the waypoint by hand"
        )));
    }
    for ((client, target), times) in &observations.refused {
        notes.push(escape_unprintable(&format!(
            "no rule: {client} -> {target} was refused {times} times, and stays refused"
        )));
    }
}

fn build_policy(
    (namespace, name, kind): (&str, &str, &str),
    scope: AuthorizationPolicySpec,
    clients: &BTreeMap<ClientMatcher, Usage>,
    options: &SuggestOptions<'_>,
) -> AuthorizationPolicy {
    // Clients that use the same have one rule.
    let mut rules: BTreeMap<String, (Vec<RuleTo>, BTreeSet<&ClientMatcher>)> = BTreeMap::new();
    for (client, usage) in clients {
        let operations = to_clauses(usage, options.paths);
        let rule = rules.entry(manifest::to_manifest(&operations).to_string());
        let (_, of) = rule.or_insert_with(|| (operations, BTreeSet::new()));
        of.insert(client);
    }
    let rules = rules.into_values().map(|(to, clients)| Rule {
        from: from_clauses(&clients),
        to,
        when: Vec::new(),
    });
    let dry_run = ("istio.io/dry-run".to_owned(), "true".to_owned());
    AuthorizationPolicy {
        api_version: AuthorizationPolicy::API_VERSION.to_owned(),
        kind: AuthorizationPolicy::KIND.to_owned(),
        metadata: ObjectMeta {
            name: Some(policy_name(name, kind)),
            namespace: Some(namespace.to_owned()),
            annotations: options.dry_run.then(|| BTreeMap::from([dry_run])),
            ..ObjectMeta::default()
        },
        spec: AuthorizationPolicySpec {
            action: PolicyAction::Allow,
            rules: rules.collect(),
            ..scope
        },
        status: Value::Null,
    }
}

fn policy_name(name: &str, kind: &str) -> String {
    let room = MAX_NAME_LENGTH - kind.len() - 1;
    let name = name.get(..name.floor_char_boundary(room)).unwrap_or(name);
    format!("{name}-{kind}")
}

fn from_clauses(clients: &BTreeSet<&ClientMatcher>) -> Vec<RuleFrom> {
    let mut principals = Vec::new();
    let mut ip_blocks = Vec::new();
    for client in clients {
        match client {
            ClientMatcher::Principal(principal) => principals.push(principal.clone()),
            ClientMatcher::Address(address) => ip_blocks.push(address.clone()),
        }
    }
    let by_principal = (!principals.is_empty()).then(|| Source {
        principals,
        ..Source::default()
    });
    let by_address = (!ip_blocks.is_empty()).then(|| Source {
        ip_blocks,
        ..Source::default()
    });
    let sources = by_principal.into_iter().chain(by_address);
    sources
        .map(|source| RuleFrom {
            source: Some(source),
        })
        .collect()
}

/// Returns the operations of a client's rule; none if it is not restricted by port, method or path.
fn to_clauses(usage: &Usage, paths: bool) -> Vec<RuleTo> {
    let to = |operation| RuleTo {
        operation: Some(operation),
    };
    if usage.connections {
        return Vec::new();
    }
    if !usage.ports.is_empty() {
        return vec![to(Operation {
            ports: usage.ports.iter().map(ToString::to_string).collect(),
            ..Operation::default()
        })];
    }
    // Methods with the same paths have one operation.
    let mut by_paths: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    for (method, seen) in &usage.requests {
        let are_named = paths && seen.len() <= MAX_PATHS && seen.iter().all(|path| is_exact(path));
        let seen = seen.iter().filter(|_| are_named).cloned();
        let methods = by_paths.entry(seen.collect()).or_default();
        methods.push(method.clone());
    }
    let operation = |(paths, methods)| Operation {
        methods,
        paths,
        ..Operation::default()
    };
    by_paths.into_iter().map(operation).map(to).collect()
}

/// Whether a policy can match exactly this observed path: it has no wildcards or templates, and was not truncated.
fn is_exact(path: &str) -> bool {
    path.starts_with('/') && !path.contains(['*', '{', '}']) && !path.ends_with("...")
}

/// Pods and AuthorizationPolicies of the mesh, to which suggestions are fitted.
struct MeshObjects<'a> {
    pods: Vec<&'a Pod>,
    policies: Vec<&'a AuthorizationPolicy>,
}

impl<'a> MeshObjects<'a> {
    fn of(objects: &'a [ObjectEvent]) -> Self {
        let mut mesh = Self {
            pods: Vec::new(),
            policies: Vec::new(),
        };
        for event in objects {
            match event {
                ObjectEvent::Applied {
                    object: Object::Pod(pod),
                    ..
                } => mesh.pods.push(pod),
                ObjectEvent::Applied {
                    object: Object::AuthorizationPolicy(policy),
                    ..
                } => mesh.policies.push(policy),
                _ => {}
            }
        }
        mesh
    }

    /// Returns a selector by the common labels of these pods.
    ///
    /// # Errors
    /// The pods are gone, have no such labels, or share them with a pod for which no caller was observed.
    fn selector(
        &self,
        namespace: &str,
        names: Option<&BTreeSet<String>>,
    ) -> Result<AuthorizationPolicySpec, String> {
        let is_named = |pod: &Pod| {
            let name = pod.metadata.name.as_ref();
            name.is_some_and(|name| names.is_some_and(|names| names.contains(name)))
        };
        let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
        let all = self.pods.iter();
        let all = all.filter(|pod| pod.metadata.namespace.as_deref() == Some(namespace));
        let ours: Vec<_> = all.clone().filter(|pod| is_named(pod)).collect();
        let Some(first) = ours.first() else {
            return Err("its pods are gone".to_owned());
        };
        let mut common = labels(first);
        common.retain(|name, value| {
            !EPHEMERAL_LABELS.contains(&name.as_str())
                && ours.iter().all(|pod| labels(pod).get(name) == Some(value))
        });
        if common.is_empty() {
            return Err("its pods have no labels that a policy could select them by".to_owned());
        }
        let selects = |pod: &Pod| {
            let labels = labels(pod);
            common
                .iter()
                .all(|(name, value)| labels.get(name) == Some(value))
        };
        let owner = |pod: &Pod| {
            let owners = pod.metadata.owner_references.as_ref();
            owners.and_then(|owners| owners.first().map(|owner| owner.uid.clone()))
        };
        // A further replica of the same owner is meant.
        let is_replica = |pod: &Pod| owner(pod).is_some() && owner(pod) == owner(first);
        let mut others = all.filter(|pod| selects(pod) && !is_named(pod) && !is_replica(pod));
        if let Some(other) = others.next() {
            let name = other.metadata.name.as_deref().unwrap_or_default();
            return Err(format!(
                "the pod {name}, for which no caller was observed, has the same labels"
            ));
        }
        Ok(AuthorizationPolicySpec {
            selector: Some(WorkloadSelector {
                match_labels: common,
            }),
            ..AuthorizationPolicySpec::default()
        })
    }

    /// Returns the name of an ALLOW policy that already applies to all pods, or to the service, of a suggestion's
    /// scope.
    fn find_allow_policy(
        &self,
        namespace: &str,
        scope: &AuthorizationPolicySpec,
        root: &str,
    ) -> Option<String> {
        let found = self.policies.iter().find(|policy| {
            let own = policy.metadata.namespace.as_deref().unwrap_or_default();
            let annotations = policy.metadata.annotations.as_ref();
            let is_dry_run = annotations
                .and_then(|annotations| annotations.get("istio.io/dry-run"))
                .is_some_and(|value| value == "true");
            policy.spec.action == PolicyAction::Allow
                && !is_dry_run
                && match scope.target_refs.first() {
                    Some(service) => own == namespace && is_attached_to(&policy.spec, service),
                    None => {
                        (own == namespace || own == root)
                            && !policy.spec.is_attached()
                            && is_selected(&policy.spec, scope)
                    }
                }
        })?;
        let name = found.metadata.name.as_deref().unwrap_or_default();
        let own = found.metadata.namespace.as_deref().unwrap_or_default();
        Some(format!("{own}/{name}"))
    }
}

/// Whether a policy is attached to this service by its target references.
fn is_attached_to(spec: &AuthorizationPolicySpec, service: &PolicyTargetReference) -> bool {
    let mut all = spec.target_refs.iter().chain(&spec.target_ref);
    all.any(|target| target.kind == service.kind && target.name == service.name)
}

/// Whether a policy's selector matches all pods that the selector of a suggestion matches.
fn is_selected(spec: &AuthorizationPolicySpec, scope: &AuthorizationPolicySpec) -> bool {
    let suggestion = selected_labels(scope.selector.as_ref());
    let mut policy = selected_labels(spec.selector.as_ref())
        .into_iter()
        .flatten();
    policy.all(|(name, value)| suggestion.and_then(|labels| labels.get(name)) == Some(value))
}
