//! Istio's kinds of policies and entries; field names are those of Istio's CRDs.
//!
//! Unknown fields are errors. An empty list is equal to an absent one, as in the protobuf messages that Istio converts
//! these objects to.

use std::collections::BTreeMap;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::status::{self, Status};

macro_rules! custom_resource {
    ($(#[$doc:meta])* $name:ident, $spec:ident, $group:literal, $plural:literal, $scope:ty) => {
        $crate::istio::custom_resource! {
            $(#[$doc])* $name, $spec, $group, $plural, $scope, "v1"
        }
    };
    ($(#[$doc:meta])* $name:ident, $spec:ident, $group:literal, $plural:literal, $scope:ty, $version:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct $name {
            /// API version of the object.
            #[serde(default)]
            pub api_version: String,
            /// Kind of the object.
            #[serde(default)]
            pub kind: String,
            /// Metadata of the object.
            #[serde(default)]
            pub metadata: ObjectMeta,
            /// Specification of the object.
            #[serde(default)]
            pub spec: $spec,
            /// Status that controllers wrote.
            #[serde(default, skip_serializing_if = "Value::is_null")]
            pub status: Value,
        }

        impl k8s_openapi::Resource for $name {
            const API_VERSION: &'static str = concat!($group, "/", $version);
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($name);
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl k8s_openapi::Metadata for $name {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl Status for $name {
            fn api_version(&self) -> &str {
                &self.api_version
            }

            fn conditions(&self) -> Vec<Value> {
                status::conditions(&self.status)
            }
        }
    };
}

pub(crate) use custom_resource;

custom_resource! {
    /// Authorization of requests and connections, by properties of the client, the operation and the token.
    AuthorizationPolicy, AuthorizationPolicySpec, "security.istio.io", "authorizationpolicies", NamespaceResourceScope
}
custom_resource! {
    /// mTLS mode of workloads: whether plaintext is accepted.
    PeerAuthentication, PeerAuthenticationSpec, "security.istio.io", "peerauthentications", NamespaceResourceScope
}
custom_resource! {
    /// Validation of JSON Web Tokens in requests.
    RequestAuthentication, RequestAuthenticationSpec, "security.istio.io", "requestauthentications", NamespaceResourceScope
}
custom_resource! {
    /// Service whose endpoints may be outside Kubernetes.
    ServiceEntry, ServiceEntrySpec, "networking.istio.io", "serviceentries", NamespaceResourceScope
}
custom_resource! {
    /// Workload outside Kubernetes.
    WorkloadEntry, WorkloadEntrySpec, "networking.istio.io", "workloadentries", NamespaceResourceScope
}

/// Selector of workloads that a policy applies to, by labels that must all be equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadSelector {
    /// Labels that must match.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
}

/// Object that a policy is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PolicyTargetReference {
    /// API group of the target.
    pub group: String,
    /// Kind of the target.
    pub kind: String,
    /// Name of the target.
    pub name: String,
    /// Namespace of the target.
    pub namespace: Option<String>,
}

/// Action of an AuthorizationPolicy on requests that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PolicyAction {
    /// Allows matching requests.
    #[default]
    Allow,
    /// Denies matching requests.
    Deny,
    /// Logs matching requests.
    Audit,
    /// Delegates the decision to an external authorization provider.
    Custom,
}

/// Specification of an [`AuthorizationPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct AuthorizationPolicySpec {
    /// Selector of workloads; all workloads of the namespace if absent.
    pub selector: Option<WorkloadSelector>,
    /// Single object that the policy is attached to.
    pub target_ref: Option<PolicyTargetReference>,
    /// Objects that the policy is attached to.
    pub target_refs: Vec<PolicyTargetReference>,
    /// Rules, of which one must match; without any, the policy never matches.
    pub rules: Vec<Rule>,
    /// Action where a rule matches.
    pub action: PolicyAction,
    /// External authorization provider of a CUSTOM policy.
    pub provider: Option<Value>,
}

impl AuthorizationPolicySpec {
    /// Returns whether the policy is attached to objects, and so enforced by their waypoints.
    pub fn is_attached(&self) -> bool {
        self.target_ref.is_some() || !self.target_refs.is_empty()
    }
}

/// Returns the labels of a workload selector; `None` if it selects everything, as an empty one does.
pub fn selected_labels(selector: Option<&WorkloadSelector>) -> Option<&BTreeMap<String, String>> {
    selector
        .map(|selector| &selector.match_labels)
        .filter(|labels| !labels.is_empty())
}

/// Rule of a policy; all parts that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Rule {
    /// Sources, of which one must match.
    pub from: Vec<RuleFrom>,
    /// Operations, of which one must match.
    pub to: Vec<RuleTo>,
    /// Conditions, which must all hold.
    pub when: Vec<Condition>,
}

/// Source of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RuleFrom {
    /// Attributes of the source.
    pub source: Option<Source>,
}

/// Operation of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RuleTo {
    /// Attributes of the operation.
    pub operation: Option<Operation>,
}

/// Source of requests; all fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct Source {
    pub principals: Vec<String>,
    pub not_principals: Vec<String>,
    pub request_principals: Vec<String>,
    pub not_request_principals: Vec<String>,
    pub namespaces: Vec<String>,
    pub not_namespaces: Vec<String>,
    pub service_accounts: Vec<String>,
    pub not_service_accounts: Vec<String>,
    pub trust_domains: Vec<String>,
    pub not_trust_domains: Vec<String>,
    pub ip_blocks: Vec<String>,
    pub not_ip_blocks: Vec<String>,
    pub remote_ip_blocks: Vec<String>,
    pub not_remote_ip_blocks: Vec<String>,
}

/// Operation of requests; all fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct Operation {
    pub hosts: Vec<String>,
    pub not_hosts: Vec<String>,
    pub ports: Vec<String>,
    pub not_ports: Vec<String>,
    pub methods: Vec<String>,
    pub not_methods: Vec<String>,
    pub paths: Vec<String>,
    pub not_paths: Vec<String>,
}

/// Condition of a rule's `when`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Condition {
    /// Key of the attribute that the condition compares, for instance `source.ip`.
    pub key: String,
    /// Values of the attribute, of which one must match.
    pub values: Vec<String>,
    /// Values of the attribute, of which none may match.
    pub not_values: Vec<String>,
}

/// mTLS mode of a workload or port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MtlsMode {
    /// Unset mode: the mode of the wider scope applies.
    #[default]
    Unset,
    /// mTLS is disabled in Istio's sidecars; in ambient mode equal to permissive.
    Disable,
    /// Plaintext and mTLS connections are accepted.
    Permissive,
    /// Only mTLS connections are accepted.
    Strict,
}

/// mTLS setting of a workload or port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MutualTls {
    /// Mode of mTLS: whether plaintext is accepted.
    pub mode: MtlsMode,
}

/// Specification of a [`PeerAuthentication`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PeerAuthenticationSpec {
    /// Selector of workloads; all workloads of the namespace if absent.
    pub selector: Option<WorkloadSelector>,
    /// mTLS mode of all ports that have no mode of their own.
    pub mtls: Option<MutualTls>,
    /// mTLS modes by target port, whose numbers are strings in JSON.
    pub port_level_mtls: BTreeMap<String, MutualTls>,
}

/// Specification of a [`RequestAuthentication`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RequestAuthenticationSpec {
    /// Selector of workloads; it only has an effect on sidecars, which Ambit does not have.
    pub selector: Option<WorkloadSelector>,
    /// Single object that the policy is attached to.
    pub target_ref: Option<PolicyTargetReference>,
    /// Objects that the policy is attached to.
    pub target_refs: Vec<PolicyTargetReference>,
    /// Issuers whose tokens are accepted.
    pub jwt_rules: Vec<JwtRule>,
}

/// Issuer whose tokens are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct JwtRule {
    pub issuer: String,
    pub audiences: Vec<String>,
    #[serde(alias = "jwks_uri")]
    pub jwks_uri: String,
    pub jwks: String,
    pub from_headers: Vec<JwtHeader>,
    pub from_params: Vec<String>,
    pub from_cookies: Vec<String>,
    pub output_payload_to_header: String,
    pub output_claim_to_headers: Vec<ClaimToHeader>,
    pub forward_original_token: bool,
    pub space_delimited_claims: Vec<String>,
    /// Timeout for fetching the key set, in Go's format, such as `5s`.
    pub timeout: Option<String>,
}

/// Header that may contain a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct JwtHeader {
    /// Name of the header.
    pub name: String,
    /// Prefix of the header's value that precedes the token, such as `Bearer `.
    pub prefix: String,
}

/// Header in which applications receive a claim of the token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ClaimToHeader {
    /// Name of the header.
    pub header: String,
    /// Claim that the header contains.
    pub claim: String,
}

/// How proxies find the endpoints of a ServiceEntry.
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

/// Port of a ServiceEntry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ServicePort {
    /// Number of the port.
    pub number: u32,
    /// Protocol, for instance `HTTP`.
    pub protocol: String,
    /// Name of the port.
    pub name: String,
    /// Port of the service's endpoints; `number` if absent.
    pub target_port: Option<u32>,
}

/// Specification of a [`ServiceEntry`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ServiceEntrySpec {
    /// Host names of the service.
    pub hosts: Vec<String>,
    /// Virtual addresses or prefixes.
    pub addresses: Vec<String>,
    /// Ports of the service.
    pub ports: Vec<ServicePort>,
    /// `MESH_INTERNAL` or `MESH_EXTERNAL`, which is displayed and has no other effect.
    pub location: Option<String>,
    /// How proxies find the endpoints.
    pub resolution: Resolution,
    /// Endpoints of the service.
    pub endpoints: Vec<WorkloadEntrySpec>,
    /// Selector of pods and WorkloadEntries that are endpoints.
    pub workload_selector: Option<LabelSelector>,
    /// Namespaces to which the service is visible.
    pub export_to: Vec<String>,
    /// SANs, such as SPIFFE IDs, that endpoints may present besides their own identities.
    pub subject_alt_names: Vec<String>,
}

impl ServiceEntrySpec {
    /// Returns the labels of pods and WorkloadEntries that are endpoints; `None` if the selector is
    /// absent or empty, which selects none.
    pub fn selected_labels(&self) -> Option<&BTreeMap<String, String>> {
        let labels = self.workload_selector.as_ref().map(|one| &one.labels);
        labels.filter(|labels| !labels.is_empty())
    }
}

/// Selector of workloads by labels, in kinds of the group `networking.istio.io`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels that must all be equal.
    pub labels: BTreeMap<String, String>,
}

/// Specification of a [`WorkloadEntry`]; also an endpoint of a [`ServiceEntry`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct WorkloadEntrySpec {
    /// Address of the workload: an IP address or a host name.
    pub address: String,
    /// Target ports by the name of the service port.
    pub ports: BTreeMap<String, u32>,
    /// Labels of the workload.
    pub labels: BTreeMap<String, String>,
    /// Name of the network that the address belongs to.
    pub network: Option<String>,
    /// Locality as `region/zone/subzone`.
    pub locality: Option<String>,
    /// Weight in load balancing.
    pub weight: Option<u32>,
    /// Service account in the workload's identity.
    pub service_account: Option<String>,
}
