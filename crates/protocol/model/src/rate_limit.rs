//! Local and global rate limits at waypoints.

use std::time::Duration;

use arcstr::ArcStr;
use serde::Serialize;

use crate::{HttpRouteMatch, NamespacedHostname, PolicyKey, json};

/// RateLimit object at a waypoint. A request passes if all of its limits allow it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Key of the RateLimit.
    pub key: PolicyKey,
    /// Whether the object applies to all traffic of the waypoint.
    pub for_gateway: bool,
    /// Services to which the object is attached.
    pub services: Vec<NamespacedHostname>,
    /// Local rate limits, counted by each waypoint process.
    pub local: Vec<LocalLimit>,
    /// Global rate limits, counted by a rate-limit service.
    pub global: Option<GlobalLimit>,
    /// Whether requests over the limit are counted but not rejected.
    pub dry_run: bool,
    /// Whether requests pass when a limit cannot be evaluated.
    pub fail_open: bool,
    /// Whether responses have rate-limit headers (remaining quota and time until reset).
    #[serde(rename = "tells")]
    pub sends_headers: bool,
    /// Reason why the RateLimit could not be decoded in full, set on its substitute, which evaluates no limit.
    pub not_understood: Option<ArcStr>,
}

/// Local rate limit (token bucket) of each waypoint process, with a bucket for each combination of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalLimit {
    /// Matches of counted requests, of which one must apply; all requests if empty.
    pub matches: Vec<HttpRouteMatch>,
    /// Request attributes that form the bucket key: each combination of values has a bucket. One bucket serves all
    /// requests if empty.
    #[serde(rename = "by")]
    pub bucket_keys: Vec<LimitKey>,
    /// Requests in each interval.
    pub requests: u32,
    /// Interval of the limit.
    #[serde(serialize_with = "json::duration")]
    pub per: Duration,
    /// Capacity of a bucket: requests that may pass at once after an idle period.
    pub burst: u32,
    /// Maximum number of separate buckets; requests with further keys share one bucket.
    pub buckets: u32,
}

/// Request attribute that selects a rate-limit bucket, or is the value of a descriptor entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LimitKey {
    /// Principal of the caller; callers without an identity share a value.
    Principal,
    /// Namespace of the caller's identity.
    Namespace,
    /// Address of the original client, as trusted proxies forward it.
    Address,
    /// Header by lower-case name; requests without the header share a value.
    Header(ArcStr),
    /// Method of the request.
    Method,
    /// Normalized path without the query.
    Path,
}

/// Global rate limit: checks at a rate-limit service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GlobalLimit {
    /// Rate-limit service and its port. An error is the reason why it cannot be called; no limit is evaluated then.
    #[serde(rename = "place")]
    pub target: Result<(NamespacedHostname, u16), ArcStr>,
    /// Domain in the rate-limit service's configuration.
    pub domain: ArcStr,
    /// Timeout of a check.
    #[serde(serialize_with = "json::duration")]
    pub timeout: Duration,
    /// Hits that one request counts as (`hits_addend`).
    pub hits: u32,
    /// Descriptors that a check sends for a request. A descriptor with an entry that has no value is omitted.
    pub descriptors: Vec<LimitDescriptor>,
}

/// Rate-limit descriptor and the requests to which it applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitDescriptor {
    /// Matches of requests, of which one must apply; all requests if empty.
    pub matches: Vec<HttpRouteMatch>,
    /// Entries (key, value) in the same order as in the rate-limit service's configuration.
    pub entries: Vec<(ArcStr, LimitValue)>,
}

/// Value of a descriptor entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LimitValue {
    /// Fixed text value.
    Text(ArcStr),
    /// Attribute of the request.
    #[serde(rename = "of")]
    Attribute(LimitKey),
}
