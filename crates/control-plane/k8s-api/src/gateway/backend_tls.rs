//! BackendTLSPolicy: TLS with the backends of a service.

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
    /// TLS with the backends of a service.
    BackendTLSPolicy, BackendTlsPolicySpec, "gateway.networking.k8s.io", "backendtlspolicies", NamespaceResourceScope
}

/// Specification of a [`BackendTLSPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    /// Targets of the policy.
    pub target_refs: Vec<TlsTargetReference>,
    /// Requirements of certificates.
    pub validation: BackendTlsValidation,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Target of a policy, in the policy's namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsTargetReference {
    /// API group of the target.
    pub group: String,
    /// Kind of the target.
    pub kind: String,
    /// Name of the target.
    pub name: String,
    /// Name of one port of a service.
    pub section_name: Option<String>,
}

/// Requirements of [`BackendTlsPolicySpec::validation`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsValidation {
    /// Objects with CA certificates.
    pub ca_certificate_refs: Vec<LocalObjectReference>,
    /// `System`: trust store of the proxy's system.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    /// Server name (SNI) to send.
    pub hostname: String,
    /// Names of which the certificate must have one, instead of the server name.
    pub subject_alt_names: Vec<SubjectAltName>,
    /// Fields that Ambit does not know.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Subject alternative name: hostname or URI.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectAltName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Hostname of a `Hostname` name.
    pub hostname: String,
    /// URI of a `URI` name.
    pub uri: String,
}
