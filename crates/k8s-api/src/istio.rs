//! Istio's kinds, as far as L4 concerns the mesh; field names as Istio's CRDs have them.
//!
//! Unknown fields are errors. Where an empty list means something else than no list (policies), the
//! field is an `Option<Vec<_>>`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

macro_rules! custom_resource {
    ($(#[$doc:meta])* $name:ident, $spec:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct $name {
            /// Version of the API it was written in.
            #[serde(default)]
            pub api_version: String,
            /// The kind.
            #[serde(default)]
            pub kind: String,
            /// Metadata.
            #[serde(default)]
            pub metadata: ObjectMeta,
            /// What is wished.
            #[serde(default)]
            pub spec: $spec,
            /// What controllers wrote.
            #[serde(default, skip_serializing_if = "Value::is_null")]
            pub status: Value,
        }
    };
}

custom_resource! {
    /// Who may call whom.
    AuthorizationPolicy, AuthorizationPolicySpec
}
custom_resource! {
    /// Whether plaintext is accepted.
    PeerAuthentication, PeerAuthenticationSpec
}
custom_resource! {
    /// A service outside Kubernetes.
    ServiceEntry, ServiceEntrySpec
}
custom_resource! {
    /// A workload outside Kubernetes.
    WorkloadEntry, WorkloadEntrySpec
}

/// Which workloads a policy concerns, by labels that must all be equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadSelector {
    /// The labels.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
}

/// An object that a policy is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PolicyTargetReference {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: Option<String>,
}

/// What a matching rule means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PolicyAction {
    /// Permits.
    #[default]
    Allow,
    /// Refuses.
    Deny,
    /// Only audits.
    Audit,
    /// Asks an external authorizer.
    Custom,
}

/// See [`AuthorizationPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AuthorizationPolicySpec {
    /// Which workloads; all of the namespace without.
    pub selector: Option<WorkloadSelector>,
    /// Attached to a waypoint's object.
    pub target_ref: Option<PolicyTargetReference>,
    /// Attached to several.
    pub target_refs: Option<Vec<PolicyTargetReference>>,
    /// Any one suffices; none never matches.
    pub rules: Option<Vec<Rule>>,
    /// What a match means.
    pub action: PolicyAction,
    /// Of a CUSTOM policy.
    pub provider: Option<Value>,
}

/// All parts that are given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Rule {
    /// Sources; any one.
    pub from: Option<Vec<RuleFrom>>,
    /// Operations; any one.
    pub to: Option<Vec<RuleTo>>,
    /// Conditions; all.
    pub when: Option<Vec<Condition>>,
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RuleFrom {
    /// The source.
    pub source: Option<Source>,
}

/// One operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RuleTo {
    /// The operation.
    pub operation: Option<Operation>,
}

/// A source; all fields that are given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct Source {
    pub principals: Option<Vec<String>>,
    pub not_principals: Option<Vec<String>>,
    pub request_principals: Option<Vec<String>>,
    pub not_request_principals: Option<Vec<String>>,
    pub namespaces: Option<Vec<String>>,
    pub not_namespaces: Option<Vec<String>>,
    pub service_accounts: Option<Vec<String>>,
    pub not_service_accounts: Option<Vec<String>>,
    pub trust_domains: Option<Vec<String>>,
    pub not_trust_domains: Option<Vec<String>>,
    pub ip_blocks: Option<Vec<String>>,
    pub not_ip_blocks: Option<Vec<String>>,
    pub remote_ip_blocks: Option<Vec<String>>,
    pub not_remote_ip_blocks: Option<Vec<String>>,
}

/// An operation; all fields that are given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct Operation {
    pub hosts: Option<Vec<String>>,
    pub not_hosts: Option<Vec<String>>,
    pub ports: Option<Vec<String>>,
    pub not_ports: Option<Vec<String>>,
    pub methods: Option<Vec<String>>,
    pub not_methods: Option<Vec<String>>,
    pub paths: Option<Vec<String>>,
    pub not_paths: Option<Vec<String>>,
}

/// One `when`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Condition {
    /// For instance `source.ip`.
    pub key: String,
    /// One of them must match.
    pub values: Option<Vec<String>>,
    /// None of them may match.
    pub not_values: Option<Vec<String>>,
}

/// Whether plaintext is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MtlsMode {
    /// As inherited.
    #[default]
    Unset,
    /// No mTLS; for a mesh of node proxies the same as permissive.
    Disable,
    /// Both.
    Permissive,
    /// mTLS only.
    Strict,
}

/// One mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MutualTls {
    /// The mode.
    pub mode: MtlsMode,
}

/// See [`PeerAuthentication`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PeerAuthenticationSpec {
    /// Which workloads; all of the namespace without.
    pub selector: Option<WorkloadSelector>,
    /// The mode.
    pub mtls: Option<MutualTls>,
    /// By target port, given as text.
    pub port_level_mtls: BTreeMap<String, MutualTls>,
}

/// How the endpoints of a service entry are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the values are the contract's")]
pub enum Resolution {
    #[default]
    None,
    Static,
    Dns,
    DnsRoundRobin,
    DynamicDns,
}

/// A port of a service entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ServicePort {
    /// The number.
    pub number: u32,
    /// For instance `HTTP`.
    pub protocol: String,
    /// Its name.
    pub name: String,
    /// Port of the endpoints; `number` without.
    pub target_port: Option<u32>,
}

/// See [`ServiceEntry`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ServiceEntrySpec {
    /// Host names.
    pub hosts: Vec<String>,
    /// Virtual addresses or prefixes.
    pub addresses: Vec<String>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// Inside or outside of the mesh; not used.
    pub location: Option<String>,
    /// How endpoints are found.
    pub resolution: Resolution,
    /// The endpoints.
    pub endpoints: Vec<WorkloadEntrySpec>,
    /// Pods and workload entries that are endpoints.
    pub workload_selector: Option<LabelSelector>,
    /// Not used.
    pub export_to: Vec<String>,
    /// SPIFFE ids that endpoints may also present.
    pub subject_alt_names: Vec<String>,
}

/// A selector in the networking group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels that must all be equal.
    pub labels: BTreeMap<String, String>,
}

/// See [`WorkloadEntry`]; also an endpoint of a [`ServiceEntry`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WorkloadEntrySpec {
    /// An IP address or a host name.
    pub address: String,
    /// Port name to target port.
    pub ports: BTreeMap<String, u32>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Network of the address.
    pub network: Option<String>,
    /// `region/zone/subzone`.
    pub locality: Option<String>,
    /// Weight in load balancing.
    pub weight: Option<u32>,
    /// Service account of its identity.
    pub service_account: Option<String>,
}
