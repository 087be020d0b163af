//! One VirtualService as an HTTPRoute, and its faults as HTTPFaults.

use std::collections::BTreeMap;

use ambit_k8s_api::gateway::{
    BackendReference, Fraction, HttpBackendRef, HttpCorsFilter, HttpHeader, HttpHeaderFilter,
    HttpNamedMatch, HttpPathMatch, HttpPathModifier, HttpRequestMirror, HttpRequestRedirect,
    HttpRouteFilter, HttpRouteMatch, HttpRouteRetry, HttpRouteRule, HttpRouteSpec,
    HttpRouteTimeouts, HttpUrlRewrite, LocalObjectReference, ParentReference,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Conversion, Remark, order,
    virtual_service::{
        CorsPolicy, Destination, Fault, HeaderChanges, Headers, HttpRule, Match, Other, Percent,
        Redirect, Retries, Rewrite, StringMatch, VirtualService,
    },
};

/// Group of the kinds that Ambit has for what the Gateway API leaves to implementations.
const OWN_GROUP: &str = "ambit.io";
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
/// Most characters of an object's name.
const MAX_NAME: usize = 253;

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
struct Work<'a> {
    namespace: &'a str,
    name: &'a str,
    cluster_domain: &'a str,
    reasons: Vec<Remark>,
    notes: Vec<Remark>,
    faults: Vec<Value>,
}

impl Work<'_> {
    fn reason(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.reasons.push(Remark::new(field, message));
    }

    fn note(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.notes.push(Remark::new(field, message));
    }

    /// Fields that have no counterpart, or that nobody knows.
    fn unknown(&mut self, at: &str, other: &Other) {
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
                    if value.trim_end_matches('/') != "" {
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

    fn headers(&mut self, at: &str, headers: Option<&Headers>, filters: &mut Vec<HttpRouteFilter>) {
        let Some(headers) = headers else { return };
        self.unknown(at, &headers.other);
        if let Some(changes) = self.header_changes(&format!("{at}.request"), &headers.request) {
            filters.push(HttpRouteFilter {
                type_: "RequestHeaderModifier".to_owned(),
                request_header_modifier: Some(changes),
                ..HttpRouteFilter::default()
            });
        }
        if let Some(changes) = self.header_changes(&format!("{at}.response"), &headers.response) {
            filters.push(HttpRouteFilter {
                type_: "ResponseHeaderModifier".to_owned(),
                response_header_modifier: Some(changes),
                ..HttpRouteFilter::default()
            });
        }
    }

    fn header_changes(&mut self, at: &str, changes: &HeaderChanges) -> Option<HttpHeaderFilter> {
        self.unknown(at, &changes.other);
        for (name, value) in changes.set.iter().chain(&changes.add) {
            if name.starts_with(':') || name.eq_ignore_ascii_case("host") {
                self.reason(
                    format!("{at}[{name}]"),
                    "the host is changed by rewrite.authority",
                );
            }
            if value.contains('%') {
                self.reason(
                    format!("{at}[{name}]"),
                    "values with placeholders have no counterpart",
                );
            }
        }
        let lines = |given: &BTreeMap<String, String>| {
            let lines = given.iter().map(|(name, value)| HttpHeader {
                name: name.clone(),
                value: value.clone(),
            });
            lines.collect::<Vec<_>>()
        };
        let filter = HttpHeaderFilter {
            set: lines(&changes.set),
            add: lines(&changes.add),
            remove: changes.remove.clone(),
            ..HttpHeaderFilter::default()
        };
        (filter != HttpHeaderFilter::default()).then_some(filter)
    }

    fn cors(&mut self, at: &str, cors: &CorsPolicy) -> HttpRouteFilter {
        self.unknown(at, &cors.other);
        let mut origins = Vec::new();
        for (number, origin) in cors.allow_origins.iter().enumerate() {
            match &origin.exact {
                Some(exact) => origins.push(exact.clone()),
                None => self.reason(
                    format!("{at}.allowOrigins[{number}]"),
                    "a CORS filter has whole origins, and * for a label or for all",
                ),
            }
        }
        let max_age = cors.max_age.as_deref().and_then(|text| {
            let seconds = milliseconds(text).filter(|all| all % 1000 == 0);
            let seconds = seconds.and_then(|all| i32::try_from(all / 1000).ok());
            if seconds.is_none() {
                self.reason(
                    format!("{at}.maxAge"),
                    format!("{text:?} is no number of seconds"),
                );
            }
            seconds
        });
        HttpRouteFilter {
            type_: "CORS".to_owned(),
            cors: Some(HttpCorsFilter {
                allow_origins: origins,
                allow_credentials: cors.allow_credentials,
                allow_methods: cors.allow_methods.clone(),
                allow_headers: cors.allow_headers.clone(),
                expose_headers: cors.expose_headers.clone(),
                max_age,
                ..HttpCorsFilter::default()
            }),
            ..HttpRouteFilter::default()
        }
    }

    fn fault(&mut self, at: &str, number: usize, fault: &Fault) -> HttpRouteFilter {
        self.unknown(at, &fault.other);
        let mut spec = serde_json::Map::new();
        if let Some(delay) = &fault.delay {
            let at = format!("{at}.delay");
            self.unknown(&at, &delay.other);
            let mut made = json!({
                "fixedDelay": self.duration(&format!("{at}.fixedDelay"), delay.fixed_delay.as_deref()),
            });
            self.share(
                &format!("{at}.percentage"),
                delay.percentage.as_ref(),
                &mut made,
            );
            spec.insert("delay".to_owned(), made);
        }
        if let Some(abort) = &fault.abort {
            let at = format!("{at}.abort");
            self.unknown(&at, &abort.other);
            let mut made =
                json!({"httpStatus": abort.http_status, "grpcStatus": abort.grpc_status});
            self.share(
                &format!("{at}.percentage"),
                abort.percentage.as_ref(),
                &mut made,
            );
            spec.insert("abort".to_owned(), made);
        }
        let name = format!("{}-{number}", self.name);
        if name.len() > MAX_NAME {
            self.reason(
                at,
                format!("an HTTPFault of the name {name:?} has too many characters"),
            );
        }
        self.faults.push(json!({
            "apiVersion": "ambit.io/v1alpha1",
            "kind": "HTTPFault",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": without_empty(Value::Object(spec)),
        }));
        HttpRouteFilter {
            type_: "ExtensionRef".to_owned(),
            extension_ref: Some(LocalObjectReference {
                group: OWN_GROUP.to_owned(),
                kind: "HTTPFault".to_owned(),
                name,
                ..LocalObjectReference::default()
            }),
            ..HttpRouteFilter::default()
        }
    }

    /// Sets `percent`, or `fraction` where the share is no whole number. No share is all requests, in both APIs.
    fn share(&mut self, field: &str, percent: Option<&Percent>, made: &mut Value) {
        let Some((whole, fraction)) = self.percentage(field, percent) else {
            return;
        };
        if let Some(made) = made.as_object_mut() {
            match fraction {
                Some(fraction) => made.insert("fraction".to_owned(), plain(&fraction)),
                None => made.insert("percent".to_owned(), json!(whole)),
            };
        }
    }

    fn percentage(
        &mut self,
        field: &str,
        percent: Option<&Percent>,
    ) -> Option<(Option<i32>, Option<Fraction>)> {
        let value = percent?.value;
        if !(0.0..=100.0).contains(&value) {
            self.reason(field, format!("{value} is no share of 100"));
            return None;
        }
        // A millionth is the smallest share that Envoy draws.
        let millionths = (value * 10_000.0).round();
        if millionths % 10_000.0 == 0.0 {
            return Some((Some(whole_number(millionths / 10_000.0)), None));
        }
        let fraction = Fraction {
            numerator: whole_number(millionths),
            denominator: Some(1_000_000),
        };
        Some((None, Some(fraction)))
    }

    fn mirrors(&mut self, at: &str, rule: &HttpRule, filters: &mut Vec<HttpRouteFilter>) {
        let one = rule.mirror.iter().map(|to| {
            let share = rule.mirror_percentage.as_ref();
            (format!("{at}.mirror"), to, share)
        });
        let several = rule.mirrors.iter().enumerate().map(|(number, mirror)| {
            let share = mirror.percentage.as_ref();
            (
                format!("{at}.mirrors[{number}]"),
                &mirror.destination,
                share,
            )
        });
        for (field, to, share) in one.chain(several).collect::<Vec<_>>() {
            if to.subset.is_some() {
                self.reason(
                    &field,
                    "requests are not mirrored to subsets: name a Service of its pods",
                );
            }
            let Some((name, namespace, port)) = self.destination(&field, to) else {
                continue;
            };
            let (percent, fraction) = self.percentage(&field, share).unwrap_or_default();
            filters.push(HttpRouteFilter {
                type_: "RequestMirror".to_owned(),
                request_mirror: Some(HttpRequestMirror {
                    backend_ref: BackendReference {
                        namespace,
                        name,
                        port: Some(port),
                        ..BackendReference::default()
                    },
                    percent,
                    fraction,
                    ..HttpRequestMirror::default()
                }),
                ..HttpRouteFilter::default()
            });
        }
    }

    fn rewrite(
        &mut self,
        at: &str,
        rewrite: &Rewrite,
        matches: &[HttpRouteMatch],
    ) -> HttpRouteFilter {
        self.unknown(at, &rewrite.other);
        let path = rewrite.uri.as_ref().and_then(|uri| {
            let kinds: Vec<_> = matches
                .iter()
                .map(|one| one.path.as_ref().and_then(|path| path.type_.as_deref()))
                .collect();
            let all = |kind: &str| !kinds.is_empty() && kinds.iter().all(|one| *one == Some(kind));
            if all("PathPrefix") {
                return Some(HttpPathModifier {
                    type_: "ReplacePrefixMatch".to_owned(),
                    replace_prefix_match: Some(uri.clone()),
                    ..HttpPathModifier::default()
                });
            }
            if all("Exact") {
                return Some(HttpPathModifier {
                    type_: "ReplaceFullPath".to_owned(),
                    replace_full_path: Some(uri.clone()),
                    ..HttpPathModifier::default()
                });
            }
            self.reason(
                format!("{at}.uri"),
                "paths are rewritten where all matches of the rule are prefixes, or all are exact: split the rule",
            );
            None
        });
        HttpRouteFilter {
            type_: "URLRewrite".to_owned(),
            url_rewrite: Some(HttpUrlRewrite {
                hostname: rewrite.authority.clone(),
                path,
                ..HttpUrlRewrite::default()
            }),
            ..HttpRouteFilter::default()
        }
    }

    fn redirect(&mut self, at: &str, redirect: &Redirect) -> HttpRouteFilter {
        self.unknown(at, &redirect.other);
        let code = redirect.redirect_code.unwrap_or(301);
        if ![301, 302, 303, 307, 308].contains(&code) {
            self.reason(
                format!("{at}.redirectCode"),
                format!("{code} is no redirect"),
            );
        }
        HttpRouteFilter {
            type_: "RequestRedirect".to_owned(),
            request_redirect: Some(HttpRequestRedirect {
                scheme: redirect.scheme.clone(),
                hostname: redirect.authority.clone(),
                path: redirect.uri.as_ref().map(|uri| HttpPathModifier {
                    type_: "ReplaceFullPath".to_owned(),
                    replace_full_path: Some(uri.clone()),
                    ..HttpPathModifier::default()
                }),
                port: redirect.port,
                status_code: Some(code),
                ..HttpRequestRedirect::default()
            }),
            ..HttpRouteFilter::default()
        }
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
    fn destination(
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
    fn duration(&mut self, field: &str, text: Option<&str>) -> Option<String> {
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

/// Milliseconds of a duration as Istio writes it: `1h30m`, `1.5s`, `20ms`.
fn milliseconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut all = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let number: f64 = number.parse().ok()?;
        let end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        all += number
            * match unit {
                "ms" => 1.0,
                "s" => 1_000.0,
                "m" => 60_000.0,
                "h" => 3_600_000.0,
                _ => return None,
            };
        rest = after;
    }
    let is_fit = !text.is_empty() && all.fract() == 0.0 && all < 1e12;
    is_fit.then(|| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, not negative, and below 1e12"
        )]
        {
            all as u64
        }
    })
}

#[expect(clippy::cast_possible_truncation, reason = "at most a million")]
fn whole_number(value: f64) -> i32 {
    value as i32
}

/// A text as a regular expression that matches it.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if !character.is_alphanumeric() && !matches!(character, '-' | '_' | ' ') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// JSON of a value, without what is empty.
fn plain(value: &impl Serialize) -> Value {
    without_empty(serde_json::to_value(value).unwrap_or_default())
}

fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, without_empty(value)))
            .filter(|(_, value)| match value {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::Object(map) => !map.is_empty(),
                _ => true,
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}
