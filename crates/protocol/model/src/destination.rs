//! Traffic policies of services at a waypoint, derived from `DestinationRule`s: load balancing, connection pools,
//! outlier detection and TLS.
//!
//! A limit of zero means that there is no limit, unless the field is an `Option`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use arcstr::ArcStr;
use serde::Serialize;

use crate::{NamespacedHostname, json};

/// Traffic policy of one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaypointDestination {
    /// Name of the service in WDS.
    pub service: NamespacedHostname,
    /// Default policy for ports that have no entry in `ports`.
    pub policy: DestinationPolicy,
    /// Policies by service port. A port's policy replaces the default policy as a whole.
    pub ports: BTreeMap<u16, DestinationPolicy>,
    /// Subsets of the endpoints by name, for route backends that reference one.
    pub subsets: BTreeMap<ArcStr, DestinationSubset>,
}

/// Subset of a service's endpoints, with the traffic policy that replaces the service's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationSubset {
    /// Default policy for ports that have no entry in `ports`.
    pub policy: DestinationPolicy,
    /// Policies by service port, in place of the default policy.
    pub ports: BTreeMap<u16, DestinationPolicy>,
    /// UIDs of the workloads in the subset. A workload in the list need not be an endpoint of the service.
    pub workloads: BTreeSet<ArcStr>,
}

impl WaypointDestination {
    /// Returns a destination that applies no traffic policy to the service.
    pub fn without_policy(service: NamespacedHostname) -> Self {
        Self {
            service,
            policy: DestinationPolicy::default(),
            ports: BTreeMap::new(),
            subsets: BTreeMap::new(),
        }
    }

    /// Returns the policy for a service port: the port's own, else the default.
    pub fn policy(&self, port: u16) -> &DestinationPolicy {
        self.ports.get(&port).unwrap_or(&self.policy)
    }
}

impl DestinationSubset {
    /// Returns the policy for a service port: the port's own, else the default.
    pub fn policy(&self, port: u16) -> &DestinationPolicy {
        self.ports.get(&port).unwrap_or(&self.policy)
    }
}

/// Traffic policy for one port: load balancing, connection limits, outlier detection, and the protocol to endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationPolicy {
    /// Reason why the policy cannot be applied. The waypoint then rejects requests to the service rather than ignore a
    /// part of the policy.
    pub unsupported: Option<ArcStr>,
    /// Load-balancing algorithm among the endpoints.
    pub balancing: Balancing,
    /// Slow start for new endpoints.
    pub warmup: Option<Warmup>,
    /// Load balancing by locality of the waypoint and the endpoints.
    pub locality: LocalityPolicy,
    /// Connection-pool limits and timeouts (circuit breaking).
    pub limits: DestinationLimits,
    /// Outlier detection, which ejects failing endpoints for a while.
    pub outliers: Option<OutlierPolicy>,
    /// HTTP version of requests to endpoints.
    pub http_version: DestinationHttpVersion,
    /// TLS origination to the endpoints. If set, the waypoint sends them nothing in plaintext.
    pub tls: Option<Arc<DestinationTls>>,
    /// PROXY protocol header with the client's address at the start of connections to endpoints.
    pub proxy_protocol: Option<ProxyProtocol>,
}

/// Version of the PROXY protocol (haproxy's `proxy-protocol.txt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ProxyProtocol {
    /// Version 1, a line of text.
    V1,
    /// Version 2, a binary header.
    V2,
}

/// HTTP version selection for requests to endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum DestinationHttpVersion {
    /// HTTP version that the service's port declares, or the client's version if the port declares none.
    #[default]
    AsDeclared,
    /// Version of the client's request (`useClientProtocol`).
    AsClient,
    /// HTTP/2 for every request, regardless of the client's version.
    AlwaysHttp2,
}

/// Settings for TLS connections that a waypoint originates to the endpoints of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationTls {
    /// Server name (SNI) to send. `None` sends the service's hostname; for a wildcard host, the hostname of the
    /// request.
    pub server_name: Option<ArcStr>,
    /// Accepted subject alternative names (hostnames, addresses and URIs); the endpoint's certificate must contain one
    /// of them. If empty, the certificate must match the SNI that is sent.
    pub names: Vec<ArcStr>,
    /// Root certificates that verify the endpoint's certificate.
    pub roots: TlsRoots,
    /// Client certificate that the waypoint presents (mutual TLS).
    pub client: Option<TlsClientFiles>,
}

/// Trusted root certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TlsRoots {
    /// Root store of the waypoint's system.
    #[default]
    System,
    /// Root certificates in PEM.
    Pem(ArcStr),
    /// Path of a PEM file in the waypoint's container.
    File(ArcStr),
    /// No verification of certificates (`insecureSkipVerify`).
    Unverified,
}

/// Paths of the client certificate and key in the waypoint's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsClientFiles {
    /// Path of the PEM certificate chain, leaf first.
    pub certificate: ArcStr,
    /// Path of the certificate's private key.
    pub key: ArcStr,
}

/// Load-balancing algorithm that picks the endpoint for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Balancing {
    /// Endpoint with fewer active requests, of two random choices.
    #[default]
    LeastRequest,
    /// Endpoints in turn.
    RoundRobin,
    /// Endpoint chosen at random.
    Random,
    /// Consistent hashing: requests with equal hash keys go to the same endpoint.
    Hash(HashPolicy),
}

/// Settings of [`Balancing::Hash`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HashPolicy {
    /// Request attribute that is hashed.
    pub source: HashSource,
    /// Consistent-hash table that maps a hash to an endpoint.
    pub table: HashTable,
    /// Hash balance factor in percent: an endpoint whose active requests exceed this percentage of the mean is skipped.
    /// Zero disables the bound; values from 1 to 99 are invalid.
    pub balance_factor: u32,
}

/// Request attribute that is hashed for consistent hashing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HashSource {
    /// Values of a header, by lower-case name.
    Header(ArcStr),
    /// Value of a cookie.
    Cookie(HashCookie),
    /// IP address of the client.
    SourceIp,
    /// First value of a query parameter.
    Query(ArcStr),
}

/// Cookie of [`HashSource::Cookie`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HashCookie {
    /// Name of the cookie.
    pub name: ArcStr,
    /// Path attribute of the cookie that the waypoint sets.
    pub path: Option<ArcStr>,
    /// Lifetime of the cookie that the waypoint sets for clients without one; zero sets a session cookie. If `None`,
    /// the waypoint sets no cookie.
    #[serde(serialize_with = "json::optional_duration")]
    pub ttl: Option<Duration>,
    /// Further attributes of the cookie that the waypoint sets: name, value.
    pub attributes: Vec<(ArcStr, ArcStr)>,
}

/// Consistent-hash table of [`HashPolicy::table`], with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HashTable {
    /// Ring hash (ketama) with at least this many points.
    Ring(u32),
    /// Maglev hash with a table of this size, which must be prime.
    Maglev(u32),
}

impl Default for HashTable {
    fn default() -> Self {
        Self::Ring(1024)
    }
}

/// Slow start: a new endpoint receives a growing share of requests until the end of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Warmup {
    /// Slow-start window, after which the endpoint receives its full share.
    #[serde(serialize_with = "json::duration")]
    pub duration: Duration,
    /// Initial share of requests in percent of the full share.
    pub minimum_percent: u32,
    /// Growth rate in thousandths: 1000 grows linearly; larger values grow faster at the start.
    pub aggression: u32,
}

/// Locality load balancing: distribution of requests by the localities of the waypoint and the endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LocalityPolicy {
    /// Preference of the service itself (`trafficDistribution`).
    #[default]
    #[serde(rename = "ofService")]
    ServicePreference,
    /// Endpoints of all localities, without preference.
    Anywhere,
    /// Weighted distribution among localities. The first entry whose `from` matches the waypoint's locality applies.
    Distribute(Vec<LocalityDistribution>),
    /// Failover to the next locality when endpoints are ejected, in the order: same subzone, zone, region, then all
    /// others. The pairs give the failover region of a region.
    Failover(Vec<(ArcStr, ArcStr)>),
    /// Failover by priority: endpoints that match the most leading labels of the waypoint come first.
    Priority(Vec<LocalityLabel>),
}

/// Shares of [`LocalityPolicy::Distribute`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalityDistribution {
    /// Locality of the waypoint to which the distribution applies.
    pub from: LocalityPattern,
    /// Localities of endpoints with their percentages, which add up to 100.
    pub to: Vec<(LocalityPattern, u32)>,
}

/// Locality pattern `region/zone/subzone`. Each part may be omitted or `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalityPattern {
    /// Region to match; `None` matches any.
    pub region: Option<ArcStr>,
    /// Zone to match; `None` matches any.
    pub zone: Option<ArcStr>,
    /// Subzone to match; `None` matches any.
    pub subzone: Option<ArcStr>,
}

/// Topology label of an endpoint that is compared with the waypoint's label or with a fixed value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalityLabel {
    /// Key of the topology label.
    pub key: LocalityKey,
    /// Value to compare with; `None` compares with the waypoint's own label.
    pub value: Option<ArcStr>,
}

/// Topology labels that WDS carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LocalityKey {
    /// Value of the label `topology.kubernetes.io/region`.
    Region,
    /// Value of the label `topology.kubernetes.io/zone`.
    Zone,
    /// Value of the label `topology.istio.io/subzone`.
    Subzone,
    /// Value of the label `kubernetes.io/hostname`.
    Node,
    /// Value of the label `topology.istio.io/network`.
    Network,
    /// Value of the label `topology.istio.io/cluster`.
    Cluster,
}

/// Connection-pool limits and timeouts of one service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationLimits {
    /// Maximum connections in use, over TCP and HTTP/1.1 (one request at a time on each).
    pub connections: u32,
    /// Maximum requests that wait for an HTTP/1.1 connection. `None` means no limit; zero rejects instead of waiting.
    pub pending: Option<u32>,
    /// Maximum active requests over any HTTP version.
    pub requests: u32,
    /// Maximum requests over the lifetime of one connection.
    pub requests_per_connection: u32,
    /// Maximum active retries.
    pub retries: u32,
    /// Retry budget, which replaces [`Self::retries`].
    pub retry_budget: Option<RetryBudget>,
    /// Timeout for establishing a connection.
    #[serde(serialize_with = "json::optional_duration")]
    pub connect_timeout: Option<Duration>,
    /// Idle timeout of an HTTP connection without requests.
    #[serde(serialize_with = "json::optional_duration")]
    pub idle_timeout: Option<Duration>,
    /// Maximum lifetime of a connection. An HTTP connection then accepts no further requests and drains; a TCP
    /// connection is closed.
    #[serde(serialize_with = "json::optional_duration")]
    pub max_connection_duration: Option<Duration>,
    /// Idle timeout of a TCP connection without bytes in either direction.
    #[serde(serialize_with = "json::optional_duration")]
    pub tcp_idle_timeout: Option<Duration>,
    /// Maximum concurrent streams on one HTTP/2 connection.
    pub streams_per_connection: u32,
    /// TCP keepalive of plaintext connections to endpoints.
    pub keepalive: Option<TcpKeepalive>,
}

/// TCP keepalive probes of idle connections. `None` leaves a value to the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpKeepalive {
    /// Number of unanswered probes after which the connection is closed.
    pub probes: Option<u32>,
    /// Idle time before the first probe.
    #[serde(serialize_with = "json::optional_duration")]
    pub time: Option<Duration>,
    /// Time between two probes.
    #[serde(serialize_with = "json::optional_duration")]
    pub interval: Option<Duration>,
}

/// Retry budget: maximum number of active retries as a share of the active requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryBudget {
    /// Share of active requests that may be retries, in thousandths of a percent.
    pub share: u32,
    /// Minimum number of active retries that the budget always permits.
    pub minimum: u32,
}

/// Outlier detection: when an endpoint is ejected, and for how long. A threshold of zero disables its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutlierPolicy {
    /// Consecutive 5xx responses before ejection.
    pub server_errors: u32,
    /// Consecutive responses 502, 503 or 504 before ejection.
    pub gateway_errors: u32,
    /// Consecutive connection failures before ejection. If `None`, a connection failure counts as a 503 response.
    pub local_failures: Option<u32>,
    /// Analysis interval: if an endpoint is not ejected for this long, its next ejection is shortened by one
    /// [`Self::base_ejection`].
    #[serde(serialize_with = "json::duration")]
    pub interval: Duration,
    /// Duration of the first ejection; each further ejection is longer by this amount.
    #[serde(serialize_with = "json::duration")]
    pub base_ejection: Duration,
    /// Maximum percentage of endpoints that are ejected at once. One endpoint may always be ejected if there are
    /// several.
    pub max_ejection_percent: u32,
    /// Minimum percentage of endpoints that must remain; below it, ejections are ignored (panic mode).
    pub min_health_percent: u32,
}

impl Default for OutlierPolicy {
    /// Returns Istio's defaults.
    fn default() -> Self {
        Self {
            server_errors: 5,
            gateway_errors: 0,
            local_failures: None,
            interval: Duration::from_secs(10),
            base_ejection: Duration::from_secs(30),
            max_ejection_percent: 10,
            min_health_percent: 0,
        }
    }
}
