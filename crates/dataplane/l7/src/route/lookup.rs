//! Lookup of the route rule that matches a request.
//!
//! Match conditions are ordered by the Gateway API's precedence, the most specific first. A hash lookup finds the
//! conditions with an exact path or a path prefix, so that the cost of a lookup does not grow with the number of
//! routes. Regular expressions are tried one after the other, and so are all conditions of VirtualServices, whose first
//! match wins.

use std::{cmp::Reverse, collections::HashMap, ops::Range};

use ambit_model::{
    ArcStr, HttpPathMatch, HttpRouteMatch, HttpValueMatch, MAX_COMPILED_REGEX_BYTES,
};
use http::{HeaderName, header::HOST};
use regex::{Regex, RegexBuilder};

use super::request::RouteRequest;
use crate::path::canonicalize_escapes;

/// Compiled matches of a route table, in order of precedence.
#[derive(Debug, Default)]
pub(super) struct RouteIndex {
    /// Match conditions of all rules, the most specific first.
    entries: Vec<MatchEntry>,
    exact: HashMap<ArcStr, Range<usize>>,
    prefixes: HashMap<ArcStr, Range<usize>>,
    /// Distinct lengths in bytes of the paths in `prefixes`, longest first.
    prefix_lengths: Vec<usize>,
    /// Index of the first match condition that the hash lookup cannot find: conditions on every path, followed by
    /// regular expressions.
    first_unhashed: usize,
}

/// Compiled match condition of a rule.
#[derive(Debug)]
pub(super) struct MatchEntry {
    path: PathCondition,
    method: Option<ArcStr>,
    headers: Vec<(HeaderName, ValueCondition)>,
    query: Vec<(ArcStr, ValueCondition)>,
    excluded_headers: Vec<(HeaderName, ValueCondition)>,
    /// Index of the match condition's rule in the route table.
    pub(super) rule_index: usize,
    /// Index of the match condition in its rule.
    pub(super) match_index: usize,
    /// Whether the match condition is invalid; requests that it may have been intended for are rejected.
    pub(super) is_invalid: bool,
}

#[derive(Debug)]
enum PathCondition {
    Exact(ArcStr),
    Prefix(ArcStr),
    TextPrefix(ArcStr),
    Regex(Regex),
    Any,
}

#[derive(Debug)]
enum ValueCondition {
    Exact(ArcStr),
    Regex(Regex),
    /// Matches any path; also replaces an invalid expression.
    Any,
}

/// First part of a match condition that a request does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The request's path does not match.
    Path,
    /// The request's method does not match.
    Method,
    /// Header of this name that is missing or has another value, or a value that the match excludes.
    Header(ArcStr),
    /// Query parameter of this name that is missing or has another value.
    QueryParam(ArcStr),
}

impl RouteIndex {
    /// Returns the match conditions in order of evaluation, up to the first that the request meets, each with the part
    /// that the request does not meet.
    pub(super) fn candidates<'a>(
        &'a self,
        request: &'a RouteRequest<'_>,
    ) -> impl Iterator<Item = (&'a MatchEntry, Option<Mismatch>)> {
        let mut is_found = false;
        self.entries.iter().map_while(move |entry| {
            let mismatch = (!is_found).then(|| entry.first_mismatch(request))?;
            is_found = mismatch.is_none();
            Some((entry, mismatch))
        })
    }

    /// Returns all match conditions, the most specific first.
    pub(super) fn entries(&self) -> &[MatchEntry] {
        &self.entries
    }

    /// Builds an index in which the first declared match condition wins, as for VirtualServices.
    pub(super) fn in_declared_order(entries: Vec<MatchEntry>) -> Self {
        Self {
            entries,
            ..Self::default()
        }
    }

    /// Builds an index by precedence, from match conditions sorted by the age and name of their routes.
    pub(super) fn new(mut entries: Vec<MatchEntry>) -> Self {
        // A stable sort: equally specific matches stay in the order of age, name and index.
        entries.sort_by(|a, b| a.specificity().cmp(&b.specificity()));
        let mut lookup = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            let of_path = match &entry.path {
                PathCondition::Exact(path) => lookup.exact.entry(path.clone()),
                PathCondition::Prefix(path) if !path.is_empty() => {
                    if lookup.prefix_lengths.last() != Some(&path.len()) {
                        lookup.prefix_lengths.push(path.len());
                    }
                    lookup.prefixes.entry(path.clone())
                }
                PathCondition::Prefix(_)
                | PathCondition::TextPrefix(_)
                | PathCondition::Any
                | PathCondition::Regex(_) => continue,
            };
            of_path.or_insert(index..index).end = index + 1;
            lookup.first_unhashed = index + 1;
        }
        lookup.entries = entries;
        lookup
    }

    /// Returns the most specific match condition that a request meets.
    pub(super) fn first_match(&self, request: &RouteRequest<'_>) -> Option<&MatchEntry> {
        let path = request.path;
        let within = |range: &Range<usize>| {
            let entries = self.entries.get(range.clone()).unwrap_or_default();
            entries.iter().find(|entry| entry.matches(request))
        };
        let exact = self.exact.get(path).and_then(within);
        exact.or_else(|| {
            let mut prefixes = self.prefix_lengths.iter().filter_map(|length| {
                let (prefix, rest) = path.split_at_checked(*length)?;
                let is_whole = rest.is_empty() || rest.starts_with('/');
                is_whole.then(|| self.prefixes.get(prefix)).flatten()
            });
            let by_prefix = prefixes.find_map(within);
            by_prefix.or_else(|| within(&(self.first_unhashed..self.entries.len())))
        })
    }
}

impl MatchEntry {
    pub(super) fn new(of: &HttpRouteMatch, rule: usize, index: usize) -> Self {
        let mut broken = false;
        let path = match &of.path {
            None => PathCondition::Any,
            Some(HttpPathMatch::Exact(path)) => PathCondition::Exact(canonical_path(path)),
            Some(HttpPathMatch::Prefix(path)) => {
                let path = canonical_path(path);
                PathCondition::Prefix(path.strip_suffix('/').unwrap_or(&path).into())
            }
            Some(HttpPathMatch::TextPrefix(path)) => {
                PathCondition::TextPrefix(canonical_path(path))
            }
            Some(HttpPathMatch::Regex(pattern)) => {
                compile_regex(pattern, &mut broken).map_or(PathCondition::Any, PathCondition::Regex)
            }
        };
        let mut value = |of: &HttpValueMatch| match of {
            HttpValueMatch::Exact(text) => ValueCondition::Exact(text.clone()),
            HttpValueMatch::Regex(pattern) => compile_regex(pattern, &mut broken)
                .map_or(ValueCondition::Any, ValueCondition::Regex),
        };
        let query = of.query_params.iter();
        let query = query.map(|(name, of)| (name.clone(), value(of))).collect();
        let mut unknown = false;
        let mut named = |of: &[(ArcStr, HttpValueMatch)]| {
            let mut headers = Vec::new();
            for (name, of) in of {
                match HeaderName::from_bytes(name.as_bytes()) {
                    Ok(name) => headers.push((name, value(of))),
                    Err(_) => unknown = true,
                }
            }
            headers
        };
        let headers = named(&of.headers);
        let without = named(&of.without_headers);
        Self {
            path,
            method: of.method.clone(),
            headers,
            query,
            excluded_headers: without,
            rule_index: rule,
            match_index: index,
            is_invalid: broken || unknown,
        }
    }

    /// Returns the length in bytes of the path prefix that the match condition consumes.
    pub(super) fn prefix_len(&self) -> usize {
        match &self.path {
            PathCondition::Prefix(prefix) | PathCondition::TextPrefix(prefix) => prefix.len(),
            PathCondition::Exact(_) | PathCondition::Regex(_) | PathCondition::Any => 0,
        }
    }

    /// Returns the sort key of precedence, in which lesser values are more specific. Conditions on the same path are
    /// adjacent.
    fn specificity(&self) -> impl Ord + '_ {
        let (kind, length, path) = match &self.path {
            PathCondition::Exact(path) => (0, path.len(), path.as_str()),
            PathCondition::Prefix(path) => (1, path.len(), path.as_str()),
            // Like a prefix of every path.
            PathCondition::Any => (1, 0, ""),
            PathCondition::TextPrefix(path) => (2, path.len(), ""),
            PathCondition::Regex(pattern) => (2, pattern.as_str().len(), ""),
        };
        (
            kind,
            Reverse(length),
            path,
            self.method.is_none(),
            Reverse(self.headers.len()),
            Reverse(self.query.len()),
        )
    }

    fn matches(&self, request: &RouteRequest<'_>) -> bool {
        self.first_mismatch(request).is_none()
    }

    /// Returns the first part of the match condition that a request does not meet.
    fn first_mismatch(&self, request: &RouteRequest<'_>) -> Option<Mismatch> {
        let has_path = match &self.path {
            PathCondition::Any => true,
            PathCondition::Exact(path) => request.path == path,
            PathCondition::Prefix(prefix) => request
                .path
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            PathCondition::TextPrefix(prefix) => request.path.starts_with(prefix.as_str()),
            PathCondition::Regex(pattern) => pattern.is_match(request.path),
        };
        if !has_path {
            return Some(Mismatch::Path);
        }
        if self
            .method
            .as_ref()
            .is_some_and(|one| request.method != one)
        {
            return Some(Mismatch::Method);
        }
        let has_header = |(name, of): &&(HeaderName, ValueCondition)| {
            if *name == HOST {
                return !request.host.is_empty() && of.matches(request.host);
            }
            let value = request.headers.get(name);
            value.is_some_and(|value| value.to_str().is_ok_and(|value| of.matches(value)))
        };
        // A value that is not text may be anything.
        let may_have_header = |(name, of): &&(HeaderName, ValueCondition)| {
            if *name == HOST {
                return of.matches(request.host);
            }
            let mut values = request.headers.get_all(name).iter();
            values.any(|value| value.to_str().map_or(true, |value| of.matches(value)))
        };
        let mut missing = self.headers.iter().filter(|one| !has_header(one));
        let mut excluded = self
            .excluded_headers
            .iter()
            .filter(|one| may_have_header(one));
        if let Some((name, _)) = missing.next().or_else(|| excluded.next()) {
            return Some(Mismatch::Header(name.as_str().into()));
        }
        let has_param = |(name, of): &&(ArcStr, ValueCondition)| {
            // The first of several parameters counts.
            let value = query_parameters(request.query, name).next();
            value.is_some_and(|value| of.matches(&value))
        };
        let mut params = self.query.iter();
        let missing = params.find(|one| !has_param(one));
        missing.map(|(name, _)| Mismatch::QueryParam(name.clone()))
    }
}

impl ValueCondition {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => text == exact,
            Self::Regex(pattern) => pattern.is_match(text),
            Self::Any => true,
        }
    }
}

/// Normalizes the path of a match condition as the paths of requests are normalized.
fn canonical_path(path: &str) -> ArcStr {
    canonicalize_escapes(path).as_ref().into()
}

fn compile_regex(pattern: &str, broken: &mut bool) -> Option<Regex> {
    let built = full_match_regex(pattern);
    *broken |= built.is_none();
    built
}

/// Compiles a regular expression that matches whole texts in linear time; `None` if it is invalid or needs too much
/// memory.
pub(crate) fn full_match_regex(pattern: &str) -> Option<Regex> {
    let build = |pattern: &str| {
        RegexBuilder::new(pattern)
            .size_limit(MAX_COMPILED_REGEX_BYTES)
            .dfa_size_limit(MAX_COMPILED_REGEX_BYTES)
            .build()
    };
    // Compiled without the anchors first: `a)|(b` is invalid, and would be valid with them.
    let built = build(pattern).and_then(|_| build(&format!("^(?:{pattern})$")));
    built.ok()
}

/// Returns the percent-decoded values of a query parameter, in their order.
pub(crate) fn query_parameters<'a>(
    query: Option<&'a str>,
    name: &'a str,
) -> impl Iterator<Item = String> + 'a {
    let pairs = query.into_iter().flat_map(|query| query.split('&'));
    pairs.filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode_query_text(key) == name).then(|| decode_query_text(value))
    })
}

fn decode_query_text(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => parse_hex_digit(*high).zip(parse_hex_digit(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parse_hex_digit(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}
