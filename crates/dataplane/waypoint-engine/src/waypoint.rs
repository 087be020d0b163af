//! State that all connections of one waypoint share.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ambit_certificates::Certificates;
use ambit_model::{GatewayAddress, NamespacedHostname, NetworkAddress, Workload, WorkloadStatus};
use ambit_proxy::{
    Dialer, Lifecycle, LocalWorkload, SetupCounters,
    dial::WaypointWaits,
    state::{LOCAL_WORKLOAD_TIMEOUT, SharedState},
};
use ambit_route::{Route, RouteError};
use ambit_telemetry::{Metrics, http::HttpMetrics};
use tokio::time::Instant;

use crate::{
    config::Config,
    destination::DestinationRuleContext,
    extensions::PluginSlots,
    fair_share::FairShares,
    in_flight_checks::InFlightChecks,
    memory::Memory,
    mirrors::MirrorLimits,
    names::HostResolver,
    published::PublishedConfig,
    retry_budget::RetryBudgets,
    stall_detector::StallDetector,
    upstream::{IdleUpstreams, UpstreamPools},
};

/// State of one waypoint, shared by its workers.
#[derive(Debug)]
pub struct Waypoint {
    /// Settings of the process.
    pub config: Arc<Config>,
    /// Workloads and services of the mesh.
    pub state: SharedState,
    /// Records that the control plane has published for this waypoint.
    pub published: PublishedConfig,
    /// Workload record of the waypoint itself.
    pub local: LocalWorkload,
    /// Opens TCP connections and HBONE tunnels under the waypoint's identity.
    pub dialer: Dialer,
    pub(crate) setups: SetupCounters,
    /// Memory budgets of callers.
    pub(crate) memory: Memory,
    /// Idle connections to endpoints of all workers.
    pub(crate) idle: Arc<IdleUpstreams>,
    /// Registry of open connections, which drains them during shutdown.
    pub lifecycle: Lifecycle,
    /// Metrics of connections.
    pub metrics: Arc<Metrics>,
    pub(crate) http_metrics: Arc<HttpMetrics>,
    /// Address of the waypoint in records of services and workloads.
    pub(crate) address: GatewayAddress,
    /// Key-value data and queues that plugins share (proxy-wasm shared data).
    pub(crate) shared_data: ambit_wasm::SharedState,
    /// Signal that a plugin has enqueued a message in a shared queue.
    pub(crate) queue_signal: tokio::sync::watch::Sender<()>,
    /// DNS resolver for hosts outside of the mesh.
    pub(crate) names: HostResolver,
    created: Instant,
    /// Time of the latest CONNECT, in milliseconds since the creation of the waypoint.
    last_tunnel: AtomicU64,
}

/// Inputs of a waypoint: its sources of state, and its metrics.
#[derive(Debug)]
pub struct WaypointInputs {
    /// Workloads and services of the mesh.
    pub state: SharedState,
    /// Records that the control plane has published for this waypoint.
    pub published: PublishedConfig,
    /// Source of certificates.
    pub certificates: Certificates,
    /// Metrics of connections.
    pub metrics: Arc<Metrics>,
    /// Metrics of requests.
    pub http_metrics: Arc<HttpMetrics>,
}

/// State of a waypoint on one worker thread.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) waypoint: Arc<Waypoint>,
    pub(crate) upstreams: UpstreamPools,
    pub(crate) mirrors: MirrorLimits,
    /// Detector of stalled request and response bodies.
    pub(crate) stalls: StallDetector,
    /// Checks in flight: unanswered calls to authorization providers and rate-limit services, and calls of plugins.
    pub(crate) checks: InFlightChecks,
    /// CPU shares of the callers on this worker.
    pub(crate) shares: FairShares,
    /// Retry budgets of destinations.
    pub(crate) retries: RetryBudgets,
    pub(crate) extensions: PluginSlots,
}

impl Shard {
    /// Creates the state of one worker.
    pub(crate) fn new(waypoint: Arc<Waypoint>) -> Self {
        Self {
            upstreams: UpstreamPools::new(&waypoint.dialer, &waypoint.config, &waypoint.idle),
            mirrors: MirrorLimits::default(),
            stalls: StallDetector::new(waypoint.config.streams.stall_timeout),
            checks: InFlightChecks::default(),
            shares: FairShares::default(),
            retries: RetryBudgets::default(),
            extensions: PluginSlots::default(),
            waypoint,
        }
    }
}

/// Reason why the waypoint cannot serve yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotReadyError {
    /// Missing initial records of the configuration: see [`PublishedConfig::is_complete`].
    #[error("the control plane has not yet sent this waypoint's policies and services")]
    ConfigurationIncomplete,
    /// Missing workload record of the waypoint's own pod.
    #[error("the control plane has not published the waypoint's own pod")]
    NoOwnWorkload,
}

impl Waypoint {
    /// Creates the state of a waypoint that has not received any records.
    pub fn new(config: Arc<Config>, inputs: WaypointInputs) -> Self {
        let WaypointInputs {
            state,
            published,
            certificates,
            metrics,
            http_metrics,
        } = inputs;
        published
            .guard()
            .set_exceptions(config.allowed_hosts.clone());
        Self {
            local: LocalWorkload::new(
                state.clone(),
                config.own.clone(),
                config.ip.into_iter().collect(),
            ),
            dialer: Dialer {
                identity: config.identity(),
                certificates,
                netns: None,
                packet_mark: None,
                tcp_tuning: config.tuning,
                http2_settings: config.http2.clone(),
                node: config.node.clone(),
                network: config.network.clone(),
                state: state.clone(),
                waypoint_waits: WaypointWaits::default(),
            },
            setups: SetupCounters::new(config.setup_limits),
            memory: Memory::new(config.memory_limit / 2, http_metrics.clone()),
            idle: Arc::default(),
            lifecycle: Lifecycle::default(),
            metrics,
            http_metrics,
            address: config.address(),
            shared_data: ambit_wasm::SharedState::default(),
            queue_signal: tokio::sync::watch::Sender::new(()),
            names: HostResolver::new(published.guard().clone()),
            created: Instant::now(),
            last_tunnel: AtomicU64::new(0),
            config,
            state,
            published,
        }
    }

    /// Records the current time as that of the latest CONNECT.
    pub(crate) fn record_tunnel(&self) {
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_tunnel.store(now, Relaxed);
    }

    /// Returns the time of the latest CONNECT.
    pub fn last_tunnel(&self) -> Instant {
        self.created + Duration::from_millis(self.last_tunnel.load(Relaxed))
    }

    /// Waits until the record of the waypoint's own pod excludes it from load balancing, so that clients open no new
    /// tunnels. A pod that is being deleted is still chosen while no other pod of the waypoint is ready.
    pub async fn wait_for_load_balancer_removal(&self) {
        let mut changes = self.local.changes();
        loop {
            changes.mark_unchanged();
            let own = self.state.local_workload(self.local.name());
            if own.is_none_or(|own| own.status == WorkloadStatus::Unhealthy) {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the registry of open connections, which drains them during shutdown.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Returns the bytes that are charged to all callers, and their limit.
    pub fn memory_budget(&self) -> (usize, usize) {
        (self.memory.charged_bytes(), self.memory.limit())
    }

    /// Returns the state and metrics that destination rules need.
    pub(crate) fn rule_context(&self) -> DestinationRuleContext<'_> {
        DestinationRuleContext {
            state: &self.state,
            metrics: &self.http_metrics,
        }
    }

    /// Returns the destination address of a service port for policies: the service's first address, or the unspecified
    /// address.
    pub(crate) fn service_address(&self, service: &NamespacedHostname, port: u16) -> SocketAddr {
        let table = self.state.table();
        let service = table.service(service);
        let first = service.and_then(|service| service.vips.first());
        let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        SocketAddr::new(first.map_or(unknown, |vip| vip.address), port)
    }

    /// Returns the workload record of the waypoint's own pod; fails while the configuration or this record is missing.
    pub(crate) async fn own_workload(&self) -> Result<Arc<Workload>, NotReadyError> {
        if !self.published.is_complete() {
            return Err(NotReadyError::ConfigurationIncomplete);
        }
        let local = self
            .local
            .wait_until_published()
            .await
            .ok_or(NotReadyError::NoOwnWorkload)?;
        Ok(local.workload.clone())
    }

    /// Looks up a route, and requests records that it lacks, such as that of a backend's waypoint, until it is complete
    /// or a deadline expires.
    pub(crate) async fn find_complete_route(
        &self,
        look: impl Fn() -> Result<Route, RouteError> + Sync,
    ) -> Result<Route, RouteError> {
        let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
        self.state.route_with_demands(deadline, look).await
    }

    /// Requests the record of an unknown address from the control plane, and waits for it. If the control plane does
    /// not respond in time, the address stays unknown.
    pub(crate) async fn request_record(&self, address: &NetworkAddress) {
        if self.state.table().has_address(address) {
            return;
        }
        let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
        if let Err(error) = self
            .state
            .subscribe_to_record(address.to_string(), deadline)
            .await
        {
            tracing::warn!(%address, %error, "the control plane does not answer a request for an address");
        }
    }

    /// Requests the record of an unknown service from the control plane, and waits for it.
    pub(crate) async fn request_service_record(&self, service: &NamespacedHostname) {
        if self.state.table().service(service).is_some() {
            return;
        }
        let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
        if let Err(error) = self
            .state
            .subscribe_to_record(service.to_string(), deadline)
            .await
        {
            tracing::warn!(%service, %error, "the control plane does not say where a service is");
        }
    }
}
