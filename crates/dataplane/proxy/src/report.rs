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
    local::Local,
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
    /// Connection number in flow events, assigned by the connection's first event.
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
        local: &Local,
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
        local: &Local,
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
            _socket: metrics.socket(labels.reporter),
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
    pub fn service(&mut self, service: &Service) {
        self.log.dst_service = Some(service.hostname.clone());
        self.labels.service = Some(ServiceName::from(service));
    }

    /// Sets the destination workload of a connection from the pod.
    pub fn destination(&mut self, workload: &Workload) {
        fill_destination(&mut self.log, workload);
        self.labels.destination = Some(Arc::new(Party::destination(workload)));
    }

    /// Sets the source workload of a connection to the pod. Its identity is reported only if mTLS proved it.
    pub fn source(&mut self, workload: &Workload, proven: Option<&Identity>) {
        fill_source(&mut self.log, workload);
        self.labels.source = Some(Arc::new(Party::new(workload, proven.cloned())));
    }

    /// Records the identities of both peers, which mTLS proved.
    pub fn mutual_tls(&mut self, source: Option<&Identity>, destination: Option<&Identity>) {
        self.log.src_identity = source.cloned();
        self.log.dst_identity = destination.cloned();
        self.labels.security = SecurityPolicy::MutualTls;
    }

    /// Records that a tunnel carries the connection: the address of the tunnel's peer, and the destination inside the
    /// tunnel.
    pub fn tunnel(&mut self, peer: SocketAddr, inside: ArcStr) {
        self.log.dst = peer;
        self.log.dst_hbone = Some(inside);
    }

    /// Sets the waypoint on the connection's path.
    pub fn waypoint(&mut self, name: &ArcStr) {
        self.waypoint = Some(name.clone());
    }

    /// Records that the connection is forwarded to the waypoint of the pod `workload`. The waypoint's own connection to
    /// the pod is counted instead of this one.
    pub fn forwarded_to_waypoint(&mut self, workload: &Workload) {
        self.is_forwarded = true;
        self.metrics.forwarded_to_waypoint();
        let waypoint = workload.endpoint_waypoint.as_ref();
        self.waypoint = waypoint.map(|one| one.waypoint.destination.to_string().into());
    }

    /// Reports that the connection is established.
    pub fn opened(&mut self) {
        if !self.is_forwarded {
            self.counts = Some(self.metrics.traffic().open(&self.labels));
        }
        self.log.opened();
        self.is_established = true;
        self.report_flow(Event::Opened);
    }

    /// Reports that the connection failed, with its error and reason.
    pub fn failed(&mut self, error: &(dyn Error + 'static), reason: Reason) {
        self.error = Some((chain(error), reason));
    }

    /// Sets the policy that denied the connection.
    pub fn refused_by(&mut self, policy: Option<String>) {
        self.policy = policy;
    }

    /// Sends an event of the connection to the readers of flow events.
    fn report_flow(&mut self, event: Event) {
        let flows = self.metrics.flows();
        if !flows.has_readers() {
            return;
        }
        if self.number == 0 {
            self.number = flows.number();
        }
        let connection = flow::Connection {
            number: self.number,
            waypoint: self.waypoint.as_deref().map(short_waypoint),
            policy: self.policy.as_ref(),
            error: self.error.as_ref().map(|(text, _)| text.as_str()),
            sent: self.app_sent.load(Relaxed),
            received: self.app_received.load(Relaxed),
            duration: self.began.elapsed(),
        };
        let known = (&self.log, &self.labels);
        flows.report(flow::of_connection(
            event,
            flows.origin(),
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
            None => self.metrics.traffic().series(&self.labels).fail(reason),
        }
        let error = self.error.as_ref().map(|(text, _)| text.as_str());
        let (sent, received) = (self.app_sent.load(Relaxed), self.app_received.load(Relaxed));
        self.log
            .complete(sent, received, self.began.elapsed(), error);
    }
}

impl Meter for Report {
    fn app_sent(&self, bytes: u64) {
        self.app_sent.fetch_add(bytes, Relaxed);
        match (&self.counts, self.labels.reporter) {
            (Some(counts), Reporter::Source) => counts.received(bytes),
            (Some(counts), Reporter::Destination | Reporter::Waypoint) => counts.sent(bytes),
            (None, _) => {}
        }
    }

    fn app_received(&self, bytes: u64) {
        self.app_received.fetch_add(bytes, Relaxed);
        match (&self.counts, self.labels.reporter) {
            (Some(counts), Reporter::Source) => counts.sent(bytes),
            (Some(counts), Reporter::Destination | Reporter::Waypoint) => counts.received(bytes),
            (None, _) => {}
        }
    }
}

/// Formats an error with its causes, omitting causes whose text the outer error repeats.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    ambit_rt::ErrorChain(error).to_string()
}

fn known(text: &ArcStr) -> Option<ArcStr> {
    (!text.is_empty()).then(|| text.clone())
}

fn fill_source(log: &mut AccessLog, workload: &Workload) {
    log.src_workload = known(&workload.name);
    log.src_namespace = known(&workload.namespace);
    log.src_cluster = known(&workload.cluster_id);
}

fn fill_destination(log: &mut AccessLog, workload: &Workload) {
    log.dst_workload = known(&workload.name);
    log.dst_namespace = known(&workload.namespace);
    log.dst_cluster = known(&workload.cluster_id);
}
