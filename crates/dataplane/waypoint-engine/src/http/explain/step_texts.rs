//! Builds the texts of the steps of an explanation (`POST /explain`).

use ambit_jwt::{AuthenticatedRequest, RejectionReason};
use ambit_l7::{
    authz::{DecisionReason, HttpDecision, PolicyOutcome},
    route::{Mismatch, Rule},
};
use ambit_mesh_json::explain::{
    EvaluatedObject, ExplainedResult, Hop, HopKind, Step, StepKind, StepResult,
};
use ambit_model::{Authentication, FaultStatus, HttpFault, RateLimit, RequestFraction};
use ambit_proxy::explain::evaluated_policy;
use http::Response;

use super::Destination;
use crate::{destination::DestinationPort, message::Body};

/// Describes a response that the waypoint would generate; gRPC clients receive a gRPC status.
pub(super) fn response_end(response: &Response<Body>, why: &str) -> ExplainedResult {
    let grpc = response.headers().get("grpc-status");
    let grpc = grpc.and_then(|status| status.to_str().ok());
    ExplainedResult::Responded {
        status: response.status().as_u16(),
        why: match grpc {
            Some(status) => format!("gRPC status {status}: {why}"),
            None => why.to_owned(),
        },
    }
}

/// Describes the verification of tokens by the applicable RequestAuthentications. Reveals only the issuer and subject
/// of a valid token.
pub(super) fn authentication(
    applied: &[&Authentication],
    authenticated: Option<&AuthenticatedRequest>,
    denial: Option<&RejectionReason>,
) -> Step {
    let issuers: Vec<_> = authenticated
        .into_iter()
        .flat_map(AuthenticatedRequest::claims)
        .filter_map(|claims| claims.issuer())
        .collect();
    let is_of = |one: &Authentication, issuer: &str| {
        let mut rules = one.rules.iter();
        rules.any(|rule| rule.issuer == issuer)
    };
    let considered = applied.iter().map(|one| {
        let takes: Vec<_> = one.rules.iter().map(|rule| rule.issuer.as_str()).collect();
        EvaluatedObject {
            object: one.key.to_string(),
            effect: "REQUESTAUTHENTICATION".to_owned(),
            result: match issuers.iter().any(|issuer| is_of(one, issuer)) {
                true => "a valid token is present".to_owned(),
                false => format!("no valid token of {}", takes.join(", ")),
            },
        }
    });
    let considered = considered.collect();
    if let Some(denial) = denial {
        let step = Step::new(
            StepKind::Authentication,
            StepResult::Refused,
            denial.to_string(),
        );
        let step = step.with_evaluated_objects(considered);
        return match denial {
            RejectionReason::InvalidPolicy(key, _) => {
                step.with_object(format!("RequestAuthentication {key}"))
            }
            // The issuer of an invalid token is unknown.
            RejectionReason::InvalidToken(_) => match applied {
                [one] => step.with_object(format!("RequestAuthentication {}", one.key)),
                _ => step,
            },
        };
    }
    let principals = authenticated
        .into_iter()
        .flat_map(AuthenticatedRequest::claims);
    let principals = principals.map(|claims| match claims.principal() {
        Some((issuer, subject)) => format!("{issuer}/{subject}"),
        None => format!("{}, without a subject", claims.issuer().unwrap_or_default()),
    });
    let principals: Vec<_> = principals.collect();
    let by = applied
        .iter()
        .find(|one| issuers.iter().any(|issuer| is_of(one, issuer)));
    let step = match principals.is_empty() {
        true => Step::new(
            StepKind::Authentication,
            StepResult::Passed,
            "no token: the request proves no principal",
        ),
        false => Step::new(
            StepKind::Authentication,
            StepResult::Passed,
            format!("the token is valid: principal {}", principals.join(" and ")),
        ),
    };
    let step = step.with_evaluated_objects(considered);
    match by {
        Some(one) => step.with_object(format!("RequestAuthentication {}", one.key)),
        None => step,
    }
}

/// Describes the decision of the policies. `is_allowed` is the final decision: the data path also rejects a request
/// that another authorization provider would have to check.
pub(super) fn authorization(
    step: StepKind,
    decision: &HttpDecision,
    policies: &[PolicyOutcome],
    is_allowed: bool,
) -> Step {
    let result = match is_allowed {
        true => StepResult::Passed,
        false => StepResult::Refused,
    };
    let why = match decision.is_allowed() && !is_allowed {
        true => "the policies changed: a provider would have to check it again".to_owned(),
        false => match &decision.reason {
            // Counted from 1, as in the list of policies.
            DecisionReason::AllowedByRule(rule) => format!("allowed by its rule {}", rule.rule + 1),
            DecisionReason::DeniedByRule(rule) => format!("denied by its rule {}", rule.rule + 1),
            DecisionReason::NoAllowPolicies
            | DecisionReason::NoAllowPolicyMatched
            | DecisionReason::InvalidPolicy { .. } => decision.to_string(),
        },
    };
    let considered = policies
        .iter()
        .map(|one| evaluated_policy(&one.policy, one.action, one.dry_run, one.matching_rule));
    let step = Step::new(step, result, why).with_evaluated_objects(considered.collect());
    match &decision.reason {
        DecisionReason::AllowedByRule(rule) | DecisionReason::DeniedByRule(rule) => {
            step.with_object(format!("AuthorizationPolicy {}", rule.policy))
        }
        DecisionReason::InvalidPolicy { policy, .. } => {
            step.with_object(format!("AuthorizationPolicy {policy}"))
        }
        DecisionReason::NoAllowPolicies | DecisionReason::NoAllowPolicyMatched => step,
    }
}

/// Describes the route rule that matches the request.
pub(super) fn route(rule: &Rule, refused: Option<&str>, is_answered: bool) -> Step {
    let backends: Vec<_> = rule
        .backends()
        .iter()
        .map(|backend| {
            let to = match &backend.target.service {
                Ok(service) => format!("{service}:{}", backend.target.port),
                Err(why) => why.to_string(),
            };
            match &backend.target.subset {
                Some(subset) => format!("{to} subset {subset} weight {}", backend.target.weight),
                None => format!("{to} weight {}", backend.target.weight),
            }
        })
        .collect();
    let which = format!("{} matches", rule_name(rule));
    let (result, why) = match refused {
        Some(text) => (StepResult::Refused, format!("{which}: {text}")),
        None if is_answered => (StepResult::Responded, which),
        None => (
            StepResult::Passed,
            format!("{which}; backends: {}", backends.join(", ")),
        ),
    };
    let step = Step::new(StepKind::Route, result, why);
    step.with_object(route_object_name(rule))
}

fn route_object_name(rule: &Rule) -> String {
    let route = &rule.route;
    format!("{} {}/{}", route.kind, route.namespace, route.name)
}

fn rule_name(rule: &Rule) -> String {
    match &rule.name {
        Some(name) => format!("rule {} ({name})", rule.rule_index + 1),
        None => format!("rule {}", rule.rule_index + 1),
    }
}

/// Describes a route rule, and why the request does not match it.
pub(super) fn considered_rule(rule: &Rule, mismatch: Option<&Mismatch>) -> EvaluatedObject {
    EvaluatedObject {
        object: format!("{} {}", route_object_name(rule), rule_name(rule)),
        effect: String::new(),
        result: match mismatch {
            None => "matches".to_owned(),
            Some(Mismatch::Path) => "another path".to_owned(),
            Some(Mismatch::Method) => "another method".to_owned(),
            Some(Mismatch::Header(name)) => format!("the header {name} is missing or differs"),
            Some(Mismatch::QueryParam(name)) => {
                format!("the query parameter {name} is missing or differs")
            }
        },
    }
}

/// Describes a rate limit that would count the request.
pub(super) fn considered_limit(config: &RateLimit) -> EvaluatedObject {
    let dry_run = if config.dry_run { " (dry run)" } else { "" };
    EvaluatedObject {
        object: config.key.to_string(),
        effect: format!("RATELIMIT{dry_run}"),
        result: "not counted".to_owned(),
    }
}

/// Describes a fault filter with its delay, abort and fractions.
pub(super) fn fault(filter: &HttpFault) -> String {
    let share =
        |share: RequestFraction| format!("{} of {} requests", share.numerator, share.denominator);
    let delay = filter
        .delay
        .map(|(delay, of)| format!("{} wait {} ms", share(of), delay.as_millis()));
    let abort = filter.abort.map(|(status, of)| match status {
        FaultStatus::Http(status) => format!("{} are answered {status}", share(of)),
        FaultStatus::Grpc(status) => format!("{} are answered gRPC status {status}", share(of)),
    });
    let parts: Vec<_> = delay.into_iter().chain(abort).collect();
    format!("injected fault: {}", parts.join(", "))
}

/// Describes the settings of a destination's `DestinationRule` or `BackendTLSPolicy`.
pub(super) fn destination(destination: &Destination, port: &DestinationPort) -> Step {
    let name = match destination {
        Destination::Subset(service, port, subset) => format!("{service}:{port} subset {subset}"),
        Destination::Backend(service, port) => format!("{service}:{port}"),
        Destination::Target | Destination::Host(_) => "the called port".to_owned(),
    };
    match port.check_supported() {
        Ok(()) => {
            let tls = if port.tls().is_some() {
                ", TLS begins here"
            } else {
                ""
            };
            let why =
                format!("a DestinationRule is for {name}{tls}; its limits are not counted here");
            Step::new(StepKind::TrafficPolicy, StepResult::Passed, why)
        }
        Err(error) => Step::new(
            StepKind::TrafficPolicy,
            StepResult::Refused,
            error.to_string(),
        ),
    }
}

/// Describes the endpoint to which the request would be sent.
pub(super) fn endpoint(hop: &Hop) -> String {
    let address = hop.address;
    match hop.to {
        HopKind::Waypoint => format!("{} at {address}, the waypoint of the backend", hop.workload),
        HopKind::Tunnel => format!("{} at {}, in a tunnel", hop.workload, hop.authority),
        HopKind::Plaintext => format!("{} at {address}, in plaintext", hop.workload),
        HopKind::OutsideMesh => format!("{address}, outside of the mesh"),
    }
}
