//! Match conditions of a rate limit, which select the requests that it counts. They have the form of route matches. A
//! match on any reading of a request suffices, so that no alternative spelling escapes the limit.

use std::borrow::Cow;

use ambit_model::{ArcStr, HttpRouteMatch, HttpValueMatch, StringMatch};
use http::{HeaderMap, HeaderName, header::HOST};
use regex::Regex;

use crate::{
    path,
    readings::{PathMatcher, ReadingMode, Readings, any_header_text_matches, header_lines},
    route::{RouteRequest, full_match_regex, query_parameters},
};

/// Alternative match conditions of a rate limit. A request counts if one of them matches; without any, all requests
/// count.
#[derive(Debug)]
pub struct RateLimitMatches(Vec<RateLimitMatch>);

/// One match condition of a rate limit; all of its set attributes must match.
#[derive(Debug)]
struct RateLimitMatch {
    path: Option<PathMatcher>,
    method: Option<StringMatch>,
    headers: Vec<(HeaderName, ValueMatcher)>,
    query: Vec<(ArcStr, ValueMatcher)>,
}

#[derive(Debug)]
enum ValueMatcher {
    Exact(ArcStr),
    Regex(Regex),
    /// Matcher of any value, which replaces an invalid expression.
    MatchAll,
}

impl RateLimitMatches {
    /// Compiles the match conditions of a rate limit. An invalid condition matches every request that it may have been
    /// intended for.
    pub fn new(of: &[HttpRouteMatch]) -> Self {
        Self(of.iter().map(RateLimitMatch::new).collect())
    }

    /// Whether the rate limit counts a request, by any of its readings.
    pub fn includes(&self, request: &RouteRequest<'_>) -> bool {
        let RouteRequest {
            method,
            path,
            host,
            headers,
            query,
        } = *request;
        let readings = Readings::new(method, (host, None), path, headers);
        self.0.is_empty()
            || self
                .0
                .iter()
                .any(|one| one.matches(&readings, headers, (host, query)))
    }
}

impl RateLimitMatch {
    fn new(of: &HttpRouteMatch) -> Self {
        let headers = of.headers.iter().filter_map(|(name, of)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            Some((name, ValueMatcher::new(of)))
        });
        let query = of.query_params.iter();
        Self {
            path: of.path.as_ref().map(PathMatcher::from_route_match),
            method: of.method.clone().map(StringMatch::Exact),
            headers: headers.collect(),
            query: query
                .map(|(name, of)| (name.clone(), ValueMatcher::new(of)))
                .collect(),
        }
    }

    fn matches(
        &self,
        readings: &Readings<'_>,
        headers: &HeaderMap,
        (host, query): (&str, Option<&str>),
    ) -> bool {
        let path = self.path.as_ref();
        let method = self.method.as_ref();
        path.is_none_or(|path| readings.matches_path(path, ReadingMode::AnyReading))
            && method.is_none_or(|method| readings.matches_method(method, ReadingMode::AnyReading))
            && self.headers.iter().all(|(name, of)| match *name == HOST {
                true => of.matches_host(host, readings),
                false => any_header_text_matches(headers, name, |text| of.matches(text)),
            })
            && self.query.iter().all(|(name, of)| {
                query_parameters(query, name).any(|value| of.matches(value.as_bytes()))
            })
    }
}

impl ValueMatcher {
    fn new(of: &HttpValueMatch) -> Self {
        match of {
            HttpValueMatch::Exact(text) => Self::Exact(text.clone()),
            HttpValueMatch::Regex(pattern) => {
                full_match_regex(pattern).map_or(Self::MatchAll, Self::Regex)
            }
        }
    }

    fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => text == exact.as_bytes(),
            Self::Regex(pattern) => str::from_utf8(text).is_ok_and(|text| pattern.is_match(text)),
            Self::MatchAll => true,
        }
    }

    fn matches_host(&self, host: &str, readings: &Readings<'_>) -> bool {
        match self {
            Self::Exact(exact) => {
                readings.matches_host(&StringMatch::Exact(exact.clone()), ReadingMode::AnyReading)
            }
            Self::Regex(_) | Self::MatchAll => {
                let is_host = |host: &str| {
                    let lower = host.to_ascii_lowercase();
                    let name = lower.split(':').next().unwrap_or_default();
                    let name = name.trim_end_matches('.');
                    !host.is_empty()
                        && [host, lower.as_str(), name]
                            .iter()
                            .any(|text| self.matches(text.as_bytes()))
                };
                is_host(host) || readings.overriding_hosts().any(is_host)
            }
        }
    }
}

/// Returns the rate-limit key of a path, which is equal for all spellings that some server treats as the same path.
pub fn path_key(path: &str) -> Cow<'_, str> {
    path::path_equivalence_key(path)
}

/// Returns the rate-limit key of a method, regardless of case.
pub fn method_key(method: &str) -> String {
    method.to_ascii_uppercase()
}

/// Returns the rate-limit key of a header: all its lines, in any spelling of the name, so that a client cannot choose
/// which line counts. `None` if the request does not have the header.
pub fn header_key(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let all: Vec<_> = header_lines(headers, name).collect();
    (!all.is_empty()).then(|| all.join(&b","[..]))
}
