//! `istio.security.Authorization`.
//!
//! Nothing may be left out here: a source address that is dropped widens an ALLOW, a match without a
//! value narrows a DENY. Such a policy is refused and the one known before stays.

use ambit_model as model;
use ipnet::IpNet;

use super::{DecodeError, Refusal, known, port, prefix};
use crate::security as wire;

impl TryFrom<wire::Authorization> for model::Authorization {
    type Error = DecodeError;

    fn try_from(from: wire::Authorization) -> Result<Self, DecodeError> {
        if from.name.is_empty() {
            return Err(DecodeError::missing("authorization.name"));
        }
        let rules = from
            .rules
            .into_iter()
            .map(|rule| {
                let clause = |clause: wire::Clause| {
                    clause.matches.into_iter().map(TryInto::try_into).collect()
                };
                rule.clauses.into_iter().map(clause).collect()
            })
            .collect::<Result<Vec<model::Rule>, DecodeError>>()?;
        Ok(Self {
            name: from.name.into(),
            namespace: from.namespace.into(),
            scope: match known("authorization.scope", from.scope)? {
                wire::Scope::Global => model::Scope::Global,
                wire::Scope::Namespace => model::Scope::Namespace,
                wire::Scope::WorkloadSelector => model::Scope::WorkloadSelector,
            },
            action: match known("authorization.action", from.action)? {
                wire::Action::Allow => model::Action::Allow,
                wire::Action::Deny => model::Action::Deny,
            },
            rules,
            dry_run: from.dry_run,
        })
    }
}

impl TryFrom<wire::Match> for model::Match {
    type Error = DecodeError;

    fn try_from(from: wire::Match) -> Result<Self, DecodeError> {
        Ok(Self {
            namespaces: texts("match.namespaces", from.namespaces)?,
            not_namespaces: texts("match.not_namespaces", from.not_namespaces)?,
            principals: texts("match.principals", from.principals)?,
            not_principals: texts("match.not_principals", from.not_principals)?,
            service_accounts: accounts(from.service_accounts),
            not_service_accounts: accounts(from.not_service_accounts),
            source_ips: nets("match.source_ips", &from.source_ips)?,
            not_source_ips: nets("match.not_source_ips", &from.not_source_ips)?,
            destination_ips: nets("match.destination_ips", &from.destination_ips)?,
            not_destination_ips: nets("match.not_destination_ips", &from.not_destination_ips)?,
            destination_ports: ports("match.destination_ports", from.destination_ports)?,
            not_destination_ports: ports(
                "match.not_destination_ports",
                from.not_destination_ports,
            )?,
        })
    }
}

fn texts(
    field: &'static str,
    from: Vec<wire::StringMatch>,
) -> Result<Vec<model::StringMatch>, DecodeError> {
    use wire::string_match::MatchType;
    from.into_iter()
        .map(|text| match text.match_type {
            Some(MatchType::Exact(text)) => Ok(model::StringMatch::Exact(text.into())),
            Some(MatchType::Prefix(text)) => Ok(model::StringMatch::Prefix(text.into())),
            Some(MatchType::Suffix(text)) => Ok(model::StringMatch::Suffix(text.into())),
            Some(MatchType::Presence(())) => Ok(model::StringMatch::Presence([])),
            None => Err(DecodeError::new(field, Refusal::EmptyMatch)),
        })
        .collect()
}

fn nets(field: &'static str, from: &[wire::Address]) -> Result<Vec<IpNet>, DecodeError> {
    from.iter()
        .map(|net| prefix(field, &net.address, net.length))
        .collect()
}

fn ports(field: &'static str, from: Vec<u32>) -> Result<Vec<u16>, DecodeError> {
    from.into_iter().map(|number| port(field, number)).collect()
}

fn accounts(from: Vec<wire::ServiceAccountMatch>) -> Vec<model::ServiceAccountMatch> {
    from.into_iter()
        .map(|account| model::ServiceAccountMatch {
            namespace: account.namespace.into(),
            service_account: account.service_account.into(),
        })
        .collect()
}
