//! Parsing of the rules of HTTPRoutes. An unsupported part makes its rule unusable: requests that the rule matches are
//! answered with an error. An unsupported match condition is left out, so that the unusable rule matches more.

use std::collections::BTreeSet;

use ambit_k8s_api::{
    Kind, ObjectKey,
    gateway::{self, HttpNamedMatch},
};
use ambit_model::{
    ArcStr, HttpFilter, HttpPathMatch, HttpRetry, HttpRouteMatch, HttpSession, HttpTimeouts,
    HttpValueMatch, PathChange,
};
use regex::RegexBuilder;

use crate::{
    objects::route::{
        backends::{BackendInput, WeightedTraffic},
        extension::ExtensionFilterInput,
        filters::{self, FilterInput, INCOMPATIBLE_FILTERS},
        mirrors::MirrorInput,
        reader::RuleReader,
        references::{ServiceIdentifier, ServiceReference},
        retries,
        unsupported::{UNSUPPORTED_VALUE, UnsupportedPart},
    },
    problem::{FieldError, Note},
};

/// Parsed rule of a route.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RouteRuleInput {
    pub(crate) name: Option<ArcStr>,
    pub(crate) matches: Vec<HttpRouteMatch>,
    /// Conditions on port and client of each of the `matches`, in the same order; if empty, no match has any.
    pub(crate) match_scopes: Vec<MatchScope>,
    pub(crate) filters: Vec<FilterInput>,
    pub(crate) backends: Vec<BackendInput>,
    pub(crate) timeouts: HttpTimeouts,
    pub(crate) retry: Option<HttpRetry>,
    pub(crate) session: Option<HttpSession>,
    pub(crate) unsupported_part: Option<UnsupportedPart>,
}

/// Conditions of a match on port and client, which only VirtualServices have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MatchScope {
    /// Port of the service that the client called.
    pub(crate) port: Option<u16>,
    /// Namespace of the client.
    pub(crate) namespace: Option<ArcStr>,
}

impl RouteRuleInput {
    /// Builds the only rule of an invalid route, which answers all requests with an error.
    pub(crate) fn unusable() -> Self {
        Self {
            unsupported_part: Some(UnsupportedPart {
                reason: UNSUPPORTED_VALUE,
                text: arcstr::literal!("the route cannot be used as it is written"),
            }),
            ..Self::default()
        }
    }

    /// Returns the rule with other matches.
    pub(crate) fn with_matches(self, matches: Vec<HttpRouteMatch>) -> Self {
        Self { matches, ..self }
    }

    /// Returns the backends of the rule.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &BackendInput> {
        self.backends.iter()
    }

    /// Returns the services that receive requests or mirrored requests.
    pub(crate) fn service_identifiers(&self) -> impl Iterator<Item = &ServiceIdentifier> {
        let backends = self.backends.iter().map(|backend| &backend.service);
        let mirrors = self.mirrors().map(|mirror| &mirror.service);
        backends
            .chain(mirrors)
            .filter_map(ServiceReference::service_identifier)
    }

    /// Returns the objects that `ExtensionRef` filters of the rule and its backends name.
    pub(crate) fn extension_targets(&self) -> impl Iterator<Item = &ObjectKey> {
        self.extensions().map(ExtensionFilterInput::target)
    }

    pub(crate) fn extensions(&self) -> impl Iterator<Item = &ExtensionFilterInput> {
        let of_backends = self.backends.iter();
        let of_backends = of_backends.flat_map(|backend| filters::extensions(&backend.filters));
        filters::extensions(&self.filters).chain(of_backends)
    }

    pub(crate) fn mirrors(&self) -> impl Iterator<Item = &MirrorInput> {
        let of_backends = self.backends.iter();
        let of_backends = of_backends.flat_map(|backend| filters::mirrors(&backend.filters));
        filters::mirrors(&self.filters).chain(of_backends)
    }

    /// Returns the first unsupported part of the rule.
    pub(crate) fn unsupported(&self) -> Option<&UnsupportedPart> {
        self.unsupported_part.as_ref()
    }
}

/// Parses the rules of an HTTPRoute; unsupported parts are noted.
pub(crate) fn read(
    spec: &gateway::HttpRouteSpec,
    namespace: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<RouteRuleInput>, FieldError> {
    let mut reader = RuleReader::new(notes);
    reader.note_unknown_fields("spec", &spec.other);
    let of_all = reader.take_unsupported();
    // As the API server has it: one rule that matches everything and has no backend.
    let default = [gateway::HttpRouteRule::default()];
    let rules = if spec.rules.is_empty() {
        &default
    } else {
        spec.rules.as_slice()
    };
    let matches = rules.iter().map(|rule| rule.matches.len()).sum::<usize>();
    RuleReader::check_size(rules.len(), matches)?;
    let mut read = Vec::new();
    let mut names = BTreeSet::new();
    for (index, rule) in rules.iter().enumerate() {
        if let Some(name) = &rule.name
            && !names.insert(name)
        {
            let message = format!("another rule has the name {name:?} already");
            return Err(FieldError::new(
                format!("spec.rules[{index}].name"),
                message,
            ));
        }
        reader.begin_rule(of_all.as_ref());
        read.push(reader.parse_rule(rule, namespace, &format!("spec.rules[{index}]"))?);
    }
    Ok(read)
}

impl RuleReader<'_> {
    /// Checks that the rest of the rule is compatible with its filters.
    fn check_filters(
        &mut self,
        at: &str,
        rule: &gateway::HttpRouteRule,
        filters: &[FilterInput],
        backends: &[BackendInput],
    ) {
        let at = format!("{at}.filters");
        let redirects = |filter: &FilterInput| {
            matches!(
                filter,
                FilterInput::WithoutReferences(HttpFilter::Redirect(_))
            )
        };
        if filters.iter().any(redirects) && !rule.backend_refs.is_empty() {
            let what = "RequestRedirect and backendRefs exclude each other";
            self.mark_unusable(INCOMPATIBLE_FILTERS, at.clone(), what);
        }
        let of_backends = backends.iter().flat_map(|backend| &backend.filters);
        let mut all = filters.iter().chain(of_backends);
        let is_fault = |filter: &FilterInput| matches!(filter, FilterInput::Extension(one) if one.target().kind == Kind::HTTPFault);
        if all.clone().any(redirects) && all.any(is_fault) {
            let what = "RequestRedirect and an HTTPFault exclude each other";
            self.mark_unusable(INCOMPATIBLE_FILTERS, at.clone(), what);
        }
        let is_prefix = |one: &gateway::HttpRouteMatch| {
            let path = one.path.as_ref();
            let kind = path.and_then(|path| path.type_.as_deref());
            kind.unwrap_or("PathPrefix") == "PathPrefix"
        };
        let needs_prefix = |filter: &FilterInput| {
            let path = match filter {
                FilterInput::WithoutReferences(HttpFilter::Redirect(redirect)) => {
                    redirect.path.as_ref()
                }
                FilterInput::WithoutReferences(HttpFilter::Rewrite(rewrite)) => {
                    rewrite.path.as_ref()
                }
                _ => None,
            };
            matches!(path, Some(PathChange::Prefix(_)))
        };
        let of_backends = backends.iter().flat_map(|backend| &backend.filters);
        let mut all = filters.iter().chain(of_backends);
        if all.any(needs_prefix) && !rule.matches.iter().all(is_prefix) {
            let what = "ReplacePrefixMatch needs matches of the type PathPrefix";
            self.mark_unusable(INCOMPATIBLE_FILTERS, at, what);
        }
    }

    pub(crate) fn parse_rule(
        &mut self,
        rule: &gateway::HttpRouteRule,
        namespace: &str,
        at: &str,
    ) -> Result<RouteRuleInput, FieldError> {
        self.note_unknown_fields(at, &rule.other);
        let filters = self.parse_filters(at, &rule.filters, namespace)?;
        let timeouts = self.parse_timeouts(at, rule.timeouts.as_ref())?;
        let retry = rule.retry.as_ref();
        let retry = retry.map(|retry| retries::read(self, &format!("{at}.retry"), retry));
        let session = match &rule.session_persistence {
            Some(session) => self.parse_session(&format!("{at}.sessionPersistence"), session)?,
            None => None,
        };
        let mut matches = Vec::new();
        for (index, one) in rule.matches.iter().enumerate() {
            matches.push(self.parse_match(one, &format!("{at}.matches[{index}]"))?);
        }
        let mut backends = Vec::new();
        for (index, one) in rule.backend_refs.iter().enumerate() {
            let at = format!("{at}.backendRefs[{index}]");
            backends.push(self.parse_backend(one, namespace, &at)?);
        }
        self.check_filters(at, rule, &filters, &backends);
        Ok(RouteRuleInput {
            name: rule.name.as_deref().map(ArcStr::from),
            retry: retry.transpose()?,
            session,
            matches,
            filters,
            backends,
            timeouts,
            unsupported_part: self.unsupported.take(),
            ..RouteRuleInput::default()
        })
    }

    /// Parses one entry of a rule's `matches`.
    pub(crate) fn parse_match(
        &mut self,
        from: &gateway::HttpRouteMatch,
        at: &str,
    ) -> Result<HttpRouteMatch, FieldError> {
        self.note_unknown_fields(at, &from.other);
        let path = match &from.path {
            Some(path) => self.parse_path_match(path, &format!("{at}.path"))?,
            None => None,
        };
        Ok(HttpRouteMatch {
            path,
            method: from.method.as_deref().map(ArcStr::from),
            headers: self.parse_header_matches(&from.headers, at),
            query_params: self
                .parse_named_matches(&from.query_params, &format!("{at}.queryParams")),
            ..HttpRouteMatch::default()
        })
    }

    /// Parses header matches; names become lower case.
    pub(crate) fn parse_header_matches(
        &mut self,
        from: &[HttpNamedMatch],
        at: &str,
    ) -> Vec<(ArcStr, HttpValueMatch)> {
        let headers = self.parse_named_matches(from, &format!("{at}.headers"));
        let lower = |(name, value): (ArcStr, HttpValueMatch)| {
            (ArcStr::from(name.to_ascii_lowercase()), value)
        };
        headers.into_iter().map(lower).collect()
    }

    pub(crate) fn parse_path_match(
        &mut self,
        from: &gateway::HttpPathMatch,
        at: &str,
    ) -> Result<Option<HttpPathMatch>, FieldError> {
        let value = from.value.as_deref().unwrap_or("/");
        let kind = from.type_.as_deref().unwrap_or("PathPrefix");
        if kind != "RegularExpression" && !value.starts_with('/') {
            let message = format!("{value:?} does not begin with a slash");
            return Err(FieldError::new(format!("{at}.value"), message));
        }
        Ok(match kind {
            "Exact" => Some(HttpPathMatch::Exact(value.into())),
            "PathPrefix" if self.matches_text_prefixes => {
                Some(HttpPathMatch::TextPrefix(value.into()))
            }
            "PathPrefix" => {
                let trimmed = value.trim_end_matches('/');
                let prefix = if trimmed.is_empty() { "/" } else { trimmed };
                Some(HttpPathMatch::Prefix(prefix.into()))
            }
            "RegularExpression" => {
                self.check_regex(&format!("{at}.value"), value);
                Some(HttpPathMatch::Regex(value.into()))
            }
            other => {
                self.mark_unsupported(format!("{at}.type"), &format!("{other:?} is not supported"));
                None
            }
        })
    }

    /// Checks that waypoints can evaluate a regular expression in linear time and bounded memory; others are
    /// unsupported.
    pub(crate) fn check_regex(&mut self, field: &str, pattern: &str) {
        let built = RegexBuilder::new(pattern)
            .size_limit(ambit_model::MAX_COMPILED_REGEX_BYTES)
            .build();
        if built.is_err() {
            let what = "no regular expression of RE2's syntax, or too large";
            self.mark_unsupported(field.to_owned(), what);
        }
    }

    fn parse_named_matches(
        &mut self,
        from: &[HttpNamedMatch],
        at: &str,
    ) -> Vec<(ArcStr, HttpValueMatch)> {
        let mut read = Vec::new();
        for (index, one) in from.iter().enumerate() {
            let value = match one.type_.as_deref() {
                None | Some("Exact") => HttpValueMatch::Exact(one.value.as_str().into()),
                Some("RegularExpression") => {
                    self.check_regex(&format!("{at}[{index}].value"), &one.value);
                    HttpValueMatch::Regex(one.value.as_str().into())
                }
                Some(other) => {
                    let what = format!("{other:?} is not supported");
                    self.mark_unsupported(format!("{at}[{index}].type"), &what);
                    continue;
                }
            };
            read.push((one.name.as_str().into(), value));
        }
        read
    }

    fn parse_backend(
        &mut self,
        from: &gateway::HttpBackendRef,
        namespace: &str,
        at: &str,
    ) -> Result<BackendInput, FieldError> {
        self.note_unknown_fields(at, &from.other);
        let filters = self.parse_filters(at, &from.filters, namespace)?;
        BackendInput::read(
            from,
            namespace,
            (at, WeightedTraffic::Requests),
            filters,
            self.notes,
        )
    }
}
