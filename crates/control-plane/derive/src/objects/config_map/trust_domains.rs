//! Parsing of the MeshConfig's trust domains: aliases of the mesh's own one, and root certificates of others.

use std::collections::BTreeSet;

use ambit_model::ArcStr;
use serde_json::Value;

use crate::{
    objects::{
        config_map::fields::{error, map, rest},
        root_certificates::{RootCertificates, RootSource},
    },
    problem::{FieldError, Note},
};

/// Field with further names of the mesh's trust domain.
pub(crate) const ALIASES: &str = "trustDomainAliases";
/// Field with root certificates of trust domains.
pub(crate) const CERTIFICATES: &str = "caCertificates";
/// Maximum number of entries of either field, and of trust domains in one entry.
const MAX_ENTRIES: usize = 64;

/// Parses `trustDomainAliases` of a MeshConfig.
pub(crate) fn aliases(value: &Value) -> Result<BTreeSet<ArcStr>, FieldError> {
    let all = names(ALIASES, value)?;
    Ok(all.into_iter().collect())
}

/// Parses `caCertificates`. Entries with `certSigners` are skipped, since the mesh has no registration authority.
pub(crate) fn certificates(
    value: &Value,
    notes: &mut Vec<Note>,
) -> Result<Vec<RootCertificates>, FieldError> {
    let mut read = Vec::new();
    for (index, one) in entries(CERTIFICATES, value)?.iter().enumerate() {
        let at = format!("{CERTIFICATES}[{index}]");
        let all = map(&at, Some(one))?;
        let known = ["pem", "spiffeBundleUrl", "certSigners", "trustDomains"];
        rest(&at, all, &known, notes);
        let given = |name: &str| all.get(name).filter(|value| !value.is_null());
        let signers = given("certSigners").and_then(Value::as_array);
        if signers.is_some_and(|signers| !signers.is_empty()) {
            let message = "has no effect: roots are not limited to signers, and these are not used";
            notes.push(error(&format!("{at}.certSigners"), message));
            continue;
        }
        let text = |name: &str| match given(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(_) => Err(error(&format!("{at}.{name}"), "is not a text")),
        };
        let source = match (text("pem")?, text("spiffeBundleUrl")?) {
            (Some(pem), None) if pem.contains("-----BEGIN CERTIFICATE-----") => {
                RootSource::Pem(pem.into())
            }
            (Some(_), None) => {
                return Err(error(&format!("{at}.pem"), "has no certificate in PEM"));
            }
            (None, Some(url)) if url.starts_with("https://") => RootSource::Bundle(url.into()),
            (None, Some(url)) => {
                let message = format!("{url:?} is no address of https");
                return Err(error(&format!("{at}.spiffeBundleUrl"), message));
            }
            _ => return Err(error(&at, "must have one of pem and spiffeBundleUrl")),
        };
        let domains = given("trustDomains");
        let domains = domains.map(|value| names(&format!("{at}.trustDomains"), value));
        read.push(RootCertificates {
            trust_domains: domains.transpose()?.unwrap_or_default(),
            source,
        });
    }
    Ok(read)
}

fn entries<'a>(at: &str, value: &'a Value) -> Result<&'a [Value], FieldError> {
    match value {
        Value::Array(all) if all.len() <= MAX_ENTRIES => Ok(all),
        Value::Array(_) => Err(error(at, format!("has more than {MAX_ENTRIES} entries"))),
        _ => Err(error(at, "is not a list")),
    }
}

fn names(at: &str, value: &Value) -> Result<Vec<ArcStr>, FieldError> {
    let read = |(index, one): (usize, &Value)| {
        let name = one.as_str().filter(|name| is_trust_domain(name));
        name.map(ArcStr::from).ok_or_else(|| {
            let message = format!("{one} is not a trust domain, such as example.org");
            error(&format!("{at}[{index}]"), message)
        })
    };
    entries(at, value)?.iter().enumerate().map(read).collect()
}

/// Whether a text is a trust domain (SPIFFE ID, section 2.1).
fn is_trust_domain(text: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    (1..=255).contains(&text.len()) && text.bytes().all(is_allowed)
}
