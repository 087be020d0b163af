//! Report of one connection: access log line, metrics and flow events.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use ambit_flow::FlowEventKind;
use ambit_hbone::Meter;
use ambit_model::{ArcStr, FailureReason, Identity, Service, Workload};
use ambit_telemetry::{
    AccessLog, Direction, Metrics, Reporter, SecurityPolicy, ServiceName, SocketGuard,
    TrafficLabels, TrafficSeries, WorkloadLabels,
};

use crate::{
    flow::{self, short_waypoint},
    local::LocalPod,
};

/// Report of one connection, written on drop with the data known by then.
pub struct Report {
    log: AccessLog,
    /// Series in which the connection is counted as open.
    series: Option<Arc<TrafficSeries>>,
    /// Whether the connection is forwarded to the pod's waypoint, whose own connection to the pod is counted in its
    /// place.
    is_forwarded: bool,
    /// Labels of the connection's metrics; of an established connection those of its series, which it shares.
    labels: Arc<TrafficLabels>,
    metrics: Arc<Metrics>,
    app_sent: AtomicU64,
    app_received: AtomicU64,
    started_at: Instant,
    is_established: bool,
    /// Failure of the connection; boxed, since few connections have one.
    failure: Option<Box<RecordedFailure>>,
    /// Name of the waypoint on the connection's path.
    waypoint: Option<ArcStr>,
    /// Id of the connection in flow events, assigned at its first event.
    connection_id: u64,
    _socket: SocketGuard,
}

/// Failure with which a connection ended.
struct RecordedFailure {
    /// Error with its causes.
    error: String,
    reason: FailureReason,
    /// Policy that denied the connection, `namespace/name`.
    policy: Option<String>,
}

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Report")
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl Report {
    /// Creates the report of a connection from the pod `local` to `dst`.
    pub fn outbound(
        metrics: &Arc<Metrics>,
        local: &LocalPod,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> Self {
        let mut log = AccessLog::new(Direction::Outbound, src, dst);
        fill_source(&mut log, &local.workload);
        let labels = TrafficLabels {
            reporter: Reporter::Source,
            source: Some(local.metric_labels.clone()),
            destination: None,
            service: None,
            security: SecurityPolicy::Unknown,
        };
        Self::new(metrics, log, labels)
    }

    /// Creates the report of a connection from `src` to the pod `local`.
    pub fn inbound(
        metrics: &Arc<Metrics>,
        local: &LocalPod,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> Self {
        let mut log = AccessLog::new(Direction::Inbound, src, dst);
        fill_destination(&mut log, &local.workload);
        let labels = TrafficLabels {
            reporter: Reporter::Destination,
            source: None,
            destination: Some(local.metric_labels.clone()),
            service: None,
            security: SecurityPolicy::Unknown,
        };
        Self::new(metrics, log, labels)
    }

    fn new(metrics: &Arc<Metrics>, log: AccessLog, labels: TrafficLabels) -> Self {
        Self {
            log,
            series: None,
            is_forwarded: false,
            _socket: metrics.open_socket(labels.reporter),
            labels: Arc::new(labels),
            metrics: metrics.clone(),
            app_sent: AtomicU64::new(0),
            app_received: AtomicU64::new(0),
            started_at: Instant::now(),
            is_established: false,
            failure: None,
            waypoint: None,
            connection_id: 0,
        }
    }

    fn labels_mut(&mut self) -> &mut TrafficLabels {
        Arc::make_mut(&mut self.labels)
    }

    /// Sets the service that the client addressed.
    pub fn set_service(&mut self, service: &Service) {
        self.log.dst_service = Some(service.hostname.clone());
        self.labels_mut().service = Some(ServiceName::from(service));
    }

    /// Sets the destination workload of a connection from the pod.
    pub fn set_destination(&mut self, workload: &Workload) {
        fill_destination(&mut self.log, workload);
        self.labels_mut().destination = Some(Arc::new(WorkloadLabels::destination(workload)));
    }

    /// Sets the source workload of an inbound connection. The identity `proven` is reported; it is `None` unless mTLS
    /// verified it.
    pub fn set_source(&mut self, workload: &Workload, proven: Option<&Identity>) {
        fill_source(&mut self.log, workload);
        self.labels_mut().source = Some(Arc::new(WorkloadLabels::new(workload, proven.cloned())));
    }

    /// Records the identities of both peers, which mTLS proved.
    pub fn set_mutual_tls_identities(
        &mut self,
        source: Option<&Identity>,
        destination: Option<&Identity>,
    ) {
        self.log.src_identity = source.cloned();
        self.log.dst_identity = destination.cloned();
        self.labels_mut().security = SecurityPolicy::MutualTls;
    }

    /// Records that a tunnel carries the connection: the address of the tunnel's peer, and the destination inside the
    /// tunnel.
    pub fn set_tunnel(&mut self, peer: SocketAddr, tunneled_destination: ArcStr) {
        self.log.dst = peer;
        self.log.dst_hbone = Some(tunneled_destination);
    }

    /// Sets the waypoint on the connection's path.
    pub fn set_waypoint(&mut self, name: &ArcStr) {
        self.waypoint = Some(name.clone());
    }

    /// Records that the connection is forwarded to the waypoint of the pod `workload`. The waypoint's own connection to
    /// the pod is counted instead of this one.
    pub fn set_forwarded_to_waypoint(&mut self, workload: &Workload) {
        self.is_forwarded = true;
        self.metrics.count_forwarded_to_waypoint();
        let waypoint = workload.endpoint_waypoint.as_ref();
        self.waypoint = waypoint.map(|one| one.waypoint.destination.to_string().into());
    }

    /// Reports that the connection is established.
    pub fn record_established(&mut self) {
        if !self.is_forwarded {
            let traffic = self.metrics.traffic();
            self.series = Some(traffic.open_in_series(&mut self.labels));
        }
        self.log.log_opened();
        self.is_established = true;
        self.report_flow(FlowEventKind::Opened);
    }

    /// Reports that the connection failed, with its error and reason, and with the policy that denied it, if one did.
    pub fn record_failure(
        &mut self,
        error: &(dyn Error + 'static),
        reason: FailureReason,
        policy: Option<String>,
    ) {
        self.failure = Some(Box::new(RecordedFailure {
            error: format_error_chain(error),
            reason,
            policy,
        }));
    }

    /// Sends a flow event about the connection to all readers.
    fn report_flow(&mut self, event: FlowEventKind) {
        let flows = self.metrics.flows();
        if !flows.has_readers() {
            return;
        }
        if self.connection_id == 0 {
            self.connection_id = flows.next_connection_id();
        }
        let connection = flow::ConnectionData {
            connection_id: self.connection_id,
            waypoint: self.waypoint.as_deref().map(short_waypoint),
            policy: self
                .failure
                .as_ref()
                .and_then(|failure| failure.policy.as_ref()),
            error: self.failure.as_ref().map(|failure| failure.error.as_str()),
            sent: self.app_sent.load(Relaxed),
            received: self.app_received.load(Relaxed),
            duration: self.started_at.elapsed(),
        };
        let known = (&self.log, &*self.labels);
        flows.report(flow::connection_flow(
            event,
            flows.proxy_identity(),
            known,
            connection,
        ));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let reason = self
            .failure
            .as_ref()
            .map_or(FailureReason::None, |failure| failure.reason);
        self.report_flow(match reason {
            FailureReason::Deny | FailureReason::CertRevoked => FlowEventKind::Refused,
            _ if self.is_established || reason == FailureReason::None => FlowEventKind::Closed,
            _ => FlowEventKind::Failed,
        });
        match &self.series {
            Some(series) => series.close_connection(reason),
            None if self.is_forwarded => {}
            None => self
                .metrics
                .traffic()
                .series(&self.labels)
                .count_failure(reason),
        }
        let error = self.failure.as_ref().map(|failure| failure.error.as_str());
        let (sent, received) = (self.app_sent.load(Relaxed), self.app_received.load(Relaxed));
        self.log
            .log_completed(sent, received, self.started_at.elapsed(), error);
    }
}

impl Meter for Report {
    fn count_app_sent(&self, bytes: u64) {
        self.app_sent.fetch_add(bytes, Relaxed);
        match (&self.series, self.labels.reporter) {
            (Some(series), Reporter::Source) => series.add_received(bytes),
            (Some(series), Reporter::Destination | Reporter::Waypoint) => series.add_sent(bytes),
            (None, _) => {}
        }
    }

    fn count_app_received(&self, bytes: u64) {
        self.app_received.fetch_add(bytes, Relaxed);
        match (&self.series, self.labels.reporter) {
            (Some(series), Reporter::Source) => series.add_sent(bytes),
            (Some(series), Reporter::Destination | Reporter::Waypoint) => {
                series.add_received(bytes)
            }
            (None, _) => {}
        }
    }
}

/// Formats an error with its causes, omitting causes whose text the outer error repeats.
pub fn format_error_chain(error: &(dyn Error + 'static)) -> String {
    ambit_rt::ErrorChain(error).to_string()
}

fn none_if_empty(text: &ArcStr) -> Option<ArcStr> {
    (!text.is_empty()).then(|| text.clone())
}

fn fill_source(log: &mut AccessLog, workload: &Workload) {
    log.src_workload = none_if_empty(&workload.name);
    log.src_namespace = none_if_empty(&workload.namespace);
    log.src_cluster = none_if_empty(&workload.cluster_id);
}

fn fill_destination(log: &mut AccessLog, workload: &Workload) {
    log.dst_workload = none_if_empty(&workload.name);
    log.dst_namespace = none_if_empty(&workload.namespace);
    log.dst_cluster = none_if_empty(&workload.cluster_id);
}
