//! Layer 7 authorization policies, as a waypoint evaluates them (Istio's AuthorizationPolicy with
//! `targetRefs`).
//!
//! A rule matches if one of its sources (or none is given), one of its operations (or none is given) and all
//! of its conditions match. In a source or operation all fields that are given must match; the values of a
//! field are alternatives; a `not_` field matches when none of its values does.

use std::sync::Arc;

use arcstr::ArcStr;
use ipnet::IpNet;
use serde::Serialize;

use crate::{NamespacedHostname, PolicyKey, Provider, ServiceAccountMatch, StringMatch};

/// The effect of a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpAction {
    /// Allows. Where there is such a policy, what none of them allows is denied.
    #[default]
    Allow,
    /// Requests that match are denied.
    Deny,
    /// Is noted in the access log.
    Audit,
    /// A provider checks the request and decides: [`HttpPolicy::provider`].
    Custom,
}

/// AuthorizationPolicy that a waypoint enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpPolicy {
    /// Key of the AuthorizationPolicy.
    pub key: PolicyKey,
    /// Whether it concerns all that goes through the waypoint, rather than [`Self::services`].
    pub for_gateway: bool,
    /// The services it is attached to.
    pub services: Vec<NamespacedHostname>,
    /// The effect of a match.
    pub action: HttpAction,
    /// Only counted and logged.
    pub dry_run: bool,
    /// Any one suffices; none at all never matches.
    pub rules: Vec<HttpRule>,
    /// Set on a fail-closed substitute: why the original is not understood in full.
    pub not_understood: Option<ArcStr>,
    /// Provider that decides, of [`HttpAction::Custom`].
    pub provider: Option<Arc<Provider>>,
}

/// Rule of a policy, as described for the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRule {
    /// Sources, of which one must match; any caller if empty.
    pub sources: Vec<HttpSource>,
    /// Operations, of which one must match; any request if empty.
    pub operations: Vec<HttpOperation>,
    /// All must match.
    pub conditions: Vec<HttpCondition>,
}

/// Caller of a request. All fields that are given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct HttpSource {
    /// Without `spiffe://`; `Presence` matches any identity.
    pub principals: Vec<StringMatch>,
    pub not_principals: Vec<StringMatch>,
    pub namespaces: Vec<StringMatch>,
    pub not_namespaces: Vec<StringMatch>,
    pub service_accounts: Vec<ServiceAccountMatch>,
    pub not_service_accounts: Vec<ServiceAccountMatch>,
    pub trust_domains: Vec<StringMatch>,
    pub not_trust_domains: Vec<StringMatch>,
    /// The address of the caller.
    pub ip_blocks: Vec<IpNet>,
    pub not_ip_blocks: Vec<IpNet>,
    /// The address of the original client, behind trusted proxies.
    pub remote_ip_blocks: Vec<IpNet>,
    pub not_remote_ip_blocks: Vec<IpNet>,
    /// `issuer/subject` of a valid token.
    pub request_principals: Vec<StringMatch>,
    pub not_request_principals: Vec<StringMatch>,
}

/// Operation of a request. All fields that are given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the contract's")]
pub struct HttpOperation {
    /// Compared without regard to case, and with any port unless the pattern has one.
    pub hosts: Vec<StringMatch>,
    pub not_hosts: Vec<StringMatch>,
    /// The service's port; the pod's for requests to a pod.
    pub ports: Vec<u16>,
    pub not_ports: Vec<u16>,
    pub methods: Vec<StringMatch>,
    pub not_methods: Vec<StringMatch>,
    /// Compared with the normalized path, without the query.
    pub paths: Vec<PathPattern>,
    pub not_paths: Vec<PathPattern>,
}

/// How a path is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PathPattern {
    /// As other texts.
    Text(StringMatch),
    /// Segments, of which `{*}` is any one and `{**}` any number of them: a [`crate::PathTemplate`].
    Template(ArcStr),
}

/// Attribute of a request that a condition compares.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpAttribute {
    /// `request.headers[X]`, by lower-case name.
    Header(ArcStr),
    /// Value of the attribute `source.ip`.
    SourceIp,
    /// Value of the attribute `remote.ip`.
    RemoteIp,
    /// Value of the attribute `source.namespace`.
    SourceNamespace,
    /// `source.serviceAccount`, as `namespace/name`.
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
    /// `request.auth.principal`, as `issuer/subject`.
    RequestPrincipal,
    /// Value of the attribute `request.auth.audiences`.
    RequestAudiences,
    /// Value of the attribute `request.auth.presenter`.
    RequestPresenter,
    /// `request.auth.claims[a][b]`, by the names.
    RequestClaim(Vec<ArcStr>),
}

/// Condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpCondition {
    /// Attribute that is compared.
    pub attribute: HttpAttribute,
    /// One of them must match, unless there are none.
    pub values: Vec<HttpValue>,
    /// None of them may match.
    pub not_values: Vec<HttpValue>,
}

/// Value that an attribute is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HttpValue {
    /// Pattern of a text.
    Text(StringMatch),
    /// Prefix of addresses.
    Net(IpNet),
    /// Number of a port.
    Port(u16),
}
