//! How many requests a waypoint lets pass.

use std::time::Duration;

use arcstr::ArcStr;
use serde::Serialize;

use crate::{HttpRouteMatch, NamespacedHostname, PolicyKey, json};

/// RateLimit at a waypoint. A request passes if each of its limits lets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Key of the RateLimit.
    pub key: PolicyKey,
    /// For all that goes through the waypoint.
    pub for_gateway: bool,
    /// For requests to these.
    pub services: Vec<NamespacedHostname>,
    /// Limits that each process of the waypoint counts by itself.
    pub local: Vec<LocalLimit>,
    /// Limits that a rate-limit service counts.
    pub global: Option<GlobalLimit>,
    /// Whether requests over a limit are only counted.
    pub dry_run: bool,
    /// Requests pass where the limit cannot be decided.
    pub fail_open: bool,
    /// Whether responses have headers with how much is left, and when to come again.
    pub tells: bool,
    /// Of a substitute: why the original is not understood. Nothing is decided then.
    pub not_understood: Option<ArcStr>,
}

/// So many requests, in each process of a waypoint, of those that have something in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalLimit {
    /// Which requests are counted: those that any of these matches, all if there are none.
    pub matches: Vec<HttpRouteMatch>,
    /// Attributes by which requests are counted apart; all of them together if empty.
    pub by: Vec<LimitKey>,
    /// So many ...
    pub requests: u32,
    /// ... in this time.
    #[serde(serialize_with = "json::duration")]
    pub per: Duration,
    /// At once, after a while without any.
    pub burst: u32,
    /// How many different ones are counted apart; all further ones are counted together.
    pub buckets: u32,
}

/// Attribute of a request by which it is counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LimitKey {
    /// The identity of its caller; those without one are one.
    Principal,
    /// The namespace of its caller's identity.
    Namespace,
    /// The address of its client, as far as proxies on the way are trusted.
    Address,
    /// A header, by lower-case name; requests without it are one.
    Header(ArcStr),
    /// Method of the request.
    Method,
    /// Its normalized path, without the query.
    Path,
}

/// Call of a rate-limit service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GlobalLimit {
    /// The service and its port; an error if there is none: nothing is decided then.
    pub place: Result<(NamespacedHostname, u16), ArcStr>,
    /// Whose limits are meant, in the service's own configuration.
    pub domain: ArcStr,
    /// How long is waited for an answer.
    #[serde(serialize_with = "json::duration")]
    pub timeout: Duration,
    /// As how many a request counts.
    pub hits: u32,
    /// Descriptors of a request; those that have no value for an entry are left out.
    pub descriptors: Vec<LimitDescriptor>,
}

/// One entry of a rate-limit descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitDescriptor {
    /// Of which requests; of all if empty.
    pub matches: Vec<HttpRouteMatch>,
    /// Keys with their values, in the order that the service has them in.
    pub entries: Vec<(ArcStr, LimitValue)>,
}

/// The value of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LimitValue {
    /// Always the same.
    Text(ArcStr),
    /// Of the request.
    Of(LimitKey),
}
