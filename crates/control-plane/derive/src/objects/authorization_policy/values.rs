//! Parsing of values in AuthorizationPolicies: principals, namespaces, addresses, ports.

use std::net::IpAddr;

use ambit_k8s_api::is_dns_name;
use ambit_model::{ArcStr, ServiceAccountMatch, StringMatch};
use ipnet::IpNet;

use crate::problem::{FieldError, Note};

/// Parses each value of a list with `read`. An empty value is an error, since it could make the policy match more.
pub(crate) fn parse_list<T>(
    values: &[String],
    field: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, FieldError> {
    values
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let error = |message| FieldError::new(format!("{field}[{index}]"), message);
            if value.is_empty() {
                return Err(error("is empty".to_owned()));
            }
            read(value).map_err(error)
        })
        .collect()
}

/// Parses patterns of principals, namespaces or trust domains, and notes patterns that match none.
pub(crate) fn parse_patterns(
    values: &[String],
    field: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<StringMatch>, FieldError> {
    let literal = values.iter().enumerate();
    for (index, value) in literal.filter(|(_, value)| matches_no_principal(value)) {
        let message = format!(
            "{value:?} is compared as it is written and matches nobody: '*' stands for other text only at the beginning or at the end, and principals are written without spiffe://"
        );
        notes.push(Note::new(format!("{field}[{index}]"), message));
    }
    parse_list(values, field, parse_pattern)
}

/// Parses a pattern: `*`, `*suffix` or `prefix*`; a `*` anywhere else is a literal character, as in Istio.
pub(crate) fn parse_pattern(text: &str) -> Result<StringMatch, String> {
    Ok(StringMatch::from_pattern(text))
}

/// Whether a pattern of principals can match none: `*` in the middle is a literal character, which principals do not
/// contain, and principals are compared without `spiffe://`.
pub(crate) fn matches_no_principal(text: &str) -> bool {
    let literal = match StringMatch::from_pattern(text) {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) => text,
        StringMatch::Presence => return false,
    };
    literal.contains('*') || text.starts_with("spiffe://")
}

/// Parses a service account: `namespace/account`, or `account` in the policy's namespace.
pub(crate) fn parse_service_account(
    text: &str,
    namespace: &ArcStr,
) -> Result<ServiceAccountMatch, String> {
    let (namespace, account) = match text.split_once('/') {
        Some((namespace, account)) => (ArcStr::from(namespace), account),
        None => (namespace.clone(), text),
    };
    if !is_dns_name(&namespace, 63) || !is_dns_name(account, 253) {
        return Err(format!(
            "{text:?} is not <namespace>/<service account> or <service account>"
        ));
    }
    Ok(ServiceAccountMatch {
        namespace,
        service_account: account.into(),
    })
}

/// Parses an IP address or a CIDR prefix.
pub(crate) fn parse_ip_net(text: &str) -> Result<IpNet, String> {
    text.parse::<IpAddr>()
        .map(|ip| IpNet::from(ip.to_canonical()))
        .or_else(|_| text.parse::<IpNet>())
        .map(|net| net.trunc())
        .map_err(|_| format!("{text:?} is neither an IP address nor a prefix"))
}

/// Parses a port number from 1 to 65535.
pub(crate) fn parse_port(text: &str) -> Result<u16, String> {
    text.parse::<u16>()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{text:?} is not a port, 1 to 65535"))
}
