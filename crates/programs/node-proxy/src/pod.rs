//! One pod's proxy: who the pod is, what all its workers share.

use std::{
    collections::HashSet,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ambit_certificates::Certificates;
use ambit_codec::Baggage;
use ambit_model::{
    ArcStr, HBONE_PORT, INBOUND_PLAINTEXT_PORT, Identity, OUTBOUND_PORT, PodName, Workload,
};
use ambit_rt::{Drain, DrainMode, DrainWatcher, drain};
use ambit_sys::{
    addresses::addresses_in,
    netns::Netns,
    socket::{
        self, ListenSpec, Listening, OutboundSpec, SocketError, SocketKind, Transparent, Tuning,
    },
    tcp_sockets::{State, tcp_sockets},
};
use ambit_telemetry::{Metrics, Party};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::{
    config::Config,
    connections::{Connections, Cut},
    dns_capture::DnsSockets,
    gate::Gate,
    standing::Standing,
    state::{LOCAL_WORKLOAD_DEADLINE, SharedState},
    under_way::UnderWay,
};

/// What all pods' proxies share.
#[derive(Debug)]
pub struct Proxy {
    /// The environment.
    pub config: Config,
    /// What is known of the mesh.
    pub state: SharedState,
    /// The pods' certificates.
    pub certificates: Certificates,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Whether connections are taken now.
    pub gate: Gate,
}

/// The pod as its own proxy knows it.
#[derive(Debug)]
pub struct Local {
    /// Its record.
    pub workload: Arc<Workload>,
    /// Its name in metrics.
    pub party: Arc<Party>,
    /// What it says of itself on tunnels.
    pub baggage: Option<HeaderValue>,
    /// Whether the record is the control plane's, with the policies that select the pod, or made
    /// from the enrolment alone.
    pub is_known: bool,
}

impl Local {
    fn new(workload: Workload, is_known: bool) -> Self {
        Self {
            party: Arc::new(Party::destination(&workload)),
            baggage: HeaderValue::from_str(&Baggage::of(&workload).encode()).ok(),
            workload: Arc::new(workload),
            is_known,
        }
    }
}

#[derive(Debug)]
struct LocalCache {
    changes: watch::Receiver<u64>,
    addresses: Vec<IpAddr>,
    local: Option<Arc<Local>>,
}

/// The listeners of one pod for one worker.
#[derive(Debug)]
pub struct PodListeners {
    /// 15001 and 15006, if the pod is captured.
    pub captured: Option<Captured>,
    /// 15008.
    pub hbone: std::net::TcpListener,
    /// 15053, in one of the sets.
    pub dns: Option<DnsSockets>,
}

/// Where the pod's redirection leads.
#[derive(Debug)]
pub struct Captured {
    /// 15001.
    pub outbound: std::net::TcpListener,
    /// 15006.
    pub plaintext: std::net::TcpListener,
}

impl PodListeners {
    /// Their descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let captured = self.captured.iter();
        captured
            .flat_map(|captured| [&captured.outbound, &captured.plaintext])
            .chain([&self.hbone])
            .map(AsFd::as_fd)
            .chain(self.dns.iter().flat_map(DnsSockets::descriptors))
    }
}

/// Listeners of a pod that were opened before this process, by port.
#[derive(Debug, Default)]
struct Inherited(Vec<(u16, std::net::TcpListener)>);

impl Inherited {
    fn sort(sockets: Vec<OwnedFd>) -> Self {
        let listener = |socket: OwnedFd| match socket::kind_of(&socket) {
            Ok(SocketKind::Listener(at)) => Some((at.port(), std::net::TcpListener::from(socket))),
            Ok(SocketKind::Datagram(_)) => None,
            Err(error) => {
                tracing::warn!(%error, "a socket that was handed over cannot be used");
                None
            }
        };
        Self(sockets.into_iter().filter_map(listener).collect())
    }

    fn take(&mut self, port: u16) -> Option<std::net::TcpListener> {
        let index = self.0.iter().position(|(of, _)| *of == port)?;
        Some(self.0.swap_remove(index).1)
    }

    /// How many there are of the port that has most.
    fn sets(&self) -> usize {
        let of = |port| self.0.iter().filter(|(at, _)| *at == port).count();
        [OUTBOUND_PORT, INBOUND_PLAINTEXT_PORT, HBONE_PORT]
            .map(of)
            .into_iter()
            .max()
            .unwrap_or(0)
    }
}

/// One pod's proxy. Its tasks run on the workers; this is what they share.
#[derive(Debug)]
pub struct Pod {
    /// Kubernetes' uid.
    pub uid: ArcStr,
    /// Its name.
    pub name: PodName,
    /// Whose certificate it has.
    pub identity: Identity,
    /// Where its sockets live.
    pub netns: Netns,
    /// Whether connections to the application may come from the client's address.
    pub spoofs: bool,
    /// What is common to all pods.
    pub proxy: Arc<Proxy>,
    /// What is open.
    pub connections: Connections,
    /// What is being set up.
    pub under_way: UnderWay,
    /// Its listeners' numbers, whichever process has them.
    listeners: HashSet<u64>,
    /// Another proxy's listeners take the connections from now on: ours are emptied and closed.
    surrendered: AtomicBool,
    drain: Drain,
    cache: Mutex<LocalCache>,
    /// Closed with the pod's proxy, for tasks that must not keep it.
    alive: watch::Sender<()>,
}

impl Pod {
    /// Opens the pod's listeners, one set a worker, and makes its proxy. Listeners among `inherited`
    /// are used as they are, also surplus ones: connections may wait in any of them.
    ///
    /// # Errors
    /// When any listener cannot be opened; none is left open then.
    pub fn open(
        proxy: Arc<Proxy>,
        uid: ArcStr,
        name: PodName,
        addresses: Vec<IpAddr>,
        netns: Netns,
        mut inherited: Vec<OwnedFd>,
        workers: usize,
    ) -> Result<(Arc<Self>, Vec<PodListeners>), SocketError> {
        let config = &proxy.config;
        let dns = DnsSockets::open(config, &netns, &mut inherited)?;
        let mut spoofs = true;
        let tuning_of = |port| Tuning {
            near: port == OUTBOUND_PORT,
            // Of the two that applications' connections come to.
            resets: port != HBONE_PORT,
            ..config.tuning
        };
        let spec_of = |port| ListenSpec {
            ipv6: config.ipv6_enabled,
            reuse_port: config.inpod_port_reuse || workers > 1,
            transparent: config.original_source,
            tuning: tuning_of(port),
            ..ListenSpec::of_pod(port, config.packet_mark)
        };
        let mut inherited = Inherited::sort(inherited);
        let sets = inherited.sets().max(workers.max(1));
        let mut open = |port| {
            let Listening {
                listener,
                transparent,
            } = if let Some(listener) = inherited.take(port) {
                socket::adopt(listener, &tuning_of(port))?
            } else {
                socket::listen(Some(&netns), &spec_of(port))?
            };
            spoofs &= transparent;
            Ok(listener)
        };
        let mut listeners = (0..sets)
            .map(|_| {
                Ok(PodListeners {
                    captured: Some(Captured {
                        outbound: open(OUTBOUND_PORT)?,
                        plaintext: open(INBOUND_PLAINTEXT_PORT)?,
                    }),
                    hbone: open(HBONE_PORT)?,
                    dns: None,
                })
            })
            .collect::<Result<Vec<_>, SocketError>>()?;
        // Pods differ in which worker has their DNS.
        let turn = usize::try_from(netns.id().ino).unwrap_or_default() % sets;
        if let Some(set) = listeners.get_mut(turn) {
            set.dns = Some(dns);
        }
        let pod = Self::with(proxy, uid, name, addresses, netns, spoofs, &listeners);
        Ok((pod, listeners))
    }

    /// The proxy's own pod, in whose namespace this process lives: not captured, but what it serves, its
    /// metrics for one, can be had through a tunnel (Istio's contract). One listener a worker.
    ///
    /// # Errors
    /// When a listener cannot be opened.
    pub fn open_own(
        proxy: Arc<Proxy>,
        netns: Netns,
        workers: usize,
    ) -> Result<(Arc<Self>, Vec<PodListeners>), SocketError> {
        let config = &proxy.config;
        let spec = ListenSpec {
            ipv6: config.ipv6_enabled,
            transparent: Transparent::Off,
            tuning: config.tuning,
            ..ListenSpec::of_pod(HBONE_PORT, config.packet_mark)
        };
        let open = |_| {
            Ok(PodListeners {
                captured: None,
                hbone: socket::listen(Some(&netns), &spec)?.listener,
                dns: None,
            })
        };
        let listeners = (0..workers.max(1))
            .map(open)
            .collect::<Result<Vec<_>, SocketError>>()?;
        let (name, addresses) = (config.own.clone(), config.local_ip.into_iter().collect());
        let pod = Self::with(proxy, "".into(), name, addresses, netns, false, &listeners);
        Ok((pod, listeners))
    }

    fn with(
        proxy: Arc<Proxy>,
        uid: ArcStr,
        name: PodName,
        addresses: Vec<IpAddr>,
        netns: Netns,
        spoofs: bool,
        listeners: &[PodListeners],
    ) -> Arc<Self> {
        let inode = |socket: BorrowedFd<'_>| rustix::fs::fstat(socket).map(|stat| stat.st_ino);
        let inodes = listeners
            .iter()
            .flat_map(PodListeners::descriptors)
            .filter_map(|socket| inode(socket).ok())
            .collect();
        let identity = Identity {
            trust_domain: proxy.config.trust_domain.clone(),
            namespace: name.namespace.clone(),
            service_account: name.service_account.clone(),
        };
        let changes = proxy.state.watch_pod(&name);
        let (drain, _watcher) = drain::channel();
        Arc::new(Self {
            uid,
            identity,
            netns,
            spoofs,
            connections: Connections::default(),
            under_way: UnderWay::new(proxy.config.setup_limits),
            listeners: inodes,
            surrendered: AtomicBool::new(false),
            drain,
            cache: Mutex::new(LocalCache {
                changes,
                addresses,
                local: None,
            }),
            name,
            proxy,
            alive: watch::Sender::new(()),
        })
    }

    /// Ends when nothing has the pod's proxy any more.
    pub fn gone(&self) -> impl Future<Output = ()> + use<> {
        let mut alive = self.alive.subscribe();
        async move { while alive.changed().await.is_ok() {} }
    }

    /// A pod that nothing is served for.
    #[cfg(test)]
    pub(crate) fn idle(proxy: Arc<Proxy>, name: PodName) -> Arc<Self> {
        let netns = Netns::current().unwrap();
        Self::with(proxy, "".into(), name, Vec::new(), netns, false, &[])
    }

    /// The enrolment told more of the pod.
    pub fn update_addresses(&self, addresses: Vec<IpAddr>) {
        let mut cache = self.cache.lock();
        cache.addresses = addresses;
        cache.local = None;
    }

    /// The pod as known now: the control plane's record, or one made from the enrolment, with
    /// `peer_ip` (the address the pod itself connects from) if the enrolment named none.
    pub fn local(&self, peer_ip: Option<IpAddr>) -> Arc<Local> {
        let mut cache = self.cache.lock();
        if cache.changes.has_changed().unwrap_or(false) {
            cache.changes.mark_unchanged();
            cache.local = None;
        }
        if let Some(local) = &cache.local {
            return local.clone();
        }
        let state = &self.proxy.state;
        let known = state.local_workload(&self.name);
        let is_known = known.is_some();
        let workload = known.map_or_else(
            || {
                let given = cache.addresses.iter().copied();
                let addresses: Vec<IpAddr> = if cache.addresses.is_empty() {
                    peer_ip.into_iter().collect()
                } else {
                    given.collect()
                };
                state.synthesize(&self.name, &addresses)
            },
            Arc::unwrap_or_clone,
        );
        let local = Arc::new(Local::new(workload, is_known));
        cache.local = Some(local.clone());
        local
    }

    /// The control plane's record of the pod, waiting for it at most five seconds: connections to
    /// the pod are not decided without it.
    pub async fn known_local(&self) -> Option<Arc<Local>> {
        let local = self.local(None);
        if local.is_known {
            return Some(local);
        }
        let deadline = Instant::now() + LOCAL_WORKLOAD_DEADLINE;
        self.proxy
            .state
            .wait_for_workload(&self.name, deadline)
            .await?;
        Some(self.local(None)).filter(|local| local.is_known)
    }

    /// Whether an address is the pod's own, as others reach it: one that its record or its enrolment
    /// names, or that an interface of it has. Loopback addresses are not.
    pub fn owns(&self, local: &Local, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
            return false;
        }
        let named = |addresses: &[IpAddr]| addresses.iter().any(|own| own.to_canonical() == ip);
        named(&local.workload.workload_ips)
            || named(&self.cache.lock().addresses)
            || addresses_in(&self.netns).is_ok_and(|found| named(&found))
    }

    /// Whether an address is known to be a pod's of this node. Where the mesh's table takes everything for
    /// local, because no node is named, nothing is.
    pub fn is_near(&self, ip: IpAddr) -> bool {
        let config = &self.proxy.config;
        let table = self.proxy.state.table();
        let workload = table.workload_by_ip(&config.network, ip);
        workload.is_some_and(|workload| *workload.node() == config.local_node)
            && !config.local_node.is_empty()
    }

    /// What sockets of proxies' own connections to `destination`, outside the pod, need.
    pub fn outbound_spec(&self, destination: IpAddr) -> OutboundSpec {
        let config = &self.proxy.config;
        OutboundSpec {
            mark: config.packet_mark,
            source: None,
            tuning: Tuning {
                near: self.is_near(destination),
                ..config.tuning
            },
        }
    }

    /// What sockets of the application's own connections to `destination`, outside the pod, need.
    pub fn plain_spec(&self, destination: IpAddr) -> OutboundSpec {
        let mut spec = self.outbound_spec(destination);
        spec.tuning.resets = true;
        spec
    }

    /// What sockets towards the pod's own application need; `source` is an address to spoof. An
    /// application that dies is told by the kernel at once: no probes.
    pub fn app_spec(&self, source: Option<IpAddr>) -> OutboundSpec {
        OutboundSpec {
            mark: self.proxy.config.packet_mark,
            source,
            tuning: Tuning {
                near: true,
                resets: true,
                ..Tuning::default()
            },
        }
    }

    /// Notices the end of the pod's proxy.
    pub fn drain_watcher(&self) -> DrainWatcher {
        self.drain.watcher()
    }

    /// Whether other sockets than those this proxy has ever had take the pod's connections too: those
    /// of a proxy that did not take ours over.
    pub fn others_listen(&self) -> io::Result<bool> {
        let listening = tcp_sockets(&self.netns, State::Listening)?;
        let others: HashSet<u16> = listening
            .iter()
            .filter(|socket| !self.listeners.contains(&socket.inode))
            .map(|socket| socket.local.port())
            .collect();
        let ports = [OUTBOUND_PORT, INBOUND_PLAINTEXT_PORT, HBONE_PORT];
        Ok(ports.iter().all(|port| others.contains(port)))
    }

    /// To be called before [`Self::finish`] when other sockets take the pod's connections.
    pub fn surrender(&self) {
        self.surrendered.store(true, Ordering::Relaxed);
    }

    /// Whether connections that wait in our queues are ours to serve when the queues close. With a
    /// successor that has the same sockets, they are not.
    pub(crate) fn empties_queues(&self) -> bool {
        self.proxy.gate.is_open() || self.surrendered.load(Ordering::Relaxed)
    }

    /// Takes nothing new from now on; what is open goes on until it ends, or is cut after `limit`.
    /// Ends when nothing is open any more.
    pub async fn finish(&self, limit: Option<Duration>) {
        // "Until they end": the watcher needs a date, and a century is never.
        let limit = limit.unwrap_or(Duration::from_secs(100 * 365 * 24 * 3600));
        let deadline = Instant::now() + limit;
        self.drain.start(DrainMode::Graceful { deadline });
        let mut ended = self.drain.watcher();
        let finish = self.drain.finish(DrainMode::Graceful { deadline });
        tokio::select! {
            _left = finish => {}
            // A stricter announcement may follow.
            () = ended.cut() => {}
        }
        self.connections.cut_all(Cut::Drain);
    }

    /// Cuts everything now.
    pub fn stop_now(&self) {
        self.drain.start(DrainMode::Immediate);
        self.connections.cut_all(Cut::Drain);
    }

    /// Re-checks the connections to the pod at every change that concerns them, until the pod's
    /// proxy is gone.
    pub async fn enforce_changes(self: Arc<Self>) {
        let mut changes = self.cache.lock().changes.clone();
        let mut standing = Standing::new(self.proxy.config.missing_policy_grace);
        let mut gone = pin!(self.gone());
        let pod = Arc::downgrade(&self);
        drop(self);
        loop {
            tokio::select! {
                () = &mut gone => return,
                changed = changes.changed() => if changed.is_err() { return },
                () = ambit_rt::sleep_until(standing.deadline()) => {}
            }
            let Some(pod) = pod.upgrade() else { return };
            let Some(workload) = pod.proxy.state.local_workload(&pod.name) else {
                // The record is gone: nothing new is let in; what was allowed stays until it ends.
                standing.suspend();
                continue;
            };
            let state = &pod.proxy.state;
            let cut = standing.recheck(&pod.connections, Instant::now(), |peer| {
                state.authorize(&workload, peer)
            });
            if cut > 0 {
                tracing::info!(pod = %pod.name, connections = cut, "policy change closed connections");
            }
        }
    }
}
