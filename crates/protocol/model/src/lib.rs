//! Data model of the mesh: identities, names, addresses, workloads, services, policies.
//!
//! The types are pure data with their invariants. The crate does not depend on protobuf, Kubernetes, sockets, tasks or
//! a clock.
#![forbid(unsafe_code)]

mod authentication;
mod destination;
mod extension;
mod http_policy;
mod http_route;
mod identity;
mod json;
mod names;
mod path_template;
mod policy;
mod port_map;
mod ports;
mod provider;
mod rate_limit;
mod reason;
mod service;
mod stream_route;
mod telemetry;
mod waypoint;
mod waypoint_record;
mod waypoint_rule;
mod workload;

pub use arcstr::ArcStr;
pub use authentication::{Authentication, JwtKeys, JwtRule};
pub use destination::{
    Balancing, DestinationHttpVersion, DestinationLimits, DestinationPolicy, DestinationSubset,
    DestinationTls, HashCookie, HashPolicy, HashSource, HashTable, LocalityDistribution,
    LocalityKey, LocalityLabel, LocalityPattern, LocalityPolicy, OutlierPolicy, ProxyProtocol,
    RetryBudget, TcpKeepalive, TlsClientFiles, TlsRoots, Warmup, WaypointDestination,
};
pub use extension::{ExtensionPhase, WaypointExtension};
pub use http_policy::{
    HttpAction, HttpAttribute, HttpCondition, HttpOperation, HttpPolicy, HttpRule, HttpSource,
    HttpValue, PathPattern,
};
pub use http_route::{
    FaultStatus, HeaderChanges, HttpBackend, HttpCors, HttpFault, HttpFilter, HttpMirror,
    HttpPathMatch, HttpRedirect, HttpRetry, HttpRewrite, HttpRoute, HttpRouteMatch, HttpRouteRule,
    HttpSession, HttpTimeouts, HttpValueMatch, MAX_COMPILED_REGEX_BYTES, PathChange,
    RequestFraction, is_mesh_header, is_reserved_header,
};
pub use identity::{Identity, ParseIdentityError, WAYPOINT_CALLS_ACCOUNT};
pub use names::{
    GatewayAddress, GatewayDestination, GatewayName, NamespacedHostname, NetworkAddress,
    ParseNameError, RouteName, WorkloadUid, canonical_ip, canonical_socket_address,
};
pub use path_template::{PathTemplate, PathTemplateError};
pub use policy::{
    Action, Authorization, Clause, Match, PolicyKey, Rule, Scope, ServiceAccountMatch, StringMatch,
};
pub use port_map::PortMap;
pub use ports::{
    DNS_PORT, HBONE_PORT, INBOUND_PLAINTEXT_PORT, OUTBOUND_PORT, PROXY_MARK, SOCKS5_PORT,
};
pub use provider::{HttpProvider, Provider, ProviderBody, ProviderProtocol};
pub use rate_limit::{GlobalLimit, LimitDescriptor, LimitKey, LimitValue, LocalLimit, RateLimit};
pub use reason::FailureReason;
pub use service::{
    AppProtocol, CidrVip, HealthPolicy, IpFamilies, LbMode, LbScope, LoadBalancing, Service,
    Visibility, WeightedWaypoint,
};
pub use stream_route::{StreamBackend, StreamRoute};
pub use telemetry::{
    OtlpCollector, TelemetryFamily, TelemetryFormat, TelemetryLog, TelemetryMetric, TelemetryScope,
    TelemetryTag, TelemetryTagValue, TelemetryTracing, WaypointTelemetry,
};
pub use waypoint::{PathNormalization, PodGrant, WaypointGateway, WaypointService};
pub use waypoint_record::{
    IsWaypointRecord, WaypointRecord, WaypointRecordKey, WaypointRecordType,
};
pub use waypoint_rule::WaypointRule;
pub use workload::{
    AppTunnel, AppTunnelProtocol, EndpointWaypoint, Locality, NetworkMode, PodName, Protocol,
    Workload, WorkloadKind, WorkloadStatus,
};

/// Trust domain of a workload whose record names none (Istio's default).
pub const DEFAULT_TRUST_DOMAIN: &str = "cluster.local";
