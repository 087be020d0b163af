//! Policies of what was seen. Pure: flows and objects in, manifests out.

use std::collections::{BTreeMap, BTreeSet};

use ambit_k8s_api::{AuthorizationPolicy, Object, ObjectEvent, Pod};
use serde_json::{Map, Value, json};

use super::seen::{Client, MAX_PATHS, Seen, Target, Usage};
use crate::output::printable;

#[cfg(test)]
mod tests;

/// Labels that a pod has for itself, or that change with each rollout.
const FLEETING: [&str; 5] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];
/// Maximum length of an object's name.
const MAX_NAME: usize = 253;

/// Choices of the user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    pub(super) namespaces: &'a [String],
    pub(super) paths: bool,
    pub(super) dry_run: bool,
    pub(super) root_namespace: &'a str,
}

/// Suggested policies, and notes on them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Suggestions {
    pub(super) policies: Vec<Value>,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
}

/// The policies that allow what was seen and nothing else, one for each target.
pub(super) fn suggest(seen: &Seen, objects: &[ObjectEvent], options: &Options<'_>) -> Suggestions {
    let mesh = Mesh::of(objects);
    let mut suggestions = Suggestions::default();
    gaps(seen, &mut suggestions.notes);
    for (target, clients) in &seen.usage {
        let (Target::Pods(namespace, name) | Target::Service(namespace, name)) = target;
        if !options.namespaces.is_empty() && !options.namespaces.contains(namespace) {
            continue;
        }
        let mut note = |text: String| {
            let text = printable(&format!("{namespace}/{name}: {text}"));
            suggestions.notes.push(text);
        };
        if seen.crowded.contains(target) {
            note("no policy, it has too many callers to name each".to_owned());
            continue;
        }
        let scope = match target {
            Target::Pods(..) => mesh.selector(namespace, seen.pods_of(target)),
            Target::Service(..) => Ok(json!({
                "targetRefs": [{"group": "", "kind": "Service", "name": name}],
            })),
        };
        let scope = match scope {
            Ok(scope) => scope,
            Err(why) => {
                note(format!("no policy, {why}"));
                continue;
            }
        };
        if let Some(policy) = mesh.allowing(namespace, &scope, options.root_namespace) {
            note(format!(
                "no policy, since {policy} already allows the callers that it names and no others"
            ));
            continue;
        }
        for client in clients.keys() {
            if let Client::Address(address) = client {
                note(format!(
                    "{address} calls in plaintext, and is known by its address alone: enrol it, or remove its rule"
                ));
            }
        }
        let kind = match target {
            Target::Pods(..) => "callers",
            Target::Service(..) => "requests",
        };
        let policy = policy((namespace, name, kind), scope, clients, options);
        suggestions.policies.push(policy);
    }
    suggestions
}

/// Adds notes on traffic that was not observed, or is left out.
fn gaps(seen: &Seen, notes: &mut Vec<String>) {
    let first =
        "What was not seen is not allowed. Rehearse with `ambit policy test` after a further while";
    notes.push(first.to_owned());
    if seen
        .usage
        .keys()
        .any(|target| matches!(target, Target::Service(..)))
    {
        let note = "Requests and connections that waypoints carried from before to after the watch make no event";
        notes.push(note.to_owned());
    }
    if seen.lost != (0, 0) {
        let (events, refusals) = seen.lost;
        notes.push(format!(
            "GAP: {events} events and {refusals} refusals were not seen, since too many came at once: \
             callers that only they show are missing"
        ));
    }
    for proxy in &seen.interrupted {
        notes.push(format!(
            "GAP: events of {proxy} were missing for a while: callers that only they show are missing"
        ));
    }
    for pod in &seen.to_pods {
        notes.push(printable(&format!(
            "{pod} is called by its own address, through a waypoint: attach a policy to the waypoint by hand"
        )));
    }
    for ((client, target), times) in &seen.refused {
        notes.push(printable(&format!(
            "no rule: {client} -> {target} was refused {times} times, and stays refused"
        )));
    }
}

fn policy(
    (namespace, name, kind): (&str, &str, &str),
    scope: Value,
    clients: &BTreeMap<Client, Usage>,
    options: &Options<'_>,
) -> Value {
    // Clients that use the same have one rule.
    let mut rules: BTreeMap<String, (Vec<Value>, BTreeSet<&Client>)> = BTreeMap::new();
    for (client, usage) in clients {
        let operations = operations(usage, options.paths);
        let key = Value::from(operations.clone()).to_string();
        let rule = rules.entry(key);
        let (_, of) = rule.or_insert_with(|| (operations, BTreeSet::new()));
        of.insert(client);
    }
    let rules: Vec<_> = rules
        .into_values()
        .map(|(operations, clients)| {
            let mut rule = Map::new();
            rule.insert("from".to_owned(), sources(&clients));
            if !operations.is_empty() {
                rule.insert("to".to_owned(), operations.into());
            }
            Value::Object(rule)
        })
        .collect();
    let mut spec = scope;
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("action".to_owned(), "ALLOW".into());
        spec.insert("rules".to_owned(), rules.into());
    }
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), named(name, kind).into());
    metadata.insert("namespace".to_owned(), namespace.into());
    if options.dry_run {
        let annotations = json!({"istio.io/dry-run": "true"});
        metadata.insert("annotations".to_owned(), annotations);
    }
    json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": metadata,
        "spec": spec,
    })
}

fn named(name: &str, kind: &str) -> String {
    let room = MAX_NAME - kind.len() - 1;
    let name = name.get(..name.floor_char_boundary(room)).unwrap_or(name);
    format!("{name}-{kind}")
}

fn sources(clients: &BTreeSet<&Client>) -> Value {
    let mut principals = Vec::new();
    let mut addresses = Vec::new();
    for client in clients {
        match client {
            Client::Principal(principal) => principals.push(principal.clone()),
            Client::Address(address) => addresses.push(address.clone()),
        }
    }
    let mut sources = Vec::new();
    if !principals.is_empty() {
        sources.push(json!({"source": {"principals": principals}}));
    }
    if !addresses.is_empty() {
        sources.push(json!({"source": {"ipBlocks": addresses}}));
    }
    sources.into()
}

/// The operations of a rule; none, if everything is used.
fn operations(usage: &Usage, paths: bool) -> Vec<Value> {
    if usage.connections {
        return Vec::new();
    }
    if !usage.ports.is_empty() {
        let ports: Vec<_> = usage.ports.iter().map(ToString::to_string).collect();
        return vec![json!({"operation": {"ports": ports}})];
    }
    // Methods with the same paths have one operation.
    let mut by_paths: BTreeMap<Vec<&str>, Vec<&str>> = BTreeMap::new();
    for (method, seen) in &usage.requests {
        let are_named = paths && seen.len() <= MAX_PATHS && seen.iter().all(|path| is_exact(path));
        let seen = seen.iter().map(String::as_str).filter(|_| are_named);
        by_paths.entry(seen.collect()).or_default().push(method);
    }
    let operation = |(paths, methods): (Vec<&str>, Vec<&str>)| match paths.is_empty() {
        true => json!({"operation": {"methods": methods}}),
        false => json!({"operation": {"methods": methods, "paths": paths}}),
    };
    by_paths.into_iter().map(operation).collect()
}

/// Whether a path as it was seen means only itself in a policy.
fn is_exact(path: &str) -> bool {
    path.starts_with('/') && !path.contains(['*', '{', '}']) && !path.ends_with("...")
}

/// Objects that decide which policies apply.
struct Mesh<'a> {
    pods: Vec<&'a Pod>,
    policies: Vec<&'a AuthorizationPolicy>,
}

impl<'a> Mesh<'a> {
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

    /// A selector of the pods of these names and of no others.
    fn selector(&self, namespace: &str, names: Option<&BTreeSet<String>>) -> Result<Value, String> {
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
            !FLEETING.contains(&name.as_str())
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
        Ok(json!({"selector": {"matchLabels": common}}))
    }

    /// Finds an existing ALLOW policy with the same scope.
    fn allowing(&self, namespace: &str, scope: &Value, root: &str) -> Option<String> {
        let found = self.policies.iter().find(|policy| {
            let own = policy.metadata.namespace.as_deref().unwrap_or_default();
            let Ok(spec) = serde_json::to_value(&policy.spec) else {
                return false;
            };
            let annotations = policy.metadata.annotations.as_ref();
            let is_dry_run = annotations
                .and_then(|annotations| annotations.get("istio.io/dry-run"))
                .is_some_and(|value| value == "true");
            let action = spec.get("action").and_then(Value::as_str);
            action.is_none_or(|action| action == "ALLOW")
                && !is_dry_run
                && match scope.pointer("/targetRefs/0/name") {
                    Some(service) => own == namespace && is_attached_to(&spec, service),
                    None => {
                        (own == namespace || own == root)
                            && !policy.spec.is_attached()
                            && is_selected(&spec, scope)
                    }
                }
        })?;
        let name = found.metadata.name.as_deref().unwrap_or_default();
        let own = found.metadata.namespace.as_deref().unwrap_or_default();
        Some(format!("{own}/{name}"))
    }
}

/// Whether a policy is attached to a service.
fn is_attached_to(spec: &Value, service: &Value) -> bool {
    let several = spec.get("targetRefs").and_then(Value::as_array);
    let mut all = several.into_iter().flatten().chain(spec.get("targetRef"));
    all.any(|target| {
        target.get("kind").is_some_and(|kind| kind == "Service")
            && target.get("name") == Some(service)
    })
}

/// Whether a policy has the same selector as a suggestion.
fn is_selected(spec: &Value, scope: &Value) -> bool {
    let labels = |of: &Value| of.pointer("/selector/matchLabels").cloned();
    let (policy, suggestion) = (labels(spec), labels(scope).unwrap_or_default());
    policy
        .as_ref()
        .and_then(Value::as_object)
        .is_none_or(|labels| {
            labels
                .iter()
                .all(|(name, value)| suggestion.get(name) == Some(value))
        })
}
