//! Decodes `istio.security.Authorization` strictly.
//!
//! Nothing may be ignored in a policy: an ignored source address widens an ALLOW policy, and an ignored match narrows a
//! DENY policy. A policy that cannot be decoded in full is rejected, and replaced by a fail-closed substitute.

use ambit_model::{self as model, PolicyKey};
use ipnet::IpNet;
use prost::Message;

use super::{
    error::{DecodeError, DecodeErrorReason},
    fields::{decode_enum, decode_port, decode_prefix},
    strict::{RecordDecodeError, Substitute, check_resource_name, decode_strictly},
};
use crate::{security as wire, unknown::ISTIO_SECURITY_AUTHORIZATION};

/// Decodes an `istio.security.Authorization` in full: a field that this build does not know is an error.
pub fn decode_authorization(bytes: &[u8]) -> Result<model::Authorization, DecodeError> {
    let policy: wire::Authorization =
        decode_strictly("authorization", &ISTIO_SECURITY_AUTHORIZATION, bytes)?;
    policy.try_into()
}

/// Decodes the policy with a resource name (`namespace/name`).
///
/// # Errors
///
/// When the policy cannot be decoded in full; the error contains its deny-all substitute, see
/// [`model::Authorization::deny_all_substitute`].
pub fn decode_policy(
    name: &str,
    bytes: &[u8],
) -> Result<model::Authorization, RecordDecodeError<model::Authorization>> {
    let (read, key) = (decode_authorization(bytes), model::Authorization::key);
    check_resource_name(name, "authorization.name", read, key, |key, why| {
        let record = Box::new(deny_all_substitute(key, bytes, why));
        Substitute {
            effect: match record.dry_run {
                true => "none, it is a dry run",
                false => "every connection in its scope is denied",
            },
            record,
            is_policy: true,
        }
    })
}

/// Name, scope and dry-run flag of a policy. They are decoded without its rules, to build the substitute of an invalid
/// policy.
#[derive(Message)]
struct PolicyOutline {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(int32, tag = "3")]
    scope: i32,
    #[prost(bool, tag = "6")]
    dry_run: bool,
}

/// Builds the fail-closed substitute of a policy. If the scope of the policy cannot be decoded, the substitute applies
/// to the namespace in the policy's key, or to the whole mesh if the key has no namespace. Contents with another name
/// than the key's are not used.
fn deny_all_substitute(key: PolicyKey, bytes: &[u8], why: model::ArcStr) -> model::Authorization {
    let named =
        |outline: &PolicyOutline| key.name == outline.name && key.namespace == outline.namespace;
    let outline = PolicyOutline::decode(bytes).ok().filter(named);
    let declared = outline
        .as_ref()
        .and_then(|outline| decode_scope(outline.scope).ok());
    let scope = match declared.unwrap_or(model::Scope::Namespace) {
        model::Scope::Namespace if key.namespace.is_empty() => model::Scope::Global,
        scope => scope,
    };
    let dry_run = outline.is_some_and(|outline| outline.dry_run);
    model::Authorization::substitute(key, scope, dry_run, why)
}

impl TryFrom<wire::Authorization> for model::Authorization {
    type Error = DecodeError;

    fn try_from(from: wire::Authorization) -> Result<Self, DecodeError> {
        if from.name.is_empty() {
            return Err(DecodeError::missing("authorization.name"));
        }
        reject_extensions("authorization.extensions", &from.extensions)?;
        let rules = from
            .rules
            .into_iter()
            .map(|rule| {
                let clause = |clause: wire::Clause| {
                    if clause.matches.is_empty() {
                        return Err(DecodeError::new(
                            "clause.matches",
                            DecodeErrorReason::EmptyField,
                        ));
                    }
                    clause.matches.into_iter().map(TryInto::try_into).collect()
                };
                rule.clauses.into_iter().map(clause).collect()
            })
            .collect::<Result<Vec<model::Rule>, DecodeError>>()?;
        Ok(Self {
            name: from.name.into(),
            namespace: from.namespace.into(),
            scope: decode_scope(from.scope)?,
            action: match decode_enum("authorization.action", from.action)? {
                wire::Action::Allow => model::Action::Allow,
                wire::Action::Deny => model::Action::Deny,
            },
            rules,
            dry_run: from.dry_run,
            not_understood: None,
        })
    }
}

fn decode_scope(value: i32) -> Result<model::Scope, DecodeError> {
    Ok(match decode_enum("authorization.scope", value)? {
        wire::Scope::Global => model::Scope::Global,
        wire::Scope::Namespace => model::Scope::Namespace,
        wire::Scope::WorkloadSelector => model::Scope::WorkloadSelector,
    })
}

/// Rejects extensions of a policy, since an extension may be a condition.
fn reject_extensions(
    field: &'static str,
    extensions: &[wire::Extension],
) -> Result<(), DecodeError> {
    match extensions.first() {
        Some(extension) => Err(DecodeError::new(
            field,
            DecodeErrorReason::UnknownExtension(extension.name.clone()),
        )),
        None => Ok(()),
    }
}

impl TryFrom<wire::Match> for model::Match {
    type Error = DecodeError;

    fn try_from(from: wire::Match) -> Result<Self, DecodeError> {
        reject_extensions("match.extensions", &from.extensions)?;
        Ok(Self {
            namespaces: decode_string_matches("match.namespaces", from.namespaces)?,
            not_namespaces: decode_string_matches("match.not_namespaces", from.not_namespaces)?,
            principals: decode_string_matches("match.principals", from.principals)?,
            not_principals: decode_string_matches("match.not_principals", from.not_principals)?,
            service_accounts: decode_service_account_matches(
                "match.service_accounts",
                from.service_accounts,
            )?,
            not_service_accounts: decode_service_account_matches(
                "match.not_service_accounts",
                from.not_service_accounts,
            )?,
            source_ips: decode_ip_nets("match.source_ips", &from.source_ips)?,
            not_source_ips: decode_ip_nets("match.not_source_ips", &from.not_source_ips)?,
            destination_ips: decode_ip_nets("match.destination_ips", &from.destination_ips)?,
            not_destination_ips: decode_ip_nets(
                "match.not_destination_ips",
                &from.not_destination_ips,
            )?,
            destination_ports: decode_ports("match.destination_ports", from.destination_ports)?,
            not_destination_ports: decode_ports(
                "match.not_destination_ports",
                from.not_destination_ports,
            )?,
        })
    }
}

pub(crate) fn decode_string_matches(
    field: &'static str,
    from: Vec<wire::StringMatch>,
) -> Result<Vec<model::StringMatch>, DecodeError> {
    use wire::string_match::MatchType;
    from.into_iter()
        .map(|text| match text.match_type {
            Some(MatchType::Exact(text)) => Ok(model::StringMatch::Exact(text.into())),
            // Would match every text, which the contract expresses by `presence`.
            Some(MatchType::Prefix(text) | MatchType::Suffix(text)) if text.is_empty() => {
                Err(DecodeError::new(field, DecodeErrorReason::EmptyMatch))
            }
            Some(MatchType::Prefix(text)) => Ok(model::StringMatch::Prefix(text.into())),
            Some(MatchType::Suffix(text)) => Ok(model::StringMatch::Suffix(text.into())),
            Some(MatchType::Presence(())) => Ok(model::StringMatch::Presence),
            None => Err(DecodeError::new(field, DecodeErrorReason::EmptyMatch)),
        })
        .collect()
}

pub(crate) fn decode_ip_nets(
    field: &'static str,
    from: &[wire::Address],
) -> Result<Vec<IpNet>, DecodeError> {
    from.iter()
        .map(|net| decode_prefix(field, &net.address, net.length))
        .collect()
}

pub(crate) fn decode_ports(field: &'static str, from: Vec<u32>) -> Result<Vec<u16>, DecodeError> {
    from.into_iter()
        .map(|number| decode_port(field, number))
        .collect()
}

pub(crate) fn decode_service_account_matches(
    field: &'static str,
    from: Vec<wire::ServiceAccountMatch>,
) -> Result<Vec<model::ServiceAccountMatch>, DecodeError> {
    from.into_iter()
        .map(|account| {
            if account.namespace.is_empty() || account.service_account.is_empty() {
                return Err(DecodeError::new(field, DecodeErrorReason::EmptyMatch));
            }
            Ok(model::ServiceAccountMatch {
                namespace: account.namespace.into(),
                service_account: account.service_account.into(),
            })
        })
        .collect()
}
