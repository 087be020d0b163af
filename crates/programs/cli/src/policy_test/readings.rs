//! Two interpretations of a policy for calls of which some fields were not recorded: as if these fields matched, and as
//! if they did not.

use ambit_model::{Authorization, HttpAttribute, HttpOperation, HttpPolicy, HttpSource, Match};

/// Request headers that a waypoint's access log records.
const LOGGED_HEADERS: [&str; 3] = ["user-agent", "x-forwarded-for", "x-request-id"];

/// Source of a recorded call, which determines the fields that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallSource {
    /// Access logs: all fields except JWT claims and most headers.
    AccessLogs,
    /// Metrics: only the identities and names of callers and servers.
    Metrics,
}

impl CallSource {
    /// Describes the attributes that the source does not record, as a part of a sentence.
    pub(super) fn unrecorded_attributes(self) -> &'static str {
        match self {
            Self::AccessLogs => "logs do not contain: headers or tokens",
            Self::Metrics => {
                "metrics do not contain: paths, methods, hosts, ports, addresses, headers or tokens"
            }
        }
    }

    fn records_attribute(self, attribute: &HttpAttribute) -> bool {
        match attribute {
            HttpAttribute::Header(name) => {
                self == Self::AccessLogs && LOGGED_HEADERS.contains(&name.as_str())
            }
            HttpAttribute::SourceIp
            | HttpAttribute::RemoteIp
            | HttpAttribute::DestinationIp
            | HttpAttribute::DestinationPort
            | HttpAttribute::ConnectionSni => self == Self::AccessLogs,
            HttpAttribute::SourceNamespace
            | HttpAttribute::SourceServiceAccount
            | HttpAttribute::SourceTrustDomain
            | HttpAttribute::SourcePrincipal => true,
            HttpAttribute::RequestPrincipal
            | HttpAttribute::RequestAudiences
            | HttpAttribute::RequestPresenter
            | HttpAttribute::RequestClaim(_) => false,
        }
    }

    /// Returns a policy's `source` without the fields that are not recorded.
    fn recorded_source(self, of: &HttpSource) -> HttpSource {
        let mut known = of.clone();
        known.request_principals.clear();
        known.not_request_principals.clear();
        if self == Self::Metrics {
            known.ip_blocks.clear();
            known.not_ip_blocks.clear();
            known.remote_ip_blocks.clear();
            known.not_remote_ip_blocks.clear();
        }
        known
    }

    fn recorded_operation(self, of: &HttpOperation) -> HttpOperation {
        match self {
            Self::AccessLogs => of.clone(),
            Self::Metrics => HttpOperation::default(),
        }
    }
}

/// Returns a waypoint's policy as if the fields that are not recorded matched (`unknown_matches`), or did not.
pub(super) fn waypoint_policy(
    policy: &HttpPolicy,
    knowledge: CallSource,
    unknown_matches: bool,
) -> HttpPolicy {
    let mut policy = policy.clone();
    if unknown_matches {
        for rule in &mut policy.rules {
            rule.conditions
                .retain(|condition| knowledge.records_attribute(&condition.attribute));
            for source in &mut rule.sources {
                *source = knowledge.recorded_source(source);
            }
            for operation in &mut rule.operations {
                *operation = knowledge.recorded_operation(operation);
            }
        }
    } else {
        policy.rules.retain_mut(|rule| {
            let (had_sources, had_operations) =
                (!rule.sources.is_empty(), !rule.operations.is_empty());
            rule.sources
                .retain(|source| knowledge.recorded_source(source) == *source);
            rule.operations
                .retain(|operation| knowledge.recorded_operation(operation) == *operation);
            let mut conditions = rule.conditions.iter();
            conditions.all(|condition| knowledge.records_attribute(&condition.attribute))
                && (!had_sources || !rule.sources.is_empty())
                && (!had_operations || !rule.operations.is_empty())
        });
    }
    policy
}

/// Returns a node proxy's policy as if the fields that metrics lack (ports, addresses) matched (`unknown_matches`), or
/// did not.
pub(super) fn pod_policy(policy: &Authorization, unknown_matches: bool) -> Authorization {
    let mut policy = policy.clone();
    policy.rules.retain_mut(|rule| {
        if unknown_matches {
            let matches = |one: &Match| one != &match_identity_only(one);
            rule.retain(|clause| {
                let mut clause = clause.iter();
                !clause.any(|one| matches(one) && match_identity_only(one).is_empty())
            });
            for one in rule.iter_mut().flatten() {
                *one = match_identity_only(one);
            }
            return true;
        }
        rule.iter_mut().all(|clause| {
            let had_any = !clause.is_empty();
            clause.retain(|one| *one == match_identity_only(one));
            !had_any || !clause.is_empty()
        })
    });
    policy
}

fn match_identity_only(pattern: &Match) -> Match {
    Match {
        source_ips: Vec::new(),
        not_source_ips: Vec::new(),
        destination_ips: Vec::new(),
        not_destination_ips: Vec::new(),
        destination_ports: Vec::new(),
        not_destination_ports: Vec::new(),
        ..pattern.clone()
    }
}
