//! Two readings of a policy for calls of which some fields were not recorded: as if these fields matched, and as if
//! they did not.

use ambit_model::{Authorization, HttpAttribute, HttpOperation, HttpPolicy, HttpSource, Match};

/// Request headers that a waypoint's access log records.
const LOGGED: [&str; 3] = ["user-agent", "x-forwarded-for", "x-request-id"];

/// Source of a recorded call, which determines the fields that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// Access logs: all fields except JWT claims and most headers.
    ByLogs,
    /// Metrics: only the identities and names of callers and servers.
    ByMetrics,
}

impl Knowledge {
    /// Describes the attributes that the source does not record, as a part of a sentence.
    pub(super) fn not(self) -> &'static str {
        match self {
            Self::ByLogs => "logs do not contain: headers or tokens",
            Self::ByMetrics => {
                "metrics do not contain: paths, methods, hosts, ports, addresses, headers or tokens"
            }
        }
    }

    fn attribute(self, attribute: &HttpAttribute) -> bool {
        match attribute {
            HttpAttribute::Header(name) => self == Self::ByLogs && LOGGED.contains(&name.as_str()),
            HttpAttribute::SourceIp
            | HttpAttribute::RemoteIp
            | HttpAttribute::DestinationIp
            | HttpAttribute::DestinationPort
            | HttpAttribute::ConnectionSni => self == Self::ByLogs,
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

    /// Removes from a policy's `source` the fields that are not recorded.
    fn source(self, of: &HttpSource) -> HttpSource {
        let mut known = of.clone();
        known.request_principals.clear();
        known.not_request_principals.clear();
        if self == Self::ByMetrics {
            known.ip_blocks.clear();
            known.not_ip_blocks.clear();
            known.remote_ip_blocks.clear();
            known.not_remote_ip_blocks.clear();
        }
        known
    }

    fn operation(self, of: &HttpOperation) -> HttpOperation {
        match self {
            Self::ByLogs => of.clone(),
            Self::ByMetrics => HttpOperation::default(),
        }
    }
}

/// Returns a waypoint's policy as if the fields that are not recorded matched (`unknown_matches`), or did not.
pub(super) fn at_waypoint(
    policy: &HttpPolicy,
    knowledge: Knowledge,
    unknown_matches: bool,
) -> HttpPolicy {
    let mut policy = policy.clone();
    if unknown_matches {
        for rule in &mut policy.rules {
            rule.conditions
                .retain(|condition| knowledge.attribute(&condition.attribute));
            for source in &mut rule.sources {
                *source = knowledge.source(source);
            }
            for operation in &mut rule.operations {
                *operation = knowledge.operation(operation);
            }
        }
    } else {
        policy.rules.retain_mut(|rule| {
            let (had_sources, had_operations) =
                (!rule.sources.is_empty(), !rule.operations.is_empty());
            rule.sources
                .retain(|source| knowledge.source(source) == *source);
            rule.operations
                .retain(|operation| knowledge.operation(operation) == *operation);
            let mut conditions = rule.conditions.iter();
            conditions.all(|condition| knowledge.attribute(&condition.attribute))
                && (!had_sources || !rule.sources.is_empty())
                && (!had_operations || !rule.operations.is_empty())
        });
    }
    policy
}

/// Returns a node proxy's policy as if the fields that metrics lack (ports, addresses) matched (`unknown_matches`), or
/// did not.
pub(super) fn at_pod(policy: &Authorization, unknown_matches: bool) -> Authorization {
    let mut policy = policy.clone();
    policy.rules.retain_mut(|rule| {
        if unknown_matches {
            let matches = |one: &Match| one != &identity_alone(one);
            rule.retain(|clause| {
                let mut clause = clause.iter();
                !clause.any(|one| matches(one) && identity_alone(one).is_empty())
            });
            for one in rule.iter_mut().flatten() {
                *one = identity_alone(one);
            }
            return true;
        }
        rule.iter_mut().all(|clause| {
            let had_any = !clause.is_empty();
            clause.retain(|one| *one == identity_alone(one));
            !had_any || !clause.is_empty()
        })
    });
    policy
}

fn identity_alone(of: &Match) -> Match {
    Match {
        source_ips: Vec::new(),
        not_source_ips: Vec::new(),
        destination_ips: Vec::new(),
        not_destination_ips: Vec::new(),
        destination_ports: Vec::new(),
        not_destination_ports: Vec::new(),
        ..of.clone()
    }
}
