//! Filters of an HTTPRoute's rule: what a VirtualService's rule does to requests and responses.

use std::collections::BTreeMap;

use ambit_k8s_api::gateway::{
    BackendReference, Fraction, HttpCorsFilter, HttpHeader, HttpHeaderFilter, HttpPathModifier,
    HttpRequestMirror, HttpRequestRedirect, HttpRouteFilter, HttpRouteMatch, HttpUrlRewrite,
    LocalObjectReference,
};
use serde_json::{Value, json};

use super::{
    route::{OWN_GROUP, Work},
    values::{milliseconds, plain, whole_number, without_empty},
    virtual_service::{
        CorsPolicy, Fault, HeaderChanges, Headers, HttpRule, Percent, Redirect, Rewrite,
    },
};

/// Most characters of an object's name.
const MAX_NAME: usize = 253;

impl Work<'_> {
    pub(super) fn headers(
        &mut self,
        at: &str,
        headers: Option<&Headers>,
        filters: &mut Vec<HttpRouteFilter>,
    ) {
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

    pub(super) fn cors(&mut self, at: &str, cors: &CorsPolicy) -> HttpRouteFilter {
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

    pub(super) fn fault(&mut self, at: &str, number: usize, fault: &Fault) -> HttpRouteFilter {
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

    pub(super) fn mirrors(
        &mut self,
        at: &str,
        rule: &HttpRule,
        filters: &mut Vec<HttpRouteFilter>,
    ) {
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

    pub(super) fn rewrite(
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

    pub(super) fn redirect(&mut self, at: &str, redirect: &Redirect) -> HttpRouteFilter {
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
}
