//! BackendTLSPolicy: TLS that waypoints originate to the endpoints of a service.

use std::collections::BTreeMap;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LocalObjectReference;
use crate::{
    istio::custom_resource,
    status::{self, Status},
};

custom_resource! {
    /// TLS that waypoints originate to the endpoints of a service.
    BackendTLSPolicy, BackendTlsPolicySpec, "gateway.networking.k8s.io", "backendtlspolicies", NamespaceResourceScope
}

/// Specification of a [`BackendTLSPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    /// Targets of the policy: services, or single ports of services.
    pub target_refs: Vec<TlsTargetReference>,
    /// Verification of the endpoints' certificates.
    pub validation: BackendTlsValidation,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Target of a BackendTLSPolicy, in the policy's namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsTargetReference {
    /// API group of the target.
    pub group: String,
    /// Kind of the target.
    pub kind: String,
    /// Name of the target.
    pub name: String,
    /// Name of a service port; all ports if absent.
    pub section_name: Option<String>,
}

/// Verification of the endpoints' certificates: CA certificates and names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsValidation {
    /// References to ConfigMaps with CA certificates.
    pub ca_certificate_refs: Vec<LocalObjectReference>,
    /// `System` for the trust store of the proxy's system, instead of references.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    /// Server name (SNI) to send, which the certificate must have unless SANs are given.
    pub hostname: String,
    /// SANs of which the certificate must have one, instead of the server name.
    pub subject_alt_names: Vec<SubjectAltName>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Subject alternative name: a DNS name or a URI.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectAltName {
    /// Type of the name: `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub type_: String,
    /// DNS name, for the type `Hostname`.
    pub hostname: String,
    /// URI, for the type `URI`.
    pub uri: String,
}
