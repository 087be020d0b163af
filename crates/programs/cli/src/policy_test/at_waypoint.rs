//! Policies of one waypoint, and their decisions about recorded calls. Pure.

use ambit_l7::authz::{self as l7, Scope};
use ambit_model::{HttpAction, HttpPolicy};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    decision::CallDecision,
    observed::Request,
    readings::{self, CallSource},
};

/// Policies of one waypoint, in two interpretations, since records lack some fields of requests: `permissive` allows as
/// much as the unknown values could allow, `restrictive` as little.
pub(super) struct WaypointPolicies {
    source: CallSource,
    permissive: l7::Policies,
    restrictive: l7::Policies,
}

impl WaypointPolicies {
    /// Creates a waypoint without policies, for calls recorded by this source.
    pub(super) fn new(knowledge: CallSource) -> Self {
        Self {
            source: knowledge,
            permissive: l7::Policies::default(),
            restrictive: l7::Policies::default(),
        }
    }

    /// Adds a policy to both interpretations: as if unrecorded fields matched, and as if they did not.
    pub(super) fn insert(&mut self, policy: &HttpPolicy) {
        let admits = policy.action == HttpAction::Allow;
        let reading = |matches| readings::waypoint_policy(policy, self.source, matches);
        let (most, least) = (reading(admits), reading(!admits));
        self.permissive.insert(most);
        self.restrictive.insert(least);
    }

    pub(super) fn decide(
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
        let (most, least) = (decide(&self.permissive), decide(&self.restrictive));
        if most.is_allowed() != least.is_allowed() {
            return CallDecision::Undecided(format!(
                "it depends on fields that {} in {}",
                self.source.unrecorded_attributes(),
                self.ambiguous_policies(scope).join(", ")
            ));
        }
        let check = match &request {
            Some(request) => self.restrictive.required_check(scope, request),
            None => self
                .restrictive
                .required_connection_check(scope, connection),
        };
        match least.reason {
            l7::DecisionReason::NoAllowPolicies | l7::DecisionReason::AllowedByRule(_) => {
                match check {
                    l7::RequiredCheck::NotRequired => CallDecision::Allowed,
                    l7::RequiredCheck::CheckBy(provider, rule) => CallDecision::Undecided(format!(
                        "provider {} of {} decides",
                        provider.name, rule.policy
                    )),
                    l7::RequiredCheck::Denied(why) => CallDecision::Refused {
                        by: "CUSTOM policies".to_owned(),
                        why,
                    },
                }
            }
            l7::DecisionReason::DeniedByRule(rule) => CallDecision::Refused {
                by: rule.policy.to_string(),
                why: format!("rule {} of a DENY policy matches", rule.rule + 1),
            },
            l7::DecisionReason::InvalidPolicy { policy, why } => CallDecision::Refused {
                by: policy.to_string(),
                why: format!("it is not understood ({why}) and denies all that it covers"),
            },
            l7::DecisionReason::NoAllowPolicyMatched => CallDecision::Refused {
                by: self.allow_policies(scope).join(", "),
                why: "no rule of these ALLOW policies matches".to_owned(),
            },
        }
    }

    fn allow_policies(&self, scope: Scope<'_>) -> Vec<String> {
        let allowing = in_scope(&self.restrictive, scope);
        let allowing = allowing.filter(|policy| policy.action == HttpAction::Allow);
        let mut names: Vec<_> = allowing.map(|policy| policy.key.to_string()).collect();
        names.sort();
        names
    }

    /// Returns the names of the policies whose two interpretations differ.
    fn ambiguous_policies(&self, scope: Scope<'_>) -> Vec<String> {
        let least: Vec<_> = in_scope(&self.restrictive, scope).collect();
        let differ = in_scope(&self.permissive, scope).filter(|policy| !least.contains(policy));
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
