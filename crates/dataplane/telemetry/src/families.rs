//! All metric families of a node proxy, which are registered here.

use std::sync::Arc;

use ambit_model::{ArcStr, PolicyKey};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::Histogram,
    },
    registry::{Registry, Unit},
};

use crate::{
    Flows, Reporter, Traffic, WorkloadLabels,
    labels::{OnDemandDnsLabels, Principals},
    traffic::TrafficCollector,
};

/// Reason why an xDS stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum XdsTermination {
    /// The connection could not be opened.
    ConnectionError,
    /// The stream ended with a gRPC error.
    Error,
    /// The server asked the client to reconnect.
    Reconnect,
    /// The server ended the stream without an error.
    Complete,
}

/// Cause of closing a plaintext connection that was opened before the pod was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum PreCaptureCloseCause {
    /// The setting `AMBIT_CLOSE_CLEAR_CONNECTIONS` requires that such connections close.
    Setting,
    /// A changed policy denies the connection.
    Policy,
}

/// Outcome of closing a plaintext connection that was opened before the pod was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum PreCaptureCloseResult {
    Closed,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PreCaptureCloseLabels {
    cause: PreCaptureCloseCause,
    result: PreCaptureCloseResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TerminationLabels {
    reason: XdsTermination,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SetupLimitLabels {
    limit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TypeUrlLabels {
    url: String,
}

/// Labels of the DNS metric families.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DnsLabels {
    /// Record type of the query, for instance `A`.
    pub request_query_type: ArcStrLabel,
    /// Transport protocol of the query: `udp` or `tcp`.
    pub request_protocol: ArcStrLabel,
    /// Canonical service of the client workload.
    pub source_canonical_service: ArcStrLabel,
    /// Canonical revision of the client workload.
    pub source_canonical_revision: ArcStrLabel,
}

/// Shared string as a label value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArcStrLabel(pub ArcStr);

impl EncodeLabelValue for ArcStrLabel {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        self.0.as_str().encode(encoder)
    }
}

#[derive(Clone, Copy, Debug)]
struct DnsBuckets;

impl MetricConstructor<Histogram> for DnsBuckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new([0.0005, 0.001, 0.01, 0.1, 1.0, 5.0])
    }
}

/// Metric families of a node proxy, created once and shared.
#[derive(Debug, Default)]
pub struct Metrics {
    traffic: Arc<Traffic>,
    flows: Arc<Flows>,
    sockets: Family<Reporter, Gauge>,
    on_demand_dns: Family<OnDemandDnsLabels, Counter>,
    principals: Principals,
    crl_rejections: Family<Reporter, Counter>,
    crl_untracked_connections: Family<Reporter, Counter>,
    setups_refused: Family<SetupLimitLabels, Counter>,
    pre_capture_connections: Family<PreCaptureCloseLabels, Counter>,
    forwarded_to_waypoint: Counter,
    dry_run_denied: Family<PolicyLabels, Counter>,
    xds_terminations: Family<TerminationLabels, Counter>,
    xds_messages: Family<TypeUrlLabels, Counter>,
    xds_bytes: Family<TypeUrlLabels, Counter>,
    unknown_fields: Family<TypeUrlLabels, Counter>,
    dns_requests: Family<DnsLabels, Counter>,
    dns_upstream_requests: Family<DnsLabels, Counter>,
    dns_upstream_failures: Family<DnsLabels, Counter>,
    dns_upstream_seconds: DnsSeconds,
    /// Number of active proxy instances, one for each captured pod.
    pub active_proxies: Gauge,
    /// Number of proxy instances that are being started.
    pub pending_proxies: Gauge,
    /// Number of proxy instances started so far.
    pub proxies_started: Counter,
    /// Number of proxy instances stopped so far.
    pub proxies_stopped: Counter,
}

#[derive(Debug)]
struct DnsSeconds(Family<DnsLabels, Histogram, DnsBuckets>);

impl Default for DnsSeconds {
    fn default() -> Self {
        Self(Family::new_with_constructor(DnsBuckets))
    }
}

impl Metrics {
    /// Creates and registers all families.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        metrics.register_traffic(registry);
        metrics.register_xds(registry);
        metrics.register_dns(registry);
        metrics.register_proxies(registry);
        metrics.flows.register(registry);
        metrics.initialize_counters();
        metrics
    }

    /// Initializes counters of failures to 0: Prometheus sees no increase in a series that begins with 1.
    fn initialize_counters(&self) {
        for reason in [
            XdsTermination::ConnectionError,
            XdsTermination::Error,
            XdsTermination::Reconnect,
            XdsTermination::Complete,
        ] {
            self.xds_terminations
                .get_or_create(&TerminationLabels { reason })
                .inc_by(0);
        }
    }

    /// Returns the hub of flow events and their readers.
    pub fn flows(&self) -> &Arc<Flows> {
        &self.flows
    }

    /// Reports every principal label as "unknown" from now on.
    pub fn hide_principals(&self) {
        self.principals.hide();
        self.traffic.hide_principals();
    }

    fn register_traffic(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(TrafficCollector(self.traffic.clone())));
        registry.register(
            "istio_tcp_sockets_open",
            "The number of TCP sockets open (unstable)",
            self.sockets.clone(),
        );
        registry.register(
            "istio_on_demand_dns",
            "The total number of requests that used on-demand DNS (unstable)",
            self.on_demand_dns.clone(),
        );
        registry.register(
            "istio_crl_policy_rejections",
            "The total number of connections refused or closed for a revoked certificate (unstable)",
            self.crl_rejections.clone(),
        );
        registry.register(
            "istio_crl_untracked_connections",
            "The total number of connections that revocation cannot close (unstable)",
            self.crl_untracked_connections.clone(),
        );
        registry.register(
            "ambit_setups_refused",
            "The total number of connections to pods refused because too many were being set up",
            self.setups_refused.clone(),
        );
        registry.register(
            "ambit_connections_dry_run_denied",
            "The total number of connections to pods that a dry-run policy would have denied",
            self.dry_run_denied.clone(),
        );
        registry.register(
            "ambit_connections_led_to_waypoint",
            "Total number of connections to a pod that bypassed its waypoint and were redirected to it",
            self.forwarded_to_waypoint.clone(),
        );
        registry.register(
            "ambit_earlier_connections",
            "The total number of plaintext connections from before a pod's capture that were to be closed",
            self.pre_capture_connections.clone(),
        );
    }

    fn register_xds(&self, registry: &mut Registry) {
        registry.register(
            "istio_xds_connection_terminations",
            "The total number of xDS connections that ended",
            self.xds_terminations.clone(),
        );
        registry.register(
            "istio_xds_message",
            "Total number of xDS messages received",
            self.xds_messages.clone(),
        );
        registry.register_with_unit(
            "istio_xds_message",
            "Total number of bytes received in xDS messages",
            Unit::Bytes,
            self.xds_bytes.clone(),
        );
        registry.register(
            "ambit_xds_unknown_fields",
            "Total number of fields of received records that were ignored, being unknown",
            self.unknown_fields.clone(),
        );
    }

    fn register_dns(&self, registry: &mut Registry) {
        registry.register(
            "istio_dns_requests",
            "Total number of DNS requests (unstable)",
            self.dns_requests.clone(),
        );
        registry.register(
            "istio_dns_upstream_requests",
            "Total number of DNS requests forwarded (unstable)",
            self.dns_upstream_requests.clone(),
        );
        registry.register(
            "istio_dns_upstream_failures",
            "Total number of DNS requests that could not be forwarded (unstable)",
            self.dns_upstream_failures.clone(),
        );
        registry.register(
            "istio_dns_upstream_request_duration_seconds",
            "Seconds until a forwarded DNS request was answered (unstable)",
            self.dns_upstream_seconds.0.clone(),
        );
    }

    fn register_proxies(&self, registry: &mut Registry) {
        registry.register(
            "workload_manager_active_proxy_count",
            "The number of proxies serving (unstable)",
            self.active_proxies.clone(),
        );
        registry.register(
            "workload_manager_pending_proxy_count",
            "The number of proxies being started (unstable)",
            self.pending_proxies.clone(),
        );
        registry.register(
            "workload_manager_proxies_started",
            "The total number of proxies started (unstable)",
            self.proxies_started.clone(),
        );
        registry.register(
            "workload_manager_proxies_stopped",
            "The total number of proxies stopped (unstable)",
            self.proxies_stopped.clone(),
        );
    }

    /// Returns the metrics of connections and bytes.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Counts a socket as open until the guard is dropped.
    pub fn open_socket(&self, reporter: Reporter) -> SocketGuard {
        let gauge = self.sockets.get_or_create_owned(&reporter);
        gauge.inc();
        SocketGuard(gauge)
    }

    /// Counts an on-demand DNS resolution of a host name, for a connection of the workload `source`.
    pub fn count_on_demand_dns(&self, source: &Arc<WorkloadLabels>, hostname: &ArcStr) {
        let labels = OnDemandDnsLabels {
            source: if self.principals.are_hidden() {
                source.without_principal()
            } else {
                source.clone()
            },
            hostname: hostname.clone(),
        };
        self.on_demand_dns.get_or_create(&labels).inc();
    }

    /// Counts a connection that was refused or closed because its peer's certificate is revoked.
    pub fn count_crl_rejection(&self, reporter: Reporter) {
        self.crl_rejections.get_or_create(&reporter).inc();
    }

    /// Counts a connection that could not be tracked for later revocation checks.
    pub fn count_crl_untracked(&self, reporter: Reporter) {
        self.crl_untracked_connections
            .get_or_create(&reporter)
            .inc();
    }

    /// Counts a connection to a pod that a limit of connections in setup refused.
    pub fn count_refused_setup(&self, limit: &'static str) {
        self.setups_refused
            .get_or_create(&SetupLimitLabels { limit })
            .inc();
    }

    /// Counts a plaintext connection from before the pod's capture that was closed, or could not be.
    pub fn count_pre_capture_connection(&self, cause: PreCaptureCloseCause, closed: bool) {
        let result = if closed {
            PreCaptureCloseResult::Closed
        } else {
            PreCaptureCloseResult::Failed
        };
        let labels = PreCaptureCloseLabels { cause, result };
        self.pre_capture_connections.get_or_create(&labels).inc();
    }

    /// Counts the end of an xDS stream, or a failed attempt to open one.
    pub fn count_xds_termination(&self, reason: XdsTermination) {
        self.xds_terminations
            .get_or_create(&TerminationLabels { reason })
            .inc();
    }

    /// Counts a received xDS message of a resource type, and its bytes.
    pub fn count_xds_message(&self, type_url: &str, bytes: u64) {
        let labels = TypeUrlLabels {
            url: type_url.to_owned(),
        };
        self.xds_messages.get_or_create(&labels).inc();
        self.xds_bytes.get_or_create(&labels).inc_by(bytes);
    }

    /// Counts a connection to a pod that a dry-run policy would have denied.
    pub fn count_dry_run_denial(&self, policy: &PolicyKey) {
        let labels = PolicyLabels {
            policy: policy.to_string(),
        };
        self.dry_run_denied.get_or_create(&labels).inc();
    }

    /// Removes the series that name a deleted policy.
    pub fn remove_policy(&self, policy: &PolicyKey) {
        let policy = policy.to_string();
        self.dry_run_denied.remove(&PolicyLabels { policy });
    }

    /// Counts a connection to a pod that was redirected to the pod's waypoint.
    pub fn count_forwarded_to_waypoint(&self) {
        self.forwarded_to_waypoint.inc();
    }

    /// Counts unknown fields in a record of a resource type.
    pub fn count_unknown_fields(&self, type_url: &str, count: u64) {
        let labels = TypeUrlLabels {
            url: type_url.to_owned(),
        };
        self.unknown_fields.get_or_create(&labels).inc_by(count);
    }

    /// Counts a DNS query.
    pub fn count_dns_request(&self, labels: &DnsLabels) {
        self.dns_requests.get_or_create(labels).inc();
    }

    /// Counts a DNS query that was forwarded upstream. `seconds` is the time until the response; `None` counts it as
    /// failed.
    pub fn count_dns_forwarded(&self, labels: &DnsLabels, seconds: Option<f64>) {
        self.dns_upstream_requests.get_or_create(labels).inc();
        // Zero is written too: Prometheus sees no increase in a series that begins with 1.
        let failures = u64::from(seconds.is_none());
        self.dns_upstream_failures
            .get_or_create(labels)
            .inc_by(failures);
        if let Some(seconds) = seconds {
            let family = &self.dns_upstream_seconds.0;
            family.get_or_create(labels).observe(seconds);
        }
    }
}

/// Guard that counts one open socket.
#[derive(Debug)]
pub struct SocketGuard(Gauge);

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests;
