//! Route table of one service port: Gateway API's HTTPRoute and GRPCRoute with a Service as parent, and Istio's
//! VirtualService.
//!
//! All routes of a service are one table. The most specific match wins, whatever route it is in: the path by its kind
//! (exact, prefix, regular expression) and length, then the method, the number of headers, the number of query
//! parameters; then the older route, its name, and the order in it. For VirtualServices the first rule that matches
//! wins, in the order of the routes' age and name and of the rules in each.

mod filters;
mod lookup;
mod request;
mod retry;

use std::sync::Arc;

use ambit_model::{
    ArcStr, HttpBackend, HttpRetry, HttpRoute, HttpRouteMatch, HttpRouteRule, HttpSession,
    HttpTimeouts, RouteName,
};
use rand::RngCore;

pub use lookup::Mismatch;
use lookup::{MatchEntry, RouteIndex};
pub(crate) use lookup::{full_match_regex, query_parameters};

use crate::weights;

pub use filters::{
    Cors, CorsRequest, EffectiveFilters, Filters, InjectedFault, MatchedPath, Redirect,
    RedirectError, rewrite_path,
};
pub use request::RouteRequest;
pub use retry::{DEFAULT_BACKOFF, MAX_BACKOFF_MULTIPLE, backoff_delay, is_retriable};

/// Error text for requests that an invalid match (expression or header) may have been intended for, and that are
/// therefore rejected.
const INVALID_MATCH: ArcStr =
    arcstr::literal!("a regular expression or header name of the match cannot be used");

/// HTTP routes of one port of a service.
#[derive(Debug, Default)]
pub struct RouteTable {
    matches: RouteIndex,
    rules: Vec<Arc<Rule>>,
    has_routes: bool,
}

/// Compiled rule of a route.
#[derive(Debug)]
pub struct Rule {
    /// Name and kind of the route object.
    pub route: RouteName,
    /// Index of the rule in its route.
    pub rule_index: usize,
    /// Name of the rule, for access logs.
    pub name: Option<ArcStr>,
    backends: Vec<Backend>,
    filters: Filters,
    /// Timeouts of requests that the rule forwards.
    pub timeouts: HttpTimeouts,
    /// Retry policy of requests that the rule forwards.
    pub retry: Option<HttpRetry>,
    /// Session persistence of the rule (sticky sessions).
    pub session_persistence: Option<HttpSession>,
    /// Reason why requests that match are rejected: a setting of the rule is unsupported or invalid.
    pub rejection_reason: Option<ArcStr>,
    /// Whether the route is a consumer route (GAMMA), which the clients' namespace defines for its own requests.
    pub is_consumer_route: bool,
}

/// Backend of a rule, with filters of its own.
#[derive(Debug)]
pub struct Backend {
    /// Service port that receives the requests, and its weight.
    pub target: HttpBackend,
    filters: Filters,
}

/// Match condition of a rule in the route table.
#[derive(Clone, Copy, Debug)]
pub struct RuleMatch<'a> {
    /// Rule that the match condition belongs to.
    pub rule: &'a Arc<Rule>,
    /// Index of the match condition in its rule; 0 for a rule without conditions, which matches all requests.
    pub match_index: usize,
}

/// Result of looking up a request in the table.
#[derive(Debug)]
pub enum RouteDecision<'a> {
    /// No routes exist, so that the request goes to the service itself.
    NoRoutes,
    /// Rule that matches, and the length in bytes of the path prefix that its match condition consumed.
    Rule(&'a Arc<Rule>, usize),
    /// Routes exist, but none matches; the response is 404.
    NoMatchingRule,
}

impl RouteTable {
    /// Builds the table of a port, for clients of a namespace or for all clients, from routes that are sorted by age
    /// and name. Routes of different kinds exclude each other: the oldest decides which kind is used.
    pub fn new(routes: &[HttpRoute], port: u16, clients: Option<&str>) -> Self {
        let mut table = Self::default();
        let mut matches = Vec::new();
        let is_in = |route: &&HttpRoute| {
            route.clients.as_deref() == clients && applies_to_port(route, port)
        };
        let first = routes.iter().find(is_in);
        let kind = first.map(|route| &route.name.kind);
        let is_followed = |route: &&HttpRoute| is_in(route) && Some(&route.name.kind) == kind;
        for route in routes.iter().filter(is_followed) {
            table.has_routes = true;
            for (index, rule) in route.rules.iter().enumerate() {
                table.add_rule(route, index, rule, &mut matches);
            }
        }
        table.matches = match first.is_some_and(|route| route.first_match) {
            true => RouteIndex::in_declared_order(matches),
            false => RouteIndex::new(matches),
        };
        table
    }

    fn add_rule(
        &mut self,
        route: &HttpRoute,
        index: usize,
        rule: &HttpRouteRule,
        entries: &mut Vec<MatchEntry>,
    ) {
        let everything = [HttpRouteMatch::default()];
        let matches = if rule.matches.is_empty() {
            &everything[..]
        } else {
            &rule.matches
        };
        let whole = self.rules.len();
        self.rules.push(Arc::new(Rule::new(route, index, rule)));
        for (match_index, of) in matches.iter().enumerate() {
            let mut entry = MatchEntry::new(of, whole, match_index);
            if entry.is_invalid {
                entry.rule_index = self.rules.len();
                self.rules.push(Arc::new(Rule {
                    rejection_reason: Some(INVALID_MATCH),
                    ..Rule::new(route, index, rule)
                }));
            }
            entries.push(entry);
        }
    }

    /// Whether any route applies to the port.
    pub fn has_routes(&self) -> bool {
        self.has_routes
    }

    /// Finds the most specific rule that matches a request.
    pub fn select_rule(&self, request: &RouteRequest<'_>) -> RouteDecision<'_> {
        if !self.has_routes {
            return RouteDecision::NoRoutes;
        }
        let entry = self.matches.first_match(request);
        let rule =
            entry.and_then(|entry| Some((self.rules.get(entry.rule_index)?, entry.prefix_len())));
        rule.map_or(RouteDecision::NoMatchingRule, |(rule, prefix)| {
            RouteDecision::Rule(rule, prefix)
        })
    }

    /// Iterates over all matches in the order of evaluation.
    pub fn matches(&self) -> impl Iterator<Item = RuleMatch<'_>> {
        let entries = self.matches.entries().iter();
        entries.filter_map(|entry| {
            let rule = self.rules.get(entry.rule_index)?;
            let index = entry.match_index;
            Some(RuleMatch {
                rule,
                match_index: index,
            })
        })
    }

    /// Returns the rules in the order of evaluation of their matches, up to the rule that [`Self::select_rule`]
    /// selects, each with the reason why the request does not match.
    pub fn explain_candidates<'a>(
        &'a self,
        request: &'a RouteRequest<'_>,
    ) -> impl Iterator<Item = (&'a Arc<Rule>, Option<Mismatch>)> {
        let considered = self.matches.candidates(request);
        considered
            .filter_map(|(entry, mismatch)| Some((self.rules.get(entry.rule_index)?, mismatch)))
    }
}

/// Whether a route applies to a service port.
pub fn applies_to_port(route: &HttpRoute, port: u16) -> bool {
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
            target: to.clone(),
            filters: filters(&to.filters),
        });
        let backends: Vec<_> = backends.collect();
        Self {
            route: route.name.clone(),
            rule_index: index,
            name: rule.name.clone(),
            retry: rule.retry.clone(),
            session_persistence: rule.session.clone(),
            backends,
            filters: filters(&rule.filters),
            timeouts: rule.timeouts,
            rejection_reason: unsupported,
            is_consumer_route: route.clients.is_some() && !route.of_service,
        }
    }

    /// Returns the backends in the order in which the rule lists them.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Returns the filters of the rule and of the backend at an index; with `None`, those of the rule alone.
    pub fn filters_for_backend(&self, backend: Option<usize>) -> EffectiveFilters<'_> {
        let backend = backend.and_then(|index| self.backends.get(index));
        EffectiveFilters {
            rule: &self.filters,
            backend: backend.map(|backend| &backend.filters),
        }
    }

    /// Picks a backend by weight, and returns it with its index; `None` if the rule has no backend with a weight.
    pub fn pick_backend(&self, rng: &mut dyn RngCore) -> Option<(usize, &Backend)> {
        let weights = self.backends.iter().map(|backend| backend.target.weight);
        let drawn = weights::pick_weighted_index(weights, rng)?;
        Some((drawn, self.backends.get(drawn)?))
    }
}

#[cfg(test)]
mod tests;
