//! Generates random policies and routes.

use ambit_model::{
    FaultStatus, HeaderChanges, HttpAction, HttpAttribute, HttpBackend, HttpCondition, HttpFault,
    HttpFilter, HttpOperation, HttpPathMatch, HttpPolicy, HttpRedirect, HttpRewrite, HttpRoute,
    HttpRouteMatch, HttpRouteRule, HttpRule, HttpSource, HttpValue, HttpValueMatch, PathChange,
    PathPattern, PolicyKey, RequestFraction, RouteName, StringMatch, WaypointRecord,
};
use ambit_xds::WaypointUpdate;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

use super::ISSUER;
use crate::{
    fixture::record_name,
    routes::{backend, service},
};

/// Maximum number of policies in a random mesh.
const POLICIES: usize = 3;

/// Random generator of the policies and routes of meshes.
pub(super) struct MeshGenerator {
    pub(super) rng: StdRng,
}

fn string_matches(of: &str) -> Vec<StringMatch> {
    vec![StringMatch::from_pattern(of)]
}

impl MeshGenerator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
        }
    }

    fn choose<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of.choose(&mut self.rng).unwrap()
    }

    fn draw_bool(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    /// Draws the policies of a mesh. Returns their records, and removals of all other policies.
    pub(super) fn policies(&mut self) -> Vec<WaypointUpdate> {
        let count = self.rng.random_range(0..=POLICIES);
        let all = (0..POLICIES).map(|number| {
            let name = format!("policy-{number}");
            if number >= count {
                let of = ambit_model::WaypointRecordType::Policy;
                return WaypointUpdate::Removed(of, record_name(&name));
            }
            let policy = self.policy(&name);
            WaypointUpdate::Upserted(record_name(&name), WaypointRecord::from(policy))
        });
        all.collect()
    }

    fn policy(&mut self, name: &str) -> HttpPolicy {
        let of = self.choose(&["web", "web", "back"]);
        let rules = (0..self.rng.random_range(1..=2)).map(|_| self.rule());
        let rules = rules.collect();
        HttpPolicy {
            key: PolicyKey::from_resource_name(&format!("ns/{name}")),
            for_gateway: self.draw_bool(0.4),
            services: vec![service(of)],
            action: match self.rng.random_range(0..5) {
                0 | 1 => HttpAction::Allow,
                2 | 3 => HttpAction::Deny,
                _ => HttpAction::Audit,
            },
            dry_run: self.draw_bool(0.2),
            rules,
            not_understood: self.draw_bool(0.03).then(|| "a test".into()),
            ..HttpPolicy::default()
        }
    }

    fn rule(&mut self) -> HttpRule {
        let mut rule = HttpRule::default();
        if self.draw_bool(0.7) {
            rule.operations.push(self.operation());
        }
        if self.draw_bool(0.4) {
            rule.sources.push(self.source());
        }
        if self.draw_bool(0.3) {
            rule.conditions.push(HttpCondition {
                attribute: HttpAttribute::Header("x-a".into()),
                values: vec![HttpValue::Text(StringMatch::from_pattern("1"))],
                not_values: Vec::new(),
            });
        }
        rule
    }

    fn operation(&mut self) -> HttpOperation {
        let mut operation = HttpOperation::default();
        let path = |text: &str| vec![PathPattern::Text(StringMatch::from_pattern(text))];
        match self.rng.random_range(0..7) {
            0 => operation.methods = string_matches(self.choose(&["GET", "POST"])),
            1 => operation.not_methods = string_matches("GET"),
            2 => operation.paths = path(self.choose(&["/a", "/a/*", "/b*", "*"])),
            3 => operation.not_paths = path(self.choose(&["/a", "/a/*"])),
            4 => operation.hosts = string_matches(self.choose(&["web", "other", "new"])),
            5 => operation.not_ports = vec![81],
            _ => operation.ports = vec![*[80, 81].choose(&mut self.rng).unwrap()],
        }
        operation
    }

    fn source(&mut self) -> HttpSource {
        let mut source = HttpSource::default();
        let client = "cluster.local/ns/ns/sa/client";
        match self.rng.random_range(0..5) {
            0 => source.principals = string_matches(client),
            1 => source.not_principals = string_matches(client),
            2 => source.namespaces = string_matches(self.choose(&["ns", "elsewhere"])),
            3 => source.request_principals = string_matches(&format!("{ISSUER}/alice")),
            _ => source.not_request_principals = string_matches("*"),
        }
        source
    }

    /// Draws the routes of the service `web`: mostly none or one, sometimes consumer routes of the client's namespace.
    pub(super) fn routes(&mut self) -> Vec<HttpRoute> {
        let count = self.rng.random_range(0..=2);
        let all = (0..count).map(|number| {
            let is_of_clients = self.draw_bool(0.2);
            let rules = (0..self.rng.random_range(1..=3)).map(|_| self.route_rule());
            HttpRoute {
                rules: rules.collect(),
                name: RouteName {
                    kind: "HTTPRoute".into(),
                    namespace: "ns".into(),
                    name: format!("route-{number}").into(),
                },
                clients: is_of_clients.then(|| "ns".into()),
                ..HttpRoute::default()
            }
        });
        all.collect()
    }

    fn route_rule(&mut self) -> HttpRouteRule {
        let matches = (0..self.rng.random_range(0..=2)).map(|_| self.route_match());
        let matches = matches.collect();
        let filters = (0..self.rng.random_range(0..=2)).map(|_| self.filter());
        let filters = filters.collect();
        HttpRouteRule {
            name: self.draw_bool(0.3).then(|| "named".into()),
            matches,
            filters,
            backends: self.backend().into_iter().collect(),
            unsupported: self.draw_bool(0.05).then(|| "a test".into()),
            ..HttpRouteRule::default()
        }
    }

    fn backend(&mut self) -> Option<HttpBackend> {
        match self.rng.random_range(0..12) {
            0 => None,
            1 => Some(HttpBackend {
                service: Err("a test".into()),
                ..backend("back")
            }),
            2 => Some(HttpBackend {
                subset: Some("unknown".into()),
                ..backend("back")
            }),
            3..=6 => Some(backend("back")),
            _ => Some(backend("web")),
        }
    }

    fn route_match(&mut self) -> HttpRouteMatch {
        let exact = |text: &str| HttpValueMatch::Exact(text.into());
        let path = match self.rng.random_range(0..4) {
            0 => Some(HttpPathMatch::Exact(self.choose(&["/a", "/b"]).into())),
            1 => Some(HttpPathMatch::Prefix(
                self.choose(&["/", "/a", "/b"]).into(),
            )),
            2 => Some(HttpPathMatch::Regex(
                self.choose(&["/a/.", "/.*", "("]).into(),
            )),
            _ => None,
        };
        let header = self.draw_bool(0.2).then(|| ("x-a".into(), exact("1")));
        HttpRouteMatch {
            path,
            method: self.draw_bool(0.2).then(|| "GET".into()),
            headers: header.into_iter().collect(),
            ..HttpRouteMatch::default()
        }
    }

    fn filter(&mut self) -> HttpFilter {
        let certain = |is: bool| RequestFraction {
            numerator: u32::from(is),
            denominator: 1,
        };
        match self.rng.random_range(0..6) {
            0 => HttpFilter::RequestHeaders(HeaderChanges {
                set: vec![("x-a".into(), self.choose(&["1", "2"]).into())],
                ..HeaderChanges::default()
            }),
            1 => HttpFilter::Redirect(HttpRedirect {
                status: 302,
                hostname: Some("new".into()),
                ..HttpRedirect::default()
            }),
            2 => HttpFilter::Rewrite(HttpRewrite {
                hostname: self.draw_bool(0.5).then(|| "new".into()),
                path: Some(PathChange::Full(self.choose(&["/a", "/new"]).into())),
            }),
            3 => HttpFilter::ResponseHeaders(HeaderChanges {
                remove: vec!["x-b".into()],
                ..HeaderChanges::default()
            }),
            4 => HttpFilter::Fault(HttpFault {
                delay: None,
                abort: Some((FaultStatus::Http(418), certain(true))),
            }),
            _ => HttpFilter::Fault(HttpFault {
                delay: None,
                abort: Some((FaultStatus::Http(419), certain(false))),
            }),
        }
    }
}
