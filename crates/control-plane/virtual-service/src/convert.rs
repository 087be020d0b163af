//! Converts a VirtualService to an HTTPRoute, and its faults to HTTPFaults. A VirtualService that cannot be converted
//! completely is rejected with all reasons, since a part of its rules would route requests differently.

use ambit_k8s_api::{
    VirtualService,
    ambit::{self, HttpFaultSpec},
    gateway::{
        BackendReference, HttpBackendRef, HttpPathModifier, HttpRequestMirror, HttpRouteFilter,
        HttpRouteMatch, HttpRouteRetry, HttpRouteRule, HttpRouteSpec, HttpRouteTimeouts,
        LocalObjectReference, ParentReference,
    },
};
use serde_json::{Value, json};

use super::{
    FieldRemark, MESH_GATEWAY, fully_qualified_name, hosts, order,
    rule::{DestinationTarget, RouteRule, RuleMatch, RuleMirror},
    values::to_value_without_empty,
};

/// Maximum number of characters of an object's name.
const MAX_NAME_LENGTH: usize = 253;

/// Objects that replace a VirtualService.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversion {
    /// The HTTPRoute, and the HTTPFaults that it names.
    pub objects: Vec<Value>,
    /// Differences in behaviour that the owner should know.
    pub notes: Vec<FieldRemark>,
}

/// Converts a VirtualService to an HTTPRoute and HTTPFaults.
///
/// # Errors
///
/// With every reason why it cannot be converted.
pub fn convert_to_http_routes(
    from: &VirtualService,
    cluster_domain: &str,
) -> Result<Conversion, Vec<FieldRemark>> {
    let namespace = from.metadata.namespace.as_deref().unwrap_or("default");
    let name = from.metadata.name.as_deref().unwrap_or_default();
    let mut work = Converter {
        namespace,
        name,
        cluster_domain,
        rejections: Vec::new(),
        notes: Vec::new(),
        faults: Vec::new(),
    };
    let spec = &from.spec;
    let parents = work.parent_refs(&spec.hosts);
    if !spec.gateways.is_empty() && !spec.gateways.iter().all(|one| one == MESH_GATEWAY) {
        work.reject(
            "gateways",
            "it is for gateways at the edge of the mesh: attach an HTTPRoute to their Gateway objects",
        );
    }
    if !spec.export_to.is_empty() && spec.export_to != ["*"] {
        work.reject(
            "exportTo",
            "an HTTPRoute is followed by every waypoint of its service",
        );
    }
    for key in spec.unknown.keys() {
        work.reject(key.as_str(), "is not supported");
    }
    if spec.http.is_empty() && work.rejections.is_empty() {
        work.reject("http", "there are no rules for HTTP");
    }
    let rules = spec.http.iter().enumerate();
    let rules: Vec<_> = rules
        .map(|(number, rule)| work.convert_rule(number, RouteRule::from_http_rule(number, rule)))
        .collect();
    work.rejections.extend(order::order_differences(&rules));
    if !work.rejections.is_empty() {
        return Err(work.rejections);
    }
    let route = HttpRouteSpec {
        parent_refs: parents,
        rules,
        ..HttpRouteSpec::default()
    };
    let mut objects = vec![json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": namespace},
        "spec": to_value_without_empty(&route),
    })];
    objects.extend(work.faults);
    Ok(Conversion {
        objects,
        notes: work.notes,
    })
}

/// State of the conversion of one VirtualService.
struct Converter<'a> {
    namespace: &'a str,
    name: &'a str,
    cluster_domain: &'a str,
    rejections: Vec<FieldRemark>,
    notes: Vec<FieldRemark>,
    faults: Vec<Value>,
}

impl Converter<'_> {
    fn reject(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.rejections.push(FieldRemark::new(field, message));
    }

    fn add_note(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.notes.push(FieldRemark::new(field, message));
    }

    /// Returns name and namespace of the Service that a destination's host names.
    fn resolve_service(&mut self, field: &str, host: &str) -> Option<(String, String)> {
        let full = fully_qualified_name(host, self.namespace, self.cluster_domain);
        let service = full.and_then(|name| hosts::service_of_hostname(&name, self.cluster_domain));
        if service.is_none() {
            let message = format!(
                "{host:?} is no service of Kubernetes by its name, or by its full name with .svc.{}",
                self.cluster_domain
            );
            self.reject(field, message);
        }
        service
    }

    fn parent_refs(&mut self, hosts: &[String]) -> Vec<ParentReference> {
        let mut parents = Vec::new();
        for (number, host) in hosts.iter().enumerate() {
            let field = format!("hosts[{number}]");
            let Some((name, namespace)) = self.resolve_service(&field, host) else {
                continue;
            };
            if namespace != self.namespace {
                self.add_note(
                    &field,
                    format!(
                        "only callers in {} follow a route for a service of {namespace}",
                        self.namespace
                    ),
                );
            }
            parents.push(ParentReference {
                group: Some(String::new()),
                kind: Some("Service".to_owned()),
                namespace: (namespace != self.namespace).then_some(namespace),
                name,
                ..ParentReference::default()
            });
        }
        parents
    }

    fn convert_rule(&mut self, number: usize, mut rule: RouteRule) -> HttpRouteRule {
        self.rejections.append(&mut rule.unsupported);
        self.notes.append(&mut rule.notes);
        let at = rule.field_path.clone();
        let matches: Vec<_> = rule
            .matches
            .iter()
            .map(|one| self.convert_match(one))
            .collect();
        let mut filters = rule.filters;
        self.apply_rewrite(&at, &matches, &mut filters);
        if let Some(fault) = &rule.fault {
            filters.push(self.convert_fault(&at, number, fault));
        }
        for mirror in &rule.mirrors {
            filters.extend(self.convert_mirror(mirror));
        }
        let is_only = rule.destinations.len() == 1;
        let mut backend_refs = Vec::new();
        for to in rule.destinations {
            let backend = self.convert_backend(&to.target);
            backend_refs.extend(backend.map(|backend| HttpBackendRef {
                weight: (!is_only).then(|| i32::try_from(to.weight).unwrap_or(i32::MAX)),
                filters: to.filters,
                ..backend
            }));
        }
        let is_without_timeouts = rule.timeouts == HttpRouteTimeouts::default();
        HttpRouteRule {
            name: rule.name,
            matches,
            filters,
            backend_refs,
            timeouts: (!is_without_timeouts).then_some(rule.timeouts),
            retry: self.convert_retry(&at, rule.retry),
            ..HttpRouteRule::default()
        }
    }

    fn convert_match(&mut self, from: &RuleMatch) -> HttpRouteMatch {
        let at = &from.field_path;
        let beyond = [
            (
                "gateways",
                !from.is_for_mesh,
                "it is for gateways at the edge of the mesh",
            ),
            (
                "port",
                from.port.is_some(),
                "an HTTPRoute names ports in its parentRefs: write one for each",
            ),
            (
                "sourceNamespace",
                from.source_namespace.is_some(),
                "an HTTPRoute of the clients' namespace is followed for them alone: write one there",
            ),
            (
                "withoutHeaders",
                !from.without_headers.is_empty(),
                "an HTTPRoute cannot exclude headers",
            ),
        ];
        for (field, is_there, message) in beyond {
            if is_there {
                self.reject(format!("{at}.{field}"), message);
            }
        }
        let path = from.request.path.as_ref();
        let prefix = path.and_then(|path| path.value.as_deref()).unwrap_or("/");
        let trimmed = prefix.trim_end_matches('/');
        if is_prefix_match(&from.request) && !trimmed.is_empty() {
            let message = format!(
                "{trimmed} and what is below it match; {trimmed}more does not, unlike before"
            );
            self.add_note(format!("{at}.uri"), message);
        }
        from.request.clone()
    }

    /// Replaces a rewrite of the path prefix by one of the full path if no match of the rule is on a prefix; rejects a
    /// rule that mixes both, or has a match without a path.
    fn apply_rewrite(
        &mut self,
        at: &str,
        matches: &[HttpRouteMatch],
        filters: &mut [HttpRouteFilter],
    ) {
        let mut rewrites = filters.iter_mut();
        let path = rewrites.find_map(|filter| filter.url_rewrite.as_mut()?.path.as_mut());
        let Some(path) = path else { return };
        let has_path = |one: &HttpRouteMatch| one.path.is_some();
        let count = matches.iter().filter(|one| is_prefix_match(one)).count();
        if matches.is_empty()
            || !matches.iter().all(has_path)
            || ![0, matches.len()].contains(&count)
        {
            self.reject(
                format!("{at}.rewrite.uri"),
                "paths are rewritten where all matches of the rule are prefixes, or none is: split the rule",
            );
        } else if count == 0 {
            *path = HttpPathModifier {
                type_: "ReplaceFullPath".to_owned(),
                replace_full_path: path.replace_prefix_match.take(),
                ..HttpPathModifier::default()
            };
        }
    }

    fn convert_fault(&mut self, at: &str, number: usize, spec: &HttpFaultSpec) -> HttpRouteFilter {
        let name = format!("{}-{number}", self.name);
        if name.len() > MAX_NAME_LENGTH {
            self.reject(
                format!("{at}.fault"),
                format!("an HTTPFault of the name {name:?} has too many characters"),
            );
        }
        self.faults.push(json!({
            "apiVersion": "ambit.io/v1alpha1",
            "kind": "HTTPFault",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": to_value_without_empty(spec),
        }));
        HttpRouteFilter {
            type_: "ExtensionRef".to_owned(),
            extension_ref: Some(LocalObjectReference {
                group: ambit::GROUP.to_owned(),
                kind: "HTTPFault".to_owned(),
                name,
                ..LocalObjectReference::default()
            }),
            ..HttpRouteFilter::default()
        }
    }

    fn convert_mirror(&mut self, from: &RuleMirror) -> Option<HttpRouteFilter> {
        let to = self.convert_backend(&from.target)?;
        Some(HttpRouteFilter {
            type_: "RequestMirror".to_owned(),
            request_mirror: Some(HttpRequestMirror {
                backend_ref: BackendReference {
                    namespace: to.namespace,
                    name: to.name,
                    port: to.port,
                    ..BackendReference::default()
                },
                percent: from.percent,
                fraction: from.fraction.clone(),
                ..HttpRequestMirror::default()
            }),
            ..HttpRouteFilter::default()
        })
    }

    fn convert_backend(&mut self, to: &DestinationTarget) -> Option<HttpBackendRef> {
        let at = &to.field_path;
        let (name, namespace) = self.resolve_service(&format!("{at}.host"), &to.host)?;
        let Some(port) = to.port else {
            self.reject(
                format!("{at}.port"),
                "a backend of an HTTPRoute has a port: add port.number",
            );
            return None;
        };
        let elsewhere = namespace != self.namespace;
        if elsewhere {
            self.add_note(
                at,
                format!(
                    "a ReferenceGrant in {namespace} must allow HTTPRoutes of {}",
                    self.namespace
                ),
            );
        }
        let (group, kind, name) = match &to.subset {
            None => (None, None, name),
            Some(subset) => (
                Some(ambit::GROUP.to_owned()),
                Some(ambit::SUBSET_KIND.to_owned()),
                format!("{name}.{subset}"),
            ),
        };
        Some(HttpBackendRef {
            group,
            kind,
            namespace: elsewhere.then_some(namespace),
            name,
            port: Some(i32::from(port)),
            ..HttpBackendRef::default()
        })
    }

    fn convert_retry(&mut self, at: &str, from: Option<HttpRouteRetry>) -> Option<HttpRouteRetry> {
        let retry = from?;
        if retry.attempts == Some(0) {
            self.add_note(
                format!("{at}.retries.attempts"),
                "an HTTPRoute cannot turn retries off: requests without side effects are sent again, at most twice",
            );
            return None;
        }
        Some(retry)
    }
}

/// Returns whether a match compares a prefix of the path.
fn is_prefix_match(of: &HttpRouteMatch) -> bool {
    let path = of.path.as_ref();
    path.is_some_and(|path| path.type_.as_deref() == Some("PathPrefix"))
}
