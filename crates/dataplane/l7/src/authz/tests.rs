//! Fixtures for tests of authorization policies.

use ambit_model::{
    HttpAttribute, HttpCondition, HttpOperation, HttpRule, HttpSource, HttpValue, Identity,
    PathPattern, ServiceAccountMatch, StringMatch,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;

mod claims;
mod matching;
mod reference;
mod scopes;
mod spellings;

/// Test request, with attributes that each test may change.
#[derive(Clone, Debug)]
struct TestRequest {
    source: Option<Identity>,
    source_ip: &'static str,
    remote_ip: &'static str,
    destination: &'static str,
    sni: Option<&'static str>,
    method: String,
    host: String,
    path: String,
    headers: HeaderMap,
    claims: Option<ambit_jwt::Claims>,
}

impl Default for TestRequest {
    fn default() -> Self {
        Self {
            source: Some(Identity::new("td", "ns", "sa")),
            source_ip: "10.0.0.1",
            remote_ip: "192.0.2.1",
            destination: "10.96.0.9:80",
            sni: None,
            method: "GET".to_owned(),
            host: "shop.example.com".to_owned(),
            path: "/".to_owned(),
            headers: HeaderMap::new(),
            claims: None,
        }
    }
}

impl TestRequest {
    fn path(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            ..Self::default()
        }
    }

    fn with_header(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value).unwrap(),
        );
        self
    }

    fn connection(&self) -> Connection<'_> {
        Connection {
            source: self.source.as_ref(),
            source_ip: self.source_ip.parse().unwrap(),
            remote_ip: self.remote_ip.parse().unwrap(),
            destination: self.destination.parse().unwrap(),
            sni: self.sni,
        }
    }

    fn request(&self) -> Request<'_> {
        Request {
            connection: self.connection(),
            method: &self.method,
            host: &self.host,
            path: &self.path,
            headers: &self.headers,
            claims: self.claims.as_ref(),
        }
    }
}

fn key(name: &str) -> PolicyKey {
    PolicyKey::from_resource_name(&format!("ns/{name}"))
}

fn policy(name: &str, action: HttpAction, rules: Vec<HttpRule>) -> HttpPolicy {
    HttpPolicy {
        key: key(name),
        for_gateway: true,
        action,
        rules,
        ..HttpPolicy::default()
    }
}

fn policies(all: impl IntoIterator<Item = HttpPolicy>) -> Policies {
    let mut policies = Policies::default();
    for policy in all {
        policies.insert(policy);
    }
    policies
}

fn texts(patterns: &[&str]) -> Vec<StringMatch> {
    patterns
        .iter()
        .map(|text| StringMatch::from_pattern(text))
        .collect()
}

fn paths(patterns: &[&str]) -> Vec<PathPattern> {
    patterns
        .iter()
        .map(|text| match text.contains('{') {
            true => PathPattern::Template((*text).into()),
            false => PathPattern::Text(StringMatch::from_pattern(text)),
        })
        .collect()
}

fn source_rule(source: HttpSource) -> HttpRule {
    HttpRule {
        sources: vec![source],
        ..HttpRule::default()
    }
}

fn operation_rule(operation: HttpOperation) -> HttpRule {
    HttpRule {
        operations: vec![operation],
        ..HttpRule::default()
    }
}

fn condition_rule(
    attribute: HttpAttribute,
    values: Vec<HttpValue>,
    not_values: Vec<HttpValue>,
) -> HttpRule {
    HttpRule {
        conditions: vec![HttpCondition {
            attribute,
            values,
            not_values,
        }],
        ..HttpRule::default()
    }
}

/// Whether a rule matches a request when it is the only rule of a policy with this action.
fn matches(rule: &HttpRule, action: HttpAction, call: &TestRequest) -> bool {
    let policies = policies([policy("p", action, vec![rule.clone()])]);
    let decision = policies.evaluate(Scope::Pod(&[]), &call.request());
    decision.is_allowed() == (action == HttpAction::Allow)
}

/// Whether a rule matches the request as received, without other readings.
fn plainly_matches(rule: &HttpRule, call: &TestRequest) -> bool {
    let allowed = matches(rule, HttpAction::Allow, call);
    assert_eq!(allowed, matches(rule, HttpAction::Deny, call), "{rule:?}");
    allowed
}
