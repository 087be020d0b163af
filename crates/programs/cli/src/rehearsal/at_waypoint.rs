//! Policies of one waypoint, and their decisions about recorded calls. Pure.

use ambit_l7::authz::{self as l7, Scope};
use ambit_model::{HttpAction, HttpPolicy};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    decision::CallDecision,
    observed::Request,
    readings::{self, Knowledge},
};

/// Policies of one waypoint, in two readings each, since records lack some fields of requests: `most` allows as much as
/// the unknown values could allow, `least` as little.
pub(super) struct AtWaypoint {
    knowledge: Knowledge,
    most: l7::Policies,
    least: l7::Policies,
}

impl AtWaypoint {
    /// Creates a waypoint without policies, for calls recorded by this source.
    pub(super) fn new(knowledge: Knowledge) -> Self {
        Self {
            knowledge,
            most: l7::Policies::default(),
            least: l7::Policies::default(),
        }
    }

    /// Adds a policy in both readings.
    pub(super) fn insert(&mut self, policy: &HttpPolicy) {
        let admits = policy.action == HttpAction::Allow;
        let reading = |matches| readings::at_waypoint(policy, self.knowledge, matches);
        let (most, least) = (reading(admits), reading(!admits));
        self.most.insert(most);
        self.least.insert(least);
    }

    pub(super) fn judge(
        &self,
        scope: Scope<'_>,
        connection: &l7::Connection<'_>,
        request: Option<&Request>,
    ) -> CallDecision {
        let headers = request.map(headers).unwrap_or_default();
        let request = request.map(|request| l7::Request {
            connection: *connection,
            method: &request.method,
            host: &request.authority,
            path: &request.path,
            headers: &headers,
            claims: None,
        });
        let decide = |policies: &l7::Policies| match &request {
            Some(request) => policies.evaluate(scope, request),
            None => policies.evaluate_connection(scope, connection),
        };
        let (most, least) = (decide(&self.most), decide(&self.least));
        if most.is_allowed() != least.is_allowed() {
            return CallDecision::Undecided(format!(
                "it depends on fields that {} in {}",
                self.knowledge.not(),
                self.ambiguous(scope).join(", ")
            ));
        }
        let check = match &request {
            Some(request) => self.least.required_check(scope, request),
            None => self.least.required_connection_check(scope, connection),
        };
        match least.why {
            l7::Why::NoAllowPolicies | l7::Why::Allowed(_) => match check {
                l7::RequiredCheck::NotRequired => CallDecision::Allowed,
                l7::RequiredCheck::Provider(provider, rule) => CallDecision::Undecided(format!(
                    "provider {} of {} decides",
                    provider.name, rule.policy
                )),
                l7::RequiredCheck::Denied(why) => CallDecision::Refused {
                    by: "CUSTOM policies".to_owned(),
                    why,
                },
            },
            l7::Why::Denied(rule) => CallDecision::Refused {
                by: rule.policy.to_string(),
                why: format!("rule {} of a DENY policy matches", rule.rule + 1),
            },
            l7::Why::NotUnderstood { policy, why } => CallDecision::Refused {
                by: policy.to_string(),
                why: format!("it is not understood ({why}) and denies all that it covers"),
            },
            l7::Why::NoneAllows => CallDecision::Refused {
                by: self.allowing(scope).join(", "),
                why: "no rule of these ALLOW policies matches".to_owned(),
            },
        }
    }

    fn allowing(&self, scope: Scope<'_>) -> Vec<String> {
        let allowing = in_scope(&self.least, scope);
        let allowing = allowing.filter(|policy| policy.action == HttpAction::Allow);
        let mut names: Vec<_> = allowing.map(|policy| policy.key.to_string()).collect();
        names.sort();
        names
    }

    /// Returns the names of the policies whose two readings differ.
    fn ambiguous(&self, scope: Scope<'_>) -> Vec<String> {
        let least: Vec<_> = in_scope(&self.least, scope).collect();
        let differ = in_scope(&self.most, scope).filter(|policy| !least.contains(policy));
        let mut names: Vec<_> = differ.map(|policy| policy.key.to_string()).collect();
        names.sort();
        names
    }
}

fn in_scope<'a>(
    policies: &'a l7::Policies,
    scope: Scope<'a>,
) -> impl Iterator<Item = &'a HttpPolicy> {
    let applies = move |policy: &&HttpPolicy| {
        let of_service = match scope {
            Scope::Service(service) | Scope::Backend(service) => policy.services.contains(service),
            Scope::Pod(ports) => ports
                .iter()
                .any(|port| policy.services.contains(&port.service)),
        };
        !policy.dry_run && (policy.for_gateway || of_service)
    };
    policies.iter().filter(applies)
}

fn headers(request: &Request) -> HeaderMap {
    let headers = request.headers.iter();
    let header = |(name, value): (&&'static str, &String)| {
        let value = HeaderValue::from_str(value).ok()?;
        Some((HeaderName::from_static(name), value))
    };
    headers.filter_map(header).collect()
}
