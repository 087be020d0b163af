//! Parsing of GRPCRoutes whose parents are services. They become HTTP routes: service and method are the path.

use ambit_k8s_api::{
    GRPCRoute,
    gateway::{
        GrpcMethodMatch, GrpcRouteMatch, GrpcRouteRule, HttpRouteFilter, HttpRouteRule,
        ParentReference,
    },
};
use ambit_model::{HttpPathMatch, HttpRouteMatch};
use serde_json::Value;

use crate::{
    objects::route::{
        input::RouteRules,
        object::{RouteObject, note_hostnames},
        reader::RuleReader,
        rules::RouteRuleInput,
    },
    problem::{FieldError, Note},
};

/// Filters of HTTPRoute that GRPCRoute also has.
const GRPC_ROUTE_FILTERS: [&str; 4] = [
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestMirror",
    "ExtensionRef",
];
/// Regular expression that matches any single path segment.
const ANY_SEGMENT_PATTERN: &str = "[^/]+";

impl RouteObject for GRPCRoute {
    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn set_readable(&mut self, parent_refs: Vec<ParentReference>, _: Option<&Value>) {
        self.spec.parent_refs = parent_refs;
    }

    fn rules(&self, namespace: &str, notes: &mut Vec<Note>) -> Result<RouteRules, FieldError> {
        note_hostnames(&self.spec.hostnames, notes);
        // As the API server has it: one rule that matches everything and has no backend.
        let default = [GrpcRouteRule::default()];
        let rules = if self.spec.rules.is_empty() {
            &default
        } else {
            self.spec.rules.as_slice()
        };
        let matches = rules.iter().map(|rule| rule.matches.len()).sum();
        RuleReader::check_size(rules.len(), matches)?;
        let mut reader = RuleReader::new(notes);
        reader.note_unknown_fields("spec", &self.spec.other);
        let of_all = reader.take_unsupported();
        let mut read = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            reader.begin_rule(of_all.as_ref());
            read.push(reader.parse_grpc_rule(rule, namespace, &format!("spec.rules[{index}]"))?);
        }
        Ok(RouteRules::Http(read))
    }

    /// Returns a rule that answers all requests with an error.
    fn unusable(&self) -> RouteRules {
        RouteRules::Http(vec![RouteRuleInput::unusable()])
    }
}

impl RuleReader<'_> {
    fn parse_grpc_rule(
        &mut self,
        rule: &GrpcRouteRule,
        namespace: &str,
        at: &str,
    ) -> Result<RouteRuleInput, FieldError> {
        self.check_filter_types(at, &rule.filters);
        for (index, backend) in rule.backend_refs.iter().enumerate() {
            self.check_filter_types(&format!("{at}.backendRefs[{index}]"), &backend.filters);
        }
        let mut matches = Vec::new();
        for (index, one) in rule.matches.iter().enumerate() {
            matches.push(self.parse_grpc_match(one, &format!("{at}.matches[{index}]"))?);
        }
        let rest = HttpRouteRule {
            name: rule.name.clone(),
            filters: rule.filters.clone(),
            backend_refs: rule.backend_refs.clone(),
            session_persistence: rule.session_persistence.clone(),
            other: rule.other.clone(),
            ..HttpRouteRule::default()
        };
        Ok(self.parse_rule(&rest, namespace, at)?.with_matches(matches))
    }

    fn check_filter_types(&mut self, at: &str, filters: &[HttpRouteFilter]) {
        for (index, filter) in filters.iter().enumerate() {
            let of = filter.type_.as_str();
            if !GRPC_ROUTE_FILTERS.contains(&of) {
                let field = format!("{at}.filters[{index}].type");
                self.mark_unsupported(field, &format!("{of:?} is no filter of GRPCRoute"));
            }
        }
    }

    fn parse_grpc_match(
        &mut self,
        from: &GrpcRouteMatch,
        at: &str,
    ) -> Result<HttpRouteMatch, FieldError> {
        self.note_unknown_fields(at, &from.other);
        let path = match &from.method {
            Some(method) => self.parse_method_match(method, &format!("{at}.method"))?,
            None => None,
        };
        Ok(HttpRouteMatch {
            path,
            headers: self.parse_header_matches(&from.headers, at),
            ..HttpRouteMatch::default()
        })
    }

    /// Converts a gRPC service and method to a match of the path.
    fn parse_method_match(
        &mut self,
        from: &GrpcMethodMatch,
        at: &str,
    ) -> Result<Option<HttpPathMatch>, FieldError> {
        self.note_unknown_fields(at, &from.other);
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (service, method) = (given(&from.service), given(&from.method));
        if service.is_none() && method.is_none() {
            return Err(FieldError::new(at, "names neither a service nor a method"));
        }
        match from.type_.as_deref() {
            None | Some("Exact") => {
                for (name, value) in [("service", &service), ("method", &method)] {
                    let is_name = |of: &String| {
                        of.chars()
                            .all(|one| one.is_ascii_alphanumeric() || "._".contains(one))
                    };
                    if !value.as_ref().is_none_or(is_name) {
                        let message =
                            "is no name of gRPC: letters, digits, '_' and '.' are allowed";
                        return Err(FieldError::new(format!("{at}.{name}"), message));
                    }
                }
                Ok(Some(match (service, method) {
                    (Some(service), Some(method)) => {
                        HttpPathMatch::Exact(arcstr::format!("/{service}/{method}"))
                    }
                    (Some(service), None) => HttpPathMatch::Prefix(arcstr::format!("/{service}")),
                    (None, method) => HttpPathMatch::Regex(arcstr::format!(
                        "/{ANY_SEGMENT_PATTERN}/{}",
                        regex::escape(&method.unwrap_or_default())
                    )),
                }))
            }
            Some("RegularExpression") => {
                for (name, value) in [("service", &service), ("method", &method)] {
                    if let Some(value) = value {
                        self.check_regex(&format!("{at}.{name}"), value);
                    }
                }
                let part = |of: Option<String>| {
                    of.map_or_else(|| ANY_SEGMENT_PATTERN.to_owned(), |of| format!("(?:{of})"))
                };
                let pattern = arcstr::format!("/{}/{}", part(service), part(method));
                Ok(Some(HttpPathMatch::Regex(pattern)))
            }
            Some(other) => {
                self.mark_unsupported(format!("{at}.type"), &format!("{other:?} is not supported"));
                Ok(None)
            }
        }
    }
}
