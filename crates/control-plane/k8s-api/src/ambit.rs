//! Ambit's own kinds, for settings of waypoints that have no place in the Gateway API and Istio's
//! kinds.
//!
//! Unknown fields are errors. Numbers are parsed as wider types than their valid range, so that an
//! error can name the value.

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    gateway::{Fraction, HttpRouteMatch},
    istio::{PolicyTargetReference, custom_resource},
    status::{self, Status},
};

/// API group of Ambit's own kinds.
pub const GROUP: &str = "ambit.io";
/// Kind by which routes name a subset of a service as a backend. No objects of this kind exist: the
/// name is that of the Service, a dot, and that of the subset in the service's `DestinationRule`.
pub const SUBSET_KIND: &str = "Subset";

custom_resource! {
    /// Faults that a rule of an HTTPRoute or GRPCRoute injects, by a filter of the type `ExtensionRef`.
    HTTPFault, HttpFaultSpec, "ambit.io", "httpfaults", NamespaceResourceScope, "v1alpha1"
}

custom_resource! {
    /// Rate limits that waypoints enforce.
    RateLimit, RateLimitSpec, "ambit.io", "ratelimits", NamespaceResourceScope, "v1alpha1"
}

/// Specification of a [`RateLimit`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RateLimitSpec {
    /// Services, ServiceEntries and waypoints whose requests are limited.
    pub target_refs: Vec<PolicyTargetReference>,
    /// Local limits, counted by each replica of a waypoint.
    pub local: Vec<LocalRateLimit>,
    /// Limits that a rate-limit service counts.
    pub global: Option<GlobalRateLimit>,
    /// Whether requests are forwarded if a limit cannot be decided, for example because the rate-limit service is
    /// unavailable.
    pub fail_open: bool,
    /// Whether responses tell clients the remaining quota and the time until they may retry.
    pub tell_clients: bool,
    /// Whether requests that exceed a limit are only counted, and not refused.
    pub dry_run: bool,
}

/// Local rate limit, which each replica of a waypoint counts by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LocalRateLimit {
    /// Matches of counted requests, as in a rule of an HTTPRoute; all requests if empty.
    pub matches: Vec<HttpRouteMatch>,
    /// Parts of the key of a bucket: requests with the same values share a bucket; if empty, all requests do.
    pub by: Vec<RateLimitKey>,
    /// Number of requests that the limit allows in each interval.
    pub requests: i64,
    /// Interval of the limit, in GEP-2257 format.
    pub per: String,
    /// Burst size: requests that pass at once after an idle period; `requests` if absent.
    pub burst: Option<i64>,
    /// Maximum number of buckets, one for each combination of key values.
    pub buckets: Option<i64>,
}

/// Part of a bucket's key: exactly one of the fields is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RateLimitKey {
    /// Attribute of the client: `Principal`, `Namespace` or `Address`.
    pub source: Option<String>,
    /// Name of a request header whose value is part of the key.
    pub header: Option<String>,
    /// Attribute of the request: `Method` or `Path`.
    pub request: Option<String>,
}

/// Global rate limit, which a rate-limit service counts for all replicas of a waypoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GlobalRateLimit {
    /// Reference to the rate-limit service.
    pub service: RateLimitServiceReference,
    /// Domain of the limits in the rate-limit service's configuration.
    pub domain: String,
    /// Timeout of a check, in GEP-2257 format.
    pub timeout: Option<String>,
    /// Number of hits that one request counts as.
    pub hits: Option<i64>,
    /// Descriptors that a check of a request contains.
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// Reference to a Service that speaks Envoy's rate-limit protocol.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RateLimitServiceReference {
    /// Name of the Service.
    pub name: String,
    /// Namespace of the Service; the namespace of the RateLimit if absent. Another one needs a ReferenceGrant.
    pub namespace: Option<String>,
    /// Port of the Service.
    pub port: i64,
}

/// Descriptor of a rate-limit check: its entries, and the requests that it applies to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RateLimitDescriptor {
    /// Matches of requests that the descriptor applies to, as in a rule of an HTTPRoute; all requests if empty.
    pub matches: Vec<HttpRouteMatch>,
    /// Entries in the order of the rate-limit service's configuration.
    pub entries: Vec<RateLimitEntry>,
}

/// Entry of a descriptor: a key, and exactly one source of its value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RateLimitEntry {
    /// Key of the entry.
    pub key: String,
    /// Fixed value of the entry.
    pub value: Option<String>,
    /// Attribute of the client: `Principal`, `Namespace` or `Address`.
    pub source: Option<String>,
    /// Name of a request header whose value the entry has.
    pub header: Option<String>,
    /// Attribute of the request: `Method` or `Path`.
    pub request: Option<String>,
}

/// Specification of an [`HTTPFault`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct HttpFaultSpec {
    /// Delay before requests are forwarded.
    pub delay: Option<FaultDelay>,
    /// Response that the waypoint returns, after the delay, instead of forwarding the request.
    pub abort: Option<FaultAbort>,
}

/// Delay that a fault injects into a share of the requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FaultDelay {
    /// Delay in GEP-2257 format.
    pub fixed_delay: Option<String>,
    /// Percentage of requests that are delayed; all requests if absent.
    pub percent: Option<i32>,
    /// Fraction of requests that are delayed, instead of a percentage.
    pub fraction: Option<Fraction>,
}

/// Response that a fault injects for a share of the requests: an HTTP or a gRPC status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FaultAbort {
    /// HTTP status of the response.
    pub http_status: Option<i64>,
    /// gRPC status of the response, by name or number.
    pub grpc_status: Option<Value>,
    /// Percentage of requests that are aborted; all requests if absent.
    pub percent: Option<i32>,
    /// Fraction of requests that are aborted, instead of a percentage.
    pub fraction: Option<Fraction>,
}
