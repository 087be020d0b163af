//! One pod's proxy: who the pod is, and what all its workers share.

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
    Connections, Dialer, InFlight, Lifecycle, Local, LocalWorkload, SharedState, dial::Waits,
};
use ambit_rt::DrainWatcher;
use ambit_sys::{
    addresses::addresses_in,
    netns::Netns,
    socket::SocketError,
    tcp_sockets::{State, tcp_sockets},
};
use ambit_telemetry::Metrics;

use crate::config::Config;

pub(crate) use dns_sockets::DnsSockets;
pub use listeners::{Captured, PodListeners};

/// Shared parts of all pods' proxies.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Configuration from the environment.
    pub config: Arc<Config>,
    /// State of the mesh.
    pub state: SharedState,
    /// The pods' certificates.
    pub certificates: Certificates,
    /// Metrics of connections.
    pub metrics: Arc<Metrics>,
    /// Gate that opens when connections are accepted.
    pub gate: Gate,
}

/// One pod's proxy. Its tasks run on the workers; this is what they share.
#[derive(Debug)]
pub struct Pod {
    /// UID of the pod in Kubernetes.
    pub uid: ArcStr,
    /// Network namespace of the pod's sockets.
    pub netns: Netns,
    /// Whether connections to the application may use the client's address.
    pub(crate) spoofs: bool,
    pub(crate) config: Arc<Config>,
    pub(crate) state: SharedState,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gate: Gate,
    /// Record of the pod.
    pub(crate) local: LocalWorkload,
    /// Decides to which addresses its connections may be redirected.
    pub(crate) guard: Guard,
    /// Dialer of the pod's outbound connections.
    pub(crate) dialer: Dialer,
    /// Connections that are being set up.
    pub(crate) in_flight: InFlight,
    /// Inode numbers of the pod's listeners in any process.
    listeners: HashSet<u64>,
    /// Another proxy's listeners take the connections from now on: ours are emptied and closed.
    surrendered: AtomicBool,
    lifecycle: Lifecycle,
}

impl Pod {
    /// Opens the pod's listeners, one set a worker, and makes its proxy. Listeners among `inherited`
    /// are used as they are, also surplus ones: connections may wait in any of them.
    ///
    /// # Errors
    /// When any listener cannot be opened; none is left open then.
    pub fn open(
        proxy: &Proxy,
        uid: ArcStr,
        name: PodName,
        addresses: Vec<IpAddr>,
        netns: Netns,
        inherited: Vec<OwnedFd>,
        workers: usize,
    ) -> Result<(Arc<Self>, Vec<PodListeners>), SocketError> {
        let (listeners, spoofs) =
            listeners::open_captured(&proxy.config, &netns, inherited, workers)?;
        let pod = Self::with(proxy, uid, name, addresses, netns, spoofs, &listeners);
        Ok((pod, listeners))
    }

    /// Opens the proxy's own pod, in whose namespace this process lives: not captured, but reachable through tunnels
    /// (Istio's contract). One listener for each worker.
    ///
    /// # Errors
    /// When a listener cannot be opened.
    pub fn open_own(
        proxy: &Proxy,
        netns: Netns,
        workers: usize,
    ) -> Result<(Arc<Self>, Vec<PodListeners>), SocketError> {
        let config = &proxy.config;
        let listeners = listeners::open_own(config, &netns, workers)?;
        let (name, addresses) = (config.own.clone(), config.local_ip.into_iter().collect());
        let pod = Self::with(proxy, "".into(), name, addresses, netns, false, &listeners);
        Ok((pod, listeners))
    }

    fn with(
        proxy: &Proxy,
        uid: ArcStr,
        name: PodName,
        addresses: Vec<IpAddr>,
        netns: Netns,
        spoofs: bool,
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
            mark: config.packet_mark,
            tuning: config.tuning,
            http2: config.http2.clone(),
            node: config.local_node.clone(),
            network: config.network.clone(),
            state: state.clone(),
            waits: Waits::default(),
        };
        Arc::new(Self {
            uid,
            netns,
            spoofs,
            local: LocalWorkload::new(state.clone(), name, addresses),
            guard: Guard::new(config.allowed_addresses.clone()),
            dialer,
            in_flight: InFlight::new(config.setup_limits),
            listeners: listeners::inodes(listeners),
            surrendered: AtomicBool::new(false),
            lifecycle: Lifecycle::default(),
            config,
            state,
            metrics,
            gate,
        })
    }

    /// A pod that nothing is served for.
    #[cfg(test)]
    pub(crate) fn idle(proxy: &Proxy, name: PodName) -> Arc<Self> {
        let netns = Netns::current().unwrap();
        Self::with(proxy, "".into(), name, Vec::new(), netns, false, &[])
    }

    /// Returns the pod's name.
    pub fn name(&self) -> &PodName {
        self.local.name()
    }

    /// Returns the identity of the pod's certificate.
    pub fn identity(&self) -> &Identity {
        &self.dialer.identity
    }

    /// Returns the pod's open connections.
    pub fn connections(&self) -> &Connections {
        self.lifecycle.connections()
    }

    /// Completes when the pod's proxy has no owners any more.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + use<> {
        self.lifecycle.gone()
    }

    /// Whether an address is the pod's own, as others reach it: one that its record or its enrolment
    /// names, or that an interface of it has. Loopback addresses are not.
    pub(crate) fn owns(&self, local: &Local, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
            return false;
        }
        let named = |addresses: &[IpAddr]| addresses.iter().any(|own| own.to_canonical() == ip);
        named(&local.workload.workload_ips)
            || self.local.is_enrolled_with(ip)
            || addresses_in(&self.netns).is_ok_and(|found| named(&found))
    }

    /// Whether an address is on this node: see [`Dialer::is_near`].
    pub fn is_near(&self, ip: IpAddr) -> bool {
        self.dialer.is_near(ip)
    }

    /// Follows the end of the pod's proxy.
    pub(crate) fn drain_watcher(&self) -> DrainWatcher {
        self.lifecycle.drain_watcher()
    }

    /// Whether sockets other than this proxy's accept the pod's connections, too: those of a proxy that did not take
    /// over the listeners.
    pub(crate) fn others_listen(&self) -> io::Result<bool> {
        let listening = tcp_sockets(&self.netns, State::Listening)?;
        let others: HashSet<u16> = listening
            .iter()
            .filter(|socket| !self.listeners.contains(&socket.inode))
            .map(|socket| socket.local.port())
            .collect();
        let ports = [OUTBOUND_PORT, INBOUND_PLAINTEXT_PORT, HBONE_PORT];
        Ok(ports.iter().all(|port| others.contains(port)))
    }

    /// Marks the listeners as handed over. Called before [`Self::finish`] when other sockets accept the pod's
    /// connections.
    pub(crate) fn surrender(&self) {
        self.surrendered.store(true, Ordering::Relaxed);
    }

    /// Whether connections that wait in our queues are ours to serve when the queues close. With a
    /// successor that has the same sockets, they are not.
    pub(crate) fn empties_queues(&self) -> bool {
        self.gate.is_open() || self.surrendered.load(Ordering::Relaxed)
    }

    /// Drains the pod: see [`Lifecycle::finish`].
    pub async fn finish(&self, limit: Option<Duration>) {
        self.lifecycle.finish(limit).await;
    }

    /// Closes the pod's connections, see [`Lifecycle::stop_now`].
    pub fn stop_now(&self) {
        self.lifecycle.stop_now();
    }
}
