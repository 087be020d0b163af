//! Objects of Istio's and the Gateway API's kinds, with the fields whose meaning differs between Istio and Ambit.
//! Unlike the types of `ambit_k8s_api`, these ignore all other fields, so that differences of an object that the
//! control plane rejects are found, too.

use std::collections::BTreeMap;

use ambit_k8s_api::{ObjectMeta, gateway::ParentReference};
use kube::core::TypeMeta;
use serde::Deserialize;
use serde_json::Value;

/// Returns the API group and the kind of an object; the core group is empty.
pub(super) fn group_and_kind(value: &Value) -> Option<(String, String)> {
    let TypeMeta { api_version, kind } = TypeMeta::deserialize(value).ok()?;
    Some((api_group(&api_version).to_owned(), kind))
}

pub(super) fn api_group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Fields of Istio's MeshConfig on which effects depend.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Settings {
    pub(super) trust_domain: String,
    pub(super) default_service_export_to: Vec<String>,
}

/// An object with metadata and a specification of type `S`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TypedObject<S> {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: S,
}

/// Specification of a route of any kind of the Gateway API.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RouteSpec {
    pub(super) parent_refs: Vec<ParentReference>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ServiceEntrySpec {
    pub(super) export_to: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VirtualServiceSpec {
    pub(super) hosts: Vec<String>,
    pub(super) gateways: Vec<String>,
    pub(super) export_to: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DestinationRuleSpec {
    pub(super) traffic_policy: TlsPolicy,
    pub(super) subsets: Vec<Subset>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Subset {
    pub(super) traffic_policy: TlsPolicy,
}

/// `trafficPolicy` of a DestinationRule (of the host, a subset or a port), limited to TLS.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TlsPolicy {
    pub(super) tls: Option<Tls>,
    pub(super) port_level_settings: Vec<Self>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Tls {
    pub(super) mode: String,
    ca_certificates: Option<String>,
    credential_name: Option<String>,
    pub(super) insecure_skip_verify: bool,
}

impl Tls {
    /// Whether the settings name CA certificates for the verification of servers.
    pub(super) fn configures_ca(&self) -> bool {
        self.ca_certificates.is_some() || self.credential_name.is_some()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PeerAuthenticationSpec {
    pub(super) mtls: Mtls,
    pub(super) port_level_mtls: BTreeMap<String, Mtls>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Mtls {
    pub(super) mode: String,
}
