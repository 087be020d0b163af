//! L7 authorization policies that waypoints evaluate (Istio's AuthorizationPolicy with `targetRefs`).
//!
//! A rule matches if one of its sources, one of its operations and all of its conditions match; an empty list of
//! sources or operations always matches. A source or operation matches if all fields that are set match; a field
//! matches if one of its values does. A `not_` field matches if none of its values does.

use std::sync::Arc;

use arcstr::ArcStr;
use ipnet::IpNet;
use serde::Serialize;

use crate::{NamespacedHostname, PolicyKey, Provider, ServiceAccountMatch, StringMatch};

/// Action of a policy on the requests that it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpAction {
    /// Requests that match are allowed. If a target has such policies, requests that match none of them are denied.
    #[default]
    Allow,
    /// Requests that match are denied.
    Deny,
    /// Requests that match are marked in the access log; the action allows or denies none.
    Audit,
    /// The external authorizer [`HttpPolicy::provider`] decides about requests that match.
    Custom,
}

/// AuthorizationPolicy that a waypoint enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpPolicy {
    /// Key of the AuthorizationPolicy.
    pub key: PolicyKey,
    /// Whether the policy applies to all traffic of the waypoint rather than to [`Self::services`].
    pub for_gateway: bool,
    /// Services to which the policy is attached.
    pub services: Vec<NamespacedHostname>,
    /// Action on requests that match.
    pub action: HttpAction,
    /// Whether decisions are counted and logged, but not enforced.
    pub dry_run: bool,
    /// Rules, of which one must match; a policy without rules never matches.
    pub rules: Vec<HttpRule>,
    /// Reason why the original policy could not be decoded in full, set on its fail-closed substitute.
    pub not_understood: Option<ArcStr>,
    /// External authorizer of [`HttpAction::Custom`].
    pub provider: Option<Arc<Provider>>,
}

/// Rule of an L7 authorization policy: sources, operations and conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRule {
    /// Sources, of which one must match; every source matches if empty.
    pub sources: Vec<HttpSource>,
    /// Operations, of which one must match; every request matches if empty.
    pub operations: Vec<HttpOperation>,
    /// Conditions that must all match.
    pub conditions: Vec<HttpCondition>,
}

/// Source of a request in a policy rule (`from`). All fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct HttpSource {
    /// Principals (SPIFFE IDs without `spiffe://`); `Presence` matches any principal.
    pub principals: Vec<StringMatch>,
    pub not_principals: Vec<StringMatch>,
    pub namespaces: Vec<StringMatch>,
    pub not_namespaces: Vec<StringMatch>,
    pub service_accounts: Vec<ServiceAccountMatch>,
    pub not_service_accounts: Vec<ServiceAccountMatch>,
    pub trust_domains: Vec<StringMatch>,
    pub not_trust_domains: Vec<StringMatch>,
    /// CIDR ranges of the connection's peer address (`ipBlocks`).
    pub ip_blocks: Vec<IpNet>,
    pub not_ip_blocks: Vec<IpNet>,
    /// CIDR ranges of the original client's address, which trusted proxies forward (`remoteIpBlocks`).
    pub remote_ip_blocks: Vec<IpNet>,
    pub not_remote_ip_blocks: Vec<IpNet>,
    /// Principals `issuer/subject` of a valid JWT.
    pub request_principals: Vec<StringMatch>,
    pub not_request_principals: Vec<StringMatch>,
}

/// Operation of a request in a policy rule (`to`). All fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct HttpOperation {
    /// Host patterns, compared case-insensitively and with any port unless the pattern has one.
    pub hosts: Vec<StringMatch>,
    pub not_hosts: Vec<StringMatch>,
    /// Ports of the service, or of the pod for requests to a pod.
    pub ports: Vec<u16>,
    pub not_ports: Vec<u16>,
    pub methods: Vec<StringMatch>,
    pub not_methods: Vec<StringMatch>,
    /// Patterns of normalized paths, without the query.
    pub paths: Vec<PathPattern>,
    pub not_paths: Vec<PathPattern>,
}

/// Pattern that a policy compares with a request's path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PathPattern {
    /// Exact, prefix, suffix or presence match of the path.
    Text(StringMatch),
    /// Path template with `{*}` and `{**}`, see [`crate::PathTemplate`].
    Template(ArcStr),
}

/// Request attribute that a condition matches (`when` of an AuthorizationPolicy).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpAttribute {
    /// Header `request.headers[X]` by lower-case name.
    Header(ArcStr),
    /// Value of the attribute `source.ip`.
    SourceIp,
    /// Value of the attribute `remote.ip`.
    RemoteIp,
    /// Value of the attribute `source.namespace`.
    SourceNamespace,
    /// Value of `source.serviceAccount` as `namespace/name`.
    SourceServiceAccount,
    /// Value of the attribute `source.trustDomain`.
    SourceTrustDomain,
    /// Value of the attribute `source.principal`.
    SourcePrincipal,
    /// Value of the attribute `destination.ip`.
    DestinationIp,
    /// Value of the attribute `destination.port`.
    DestinationPort,
    /// Value of the attribute `connection.sni`.
    ConnectionSni,
    /// Value of `request.auth.principal` as `issuer/subject`.
    RequestPrincipal,
    /// Value of the attribute `request.auth.audiences`.
    RequestAudiences,
    /// Value of the attribute `request.auth.presenter`.
    RequestPresenter,
    /// Claim `request.auth.claims[a][b]` by its path of names.
    RequestClaim(Vec<ArcStr>),
}

/// Condition of a rule on one attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpCondition {
    /// Attribute to match.
    pub attribute: HttpAttribute,
    /// Values, of which the attribute must match one; any value matches if empty.
    pub values: Vec<HttpValue>,
    /// Values, of which the attribute must match none.
    pub not_values: Vec<HttpValue>,
}

/// Value of a condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpValue {
    /// Exact, prefix, suffix or presence match of the attribute.
    Text(StringMatch),
    /// CIDR range that must contain the attribute's address.
    Net(IpNet),
    /// Port number that the attribute must equal.
    Port(u16),
}
