//! Parsing of the MeshConfig's trust domains: aliases of the mesh's own one, and root certificates of others.

use std::collections::BTreeSet;

use ambit_model::ArcStr;
use serde_json::Value;

use crate::{
    objects::{
        config_map::fields::{as_map, field_error, note_unread_fields},
        root_certificates::{RootCertificates, RootSource},
    },
    problem::{FieldError, Note},
};

/// MeshConfig field with further names of the mesh's trust domain.
pub(crate) const ALIASES_FIELD: &str = "trustDomainAliases";
/// MeshConfig field with root certificates of trust domains.
pub(crate) const CA_CERTIFICATES_FIELD: &str = "caCertificates";
/// Maximum number of entries of `trustDomainAliases` and of `caCertificates`, and of trust domains in one entry.
const MAX_TRUST_DOMAIN_ENTRIES: usize = 64;

/// Parses `trustDomainAliases` of a MeshConfig.
pub(crate) fn parse_trust_domain_aliases(value: &Value) -> Result<BTreeSet<ArcStr>, FieldError> {
    let all = parse_trust_domain_names(ALIASES_FIELD, value)?;
    Ok(all.into_iter().collect())
}

/// Parses `caCertificates`. Entries with `certSigners` are skipped, since the mesh has no registration authority.
pub(crate) fn parse_ca_certificates(
    value: &Value,
    notes: &mut Vec<Note>,
) -> Result<Vec<RootCertificates>, FieldError> {
    let mut read = Vec::new();
    for (index, one) in list_entries(CA_CERTIFICATES_FIELD, value)?
        .iter()
        .enumerate()
    {
        let at = format!("{CA_CERTIFICATES_FIELD}[{index}]");
        let all = as_map(&at, Some(one))?;
        let known = ["pem", "spiffeBundleUrl", "certSigners", "trustDomains"];
        note_unread_fields(&at, all, &known, notes);
        let given = |name: &str| all.get(name).filter(|value| !value.is_null());
        let signers = given("certSigners").and_then(Value::as_array);
        if signers.is_some_and(|signers| !signers.is_empty()) {
            let message = "has no effect: roots are not limited to signers, and these are not used";
            notes.push(field_error(&format!("{at}.certSigners"), message));
            continue;
        }
        let text = |name: &str| match given(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(_) => Err(field_error(&format!("{at}.{name}"), "is not a text")),
        };
        let source = match (text("pem")?, text("spiffeBundleUrl")?) {
            (Some(pem), None) if pem.contains("-----BEGIN CERTIFICATE-----") => {
                RootSource::Pem(pem.into())
            }
            (Some(_), None) => {
                return Err(field_error(
                    &format!("{at}.pem"),
                    "has no certificate in PEM",
                ));
            }
            (None, Some(url)) if url.starts_with("https://") => {
                RootSource::TrustBundleUrl(url.into())
            }
            (None, Some(url)) => {
                let message = format!("{url:?} is no address of https");
                return Err(field_error(&format!("{at}.spiffeBundleUrl"), message));
            }
            _ => return Err(field_error(&at, "must have one of pem and spiffeBundleUrl")),
        };
        let domains = given("trustDomains");
        let domains =
            domains.map(|value| parse_trust_domain_names(&format!("{at}.trustDomains"), value));
        read.push(RootCertificates {
            trust_domains: domains.transpose()?.unwrap_or_default(),
            source,
        });
    }
    Ok(read)
}

fn list_entries<'a>(at: &str, value: &'a Value) -> Result<&'a [Value], FieldError> {
    match value {
        Value::Array(all) if all.len() <= MAX_TRUST_DOMAIN_ENTRIES => Ok(all),
        Value::Array(_) => Err(field_error(
            at,
            format!("has more than {MAX_TRUST_DOMAIN_ENTRIES} entries"),
        )),
        _ => Err(field_error(at, "is not a list")),
    }
}

fn parse_trust_domain_names(at: &str, value: &Value) -> Result<Vec<ArcStr>, FieldError> {
    let read = |(index, one): (usize, &Value)| {
        let name = one.as_str().filter(|name| is_trust_domain(name));
        name.map(ArcStr::from).ok_or_else(|| {
            let message = format!("{one} is not a trust domain, such as example.org");
            field_error(&format!("{at}[{index}]"), message)
        })
    };
    list_entries(at, value)?
        .iter()
        .enumerate()
        .map(read)
        .collect()
}

/// Whether a text is a trust domain (SPIFFE ID, section 2.1).
fn is_trust_domain(text: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    (1..=255).contains(&text.len()) && text.bytes().all(is_allowed)
}
