//! Converts one rule of a VirtualService to the fields of an HTTPRoute's rule, and lists the fields without a
//! counterpart.

use std::collections::BTreeMap;

use ambit_k8s_api::{
    ambit::HttpFaultSpec,
    gateway::{
        Fraction, HttpNamedMatch, HttpPathMatch, HttpRouteFilter, HttpRouteMatch, HttpRouteRetry,
        HttpRouteTimeouts,
    },
    virtual_service::{Destination, HttpMatch, HttpRule, Retries, StringMatch, UnknownFields},
};

use super::{
    FieldRemark, is_for_mesh,
    values::{escape_regex, format_gateway_duration, parse_milliseconds},
};

/// Statuses of Istio's retry condition `5xx`: all registered ones.
const SERVER_ERRORS: [i32; 11] = [500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511];
/// Statuses of Istio's retry condition `gateway-error`.
const GATEWAY_ERRORS: [i32; 3] = [502, 503, 504];
/// Istio's retry conditions for connection failures, which are always retried.
const CONNECTION_ERRORS: [&str; 6] = [
    "connect-failure",
    "refused-stream",
    "reset",
    "reset-before-request",
    "unavailable",
    "cancelled",
];

/// Rule of a VirtualService, expressed in the types of an HTTPRoute's rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteRule {
    /// Path of the rule in the spec, such as `http[0]`.
    pub field_path: String,
    /// Name of the rule.
    pub name: Option<String>,
    /// Alternative matches; if empty, every request matches.
    pub matches: Vec<RuleMatch>,
    /// Filters of requests and responses, except mirrors and faults. A rewrite of the path replaces its matched part
    /// (`ReplacePrefixMatch`): the prefix of a prefix match, or the whole path of another match.
    pub filters: Vec<HttpRouteFilter>,
    /// Faults to inject.
    pub fault: Option<HttpFaultSpec>,
    /// Services that receive mirrored requests.
    pub mirrors: Vec<RuleMirror>,
    /// Services that receive the requests.
    pub destinations: Vec<RuleDestination>,
    /// Timeouts of requests.
    pub timeouts: HttpRouteTimeouts,
    /// Retry policy; zero attempts disable retries.
    pub retry: Option<HttpRouteRetry>,
    /// Fields without a counterpart, or with an invalid value, without which the rule would match or route differently.
    pub unsupported: Vec<FieldRemark>,
    /// Ignored fields whose absence changes no behaviour.
    pub notes: Vec<FieldRemark>,
}

/// Conditions of a rule on a request, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleMatch {
    /// Path of the match in the spec.
    pub field_path: String,
    /// Conditions on path, headers, method and query parameters. A path of the type `PathPrefix` is a prefix that may
    /// end within a segment.
    pub request: HttpRouteMatch,
    /// Headers that the request must not have.
    pub without_headers: Vec<HttpNamedMatch>,
    /// Port of the service that the client calls.
    pub port: Option<u16>,
    /// Namespace of the client.
    pub source_namespace: Option<String>,
    /// Whether the match applies to clients within the mesh, not only to gateways.
    pub is_for_mesh: bool,
}

/// Service, or a subset of its endpoints, that receives requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DestinationTarget {
    /// Path of the destination in the spec.
    pub field_path: String,
    /// Host as written in the VirtualService.
    pub host: String,
    /// Subset of the service's endpoints.
    pub subset: Option<String>,
    /// Port of the service; if absent, its only port, or the port that the client calls.
    pub port: Option<u16>,
}

/// Destination of a rule's requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleDestination {
    /// Service that receives the requests.
    pub target: DestinationTarget,
    /// Weight among the rule's destinations.
    pub weight: u32,
    /// Filters of requests to this destination.
    pub filters: Vec<HttpRouteFilter>,
}

/// Destination of mirrored requests. Without a percentage or fraction, all requests are mirrored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleMirror {
    /// Service that receives the mirrored requests.
    pub target: DestinationTarget,
    /// Mirrored percentage, 0 to 100.
    pub percent: Option<i32>,
    /// Mirrored fraction, if it is not a whole percentage.
    pub fraction: Option<Fraction>,
}

impl RouteRule {
    /// Converts the rule at position `number` of `spec.http`.
    pub fn from_http_rule(number: usize, from: &HttpRule) -> Self {
        let at = format!("http[{number}]");
        let mut rule = Self {
            field_path: at.clone(),
            name: from.name.clone().filter(|name| !name.is_empty()),
            ..Self::default()
        };
        rule.add_unknown_fields(&at, &from.unknown);
        let matches = from.matches.iter().enumerate();
        rule.matches = matches
            .map(|(index, one)| rule.parse_match(format!("{at}.match[{index}]"), one))
            .collect();
        rule.read_filters(from);
        rule.read_destinations(from);
        rule.read_mirrors(from);
        rule.read_timeouts(from);
        let retries = from.retries.as_ref();
        rule.retry = retries.map(|retries| rule.read_retries(retries));
        rule
    }

    fn read_timeouts(&mut self, from: &HttpRule) {
        let of_request = from.timeout.as_deref();
        let retries = from.retries.as_ref();
        let of_attempt = retries.and_then(|retries| retries.per_try_timeout.as_deref());
        let field = format!("{}.retries.perTryTimeout", self.field_path);
        let length = |text: Option<&str>| text.and_then(parse_milliseconds).filter(|all| *all > 0);
        let is_longer = length(of_request)
            .zip(length(of_attempt))
            .is_some_and(|(request, attempt)| attempt > request);
        self.timeouts.request =
            self.parse_duration(format!("{}.timeout", self.field_path), of_request);
        self.timeouts.backend_request = self.parse_duration(field.clone(), of_attempt);
        if is_longer {
            let message = "has no effect: the timeout of the whole request is shorter";
            self.notes.push(FieldRemark::new(field, message));
            self.timeouts.backend_request = None;
        }
    }

    pub(super) fn add_unsupported(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.unsupported.push(FieldRemark::new(field, message));
    }

    /// Reports fields that are unknown or have no counterpart in HTTPRoutes.
    pub(super) fn add_unknown_fields(&mut self, at: &str, unknown: &UnknownFields) {
        for key in unknown.keys() {
            self.add_unsupported(format!("{at}.{key}"), "is not supported");
        }
    }

    fn parse_match(&mut self, at: String, from: &HttpMatch) -> RuleMatch {
        self.add_unknown_fields(&at, &from.unknown);
        if from.stat_prefix.is_some() {
            self.notes.push(FieldRemark::new(
                format!("{at}.statPrefix"),
                "has no effect: metrics have Istio's names",
            ));
        }
        let method = from.method.as_ref().and_then(|method| {
            if method.exact.is_none() {
                self.add_unsupported(format!("{at}.method"), "only whole methods can be matched");
            }
            method.exact.clone()
        });
        let uri = from.uri.as_ref();
        let path = uri
            .and_then(|uri| self.parse_path_match(format!("{at}.uri"), uri, from.ignore_uri_case));
        let mut headers = self.parse_named_matches(&format!("{at}.headers"), &from.headers, true);
        if let Some(authority) = &from.authority {
            self.add_unknown_fields(&format!("{at}.authority"), &authority.unknown);
            headers.push(named_match("host", authority));
        }
        let port = self.parse_port(format!("{at}.port"), from.port);
        RuleMatch {
            request: HttpRouteMatch {
                path,
                headers,
                query_params: self.parse_named_matches(
                    &format!("{at}.queryParams"),
                    &from.query_params,
                    false,
                ),
                method,
                ..HttpRouteMatch::default()
            },
            without_headers: self.parse_named_matches(
                &format!("{at}.withoutHeaders"),
                &from.without_headers,
                true,
            ),
            port,
            source_namespace: from.source_namespace.clone().filter(|one| !one.is_empty()),
            is_for_mesh: is_for_mesh(&from.gateways),
            field_path: at,
        }
    }

    fn parse_path_match(
        &mut self,
        at: String,
        from: &StringMatch,
        ignores_case: bool,
    ) -> Option<HttpPathMatch> {
        self.add_unknown_fields(&at, &from.unknown);
        let (kind, value) = match from {
            StringMatch {
                exact: Some(value), ..
            } if ignores_case => ("RegularExpression", format!("(?i){}", escape_regex(value))),
            StringMatch {
                prefix: Some(value),
                ..
            } if ignores_case => (
                "RegularExpression",
                format!("(?i){}.*", escape_regex(value)),
            ),
            StringMatch {
                exact: Some(value), ..
            } => ("Exact", value.clone()),
            StringMatch {
                prefix: Some(value),
                ..
            } => ("PathPrefix", value.clone()),
            StringMatch {
                regex: Some(value), ..
            } => ("RegularExpression", value.clone()),
            _ => {
                self.add_unsupported(at, "it has no value");
                return None;
            }
        };
        if kind != "RegularExpression" && !value.starts_with('/') {
            self.add_unsupported(at, format!("{value:?} does not begin with a slash"));
            return None;
        }
        Some(HttpPathMatch {
            type_: Some(kind.to_owned()),
            value: Some(value),
        })
    }

    fn parse_named_matches(
        &mut self,
        at: &str,
        from: &BTreeMap<String, StringMatch>,
        are_headers: bool,
    ) -> Vec<HttpNamedMatch> {
        let mut matches = Vec::new();
        for (name, value) in from {
            let field = format!("{at}[{name}]");
            self.add_unknown_fields(&field, &value.unknown);
            let name = match name.as_str() {
                ":authority" if are_headers => "host",
                name => name,
            };
            if name.starts_with(':') {
                self.add_unsupported(field, "only the pseudo-header :authority can be matched");
                continue;
            }
            matches.push(named_match(name, value));
        }
        matches
    }

    fn read_destinations(&mut self, from: &HttpRule) {
        let is_only = from.route.len() == 1;
        for (number, to) in from.route.iter().enumerate() {
            let at = format!("{}.route[{number}]", self.field_path);
            self.add_unknown_fields(&at, &to.unknown);
            let filters = self.convert_headers(&format!("{at}.headers"), to.headers.as_ref());
            let weight = u32::try_from(to.weight.unwrap_or_default()).unwrap_or_else(|_| {
                self.add_unsupported(format!("{at}.weight"), "is less than 0");
                0
            });
            let to = self.parse_target(format!("{at}.destination"), &to.destination);
            self.destinations.push(RuleDestination {
                target: to,
                // Istio ignores the weight of a single destination.
                weight: if is_only { 1 } else { weight },
                filters,
            });
        }
        let at = self.field_path.clone();
        match (from.route.is_empty(), from.redirect.is_some()) {
            (true, false) => self.add_unsupported(at, "it sends requests nowhere"),
            (false, true) => self.add_unsupported(at, "redirect and route exclude each other"),
            _ => {}
        }
    }

    pub(super) fn parse_target(&mut self, at: String, from: &Destination) -> DestinationTarget {
        self.add_unknown_fields(&at, &from.unknown);
        if let Some(port) = &from.port {
            self.add_unknown_fields(&format!("{at}.port"), &port.unknown);
        }
        let number = from.port.as_ref().and_then(|port| port.number);
        let port = self.parse_port(format!("{at}.port.number"), number.map(i64::from));
        DestinationTarget {
            host: from.host.clone(),
            subset: from.subset.clone().filter(|subset| !subset.is_empty()),
            port,
            field_path: at,
        }
    }

    fn parse_port(&mut self, field: String, number: Option<i64>) -> Option<u16> {
        let number = number?;
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        if port.is_none() {
            self.add_unsupported(field, format!("{number} is no port"));
        }
        port
    }

    fn read_retries(&mut self, from: &Retries) -> HttpRouteRetry {
        let at = format!("{}.retries", self.field_path);
        self.add_unknown_fields(&at, &from.unknown);
        if from.attempts < 0 {
            self.add_unsupported(format!("{at}.attempts"), "is less than 0");
        }
        let mut codes = Vec::new();
        let conditions = from.retry_on.as_deref().unwrap_or_default();
        let conditions = conditions.split(',').map(str::trim);
        let conditions: Vec<_> = conditions.filter(|one| !one.is_empty()).collect();
        for condition in &conditions {
            match *condition {
                "5xx" => codes.extend(SERVER_ERRORS),
                "gateway-error" => codes.extend(GATEWAY_ERRORS),
                "retriable-4xx" => codes.push(409),
                condition if CONNECTION_ERRORS.contains(&condition) => {}
                condition => match condition.parse() {
                    Ok(code) => codes.push(code),
                    Err(_) => self.add_unsupported(
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
        HttpRouteRetry {
            codes,
            attempts: Some(from.attempts.max(0)),
            backoff: self.parse_duration(format!("{at}.backoff"), from.backoff.as_deref()),
            ..HttpRouteRetry::default()
        }
    }

    /// Converts a duration from Istio's format to that of the Gateway API.
    pub(super) fn parse_duration(&mut self, field: String, text: Option<&str>) -> Option<String> {
        let text = text.filter(|text| !text.is_empty())?;
        let read = parse_milliseconds(text).and_then(format_gateway_duration);
        if read.is_none() {
            let message = format!("{text:?} is no duration of whole milliseconds, such as 1.5s");
            self.add_unsupported(field, message);
        }
        read
    }
}

/// Converts a string match to a match of a header or query parameter; without a value, to one of its presence.
fn named_match(name: &str, value: &StringMatch) -> HttpNamedMatch {
    let (kind, value) = match value {
        StringMatch {
            exact: Some(value), ..
        } => (None, value.clone()),
        StringMatch {
            prefix: Some(value),
            ..
        } => (
            Some("RegularExpression"),
            format!("{}.*", escape_regex(value)),
        ),
        StringMatch {
            regex: Some(value), ..
        } => (Some("RegularExpression"), value.clone()),
        _ => (Some("RegularExpression"), ".*".to_owned()),
    };
    HttpNamedMatch {
        type_: kind.map(str::to_owned),
        name: name.to_owned(),
        value,
    }
}
