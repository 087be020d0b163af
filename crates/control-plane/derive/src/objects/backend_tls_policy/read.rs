//! Parsing of the spec of a BackendTLSPolicy.

use ambit_k8s_api::{
    BackendTLSPolicy, Kind, ObjectKey, created,
    gateway::{BackendTlsValidation, LocalObjectReference, SubjectAltName, TlsTargetReference},
    is_dns_name,
};
use ambit_model::ArcStr;

use crate::{
    objects::{
        backend_tls_policy::input::{BackendTlsInput, InvalidPolicyReason, TlsInput, TlsTarget},
        destination_rule::tls::validate_subject_alt_names,
    },
    problem::FieldError,
};

/// Maximum number of targets of one BackendTLSPolicy.
const MAX_TARGETS: usize = 16;
/// Maximum number of ConfigMaps with CA certificates of one policy.
const MAX_CA_REFERENCES: usize = 8;

pub(crate) fn parse_policy(policy: &BackendTLSPolicy) -> BackendTlsInput {
    let namespace = policy.metadata.namespace.as_deref().unwrap_or("default");
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let spec = &policy.spec;
    let targets = spec.target_refs.iter().take(MAX_TARGETS);
    BackendTlsInput {
        key: ObjectKey::new(Kind::BackendTLSPolicy, namespace, name),
        created: created(&policy.metadata),
        targets: targets
            .filter_map(|reference| parse_target(reference, namespace))
            .collect(),
        tls: parse_tls(&spec.validation),
    }
}

/// Parses a target reference; `None` if its kind cannot have a waypoint.
fn parse_target(reference: &TlsTargetReference, namespace: &str) -> Option<TlsTarget> {
    let kind = match (reference.group.as_str(), reference.kind.as_str()) {
        ("" | "core", "Service") => Kind::Service,
        ("networking.istio.io", "ServiceEntry") => Kind::ServiceEntry,
        _ => return None,
    };
    let port = reference.section_name.as_deref();
    Some(TlsTarget {
        key: ObjectKey::new(kind, namespace, reference.name.as_str()),
        port: port.filter(|port| !port.is_empty()).map(ArcStr::from),
    })
}

fn invalid_field(field: impl Into<String>, message: impl Into<String>) -> InvalidPolicyReason {
    InvalidPolicyReason::from_field_error(&FieldError::new(field, message))
}

fn parse_tls(from: &BackendTlsValidation) -> Result<TlsInput, InvalidPolicyReason> {
    let hostname = from.hostname.to_ascii_lowercase();
    if !is_dns_name(&hostname, 253) {
        let message = format!("{:?} is not a host name", from.hostname);
        return Err(invalid_field("spec.validation.hostname", message));
    }
    if let Some(other) = from.other.keys().next() {
        return Err(invalid_field(
            format!("spec.validation.{other}"),
            "is not known",
        ));
    }
    let at = "spec.validation.subjectAltNames";
    let mut all = Vec::new();
    for (index, name) in from.subject_alt_names.iter().enumerate() {
        let SubjectAltName {
            type_,
            hostname,
            uri,
        } = name;
        all.push(match type_.as_str() {
            "Hostname" => hostname.clone(),
            "URI" if uri.contains("://") => uri.clone(),
            other => {
                let message = format!("{other:?} with {uri:?} is neither a Hostname nor a URI");
                return Err(invalid_field(format!("{at}[{index}]"), message));
            }
        });
    }
    Ok(TlsInput {
        hostname: hostname.into(),
        subject_alt_names: validate_subject_alt_names(&all, at)
            .map_err(|error| InvalidPolicyReason::from_field_error(&error))?,
        ca_config_maps: parse_ca_references(from)?,
    })
}

/// Returns the names of the ConfigMaps with CA certificates; `None` for the system's trust store.
fn parse_ca_references(
    from: &BackendTlsValidation,
) -> Result<Option<Vec<ArcStr>>, InvalidPolicyReason> {
    let well_known = from.well_known_ca_certificates.as_deref();
    let references = &from.ca_certificate_refs;
    match (well_known.filter(|of| !of.is_empty()), references.len()) {
        (Some("System"), 0) => return Ok(None),
        (None, 1..=MAX_CA_REFERENCES) => {}
        (None, 0) | (Some("System"), _) => {
            let message = "one of caCertificateRefs and wellKnownCACertificates is needed";
            return Err(invalid_field("spec.validation", message));
        }
        (Some(other), _) => {
            let message = format!("{other:?} is not supported: System alone is");
            let field = "spec.validation.wellKnownCACertificates";
            return Err(invalid_field(field, message));
        }
        (None, _) => {
            let field = "spec.validation.caCertificateRefs";
            return Err(invalid_field(
                field,
                format!("more than {MAX_CA_REFERENCES}"),
            ));
        }
    }
    let is_map = |one: &LocalObjectReference| {
        matches!(one.group.as_str(), "" | "core") && one.kind == "ConfigMap"
    };
    if let Some(other) = references.iter().find(|one| !is_map(one)) {
        let kind = &other.kind;
        let message = format!("{kind}: certificates are read of ConfigMaps alone");
        return Err(InvalidPolicyReason::unresolved_reference(
            "InvalidKind",
            message,
        ));
    }
    let names = references.iter().map(|one| ArcStr::from(&*one.name));
    Ok(Some(names.collect()))
}
