//! Values of policies: names, addresses, ports.

use std::net::IpAddr;

use ambit_k8s_api::is_dns_name;
use ambit_model::{ArcStr, ServiceAccountMatch, StringMatch};
use ipnet::IpNet;

use crate::problem::{FieldError, Note};

/// Reads each value. An empty one could widen the policy and is an error, as is what `read` refuses.
pub(crate) fn list<T>(
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

/// Names of peers: principals or namespaces.
pub(crate) fn names(
    values: &[String],
    field: &str,
    notes: &mut Vec<Note>,
) -> Result<Vec<StringMatch>, FieldError> {
    let literal = values.iter().enumerate();
    for (index, value) in literal.filter(|(_, value)| matches_nobody(value)) {
        let message = format!(
            "{value:?} is compared as it is written and matches nobody: '*' stands for other text only at the beginning or at the end, and principals are written without spiffe://"
        );
        notes.push(Note::new(format!("{field}[{index}]"), message));
    }
    list(values, field, pattern)
}

/// `*`, `*suffix` and `prefix*`; a `*` anywhere else is a character like any other, as it is to Istio.
pub(crate) fn pattern(text: &str) -> Result<StringMatch, String> {
    Ok(StringMatch::from_pattern(text))
}

/// Whether a pattern has a form that many take for more than it is: peers' names have no `*`, and are
/// compared without their scheme.
pub(crate) fn matches_nobody(text: &str) -> bool {
    let literal = match StringMatch::from_pattern(text) {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) => text,
        StringMatch::Presence => return false,
    };
    literal.contains('*') || text.starts_with("spiffe://")
}

/// `namespace/account`, or an account of the policy's namespace.
pub(crate) fn service_account(
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

/// An address or a prefix.
pub(crate) fn net(text: &str) -> Result<IpNet, String> {
    text.parse::<IpAddr>()
        .map(|ip| IpNet::from(ip.to_canonical()))
        .or_else(|_| text.parse::<IpNet>())
        .map(|net| net.trunc())
        .map_err(|_| format!("{text:?} is neither an IP address nor a prefix"))
}

/// Parses a port.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    text.parse::<u16>()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{text:?} is not a port, 1 to 65535"))
}
