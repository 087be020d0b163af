//! One VirtualService as an HTTPRoute, and its faults as HTTPFaults.

use std::collections::BTreeMap;

use ambit_k8s_api::gateway::{
    HttpBackendRef, HttpNamedMatch, HttpPathMatch, HttpRouteMatch, HttpRouteRetry, HttpRouteRule,
    HttpRouteSpec, HttpRouteTimeouts, ParentReference,
};
use serde_json::{Value, json};

use super::{
    Conversion, Remark, order,
    values::{escaped, milliseconds, plain},
    virtual_service::{Destination, HttpRule, Match, Other, Retries, StringMatch, VirtualService},
};

/// Group of the kinds that Ambit has for what the Gateway API leaves to implementations.
pub(super) const OWN_GROUP: &str = "ambit.io";
/// Name by which a VirtualService means callers in the mesh.
const MESH: &str = "mesh";
/// Statuses of the retry condition `5xx`: all that are registered.
const SERVER_ERRORS: [i32; 11] = [500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511];
/// Statuses of the retry condition `gateway-error`.
const GATEWAY_ERRORS: [i32; 3] = [502, 503, 504];
/// Retry conditions of connections, which are retried without being named.
const CONNECTION_ERRORS: [&str; 6] = [
    "connect-failure",
    "refused-stream",
    "reset",
    "reset-before-request",
    "unavailable",
    "cancelled",
];

/// Converts one object, or gives every reason why it cannot be.
pub(super) fn convert(
    whole: &VirtualService,
    cluster_domain: &str,
) -> Result<Conversion, Vec<Remark>> {
    let mut work = Work {
        namespace: whole.namespace(),
        name: &whole.metadata.name,
        cluster_domain,
        reasons: Vec::new(),
        notes: Vec::new(),
        faults: Vec::new(),
    };
    let spec = &whole.spec;
    let parents = work.parents(&spec.hosts);
    if !spec.gateways.is_empty() && !spec.gateways.iter().all(|one| one == MESH) {
        work.reason(
            "gateways",
            "it is for gateways at the edge of the mesh: attach an HTTPRoute to their Gateway objects",
        );
    }
    if !spec.export_to.is_empty() && spec.export_to != ["*"] {
        work.reason(
            "exportTo",
            "an HTTPRoute is followed by every caller of its service",
        );
    }
    work.unknown("", &spec.other);
    if spec.http.is_empty() && work.reasons.is_empty() {
        work.reason("http", "there are no rules for HTTP");
    }
    let rules: Vec<_> = spec
        .http
        .iter()
        .enumerate()
        .map(|(number, rule)| work.rule(number, rule))
        .collect();
    work.reasons.extend(order::changes(&rules));
    if !work.reasons.is_empty() {
        return Err(work.reasons);
    }
    let route = HttpRouteSpec {
        parent_refs: parents,
        rules,
        ..HttpRouteSpec::default()
    };
    let metadata = json!({"name": whole.metadata.name, "namespace": whole.namespace()});
    let mut objects = vec![json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata,
        "spec": plain(&route),
    })];
    objects.extend(work.faults);
    Ok(Conversion {
        objects,
        notes: work.notes,
    })
}

/// A conversion under way.
pub(super) struct Work<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    cluster_domain: &'a str,
    reasons: Vec<Remark>,
    notes: Vec<Remark>,
    pub(super) faults: Vec<Value>,
}

impl Work<'_> {
    pub(super) fn reason(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.reasons.push(Remark::new(field, message));
    }

    pub(super) fn note(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.notes.push(Remark::new(field, message));
    }

    /// Fields that have no counterpart, or that nobody knows.
    pub(super) fn unknown(&mut self, at: &str, other: &Other) {
        for key in other.keys() {
            let field = match at {
                "" => key.clone(),
                at => format!("{at}.{key}"),
            };
            self.reason(field, "there is no counterpart in an HTTPRoute");
        }
    }

    /// Name and namespace of the service that a host stands for.
    fn service(&mut self, field: &str, host: &str) -> Option<(String, String)> {
        let suffix = format!(".svc.{}", self.cluster_domain);
        let short = host
            .strip_suffix(&suffix)
            .or_else(|| host.strip_suffix(".svc"))
            .unwrap_or(host);
        let is_full = short.len() < host.len();
        let mut parts = short.split('.');
        let (name, namespace, rest) = (parts.next(), parts.next(), parts.next());
        match (name, namespace, rest) {
            (Some(name), None, None) if !name.is_empty() && !name.contains('*') && !is_full => {
                Some((name.to_owned(), self.namespace.to_owned()))
            }
            (Some(name), Some(namespace), None) if is_full && !name.contains('*') => {
                Some((name.to_owned(), namespace.to_owned()))
            }
            _ => {
                let message = format!(
                    "{host:?} is no service of Kubernetes by its name, or by its full name with .svc.{}",
                    self.cluster_domain
                );
                self.reason(field, message);
                None
            }
        }
    }

    fn parents(&mut self, hosts: &[String]) -> Vec<ParentReference> {
        let mut parents = Vec::new();
        for (number, host) in hosts.iter().enumerate() {
            let field = format!("hosts[{number}]");
            let Some((name, namespace)) = self.service(&field, host) else {
                continue;
            };
            if namespace != self.namespace {
                self.note(
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

    fn rule(&mut self, number: usize, rule: &HttpRule) -> HttpRouteRule {
        let at = format!("http[{number}]");
        self.unknown(&at, &rule.other);
        let matches = rule.matches.iter().enumerate();
        let matches: Vec<_> = matches
            .map(|(index, one)| self.one_match(&format!("{at}.match[{index}]"), one))
            .collect();
        let mut filters = Vec::new();
        self.headers(
            &format!("{at}.headers"),
            rule.headers.as_ref(),
            &mut filters,
        );
        if let Some(cors) = &rule.cors_policy {
            filters.push(self.cors(&format!("{at}.corsPolicy"), cors));
        }
        if let Some(fault) = &rule.fault {
            filters.push(self.fault(&format!("{at}.fault"), number, fault));
        }
        self.mirrors(&at, rule, &mut filters);
        if let Some(rewrite) = &rule.rewrite {
            filters.push(self.rewrite(&format!("{at}.rewrite"), rewrite, &matches));
        }
        if let Some(redirect) = &rule.redirect {
            filters.push(self.redirect(&format!("{at}.redirect"), redirect));
        }
        let backend_refs = self.backends(&at, rule);
        if rule.route.is_empty() && rule.redirect.is_none() {
            self.reason(&at, "it sends requests nowhere");
        }
        let retries = rule.retries.as_ref();
        let timeouts = HttpRouteTimeouts {
            request: self.duration(&format!("{at}.timeout"), rule.timeout.as_deref()),
            backend_request: self.duration(
                &format!("{at}.retries.perTryTimeout"),
                retries.and_then(|retries| retries.per_try_timeout.as_deref()),
            ),
            ..HttpRouteTimeouts::default()
        };
        HttpRouteRule {
            name: rule.name.clone(),
            matches,
            filters,
            backend_refs,
            timeouts: (timeouts != HttpRouteTimeouts::default()).then_some(timeouts),
            retry: retries.and_then(|retries| self.retry(&format!("{at}.retries"), retries)),
            ..HttpRouteRule::default()
        }
    }

    fn one_match(&mut self, at: &str, one: &Match) -> HttpRouteMatch {
        self.unknown(at, &one.other);
        if !one.gateways.is_empty() && !one.gateways.iter().any(|gateway| gateway == MESH) {
            self.reason(
                format!("{at}.gateways"),
                "it is for gateways at the edge of the mesh",
            );
        }
        let method = one.method.as_ref().and_then(|method| {
            if method.exact.is_none() {
                self.reason(
                    format!("{at}.method"),
                    "an HTTPRoute matches whole methods only",
                );
            }
            method.exact.clone()
        });
        let path = one.uri.as_ref().and_then(|uri| {
            let field = format!("{at}.uri");
            self.unknown(&field, &uri.other);
            let (kind, value) = match uri {
                StringMatch { exact: Some(value), .. } => ("Exact", value),
                StringMatch { prefix: Some(value), .. } => {
                    if !value.trim_end_matches('/').is_empty() {
                        let prefix = value.trim_end_matches('/');
                        self.note(
                            &field,
                            format!("{prefix} and what is below it match; {prefix}more does not, unlike before"),
                        );
                    }
                    ("PathPrefix", value)
                }
                StringMatch { regex: Some(value), .. } => ("RegularExpression", value),
                _ => {
                    self.reason(&field, "it has no value");
                    return None;
                }
            };
            Some(HttpPathMatch {
                type_: Some(kind.to_owned()),
                value: Some(value.clone()),
            })
        });
        HttpRouteMatch {
            path,
            headers: self.named(&format!("{at}.headers"), &one.headers),
            query_params: self.named(&format!("{at}.queryParams"), &one.query_params),
            method,
            ..HttpRouteMatch::default()
        }
    }

    fn named(&mut self, at: &str, given: &BTreeMap<String, StringMatch>) -> Vec<HttpNamedMatch> {
        let mut matches = Vec::new();
        for (name, value) in given {
            let field = format!("{at}[{name}]");
            self.unknown(&field, &value.other);
            if name.starts_with(':') {
                self.reason(&field, "an HTTPRoute matches no pseudo-headers");
            }
            let (kind, value) = match value {
                StringMatch {
                    exact: Some(value), ..
                } => (None, value.clone()),
                StringMatch {
                    prefix: Some(value),
                    ..
                } => (Some("RegularExpression"), format!("{}.*", escaped(value))),
                StringMatch {
                    regex: Some(value), ..
                } => (Some("RegularExpression"), value.clone()),
                _ => (Some("RegularExpression"), ".*".to_owned()),
            };
            matches.push(HttpNamedMatch {
                type_: kind.map(str::to_owned),
                name: name.clone(),
                value,
            });
        }
        matches
    }

    fn backends(&mut self, at: &str, rule: &HttpRule) -> Vec<HttpBackendRef> {
        let mut backends = Vec::new();
        for (number, to) in rule.route.iter().enumerate() {
            let at = format!("{at}.route[{number}]");
            self.unknown(&at, &to.other);
            let mut filters = Vec::new();
            self.headers(&format!("{at}.headers"), to.headers.as_ref(), &mut filters);
            let field = format!("{at}.destination");
            let Some((name, namespace, port)) = self.destination(&field, &to.destination) else {
                continue;
            };
            // A share of 0 is none; of a single destination Istio takes no notice.
            let weight = match rule.route.len() {
                1 => None,
                _ => Some(to.weight.unwrap_or_default()),
            };
            let (group, kind, name) = match &to.destination.subset {
                None => (None, None, name),
                Some(subset) => (
                    Some(OWN_GROUP.to_owned()),
                    Some("Subset".to_owned()),
                    format!("{name}.{subset}"),
                ),
            };
            backends.push(HttpBackendRef {
                group,
                kind,
                namespace,
                name,
                port: Some(port),
                weight,
                filters,
                ..HttpBackendRef::default()
            });
        }
        backends
    }

    /// Name, namespace if it is another one, and port of a destination.
    pub(super) fn destination(
        &mut self,
        field: &str,
        to: &Destination,
    ) -> Option<(String, Option<String>, i32)> {
        self.unknown(field, &to.other);
        let (name, namespace) = self.service(&format!("{field}.host"), &to.host)?;
        let Some(port) = to.port.as_ref().and_then(|port| port.number) else {
            self.reason(
                format!("{field}.port"),
                "a backend of an HTTPRoute has a port: add port.number",
            );
            return None;
        };
        let elsewhere = namespace != self.namespace;
        if elsewhere {
            self.note(
                field,
                format!(
                    "a ReferenceGrant in {namespace} must allow HTTPRoutes of {}",
                    self.namespace
                ),
            );
        }
        Some((name, elsewhere.then_some(namespace), port))
    }

    fn retry(&mut self, at: &str, retries: &Retries) -> Option<HttpRouteRetry> {
        self.unknown(at, &retries.other);
        if retries.attempts == 0 {
            return None;
        }
        let mut codes = Vec::new();
        let conditions = retries.retry_on.as_deref().unwrap_or_default();
        for condition in conditions
            .split(',')
            .map(str::trim)
            .filter(|one| !one.is_empty())
        {
            match condition {
                "5xx" => codes.extend(SERVER_ERRORS),
                "gateway-error" => codes.extend(GATEWAY_ERRORS),
                _ if CONNECTION_ERRORS.contains(&condition) => {}
                _ => match condition.parse() {
                    Ok(code) => codes.push(code),
                    Err(_) => self.reason(
                        format!("{at}.retryOn"),
                        format!("{condition:?} has no counterpart; statuses have"),
                    ),
                },
            }
        }
        if conditions.is_empty() {
            // Istio's default.
            codes.push(503);
        }
        codes.sort_unstable();
        codes.dedup();
        Some(HttpRouteRetry {
            codes,
            attempts: Some(retries.attempts),
            ..HttpRouteRetry::default()
        })
    }

    /// A duration of the Gateway API.
    pub(super) fn duration(&mut self, field: &str, text: Option<&str>) -> Option<String> {
        let text = text?;
        let Some(all) = milliseconds(text) else {
            self.reason(field, format!("{text:?} is no duration such as 1.5s"));
            return None;
        };
        Some(match all % 1000 {
            0 => format!("{}s", all / 1000),
            _ => format!("{all}ms"),
        })
    }
}
