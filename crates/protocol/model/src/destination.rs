//! Treatment of the endpoints of a service at a waypoint, from `DestinationRule`s.
//!
//! Zero is "no limit" wherever a limit is a number.

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
    /// Its name in WDS.
    pub service: NamespacedHostname,
    /// For ports without a policy of their own.
    pub policy: DestinationPolicy,
    /// By service port; such a policy inherits nothing.
    pub ports: BTreeMap<u16, DestinationPolicy>,
    /// Some of the endpoints, for backends that name them.
    pub subsets: BTreeMap<ArcStr, DestinationSubset>,
}

/// Some of the endpoints of a service, and how they are treated in place of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationSubset {
    /// For ports without a policy of their own.
    pub policy: DestinationPolicy,
    /// By service port.
    pub ports: BTreeMap<u16, DestinationPolicy>,
    /// The uids of the workloads in it. Not all of them need be endpoints of the service.
    pub workloads: BTreeSet<ArcStr>,
}

impl WaypointDestination {
    /// A service without a policy.
    pub fn unruled(service: NamespacedHostname) -> Self {
        Self {
            service,
            policy: DestinationPolicy::default(),
            ports: BTreeMap::new(),
            subsets: BTreeMap::new(),
        }
    }

    /// The policy of a port.
    pub fn policy(&self, port: u16) -> &DestinationPolicy {
        self.ports.get(&port).unwrap_or(&self.policy)
    }
}

impl DestinationSubset {
    /// The policy of a port.
    pub fn policy(&self, port: u16) -> &DestinationPolicy {
        self.ports.get(&port).unwrap_or(&self.policy)
    }
}

/// How endpoints are chosen, how many requests they get, and when they are left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationPolicy {
    /// Why nothing may be sent at all: what was wished cannot be done, and doing less would be worse.
    pub unsupported: Option<ArcStr>,
    /// Which of the endpoints.
    pub balancing: Balancing,
    /// Endpoints that are new get less at first.
    pub warmup: Option<Warmup>,
    /// Where endpoints are.
    pub locality: LocalityPolicy,
    /// How much at the same time, and for how long.
    pub limits: DestinationLimits,
    /// When an endpoint gets nothing for a while.
    pub outliers: Option<OutlierPolicy>,
    /// Version of HTTP that endpoints are spoken to in.
    pub http_version: DestinationHttpVersion,
    /// Given: the waypoint begins TLS with endpoints, and sends them nothing without.
    pub tls: Option<Arc<DestinationTls>>,
    /// Given: connections to endpoints begin with the client's address.
    pub proxy_protocol: Option<ProxyProtocol>,
}

/// Version of the PROXY protocol (haproxy's `proxy-protocol.txt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ProxyProtocol {
    /// A line of text.
    V1,
    /// Binary header (version 2).
    V2,
}

/// Choice of the version of HTTP that endpoints are spoken to in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum DestinationHttpVersion {
    /// The one that the port declares, the client's without a declaration.
    #[default]
    AsDeclared,
    /// Protocol that the client speaks.
    AsClient,
    /// HTTP/2, whatever the client speaks.
    AlwaysHttp2,
}

/// TLS that a waypoint begins with the endpoints of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationTls {
    /// The server name (SNI) to send; `None` is the service's host, or of a wildcard the host that is called.
    pub server_name: Option<ArcStr>,
    /// Subject alternative names, of which the endpoint's certificate must have one: host names, addresses and URIs.
    /// Empty is the server name that is sent.
    pub names: Vec<ArcStr>,
    /// Authorities that the certificate must be signed by.
    pub roots: TlsRoots,
    /// Client certificate of the waypoint.
    pub client: Option<TlsClientFiles>,
}

/// The authorities that are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TlsRoots {
    /// Roots of the waypoint's system.
    #[default]
    System,
    /// Roots in PEM.
    Pem(ArcStr),
    /// Roots in a file at the waypoint.
    File(ArcStr),
    /// Anybody: certificates are not verified.
    Unverified,
}

/// Files at the waypoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsClientFiles {
    /// A certificate and those that sign it.
    pub certificate: ArcStr,
    /// Its private key.
    pub key: ArcStr,
}

/// Which of several endpoints a request goes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Balancing {
    /// Of two that are drawn the one with fewer requests under way.
    #[default]
    LeastRequest,
    /// One after the other.
    RoundRobin,
    /// Endpoint chosen at random.
    Random,
    /// The same for requests that have something in common.
    Hash(HashPolicy),
}

/// Settings of [`Balancing::Hash`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HashPolicy {
    /// Part of requests that is hashed.
    pub source: HashSource,
    /// How a hash becomes an endpoint.
    pub table: HashTable,
    /// In percent: an endpoint that has more than this share of the mean of requests under way is passed over. Zero
    /// is without such a bound, less than 100 cannot be.
    pub balance_factor: u32,
}

/// Part of a request that is hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HashSource {
    /// All values of a header; the name is in lower case.
    Header(ArcStr),
    /// A cookie's value.
    Cookie(HashCookie),
    /// The client's address.
    SourceIp,
    /// The first value of a query parameter.
    Query(ArcStr),
}

/// Cookie of [`HashSource::Cookie`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HashCookie {
    /// Name of the cookie.
    pub name: ArcStr,
    /// Of the cookie that is set.
    pub path: Option<ArcStr>,
    /// Given: clients without the cookie get one, for this time, or for their session if it is zero.
    #[serde(serialize_with = "json::optional_duration")]
    pub ttl: Option<Duration>,
    /// Further attributes of the cookie that is set, with their values.
    pub attributes: Vec<(ArcStr, ArcStr)>,
}

/// Table of [`HashPolicy::table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HashTable {
    /// A ring with at least this many points.
    Ring(u32),
    /// Maglev, with a table of this size, a prime.
    Maglev(u32),
}

impl Default for HashTable {
    fn default() -> Self {
        Self::Ring(1024)
    }
}

/// An endpoint that is new gets a growing share of what the others get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Warmup {
    /// Until it gets as much as the others.
    #[serde(serialize_with = "json::duration")]
    pub duration: Duration,
    /// Least share of its requests that an endpoint gets at the start of its warm-up, in percent.
    pub minimum_percent: u32,
    /// In thousandths: 1000 is growth with time, more is faster growth at first.
    pub aggression: u32,
}

/// Where requests go, by where the waypoint and the endpoints are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LocalityPolicy {
    /// As the service itself has it (`trafficDistribution`).
    #[default]
    OfService,
    /// Endpoints at any place are equal.
    Anywhere,
    /// Shares of what comes from places; the first whose `from` the waypoint is in counts.
    Distribute(Vec<LocalityShares>),
    /// To the nearest, and further as far as these are ejected: same subzone, zone, region, then the rest. The regions
    /// of the pairs follow each other's.
    Failover(Vec<(ArcStr, ArcStr)>),
    /// To those of which most in a row agree with the waypoint.
    Priority(Vec<LocalityLabel>),
}

/// Shares of [`LocalityPolicy::Distribute`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalityShares {
    /// The waypoint's place.
    pub from: LocalityPattern,
    /// Endpoints' places, with their shares; together 100.
    pub to: Vec<(LocalityPattern, u32)>,
}

/// A place, as far as it is given: `region/zone/subzone`, each of which may be left out or `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalityPattern {
    /// Any if `None`.
    pub region: Option<ArcStr>,
    /// Any if `None`.
    pub zone: Option<ArcStr>,
    /// Any if `None`.
    pub subzone: Option<ArcStr>,
}

/// Label of an endpoint's place that is compared with the waypoint's, or with a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalityLabel {
    /// Key of the label.
    pub key: LocalityKey,
    /// With what, if not with the waypoint's own.
    pub value: Option<ArcStr>,
}

/// The labels of places, as WDS has them.
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

/// How much a destination gets at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationLimits {
    /// Connections in use: of TCP, and of HTTP/1, where each carries one request at a time.
    pub connections: u32,
    /// Requests that wait for such a connection; `None` is no limit, zero is that none waits.
    pub pending: Option<u32>,
    /// Requests under way, whatever version of HTTP carries them.
    pub requests: u32,
    /// Requests that one connection carries in its life.
    pub requests_per_connection: u32,
    /// Retries under way.
    pub retries: u32,
    /// In place of [`Self::retries`].
    pub retry_budget: Option<RetryBudget>,
    /// How long connecting may take.
    #[serde(serialize_with = "json::optional_duration")]
    pub connect_timeout: Option<Duration>,
    /// How long a connection of HTTP without requests is kept.
    #[serde(serialize_with = "json::optional_duration")]
    pub idle_timeout: Option<Duration>,
    /// How long a connection may last; one of HTTP takes no further requests then, one of TCP ends.
    #[serde(serialize_with = "json::optional_duration")]
    pub max_connection_duration: Option<Duration>,
    /// Of TCP: how long one may be without a byte of either side.
    #[serde(serialize_with = "json::optional_duration")]
    pub tcp_idle_timeout: Option<Duration>,
    /// Requests under way on one connection of HTTP/2.
    pub streams_per_connection: u32,
    /// Probes of connections in plaintext.
    pub keepalive: Option<TcpKeepalive>,
}

/// Probes of connections on which nothing passes; what is `None` is left to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TcpKeepalive {
    /// Unanswered ones until a connection is given up.
    pub probes: Option<u32>,
    /// Silence before the first.
    #[serde(serialize_with = "json::optional_duration")]
    pub time: Option<Duration>,
    /// Time between two probes.
    #[serde(serialize_with = "json::optional_duration")]
    pub interval: Option<Duration>,
}

/// Retries in proportion to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryBudget {
    /// Of the requests under way, in thousandths of a percent.
    pub share: u32,
    /// Number of retries that is allowed in any case.
    pub minimum: u32,
}

/// When an endpoint is ejected, and for how long. Zero errors never eject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutlierPolicy {
    /// Answers of 5xx in a row.
    pub server_errors: u32,
    /// Answers of 502, 503 and 504 in a row.
    pub gateway_errors: u32,
    /// Given: connections that fail count by themselves, this many in a row. Else they count as 503.
    pub local_failures: Option<u32>,
    /// How long an endpoint is left in before its next ejection is shorter by one [`Self::base_ejection`].
    #[serde(serialize_with = "json::duration")]
    pub interval: Duration,
    /// The first ejection; each further one is longer by this.
    #[serde(serialize_with = "json::duration")]
    pub base_ejection: Duration,
    /// Of all endpoints, at most this many percent are ejected; but one of several may always be.
    pub max_ejection_percent: u32,
    /// With fewer left in than this, ejections do not count.
    pub min_health_percent: u32,
}

impl Default for OutlierPolicy {
    /// As Istio has it.
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
