//! Checks for valid objects without effect: selectors and principals that match nothing, and rules of routes that an
//! earlier rule shadows. The control plane does not report these: pods come and go, and a policy for pods that do not
//! run yet is no problem of a mesh.

use std::collections::{BTreeMap, BTreeSet};

use ambit_derive::{Problem, Severity, selects};
use ambit_k8s_api::{
    Object, ObjectEvent, ObjectKey, Pod,
    gateway::{HTTPRoute, HttpRouteMatch},
    istio::{AuthorizationPolicy, selected_labels},
};

/// Applies all checks to the `linted_keys` objects, and returns their findings.
pub(super) fn run_checks(
    objects: &[ObjectEvent],
    linted_keys: &BTreeSet<ObjectKey>,
) -> Vec<Problem> {
    let applied = || {
        objects.iter().filter_map(|event| match event {
            ObjectEvent::Applied { object, origin } => Some((object, origin)),
            ObjectEvent::Invalid { .. } | ObjectEvent::Deleted(_) => None,
        })
    };
    let pods = PodsByNamespace::new(applied().filter_map(|(object, _)| match object {
        Object::Pod(pod) => Some(&**pod),
        _ => None,
    }));
    let mut problems = Vec::new();
    for (object, origin) in applied() {
        let key = object.key();
        if !linted_keys.contains(&key) {
            continue;
        }
        let warn = |(field, message)| Problem {
            severity: Severity::Warning,
            object: key.clone(),
            field,
            message,
            origin: origin.as_ref().map(ToString::to_string),
        };
        let found = match object {
            Object::AuthorizationPolicy(policy) => {
                let selector = selected_labels(policy.spec.selector.as_ref());
                let mut found = pods.unmatched_selector(&key.namespace, selector);
                found.extend(unknown_principals(policy, &pods));
                found
            }
            Object::PeerAuthentication(policy) => {
                let selector = selected_labels(policy.spec.selector.as_ref());
                pods.unmatched_selector(&key.namespace, selector)
            }
            Object::HTTPRoute(route) => shadowed_matches(route),
            _ => Vec::new(),
        };
        problems.extend(found.into_iter().map(warn));
    }
    problems
}

/// Path of a field in an object, and the message about it.
type FieldMessage = (String, String);

/// Pods among the evaluated objects, by namespace.
#[derive(Default)]
struct PodsByNamespace<'a>(BTreeMap<&'a str, Vec<&'a Pod>>);

impl<'a> PodsByNamespace<'a> {
    fn new(pods: impl Iterator<Item = &'a Pod>) -> Self {
        let mut all = Self::default();
        for pod in pods {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            all.0.entry(namespace).or_default().push(pod);
        }
        all
    }

    /// Returns a finding if a policy's selector matches no pod of its namespace; none if the namespace has no pods at
    /// all.
    fn unmatched_selector(
        &self,
        namespace: &str,
        selector: Option<&BTreeMap<String, String>>,
    ) -> Vec<FieldMessage> {
        let (Some(labels), Some(pods)) = (selector, self.0.get(namespace)) else {
            return Vec::new();
        };
        let mut own = pods.iter().filter_map(|pod| pod.metadata.labels.as_ref());
        if own.any(|own| selects(labels, own)) {
            return Vec::new();
        }
        let labels: Vec<_> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let message = format!(
            "no pod in {namespace} has the labels {}: the policy applies to nothing",
            labels.join(",")
        );
        vec![("spec.selector.matchLabels".to_owned(), message)]
    }

    /// Returns whether a pod of the namespace runs under the service account; `None` if the namespace has no pods.
    fn has_pods_of_account(&self, namespace: &str, account: &str) -> Option<bool> {
        let pods = self.0.get(namespace)?;
        let runs = |pod: &&Pod| {
            let spec = pod.spec.as_ref();
            let own = spec.and_then(|spec| spec.service_account_name.as_deref());
            own.filter(|own| !own.is_empty()).unwrap_or("default") == account
        };
        Some(pods.iter().any(runs))
    }
}

/// Returns findings on principals whose service account no pod uses.
fn unknown_principals(
    policy: &AuthorizationPolicy,
    pods: &PodsByNamespace<'_>,
) -> Vec<FieldMessage> {
    let mut found = Vec::new();
    for (number, rule) in policy.spec.rules.iter().enumerate() {
        for (from, source) in rule.from.iter().enumerate() {
            let Some(source) = &source.source else {
                continue;
            };
            for (index, principal) in source.principals.iter().enumerate() {
                let Some((namespace, account)) = parse_principal(principal) else {
                    continue;
                };
                if pods.has_pods_of_account(namespace, account) == Some(false) {
                    found.push((
                        format!("spec.rules[{number}].from[{from}].source.principals[{index}]"),
                        format!("no pod in {namespace} runs as the service account {account}"),
                    ));
                }
            }
        }
    }
    found
}

/// Returns namespace and service account of a principal `TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`; `None` for other forms
/// and for wildcards.
fn parse_principal(principal: &str) -> Option<(&str, &str)> {
    let mut parts = principal.split('/');
    let (_, ns, namespace) = (parts.next()?, parts.next()?, parts.next()?);
    let (sa, account) = (parts.next()?, parts.next()?);
    let is_whole = ns == "ns" && sa == "sa" && parts.next().is_none();
    (is_whole && !principal.contains('*')).then_some((namespace, account))
}

/// Returns findings on matches of an HTTPRoute's rule that never apply, because an earlier rule has the same match.
fn shadowed_matches(route: &HTTPRoute) -> Vec<FieldMessage> {
    let mut first: Vec<(String, usize)> = Vec::new();
    let mut found = Vec::new();
    let every = [HttpRouteMatch::default()];
    for (number, rule) in route.spec.rules.iter().enumerate() {
        let matches = match rule.matches.as_slice() {
            [] => every.as_slice(),
            given => given,
        };
        for (index, one) in matches.iter().enumerate() {
            let form = canonical_json(one);
            match first.iter().find(|(other, _)| *other == form) {
                Some((_, earlier)) if *earlier != number => found.push((
                    match rule.matches.is_empty() {
                        true => format!("spec.rules[{number}]"),
                        false => format!("spec.rules[{number}].matches[{index}]"),
                    },
                    format!("spec.rules[{earlier}] matches the same requests and goes before it"),
                )),
                Some(_) => {}
                None => first.push((form, number)),
            }
        }
    }
    found
}

/// Returns a normal form of a match for comparison: explicit defaults, and sorted conditions.
fn canonical_json(route_match: &HttpRouteMatch) -> String {
    let path = route_match.path.clone().unwrap_or_default();
    let kind = path.type_.as_deref().unwrap_or("PathPrefix");
    let value = path.value.as_deref().unwrap_or("/");
    // A prefix is one of whole parts: with and without a slash at its end it is the same.
    let value = match kind {
        "PathPrefix" => value.trim_end_matches('/'),
        _ => value,
    };
    let named = |matches: &[ambit_k8s_api::gateway::HttpNamedMatch], lower: bool| {
        let mut all: Vec<_> = matches
            .iter()
            .map(|route_match| {
                let name = match lower {
                    true => route_match.name.to_ascii_lowercase(),
                    false => route_match.name.clone(),
                };
                let kind = route_match.type_.as_deref().unwrap_or("Exact");
                format!("{name} {kind} {:?}", route_match.value)
            })
            .collect();
        all.sort();
        all
    };
    format!(
        "{kind} {value:?} {:?} {:?} {:?} {:?}",
        route_match.method,
        named(&route_match.headers, true),
        named(&route_match.query_params, false),
        route_match.other
    )
}
