//! Converts changes of requests and responses in a VirtualService's rule to filters of an
//! HTTPRoute's rule.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    ambit::{FaultAbort, FaultDelay, HttpFaultSpec},
    gateway::{
        Fraction, HttpCorsFilter, HttpHeader, HttpHeaderFilter, HttpPathModifier,
        HttpRequestRedirect, HttpRouteFilter, HttpUrlRewrite,
    },
    virtual_service::{
        CorsPolicy, Fault, HeaderChanges, Headers, HttpRule, Percent, Redirect, Rewrite,
        StringMatch,
    },
};

use super::{
    rule::{RouteRule, RuleMirror},
    values::{parse_milliseconds, saturating_i32},
};

impl RouteRule {
    /// Converts the fields of a rule that modify requests or responses.
    pub(super) fn read_filters(&mut self, from: &HttpRule) {
        let at = self.field_path.clone();
        self.filters = self.convert_headers(&format!("{at}.headers"), from.headers.as_ref());
        if let Some(cors) = &from.cors_policy {
            let filter = self.convert_cors(&format!("{at}.corsPolicy"), cors);
            self.filters.push(filter);
        }
        if let Some(fault) = &from.fault {
            let at = format!("{at}.fault");
            self.fault = Some(self.read_fault(&at, fault));
            if from.redirect.is_some() {
                self.add_unsupported(at, "redirect and fault exclude each other");
            }
        }
        if let Some(rewrite) = &from.rewrite {
            let ignores_case = from.matches.iter().any(|one| {
                let uri = one.uri.as_ref();
                one.ignore_uri_case && uri.is_some_and(|uri| uri.prefix.is_some())
            });
            let filter = self.convert_rewrite(&format!("{at}.rewrite"), rewrite);
            if ignores_case && rewrite.uri.is_some() {
                self.add_unsupported(
                    format!("{at}.rewrite.uri"),
                    "prefixes are not replaced where their case is ignored",
                );
            }
            self.filters.push(filter);
        }
        if let Some(redirect) = &from.redirect {
            let filter = self.convert_redirect(&format!("{at}.redirect"), redirect);
            self.filters.push(filter);
        }
    }

    pub(super) fn convert_headers(
        &mut self,
        at: &str,
        from: Option<&Headers>,
    ) -> Vec<HttpRouteFilter> {
        let mut filters = Vec::new();
        let Some(headers) = from else { return filters };
        self.add_unknown_fields(at, &headers.unknown);
        if let Some(changes) =
            self.convert_header_changes(&format!("{at}.request"), &headers.request)
        {
            filters.push(HttpRouteFilter {
                type_: "RequestHeaderModifier".to_owned(),
                request_header_modifier: Some(changes),
                ..HttpRouteFilter::default()
            });
        }
        if let Some(changes) =
            self.convert_header_changes(&format!("{at}.response"), &headers.response)
        {
            filters.push(HttpRouteFilter {
                type_: "ResponseHeaderModifier".to_owned(),
                response_header_modifier: Some(changes),
                ..HttpRouteFilter::default()
            });
        }
        filters
    }

    fn convert_header_changes(
        &mut self,
        at: &str,
        changes: &HeaderChanges,
    ) -> Option<HttpHeaderFilter> {
        self.add_unknown_fields(at, &changes.unknown);
        for (name, value) in changes.set.iter().chain(&changes.add) {
            if name.starts_with(':') || name.eq_ignore_ascii_case("host") {
                self.add_unsupported(
                    format!("{at}[{name}]"),
                    "the host is changed by rewrite.authority",
                );
            }
            if value.contains('%') {
                self.add_unsupported(
                    format!("{at}[{name}]"),
                    "values with placeholders have no counterpart",
                );
            }
        }
        let lines = |from: &BTreeMap<String, String>| {
            let lines = from.iter().map(|(name, value)| HttpHeader {
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

    fn convert_cors(&mut self, at: &str, from: &CorsPolicy) -> HttpRouteFilter {
        self.add_unknown_fields(at, &from.unknown);
        let mut origins = Vec::new();
        for (number, origin) in from.allow_origins.iter().enumerate() {
            let at = format!("{at}.allowOrigins[{number}]");
            self.add_unknown_fields(&at, &origin.unknown);
            match origin {
                StringMatch {
                    exact: Some(exact), ..
                } => origins.push(exact.clone()),
                StringMatch {
                    regex: Some(regex), ..
                } if regex == ".*" => origins.push("*".to_owned()),
                _ => self.add_unsupported(
                    at,
                    "a CORS filter has whole origins, and * for a label or for all",
                ),
            }
        }
        let max_age = from.max_age.as_deref().and_then(|text| {
            let seconds = parse_milliseconds(text).filter(|all| *all > 0 && all % 1000 == 0);
            let seconds = seconds.and_then(|all| i32::try_from(all / 1000).ok());
            if seconds.is_none() {
                self.add_unsupported(
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
                allow_credentials: from.allow_credentials,
                allow_methods: from.allow_methods.clone(),
                allow_headers: from.allow_headers.clone(),
                expose_headers: from.expose_headers.clone(),
                max_age,
                ..HttpCorsFilter::default()
            }),
            ..HttpRouteFilter::default()
        }
    }

    fn read_fault(&mut self, at: &str, from: &Fault) -> HttpFaultSpec {
        self.add_unknown_fields(at, &from.unknown);
        let delay = from.delay.as_ref().map(|delay| {
            let at = format!("{at}.delay");
            self.add_unknown_fields(&at, &delay.unknown);
            let share = delay.percentage.as_ref();
            let (percent, fraction) = self.parse_percentage(&format!("{at}.percentage"), share);
            FaultDelay {
                fixed_delay: self
                    .parse_duration(format!("{at}.fixedDelay"), delay.fixed_delay.as_deref()),
                percent,
                fraction,
            }
        });
        let abort = from.abort.as_ref().map(|abort| {
            let at = format!("{at}.abort");
            self.add_unknown_fields(&at, &abort.unknown);
            let share = abort.percentage.as_ref();
            let (percent, fraction) = self.parse_percentage(&format!("{at}.percentage"), share);
            FaultAbort {
                http_status: abort.http_status,
                grpc_status: abort.grpc_status.clone(),
                percent,
                fraction,
            }
        });
        HttpFaultSpec { delay, abort }
    }

    /// Converts the percentage of affected requests to a whole percentage, or else to a fraction of a million. Neither
    /// is returned for an absent percentage: both APIs then mean all requests.
    fn parse_percentage(
        &mut self,
        field: &str,
        from: Option<&Percent>,
    ) -> (Option<i32>, Option<Fraction>) {
        let Some(percent) = from else {
            return (None, None);
        };
        self.add_unknown_fields(field, &percent.unknown);
        let value = percent.value;
        if !(0.0..=100.0).contains(&value) {
            self.add_unsupported(field, format!("{value} is no share of 100"));
            return (None, None);
        }
        // A millionth is the smallest fraction that Envoy samples.
        let millionths = (value * 10_000.0).round();
        if millionths % 10_000.0 == 0.0 {
            return (Some(saturating_i32(millionths / 10_000.0)), None);
        }
        let fraction = Fraction {
            numerator: saturating_i32(millionths),
            denominator: Some(1_000_000),
        };
        (None, Some(fraction))
    }

    /// Converts the destinations of mirrored requests.
    pub(super) fn read_mirrors(&mut self, from: &HttpRule) {
        let one = from.mirror.iter().map(|to| {
            let share = from.mirror_percentage.as_ref();
            (format!("{}.mirror", self.field_path), to, share)
        });
        let several = from.mirrors.iter().enumerate().map(|(number, mirror)| {
            let at = format!("{}.mirrors[{number}]", self.field_path);
            (at, &mirror.destination, mirror.percentage.as_ref())
        });
        for (at, to, share) in one.chain(several).collect::<Vec<_>>() {
            if to.subset.is_some() {
                self.add_unsupported(
                    &at,
                    "requests are not mirrored to subsets: name a Service of its pods",
                );
            }
            let (percent, fraction) = self.parse_percentage(&format!("{at}.percentage"), share);
            let to = self.parse_target(at, to);
            self.mirrors.push(RuleMirror {
                target: to,
                percent,
                fraction,
            });
        }
        for mirror in &from.mirrors {
            self.add_unknown_fields(&format!("{}.mirrors", self.field_path), &mirror.unknown);
        }
    }

    fn convert_rewrite(&mut self, at: &str, from: &Rewrite) -> HttpRouteFilter {
        self.add_unknown_fields(at, &from.unknown);
        let uri = from.uri.clone().filter(|uri| !uri.is_empty());
        let path = uri.filter(|uri| self.validate_path(&format!("{at}.uri"), uri));
        let field = format!("{at}.authority");
        let authority = self.parse_hostname(&field, from.authority.as_deref());
        if authority.as_ref().is_some_and(|(_, port)| port.is_some()) {
            self.add_unsupported(field, "a host is rewritten without a port");
        }
        HttpRouteFilter {
            type_: "URLRewrite".to_owned(),
            url_rewrite: Some(HttpUrlRewrite {
                hostname: authority.map(|(name, _)| name),
                path: path.map(|uri| HttpPathModifier {
                    type_: "ReplacePrefixMatch".to_owned(),
                    replace_prefix_match: Some(uri),
                    ..HttpPathModifier::default()
                }),
                ..HttpUrlRewrite::default()
            }),
            ..HttpRouteFilter::default()
        }
    }

    fn convert_redirect(&mut self, at: &str, from: &Redirect) -> HttpRouteFilter {
        self.add_unknown_fields(at, &from.unknown);
        let code = from.redirect_code.unwrap_or(301);
        if ![301, 302, 303, 307, 308].contains(&code) {
            self.add_unsupported(
                format!("{at}.redirectCode"),
                format!("{code} is no redirect"),
            );
        }
        let uri = from.uri.clone().filter(|uri| !uri.is_empty());
        let path = uri.filter(|uri| self.validate_path(&format!("{at}.uri"), uri));
        let authority = self.parse_hostname(&format!("{at}.authority"), from.authority.as_deref());
        // A redirect to another host does not repeat the service's port, as in Istio.
        let of_host = authority.as_ref().map(|(_, port)| {
            let of_scheme = match from.scheme.as_deref() {
                Some("https") => 443,
                _ => 80,
            };
            port.unwrap_or(of_scheme)
        });
        HttpRouteFilter {
            type_: "RequestRedirect".to_owned(),
            request_redirect: Some(HttpRequestRedirect {
                scheme: from.scheme.clone().filter(|scheme| !scheme.is_empty()),
                hostname: authority.map(|(name, _)| name),
                path: path.map(|uri| HttpPathModifier {
                    type_: "ReplaceFullPath".to_owned(),
                    replace_full_path: Some(uri),
                    ..HttpPathModifier::default()
                }),
                port: from.port.or(of_host),
                status_code: Some(code),
                ..HttpRequestRedirect::default()
            }),
            ..HttpRouteFilter::default()
        }
    }

    /// Parses host name and port of the authority in a redirect or rewrite.
    fn parse_hostname(&mut self, field: &str, from: Option<&str>) -> Option<(String, Option<i32>)> {
        let text = from.filter(|text| !text.is_empty())?;
        let lower = text.to_ascii_lowercase();
        let (name, port) = match lower.split_once(':') {
            Some((name, port)) => (name, Some(port.parse::<u16>().ok())),
            None => (lower.as_str(), None),
        };
        if !ambit_k8s_api::is_dns_name(name, 253) || port == Some(None) {
            self.add_unsupported(field, format!("{text:?} is no host name"));
            return None;
        }
        Some((name.to_owned(), port.flatten().map(i32::from)))
    }

    fn validate_path(&mut self, field: &str, text: &str) -> bool {
        let is_path = text.starts_with('/') && !text.contains(['?', '#']);
        if !is_path {
            let message = format!("{text:?} is no path: it begins with a slash and has no query");
            self.add_unsupported(field, message);
        }
        is_path
    }
}
