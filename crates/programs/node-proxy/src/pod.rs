//! Proxy instance of one pod: the pod's identity, and the state that all its workers share.

mod bpf_capture;
mod dns_sockets;
mod listeners;

use std::{
    collections::HashSet,
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ambit_certificates::Certificates;
use ambit_egress::Guard;
use ambit_handover::Gate;
use ambit_model::{ArcStr, HBONE_PORT, INBOUND_PLAINTEXT_PORT, Identity, OUTBOUND_PORT, PodName};
use ambit_proxy::{
    ConnectionTable, Dialer, Lifecycle, LocalPod, LocalWorkload, SetupCounters, SharedState,
    dial::WaypointWaits, report::format_error_chain,
};
use ambit_rt::DrainWatcher;
use ambit_sys::{
    addresses::addresses_in,
    netns::Netns,
    socket::SocketError,
    tcp_sockets::{TcpStateFilter, tcp_sockets},
};
use ambit_telemetry::Metrics;

use crate::config::Config;

pub(crate) use bpf_capture::{BpfCapture, is_translated};
pub(crate) use dns_sockets::DnsSockets;
pub use listeners::{CaptureListeners, PodListeners};

/// Parts that the proxy instances of all pods share.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Configuration from the environment.
    pub config: Arc<Config>,
    /// State of the mesh: workloads, services and policies.
    pub state: SharedState,
    /// Certificates of the pods.
    pub certificates: Certificates,
    /// Metrics of connections, DNS and policies.
    pub metrics: Arc<Metrics>,
    /// Gate of the accept loops, which wait while it is closed.
    pub gate: Gate,
}

/// Proxy instance of one pod, shared by its tasks on all workers.
#[derive(Debug)]
pub struct Pod {
    /// UID of the pod in Kubernetes.
    pub uid: ArcStr,
    /// Network namespace of the pod's sockets.
    pub netns: Netns,
    /// Capture by BPF programs, if the agent has prepared it.
    pub(crate) bpf: BpfCapture,
    /// Whether connections from the proxy to the application may have the client's address as their source.
    pub(crate) preserves_client_address: bool,
    pub(crate) config: Arc<Config>,
    pub(crate) state: SharedState,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gate: Gate,
    /// Workload record of the pod in the mesh state.
    pub(crate) local_workload: LocalWorkload,
    /// Guard that decides to which addresses the pod's outbound connections may be redirected.
    pub(crate) redirect_guard: Guard,
    /// Dialer of the pod's outbound connections.
    pub(crate) dialer: Dialer,
    /// Limits and number of the pod's connections whose setup is in flight.
    pub(crate) setup_counters: SetupCounters,
    /// Inode numbers of the pod's listeners in this process, by which listeners of other processes are recognized.
    listener_inodes: HashSet<u64>,
    /// Whether another proxy accepts the pod's connections on listeners of its own, so that this proxy's listeners are
    /// drained and closed.
    is_surrendered: AtomicBool,
    lifecycle: Lifecycle,
}

impl Pod {
    /// Opens the pod's listeners, one set for each worker, and creates its proxy. Listeners among `inherited` are used
    /// unchanged, also surplus ones: connections may wait in any of them.
    ///
    /// # Errors
    ///
    /// When a listener cannot be opened; then none stays open.
    pub fn open(
        proxy: &Proxy,
        uid: ArcStr,
        name: PodName,
        addresses: Vec<IpAddr>,
        netns: Netns,
        inherited: Vec<OwnedFd>,
        workers: usize,
    ) -> Result<(Arc<Self>, Vec<PodListeners>), SocketError> {
        let (listeners, preserves_client_address) =
            listeners::open_captured(&proxy.config, &netns, inherited, workers)?;
        let pod = Self::build(
            proxy,
            uid,
            name,
            addresses,
            netns,
            preserves_client_address,
            &listeners,
        );
        Ok((pod, listeners))
    }

    /// Opens the listeners of the proxy's own pod, in whose namespace this process runs, one for each worker: the pod
    /// is not captured, but reachable through tunnels, as with Istio's node proxy.
    ///
    /// # Errors
    ///
    /// When a listener cannot be opened.
    pub fn open_own(
        proxy: &Proxy,
        netns: Netns,
        workers: usize,
    ) -> Result<(Arc<Self>, Vec<PodListeners>), SocketError> {
        let config = &proxy.config;
        let listeners = listeners::open_own(config, &netns, workers)?;
        let (name, addresses) = (
            config.own_pod.clone(),
            config.local_ip.into_iter().collect(),
        );
        let pod = Self::build(proxy, "".into(), name, addresses, netns, false, &listeners);
        Ok((pod, listeners))
    }

    fn build(
        proxy: &Proxy,
        uid: ArcStr,
        name: PodName,
        addresses: Vec<IpAddr>,
        netns: Netns,
        preserves_client_address: bool,
        listeners: &[PodListeners],
    ) -> Arc<Self> {
        let Proxy {
            config,
            state,
            certificates,
            metrics,
            gate,
        } = proxy.clone();
        let dialer = Dialer {
            identity: Identity {
                trust_domain: config.trust_domain.clone(),
                namespace: name.namespace.clone(),
                service_account: name.service_account.clone(),
            },
            certificates,
            netns: Some(netns.clone()),
            packet_mark: config.packet_mark,
            tcp_tuning: config.tuning,
            http2_settings: config.http2.clone(),
            node: config.local_node.clone(),
            network: config.network.clone(),
            state: state.clone(),
            waypoint_waits: WaypointWaits::default(),
        };
        let copies = listeners.first().and_then(|set| set.captured.as_ref());
        let copies = copies.and_then(|captured| captured.try_clone().ok());
        Arc::new(Self {
            uid,
            bpf: BpfCapture::new(&config.bpf_pins, &netns, copies),
            netns,
            preserves_client_address,
            local_workload: LocalWorkload::new(state.clone(), name, addresses),
            redirect_guard: Guard::new(config.allowed_addresses.clone()),
            dialer,
            setup_counters: SetupCounters::new(config.setup_limits),
            listener_inodes: listeners::listener_inodes(listeners),
            is_surrendered: AtomicBool::new(false),
            lifecycle: Lifecycle::default(),
            config,
            state,
            metrics,
            gate,
        })
    }

    /// Creates a pod without listeners, for tests.
    #[cfg(test)]
    pub(crate) fn without_listeners(proxy: &Proxy, name: PodName) -> Arc<Self> {
        let netns = Netns::current().unwrap();
        Self::build(proxy, "".into(), name, Vec::new(), netns, false, &[])
    }

    /// Enters the pod's listeners for BPF programs, if its agent has prepared it for them. If that fails, the pod is
    /// served all the same: the agent, to which nothing is confirmed, captures it by rules.
    pub fn enter_listeners(&self) {
        if let Err(error) = self.bpf.enter_listeners() {
            let error = format_error_chain(&error);
            tracing::warn!(pod = %self.name(), error, "cannot enter the listeners for BPF programs");
        }
    }

    /// Returns the pod's name.
    pub fn name(&self) -> &PodName {
        self.local_workload.name()
    }

    /// Returns the identity of the pod's certificate.
    pub fn identity(&self) -> &Identity {
        &self.dialer.identity
    }

    /// Returns the pod's open connections.
    pub fn connections(&self) -> &ConnectionTable {
        self.lifecycle.connections()
    }

    /// Completes when the pod's proxy has no strong references any more.
    pub(crate) fn terminated(&self) -> impl Future<Output = ()> + use<> {
        self.lifecycle.wait_until_dropped()
    }

    /// Whether an address is the pod's own: in its workload record, its enrolment, or on one of its interfaces.
    /// Loopback addresses are not.
    pub(crate) fn owns_address(&self, local: &LocalPod, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
            return false;
        }
        let named = |addresses: &[IpAddr]| addresses.iter().any(|own| own.to_canonical() == ip);
        named(&local.workload.workload_ips)
            || self.local_workload.is_enrolled_with(ip)
            || addresses_in(&self.netns).is_ok_and(|found| named(&found))
    }

    /// Whether an address is on this node: see [`Dialer::is_on_this_node`].
    pub fn is_on_this_node(&self, ip: IpAddr) -> bool {
        self.dialer.is_on_this_node(ip)
    }

    /// Returns a watcher of the pod's drain.
    pub(crate) fn drain_watcher(&self) -> DrainWatcher {
        self.lifecycle.drain_watcher()
    }

    /// Whether another process has opened listeners of its own on all of the pod's proxy ports.
    pub(crate) fn has_foreign_listeners(&self) -> io::Result<bool> {
        let listening = tcp_sockets(&self.netns, TcpStateFilter::Listening)?;
        let others: HashSet<u16> = listening
            .iter()
            .filter(|socket| !self.listener_inodes.contains(&socket.inode))
            .map(|socket| socket.local.port())
            .collect();
        let ports = [OUTBOUND_PORT, INBOUND_PLAINTEXT_PORT, HBONE_PORT];
        Ok(ports.iter().all(|port| others.contains(port)))
    }

    /// Records that another proxy accepts the pod's connections on listeners of its own. Called before
    /// [`Self::drain_connections`].
    pub(crate) fn surrender(&self) {
        self.is_surrendered.store(true, Ordering::Relaxed);
    }

    /// Whether this proxy must serve the connections in the accept queues when it closes the listeners; false if a
    /// successor accepts them on the same sockets.
    pub(crate) fn serves_backlog(&self) -> bool {
        self.gate.is_open() || self.is_surrendered.load(Ordering::Relaxed)
    }

    /// Drains the pod: see [`Lifecycle::drain_connections`].
    pub async fn drain_connections(&self, limit: Option<Duration>) {
        self.bpf.close_listeners();
        self.lifecycle.drain_connections(limit).await;
    }

    /// Closes the pod's connections, see [`Lifecycle::terminate_connections`].
    pub fn stop_now(&self) {
        self.bpf.close_listeners();
        self.lifecycle.terminate_connections();
    }
}
