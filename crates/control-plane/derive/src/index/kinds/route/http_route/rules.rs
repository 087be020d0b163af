//! The rules of a route. What is not supported makes its rule unusable, and requests that it matches are
//! answered with an error; a part that decides which requests those are makes it match as if it were not
//! there.

use std::collections::BTreeMap;

use ambit_k8s_api::gateway::{self, HttpNamedMatch};
use ambit_model::{
    ArcStr, HttpBackend, HttpFilter, HttpPathMatch, HttpRouteMatch, HttpRouteRule, HttpTimeouts,
    HttpValueMatch,
};
use regex::RegexBuilder;
use serde_json::Value;

use crate::{
    index::{
        Index,
        kinds::route::{
            RouteInput, UNSUPPORTED_VALUE, Unsupported,
            backends::{BackendInput, Share},
        },
    },
    problem::{FieldError, Note},
};

/// Most rules of a route, and most matches of all of them together.
const MOST_RULES: usize = 1024;
const MOST_MATCHES: usize = 8192;

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleInput {
    matches: Vec<HttpRouteMatch>,
    filters: Vec<HttpFilter>,
    backends: Vec<BackendInput>,
    timeouts: HttpTimeouts,
    unsupported: Option<Unsupported>,
}

impl RuleInput {
    /// The only rule of a route that cannot be used.
    pub(in super::super) fn unusable() -> Self {
        Self {
            matches: Vec::new(),
            filters: Vec::new(),
            backends: Vec::new(),
            timeouts: HttpTimeouts::default(),
            unsupported: Some(Unsupported {
                reason: UNSUPPORTED_VALUE,
                text: arcstr::literal!("the route cannot be used as it is written"),
            }),
        }
    }

    /// The same for other requests.
    pub(in super::super) fn with_matches(self, matches: Vec<HttpRouteMatch>) -> Self {
        Self { matches, ..self }
    }

    /// Where requests go.
    pub(in super::super) fn backends(&self) -> impl Iterator<Item = &BackendInput> {
        self.backends.iter()
    }

    /// What in it is not supported.
    pub(in super::super) fn unsupported(&self) -> Option<&Unsupported> {
        self.unsupported.as_ref()
    }

    /// With its backends as they are now.
    pub(in super::super) fn resolved(&self, index: &Index, route: &RouteInput) -> HttpRouteRule {
        let backend = |from: &BackendInput| HttpBackend {
            service: from.find(index, route).map_err(|error| error.text),
            port: from.port,
            weight: from.weight,
            filters: from.filters.clone(),
        };
        HttpRouteRule {
            matches: self.matches.clone(),
            filters: self.filters.clone(),
            backends: self.backends.iter().map(backend).collect(),
            timeouts: self.timeouts,
            unsupported: self.unsupported.as_ref().map(|one| one.text.clone()),
        }
    }
}

/// The rules of a route; what is not supported is noted.
pub(super) fn read(
    spec: &gateway::HttpRouteSpec,
    namespace: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<RuleInput>, FieldError> {
    let mut reader = Reader::new(notes);
    reader.unknown("spec", &spec.other);
    let of_all = reader.take_unsupported();
    // As the API server has it: one rule that matches everything and leads nowhere.
    let default = [gateway::HttpRouteRule::default()];
    let rules = if spec.rules.is_empty() {
        &default
    } else {
        spec.rules.as_slice()
    };
    let matches = rules.iter().map(|rule| rule.matches.len()).sum::<usize>();
    Reader::check_size(rules.len(), matches)?;
    let mut read = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        reader.begin(of_all.as_ref());
        read.push(reader.rule(rule, namespace, &format!("spec.rules[{index}]"))?);
    }
    Ok(read)
}

/// Reads one rule after the other.
pub(crate) struct Reader<'a> {
    notes: &'a mut Vec<Note>,
    /// The first thing in the rule that is not supported.
    unsupported: Option<Unsupported>,
}

impl<'a> Reader<'a> {
    pub(in super::super) fn new(notes: &'a mut Vec<Note>) -> Self {
        Self {
            notes,
            unsupported: None,
        }
    }

    /// Begins a rule of a route, in which something is not supported whatever its rules are.
    pub(in super::super) fn begin(&mut self, unsupported: Option<&Unsupported>) {
        self.unsupported = unsupported.cloned();
    }

    pub(in super::super) fn take_unsupported(&mut self) -> Option<Unsupported> {
        self.unsupported.take()
    }

    /// Whether a route is small enough to be followed.
    pub(in super::super) fn check_size(rules: usize, matches: usize) -> Result<(), FieldError> {
        if rules > MOST_RULES || matches > MOST_MATCHES {
            let message = format!(
                "{rules} rules with {matches} matches are too many: at most {MOST_RULES} with {MOST_MATCHES}"
            );
            return Err(FieldError::new("spec.rules", message));
        }
        Ok(())
    }

    pub(in super::super) fn unsupported(&mut self, field: String, what: &str) {
        self.refuse(UNSUPPORTED_VALUE, field, what);
    }

    /// The rule is not followed: its requests are answered with an error.
    pub(super) fn refuse(&mut self, reason: &'static str, field: String, what: &str) {
        let text = arcstr::format!("{field}: {what}");
        self.unsupported.get_or_insert(Unsupported { reason, text });
        let message = format!("{what}: requests that the rule matches are answered with 500");
        self.notes.push(Note::new(field, message));
    }

    pub(in super::super) fn unknown(&mut self, at: &str, other: &BTreeMap<String, Value>) {
        for name in other.keys() {
            self.unsupported(format!("{at}.{name}"), "is not supported");
        }
    }

    pub(in super::super) fn rule(
        &mut self,
        rule: &gateway::HttpRouteRule,
        namespace: &str,
        at: &str,
    ) -> Result<RuleInput, FieldError> {
        self.unknown(at, &rule.other);
        let filters = self.filters(at, &rule.filters, false)?;
        self.check_filters(at, rule, &filters);
        let timeouts = self.timeouts(at, rule.timeouts.as_ref())?;
        let mut matches = Vec::new();
        for (index, one) in rule.matches.iter().enumerate() {
            matches.push(self.one_match(one, &format!("{at}.matches[{index}]"))?);
        }
        let mut backends = Vec::new();
        for (index, one) in rule.backend_refs.iter().enumerate() {
            let at = format!("{at}.backendRefs[{index}]");
            backends.push(self.backend(one, namespace, &at)?);
        }
        Ok(RuleInput {
            matches,
            filters,
            backends,
            timeouts,
            unsupported: self.unsupported.take(),
        })
    }

    fn one_match(
        &mut self,
        from: &gateway::HttpRouteMatch,
        at: &str,
    ) -> Result<HttpRouteMatch, FieldError> {
        self.unknown(at, &from.other);
        let path = match &from.path {
            Some(path) => self.path(path, &format!("{at}.path"))?,
            None => None,
        };
        Ok(HttpRouteMatch {
            path,
            method: from.method.as_deref().map(ArcStr::from),
            headers: self.header_matches(&from.headers, at),
            query_params: self.named(&from.query_params, &format!("{at}.queryParams")),
        })
    }

    /// Matches of headers, by lower-case name.
    pub(in super::super) fn header_matches(
        &mut self,
        from: &[HttpNamedMatch],
        at: &str,
    ) -> Vec<(ArcStr, HttpValueMatch)> {
        let headers = self.named(from, &format!("{at}.headers"));
        let lower = |(name, value): (ArcStr, HttpValueMatch)| {
            (ArcStr::from(name.to_ascii_lowercase()), value)
        };
        headers.into_iter().map(lower).collect()
    }

    fn path(
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
            "PathPrefix" => {
                let trimmed = value.trim_end_matches('/');
                let prefix = if trimmed.is_empty() { "/" } else { trimmed };
                Some(HttpPathMatch::Prefix(prefix.into()))
            }
            "RegularExpression" => {
                self.expression(&format!("{at}.value"), value);
                Some(HttpPathMatch::Regex(value.into()))
            }
            other => {
                self.unsupported(format!("{at}.type"), &format!("{other:?} is not supported"));
                None
            }
        })
    }

    /// Waypoints match in linear time and bounded memory, or not at all.
    pub(in super::super) fn expression(&mut self, field: &str, pattern: &str) {
        let built = RegexBuilder::new(pattern)
            .size_limit(ambit_model::MAX_EXPRESSION)
            .build();
        if built.is_err() {
            let what = "no regular expression of RE2's syntax, or too large";
            self.unsupported(field.to_owned(), what);
        }
    }

    fn named(&mut self, from: &[HttpNamedMatch], at: &str) -> Vec<(ArcStr, HttpValueMatch)> {
        let mut read = Vec::new();
        for (index, one) in from.iter().enumerate() {
            let value = match one.type_.as_deref() {
                None | Some("Exact") => HttpValueMatch::Exact(one.value.as_str().into()),
                Some("RegularExpression") => {
                    self.expression(&format!("{at}[{index}].value"), &one.value);
                    HttpValueMatch::Regex(one.value.as_str().into())
                }
                Some(other) => {
                    let what = format!("{other:?} is not supported");
                    self.unsupported(format!("{at}[{index}].type"), &what);
                    continue;
                }
            };
            read.push((one.name.as_str().into(), value));
        }
        read
    }

    fn backend(
        &mut self,
        from: &gateway::HttpBackendRef,
        namespace: &str,
        at: &str,
    ) -> Result<BackendInput, FieldError> {
        self.unknown(at, &from.other);
        let filters = self.filters(at, &from.filters, true)?;
        BackendInput::read(from, namespace, (at, Share::Requests), filters, self.notes)
    }
}
