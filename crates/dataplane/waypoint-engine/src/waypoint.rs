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
    Dialer, InFlight, Lifecycle, LocalWorkload,
    dial::Waits,
    state::{LOCAL_WORKLOAD_DEADLINE, SharedState},
};
use ambit_route::{Route, RouteError};
use ambit_telemetry::{Metrics, http::HttpMetrics};
use tokio::time::Instant;

use crate::{
    config::Config,
    destination::RuleContext,
    extensions::Slots,
    fair_share::FairShares,
    in_flight_checks::InFlightChecks,
    memory::{Memory, MemoryLimits},
    mirrors::Mirrors,
    names::Names,
    published::Published,
    retry_budget::Budgets,
    stalls::Stalls,
    upstream::UpstreamPools,
};

/// State of one waypoint, shared by its workers.
#[derive(Debug)]
pub struct Waypoint {
    /// Settings of the process.
    pub config: Arc<Config>,
    /// Workloads and services.
    pub state: SharedState,
    /// Configuration from the control plane.
    pub published: Published,
    /// Workload record of the waypoint itself.
    pub local: LocalWorkload,
    /// Dialer of connections under the waypoint's identity.
    pub dialer: Dialer,
    pub(crate) setups: InFlight,
    /// Memory budgets of callers.
    pub(crate) memory: Memory,
    /// Open connections, and their drain during shutdown.
    pub lifecycle: Lifecycle,
    /// Metrics of connections.
    pub metrics: Arc<Metrics>,
    pub(crate) http_metrics: Arc<HttpMetrics>,
    /// Address by which records refer to the waypoint.
    pub(crate) address: GatewayAddress,
    /// Shared data of plugins.
    pub(crate) shared_data: ambit_wasm::Shared,
    /// Notifies plugins of messages in a queue.
    pub(crate) queues: tokio::sync::watch::Sender<()>,
    /// Addresses of hosts outside of the mesh.
    pub(crate) names: Names,
    created: Instant,
    /// Milliseconds from the creation of the waypoint to the latest tunnel.
    last_tunnel: AtomicU64,
}

/// Inputs of a waypoint: its sources of state, and its metrics.
#[derive(Debug)]
pub struct WaypointInputs {
    /// Workloads and services.
    pub state: SharedState,
    /// Configuration from the control plane.
    pub published: Published,
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
    pub(crate) mirrors: Mirrors,
    /// Bodies with more data than their readers accept.
    pub(crate) stalls: Stalls,
    /// Checks in flight: calls to authorization providers and rate-limit services.
    pub(crate) checks: InFlightChecks,
    /// Shares of worker time by caller.
    pub(crate) shares: FairShares,
    /// Retry budgets of destinations.
    pub(crate) retries: Budgets,
    pub(crate) extensions: Slots,
}

impl Shard {
    /// Creates the state of one worker.
    pub(crate) fn new(waypoint: Arc<Waypoint>) -> Self {
        Self {
            upstreams: UpstreamPools::new(&waypoint.dialer, waypoint.config.headers),
            mirrors: Mirrors::default(),
            stalls: Stalls::new(waypoint.config.streams.stall_timeout),
            checks: InFlightChecks::default(),
            shares: FairShares::default(),
            retries: Budgets::default(),
            extensions: Slots::default(),
            waypoint,
        }
    }
}

/// Reason why the mesh is not known well enough to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MeshUnknown {
    /// The configuration is incomplete: see [`Published::is_known`].
    #[error("the control plane has not yet sent this waypoint's policies and services")]
    Published,
    /// The control plane does not name the waypoint's own pod.
    #[error("the control plane has not published the waypoint's own pod")]
    Own,
}

impl Waypoint {
    /// Creates a waypoint without published records.
    pub fn new(config: Arc<Config>, inputs: WaypointInputs) -> Self {
        let WaypointInputs {
            state,
            published,
            certificates,
            metrics,
            http_metrics,
        } = inputs;
        published.guard().except(config.allowed_hosts.clone());
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
                mark: None,
                tuning: config.tuning,
                http2: config.http2.clone(),
                node: config.node.clone(),
                network: config.network.clone(),
                state: state.clone(),
                waits: Waits::default(),
            },
            setups: InFlight::new(config.setup_limits),
            memory: Memory::new(
                MemoryLimits::of(config.memory_limit / 2),
                http_metrics.clone(),
            ),
            lifecycle: Lifecycle::default(),
            metrics,
            http_metrics,
            address: config.address(),
            shared_data: ambit_wasm::Shared::default(),
            queues: tokio::sync::watch::Sender::new(()),
            names: Names::new(published.guard().clone()),
            created: Instant::now(),
            last_tunnel: AtomicU64::new(0),
            config,
            state,
            published,
        }
    }

    /// Records that a client opens a tunnel.
    pub(crate) fn record_tunnel(&self) {
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_tunnel.store(now, Relaxed);
    }

    /// Returns when a client last opened a tunnel.
    pub fn last_tunnel(&self) -> Instant {
        self.created + Duration::from_millis(self.last_tunnel.load(Relaxed))
    }

    /// Waits until the record of the waypoint's own pod tells clients not to choose it. A pod that is being deleted is
    /// still chosen while no other pod of the waypoint is ready.
    pub async fn removed_from_load_balancing(&self) {
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

    /// Lifecycle of open connections and the drain.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Returns the bytes that are charged to callers, and their limit.
    pub fn memory_budget(&self) -> (usize, usize) {
        (self.memory.held(), self.memory.limit())
    }

    /// Returns the context for destination policies.
    pub(crate) fn rule_context(&self) -> RuleContext<'_> {
        RuleContext {
            state: &self.state,
            metrics: &self.http_metrics,
        }
    }

    /// Returns the address of a service port for policies: the service's first address, if it has one.
    pub(crate) fn address_of(&self, service: &NamespacedHostname, port: u16) -> SocketAddr {
        let table = self.state.table();
        let service = table.service(service);
        let first = service.and_then(|service| service.vips.first());
        let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        SocketAddr::new(first.map_or(unknown, |vip| vip.address), port)
    }

    /// Returns the waypoint's own workload.
    pub(crate) async fn own(&self) -> Result<Arc<Workload>, MeshUnknown> {
        if !self.published.is_known() {
            return Err(MeshUnknown::Published);
        }
        let local = self.local.known().await.ok_or(MeshUnknown::Own)?;
        Ok(local.workload.clone())
    }

    /// Requests the missing records of a route, such as the waypoint of a backend, and returns the route.
    pub(crate) async fn completed(
        &self,
        look: impl Fn() -> Result<Route, RouteError> + Sync,
    ) -> Result<Route, RouteError> {
        let deadline = Instant::now() + LOCAL_WORKLOAD_DEADLINE;
        self.state.completed(deadline, look).await
    }

    /// Subscribes to an unknown address at the control plane. If the control plane does not respond in time, the
    /// address stays unknown.
    pub(crate) async fn learn(&self, address: &NetworkAddress) {
        if self.state.table().knows_address(address) {
            return;
        }
        let deadline = Instant::now() + LOCAL_WORKLOAD_DEADLINE;
        if let Err(error) = self.state.learn(address.to_string(), deadline).await {
            tracing::warn!(%address, %error, "the control plane does not answer a request for an address");
        }
    }

    /// Subscribes to a service, unless it is known.
    pub(crate) async fn learn_service(&self, service: &NamespacedHostname) {
        if self.state.table().service(service).is_some() {
            return;
        }
        let deadline = Instant::now() + LOCAL_WORKLOAD_DEADLINE;
        if let Err(error) = self.state.learn(service.to_string(), deadline).await {
            tracing::warn!(%service, %error, "the control plane does not say where a service is");
        }
    }
}
