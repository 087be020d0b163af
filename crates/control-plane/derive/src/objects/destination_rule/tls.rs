//! Parsing of the TLS settings that waypoints originate TLS to endpoints with.
//!
//! Unsupported settings are not ignored: requests would be sent in plaintext, or to unverified servers. Files are named
//! by their paths in the waypoint, as in Istio; since a waypoint may serve several namespaces, each namespace has its
//! own directory, and its rules can name only files in it.

use std::{net::IpAddr, sync::Arc};

use ambit_k8s_api::{
    destination::{ClientTls, TlsMode},
    is_dns_name,
};
use ambit_model::{ArcStr, DestinationPolicy, DestinationTls, TlsClientFiles, TlsRoots};
use serde_json::Value;

use crate::{
    objects::destination_rule::values::refusal_note,
    problem::{FieldError, Note},
};

/// Directory of certificates in a waypoint, with a subdirectory for each namespace.
pub(crate) const CERTIFICATE_DIRECTORY: &str = "/etc/certs";
/// Maximum number of `subjectAltNames`.
const MAX_SUBJECT_ALT_NAMES: usize = 64;

/// TLS settings (`None` for no TLS), or the reason why requests are refused.
type TlsOrError = Result<Option<Arc<DestinationTls>>, ArcStr>;

pub(crate) fn read(from: &ClientTls, at: &str, notes: &mut Vec<Note>) -> TlsOrError {
    match from.mode {
        TlsMode::Disable => {
            let message =
                "DISABLE has no effect: pods of the mesh are reached by mTLS, others in plaintext";
            notes.push(Note::new(format!("{at}.mode"), message));
            return Ok(None);
        }
        TlsMode::IstioMutual => return Ok(None),
        TlsMode::Simple | TlsMode::Mutual => {}
    }
    if from.insecure_skip_verify == Some(true) {
        let message = "certificates are not verified: any server at an endpoint's address can read and change what is \
             sent to it; name the endpoints' authority in caCertificates instead";
        notes.push(Note::new(format!("{at}.insecureSkipVerify"), message));
    }
    parse_tls(from)
        .map(|tls| Some(Arc::new(tls)))
        .map_err(|error| {
            notes.push(refusal_note(
                format!("{at}.{}", error.field),
                &error.message,
            ));
            error.message.into()
        })
}

fn parse_tls(from: &ClientTls) -> Result<DestinationTls, FieldError> {
    if let Some((field, what)) = unsupported_field(from) {
        return Err(FieldError::new(field, what));
    }
    let client = match from.mode {
        TlsMode::Mutual => {
            let file = |field: &str, of: Option<&String>| {
                non_empty(of).ok_or_else(|| FieldError::new(field, "is needed for the mode MUTUAL"))
            };
            Some(TlsClientFiles {
                certificate: file("clientCertificate", from.client_certificate.as_ref())?,
                key: file("privateKey", from.private_key.as_ref())?,
            })
        }
        _ => None,
    };
    let server_name = non_empty(from.sni.as_ref());
    let server_name = server_name.map(|name| ArcStr::from(name.to_ascii_lowercase()));
    let is_name = |name: &ArcStr| is_dns_name(name, 253);
    if let Some(name) = server_name.as_ref().filter(|name| !is_name(name)) {
        let message = format!("{name:?} is not a host name");
        return Err(FieldError::new("sni", message));
    }
    let names = validate_subject_alt_names(&from.subject_alt_names, "subjectAltNames")?;
    let (names, roots) = match from.insecure_skip_verify {
        Some(true) => (Vec::new(), TlsRoots::Unverified),
        _ => {
            let file = non_empty(from.ca_certificates.as_ref());
            (names, file.map_or(TlsRoots::System, TlsRoots::File))
        }
    };
    Ok(DestinationTls {
        server_name,
        names,
        roots,
        client,
    })
}

/// Returns a string unless it is empty.
fn non_empty(of: Option<&String>) -> Option<ArcStr> {
    of.filter(|text| !text.is_empty()).map(ArcStr::from)
}

/// Returns the first field that waypoints do not support, with the reason.
fn unsupported_field(from: &ClientTls) -> Option<(&'static str, &'static str)> {
    if non_empty(from.credential_name.as_ref()).is_some() {
        let what = "Secrets are not read: mount them into the waypoint and name the files";
        return Some(("credentialName", what));
    }
    non_empty(from.ca_crl.as_ref()).map(|_| ("caCrl", "revocation lists are not followed"))
}

/// Validates SANs: DNS names, IP addresses and URIs.
pub(crate) fn validate_subject_alt_names(
    from: &[String],
    at: &str,
) -> Result<Vec<ArcStr>, FieldError> {
    if from.len() > MAX_SUBJECT_ALT_NAMES {
        let message = format!("{} names; at most {MAX_SUBJECT_ALT_NAMES}", from.len());
        return Err(FieldError::new(at, message));
    }
    let mut names = Vec::new();
    for (index, name) in from.iter().enumerate() {
        let is_uri = name.contains("://");
        let is_name =
            || is_dns_name(&name.to_ascii_lowercase(), 253) || name.parse::<IpAddr>().is_ok();
        if !is_uri && !is_name() {
            let message = format!("{name:?} is no host name, address or URI");
            return Err(FieldError::new(format!("{at}[{index}]"), message));
        }
        names.push(name.as_str().into());
    }
    Ok(names)
}

/// Refuses the policy if it names files outside of the directory of the rule's namespace.
pub(crate) fn refuse_foreign_files(
    policy: &mut DestinationPolicy,
    namespace: &str,
    notes: &mut Vec<Note>,
) {
    let own = format!("{CERTIFICATE_DIRECTORY}/{namespace}/");
    let is_own = |path: &ArcStr| {
        let rest = path.strip_prefix(&own);
        rest.is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
    };
    let Some(tls) = &policy.tls else {
        return;
    };
    let roots = match &tls.roots {
        TlsRoots::File(path) => Some(path),
        TlsRoots::System | TlsRoots::Pem(_) | TlsRoots::Unverified => None,
    };
    let client = tls.client.iter();
    let client = client.flat_map(|files| [&files.certificate, &files.key]);
    let foreign = roots.into_iter().chain(client).find(|path| !is_own(path));
    if let Some(path) = foreign {
        let what = format!("{path:?} is not below {own}, where the files of the namespace are");
        let note = refusal_note("spec.trafficPolicy.tls".to_owned(), &what);
        if !notes.contains(&note) {
            notes.push(note);
        }
        policy.unsupported = Some(what.into());
        policy.tls = None;
    }
}

/// Whether a spec that cannot be deserialized requests TLS (`SIMPLE` or `MUTUAL`) anywhere.
pub(crate) fn requests_tls(value: &Value) -> bool {
    let is_mode = |mode: &Value| matches!(mode.as_str(), Some("SIMPLE" | "MUTUAL"));
    match value {
        Value::Object(all) => all.iter().any(|(name, value)| {
            let is_tls = name == "tls" && value.get("mode").is_some_and(is_mode);
            is_tls || requests_tls(value)
        }),
        Value::Array(all) => all.iter().any(requests_tls),
        _ => false,
    }
}
