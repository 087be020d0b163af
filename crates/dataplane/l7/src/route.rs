//! The routes of one port of a service, ready for look-up: Gateway API's HTTPRoute with a Service as parent.
//!
//! All routes of a service are one table. The most specific match wins, whatever route it is in: the path by its
//! kind (exact, prefix, regular expression) and length, then the method, the number of headers, the number of
//! parameters; then the older route, its name, and the order in it.

mod filters;

use std::{cmp::Reverse, sync::Arc};

use ambit_model::{
    ArcStr, HttpBackend, HttpPathMatch, HttpRoute, HttpRouteMatch, HttpRouteRule, HttpTimeouts,
    HttpValueMatch, MAX_EXPRESSION, RouteName,
};
use http::{HeaderMap, HeaderName};
use rand::{Rng, RngCore};
use regex::{Regex, RegexBuilder};

use crate::path::canonical_escapes;
pub use filters::{Filters, MatchedPath, Redirect, RedirectError, changed};

/// Why requests that a match with a bad expression or header might be meant for are not served.
const BROKEN: ArcStr =
    arcstr::literal!("a regular expression or header name of the match cannot be used");

/// What a request is routed by.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its normalized path, without the query.
    pub path: &'a str,
    /// Its query, without the question mark.
    pub query: Option<&'a str>,
    /// Its headers.
    pub headers: &'a HeaderMap,
}

/// The routes of one port of a service.
#[derive(Debug, Default)]
pub struct RouteTable {
    /// The most specific first.
    entries: Vec<Entry>,
    rules: Vec<Arc<Rule>>,
    has_routes: bool,
}

/// A rule of a route.
#[derive(Debug)]
pub struct Rule {
    /// The route it is in.
    pub route: RouteName,
    /// Its place there.
    pub index: usize,
    backends: Vec<Backend>,
    total: u64,
    /// What is done with its requests.
    pub filters: Filters,
    /// How long they may take.
    pub timeouts: HttpTimeouts,
    /// Why requests that match cannot be served.
    pub unsupported: Option<ArcStr>,
}

/// A destination of a rule.
#[derive(Debug)]
pub struct Backend {
    /// The service, and its share.
    pub to: HttpBackend,
    /// What is done with the requests that go there.
    pub filters: Filters,
}

/// What a table says of a request.
#[derive(Debug)]
pub enum Choice<'a> {
    /// There are no routes: the service leads to itself.
    Itself,
    /// The rule that matches, and how many bytes of the path its match took as prefix.
    Rule(&'a Arc<Rule>, usize),
    /// There are routes, and none matches: 404.
    NoMatch,
}

#[derive(Debug)]
struct Entry {
    path: Path,
    method: Option<ArcStr>,
    headers: Vec<(HeaderName, Value)>,
    query: Vec<(ArcStr, Value)>,
    rule: usize,
    /// Of a match that cannot be understood: what it might match is not served.
    broken: bool,
}

#[derive(Debug)]
enum Path {
    Exact(ArcStr),
    Prefix(ArcStr),
    Regex(Regex),
    Any,
}

#[derive(Debug)]
enum Value {
    Exact(ArcStr),
    Regex(Regex),
    /// A broken one.
    Any,
}

impl RouteTable {
    /// The table of a port for clients of a namespace, or for everybody, of routes that are in the order of age and
    /// name.
    pub fn new(routes: &[HttpRoute], port: u16, clients: Option<&str>) -> Self {
        let mut table = Self::default();
        let is_in =
            |route: &&HttpRoute| route.clients.as_deref() == clients && concerns(route, port);
        for route in routes.iter().filter(is_in) {
            table.has_routes = true;
            for (index, rule) in route.rules.iter().enumerate() {
                table.add(route, index, rule);
            }
        }
        // Stable: what is equally specific stays in the order of age, name and place.
        table.entries.sort_by_key(Entry::specificity);
        table
    }

    fn add(&mut self, route: &HttpRoute, index: usize, rule: &HttpRouteRule) {
        let everything = [HttpRouteMatch::default()];
        let matches = if rule.matches.is_empty() {
            &everything[..]
        } else {
            &rule.matches
        };
        let whole = self.rules.len();
        self.rules.push(Arc::new(Rule::new(route, index, rule)));
        for of in matches {
            let mut entry = Entry::new(of, whole);
            if entry.broken {
                entry.rule = self.rules.len();
                self.rules.push(Arc::new(Rule {
                    unsupported: Some(BROKEN),
                    ..Rule::new(route, index, rule)
                }));
            }
            self.entries.push(entry);
        }
    }

    /// Whether there are any routes.
    pub fn has_routes(&self) -> bool {
        self.has_routes
    }

    /// What becomes of a request.
    pub fn choose(&self, request: &RouteRequest<'_>) -> Choice<'_> {
        if !self.has_routes {
            return Choice::Itself;
        }
        let entry = self.entries.iter().find(|entry| entry.matches(request));
        let rule = entry.and_then(|entry| Some((self.rules.get(entry.rule)?, entry.prefix())));
        rule.map_or(Choice::NoMatch, |(rule, prefix)| Choice::Rule(rule, prefix))
    }
}

/// Whether a route is for a port.
pub fn concerns(route: &HttpRoute, port: u16) -> bool {
    route.ports.is_empty() || route.ports.contains(&port)
}

impl Rule {
    fn new(route: &HttpRoute, index: usize, rule: &HttpRouteRule) -> Self {
        let mut unsupported = rule.unsupported.clone();
        let mut filters = |of| {
            Filters::new(of).unwrap_or_else(|why| {
                unsupported.get_or_insert(why);
                Filters::default()
            })
        };
        let backends = rule.backends.iter().map(|to| Backend {
            to: to.clone(),
            filters: filters(&to.filters),
        });
        let backends: Vec<_> = backends.collect();
        Self {
            route: route.name.clone(),
            index,
            total: backends.iter().map(|one| u64::from(one.to.weight)).sum(),
            backends,
            filters: filters(&rule.filters),
            timeouts: rule.timeouts,
            unsupported,
        }
    }

    /// Its backends, in their order.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// A backend for one request, by weight, with its place; `None` if there is none.
    pub fn backend(&self, rng: &mut dyn RngCore) -> Option<(usize, &Backend)> {
        if self.total == 0 {
            return None;
        }
        let mut drawn = rng.random_range(0..self.total);
        self.backends.iter().enumerate().find(|(_, backend)| {
            let weight = u64::from(backend.to.weight);
            let is_drawn = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            is_drawn
        })
    }
}

impl Entry {
    fn new(of: &HttpRouteMatch, rule: usize) -> Self {
        let mut broken = false;
        let path = match &of.path {
            None => Path::Any,
            Some(HttpPathMatch::Exact(path)) => Path::Exact(canonical(path)),
            Some(HttpPathMatch::Prefix(path)) => {
                let path = canonical(path);
                Path::Prefix(path.strip_suffix('/').unwrap_or(&path).into())
            }
            Some(HttpPathMatch::Regex(pattern)) => {
                regex(pattern, &mut broken).map_or(Path::Any, Path::Regex)
            }
        };
        let mut value = |of: &HttpValueMatch| match of {
            HttpValueMatch::Exact(text) => Value::Exact(text.clone()),
            HttpValueMatch::Regex(pattern) => {
                regex(pattern, &mut broken).map_or(Value::Any, Value::Regex)
            }
        };
        let query = of.query_params.iter();
        let query = query.map(|(name, of)| (name.clone(), value(of))).collect();
        let mut headers = Vec::new();
        let mut unknown = false;
        for (name, of) in &of.headers {
            match HeaderName::from_bytes(name.as_bytes()) {
                Ok(name) => headers.push((name, value(of))),
                Err(_) => unknown = true,
            }
        }
        Self {
            path,
            method: of.method.clone(),
            headers,
            query,
            rule,
            broken: broken || unknown,
        }
    }

    fn prefix(&self) -> usize {
        match &self.path {
            Path::Prefix(prefix) => prefix.len(),
            Path::Exact(_) | Path::Regex(_) | Path::Any => 0,
        }
    }

    fn specificity(&self) -> impl Ord + use<> {
        let (kind, length) = match &self.path {
            Path::Exact(path) => (0, path.len()),
            Path::Prefix(path) => (1, path.len()),
            Path::Regex(pattern) => (2, pattern.as_str().len()),
            // As a prefix of everything.
            Path::Any => (1, 0),
        };
        (
            kind,
            Reverse(length),
            self.method.is_none(),
            Reverse(self.headers.len()),
            Reverse(self.query.len()),
        )
    }

    fn matches(&self, request: &RouteRequest<'_>) -> bool {
        let path = match &self.path {
            Path::Any => true,
            Path::Exact(path) => request.path == path,
            Path::Prefix(prefix) => request
                .path
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Path::Regex(pattern) => pattern.is_match(request.path),
        };
        path && self
            .method
            .as_ref()
            .is_none_or(|method| request.method == method)
            && self.headers.iter().all(|(name, of)| {
                let value = request.headers.get(name);
                value.is_some_and(|value| value.to_str().is_ok_and(|value| of.matches(value)))
            })
            && self.query.iter().all(|(name, of)| {
                parameter(request.query, name).is_some_and(|value| of.matches(&value))
            })
    }
}

impl Value {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => text == exact,
            Self::Regex(pattern) => pattern.is_match(text),
            Self::Any => true,
        }
    }
}

/// A path of a match in the form that paths of requests have.
fn canonical(path: &str) -> ArcStr {
    canonical_escapes(path).as_ref().into()
}

/// A pattern that matches whole texts; in linear time, whatever the text.
fn regex(pattern: &str, broken: &mut bool) -> Option<Regex> {
    let build = |pattern: &str| {
        RegexBuilder::new(pattern)
            .size_limit(MAX_EXPRESSION)
            .dfa_size_limit(MAX_EXPRESSION)
            .build()
    };
    // By itself first: `a)|(b` is none, and would be one with what is added.
    let built = build(pattern).and_then(|_| build(&format!("^(?:{pattern})$")));
    *broken |= built.is_err();
    built.ok()
}

/// The first value of a parameter, percent-decoded.
fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = query?.split('&');
    let mut decoded = pairs.map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), value)
    });
    let found = decoded.find(|(key, _)| key == name)?;
    Some(decode(found.1))
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
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

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests;
