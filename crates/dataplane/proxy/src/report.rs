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

use ambit_flow::Event;
use ambit_hbone::Meter;
use ambit_model::{ArcStr, Identity, Reason, Service, Workload};
use ambit_telemetry::{
    AccessLog, ConnectionMetrics, Direction, Metrics, Party, Reporter, SecurityPolicy, ServiceName,
    SocketGuard, TrafficLabels,
};

use crate::{
    flow::{self, short_waypoint},
    local::LocalPod,
};

/// Report of one connection, written on drop with the data known by then.
pub struct Report {
    log: AccessLog,
    counts: Option<ConnectionMetrics>,
    /// Whether the connection is forwarded to the pod's waypoint, whose own connection to the pod is counted in its
    /// place.
    is_forwarded: bool,
    labels: TrafficLabels,
    metrics: Arc<Metrics>,
    app_sent: AtomicU64,
    app_received: AtomicU64,
    began: Instant,
    is_established: bool,
    error: Option<(String, Reason)>,
    /// Policy that denied the connection.
    policy: Option<String>,
    /// Name of the waypoint on the connection's path.
    waypoint: Option<ArcStr>,
    /// Id of the connection in flow events, assigned at its first event.
    number: u64,
    _socket: SocketGuard,
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
            source: Some(local.party.clone()),
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
            destination: Some(local.party.clone()),
            service: None,
            security: SecurityPolicy::Unknown,
        };
        Self::new(metrics, log, labels)
    }

    fn new(metrics: &Arc<Metrics>, log: AccessLog, labels: TrafficLabels) -> Self {
        Self {
            log,
            counts: None,
            is_forwarded: false,
            _socket: metrics.open_socket(labels.reporter),
            labels,
            metrics: metrics.clone(),
            app_sent: AtomicU64::new(0),
            app_received: AtomicU64::new(0),
            began: Instant::now(),
            is_established: false,
            error: None,
            policy: None,
            waypoint: None,
            number: 0,
        }
    }

    /// Sets the service that the client addressed.
    pub fn set_service(&mut self, service: &Service) {
        self.log.dst_service = Some(service.hostname.clone());
        self.labels.service = Some(ServiceName::from(service));
    }

    /// Sets the destination workload of a connection from the pod.
    pub fn set_destination(&mut self, workload: &Workload) {
        fill_destination(&mut self.log, workload);
        self.labels.destination = Some(Arc::new(Party::destination(workload)));
    }

    /// Sets the source workload of an inbound connection. The identity `proven` is reported; it is `None` unless mTLS
    /// verified it.
    pub fn set_source(&mut self, workload: &Workload, proven: Option<&Identity>) {
        fill_source(&mut self.log, workload);
        self.labels.source = Some(Arc::new(Party::new(workload, proven.cloned())));
    }

    /// Records the identities of both peers, which mTLS proved.
    pub fn set_mutual_tls_identities(
        &mut self,
        source: Option<&Identity>,
        destination: Option<&Identity>,
    ) {
        self.log.src_identity = source.cloned();
        self.log.dst_identity = destination.cloned();
        self.labels.security = SecurityPolicy::MutualTls;
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
            self.counts = Some(self.metrics.traffic().open(&self.labels));
        }
        self.log.log_opened();
        self.is_established = true;
        self.report_flow(Event::Opened);
    }

    /// Reports that the connection failed, with its error and reason.
    pub fn record_failure(&mut self, error: &(dyn Error + 'static), reason: Reason) {
        self.error = Some((format_error_chain(error), reason));
    }

    /// Sets the policy that denied the connection.
    pub fn set_refusing_policy(&mut self, policy: Option<String>) {
        self.policy = policy;
    }

    /// Sends a flow event about the connection to all readers.
    fn report_flow(&mut self, event: Event) {
        let flows = self.metrics.flows();
        if !flows.has_readers() {
            return;
        }
        if self.number == 0 {
            self.number = flows.next_connection_id();
        }
        let connection = flow::ConnectionData {
            number: self.number,
            waypoint: self.waypoint.as_deref().map(short_waypoint),
            policy: self.policy.as_ref(),
            error: self.error.as_ref().map(|(text, _)| text.as_str()),
            sent: self.app_sent.load(Relaxed),
            received: self.app_received.load(Relaxed),
            duration: self.began.elapsed(),
        };
        let known = (&self.log, &self.labels);
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
            .error
            .as_ref()
            .map_or(Reason::None, |(_, reason)| *reason);
        self.report_flow(match reason {
            Reason::Deny | Reason::CertRevoked => Event::Refused,
            _ if self.is_established || reason == Reason::None => Event::Closed,
            _ => Event::Failed,
        });
        match self.counts.take() {
            Some(counts) => counts.close(reason),
            None if self.is_forwarded => {}
            None => self
                .metrics
                .traffic()
                .series(&self.labels)
                .count_failure(reason),
        }
        let error = self.error.as_ref().map(|(text, _)| text.as_str());
        let (sent, received) = (self.app_sent.load(Relaxed), self.app_received.load(Relaxed));
        self.log
            .log_completed(sent, received, self.began.elapsed(), error);
    }
}

impl Meter for Report {
    fn app_sent(&self, bytes: u64) {
        self.app_sent.fetch_add(bytes, Relaxed);
        match (&self.counts, self.labels.reporter) {
            (Some(counts), Reporter::Source) => counts.add_received(bytes),
            (Some(counts), Reporter::Destination | Reporter::Waypoint) => counts.add_sent(bytes),
            (None, _) => {}
        }
    }

    fn app_received(&self, bytes: u64) {
        self.app_received.fetch_add(bytes, Relaxed);
        match (&self.counts, self.labels.reporter) {
            (Some(counts), Reporter::Source) => counts.add_sent(bytes),
            (Some(counts), Reporter::Destination | Reporter::Waypoint) => {
                counts.add_received(bytes)
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
