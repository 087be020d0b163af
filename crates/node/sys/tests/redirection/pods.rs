//! Redirection of the tests' pods with every backend, and sockets of their applications and proxies that each backend
//! demands. With BPF programs an application needs a cgroup, and a proxy enters its listeners.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use ambit_bpf::{Capture, Role};
use ambit_bpf_testkit::{Bpffs, enter_cgroup, new_cgroup, remove_cgroup};
use ambit_netplan::{Backend, RedirectionSpec, marks};
use ambit_sys::{
    netns::{Netns, NetnsId},
    redirection::{
        self, Applied, RedirectionError,
        bpf::{self, BpfPod},
    },
};
use socket2::{Domain, Protocol, Socket, Type};

use super::world::{DEADLINE, connect_socket};

/// Pods by their network namespace.
static PODS: Mutex<BTreeMap<NetnsId, Pod>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Pod {
    /// Listeners of the pod's proxy, if it has one.
    proxy: Option<[TcpListener; 2]>,
    programs: Option<Arc<Programs>>,
}

/// Cgroup and directory of a pod that BPF programs capture.
struct Programs {
    cgroup: PathBuf,
    pins: PathBuf,
    _bpffs: Bpffs,
    sockets: Mutex<Option<SocketMaker>>,
}

/// Thread that creates sockets as a process of a pod does.
struct SocketMaker {
    orders: mpsc::Sender<(Domain, mpsc::Sender<io::Result<Socket>>)>,
    thread: JoinHandle<()>,
}

impl SocketMaker {
    fn start(netns: Netns, cgroup: PathBuf) -> Self {
        let (orders, received) = mpsc::channel::<(Domain, mpsc::Sender<_>)>();
        let thread = thread::spawn(move || {
            enter_cgroup(&cgroup);
            let make = |domain| Socket::new(domain, Type::STREAM, Some(Protocol::TCP));
            let serve = || {
                for (domain, reply) in received {
                    reply.send(make(domain)).unwrap();
                }
            };
            netns.run(serve).unwrap();
        });
        Self { orders, thread }
    }
}

impl Programs {
    fn new(netns: &Netns) -> Self {
        let bpffs = Bpffs::new();
        let pins = bpffs.path().join("pod");
        let cgroup = new_cgroup();
        let maker = SocketMaker::start(netns.clone(), cgroup.clone());
        Self {
            cgroup,
            pins,
            _bpffs: bpffs,
            sockets: Mutex::new(Some(maker)),
        }
    }

    fn socket(&self, domain: Domain) -> io::Result<Socket> {
        let (reply, made) = mpsc::channel();
        let maker = self.sockets.lock().unwrap();
        maker
            .as_ref()
            .unwrap()
            .orders
            .send((domain, reply))
            .unwrap();
        made.recv().unwrap()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let maker = self.sockets.lock();
        let maker = maker.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(SocketMaker { orders, thread }) = maker {
            drop(orders);
            let _panicked = thread.join();
        }
        remove_cgroup(&self.cgroup);
    }
}

fn programs_of(netns: &Netns) -> Option<Arc<Programs>> {
    PODS.lock().unwrap().get(&netns.id())?.programs.clone()
}

/// Remembers the listeners for connections of the application and for plaintext, which the pod's proxy enters if BPF
/// programs capture the pod.
pub(crate) fn remember_proxy(netns: &Netns, outbound: &TcpListener, inbound: &TcpListener) {
    let listeners = [outbound, inbound].map(|listener| listener.try_clone().unwrap());
    let mut pods = PODS.lock().unwrap();
    pods.entry(netns.id()).or_default().proxy = Some(listeners);
}

/// Gives the application of a pod that is to be captured by this backend a cgroup, if the backend needs one. Sockets
/// that are created later belong to it.
pub(crate) fn use_backend(netns: &Netns, backend: Backend) {
    if backend == Backend::Bpf {
        programs_or_new(netns);
    }
}

fn programs_or_new(netns: &Netns) -> Arc<Programs> {
    let mut pods = PODS.lock().unwrap();
    let programs = &mut pods.entry(netns.id()).or_default().programs;
    let programs = programs.get_or_insert_with(|| Arc::new(Programs::new(netns)));
    Arc::clone(programs)
}

/// Prepares a pod for BPF programs, and enters its proxy's listeners.
fn prepare(
    netns: &Netns,
    programs: &Programs,
    spec: &RedirectionSpec,
) -> Result<(), RedirectionError> {
    bpf::prepare(&place(netns, programs), spec)?;
    let mut listeners = Capture::at(&programs.pins).listeners()?;
    let mut pods = PODS.lock().unwrap();
    if let Some([outbound, inbound]) = &pods.entry(netns.id()).or_default().proxy {
        listeners.put(Role::Outbound, 0, outbound)?;
        listeners.put(Role::Inbound, 0, inbound)?;
    }
    Ok(listeners.confirm()?)
}

/// Forgets a pod whose namespace is about to go.
pub(crate) fn forget(netns: &Netns) {
    let mut pods = PODS.lock().unwrap_or_else(PoisonError::into_inner);
    let pod = pods.remove(&netns.id());
    drop(pods);
    drop(pod);
}

fn place<'a>(netns: &'a Netns, programs: &'a Programs) -> BpfPod<'a> {
    BpfPod {
        netns,
        cgroup: &programs.cgroup,
        pins: &programs.pins,
    }
}

/// Applies redirection with the backend of `spec`.
pub(crate) fn apply(netns: &Netns, spec: &RedirectionSpec) -> Result<Applied, RedirectionError> {
    if spec.backend != Backend::Bpf {
        return redirection::apply(netns, spec);
    }
    let programs = programs_or_new(netns);
    if !Capture::at(&programs.pins).is_prepared() {
        prepare(netns, &programs, spec)?;
    }
    bpf::apply(&place(netns, &programs), spec)
}

/// Removes redirection from a running pod.
pub(crate) fn release(netns: &Netns) -> Result<(), RedirectionError> {
    match programs_of(netns) {
        Some(programs) => bpf::release(netns, &programs.pins),
        None => redirection::release(netns),
    }
}

/// Removes redirection, and what [`release`] leaves of it.
pub(crate) fn purge(netns: &Netns) -> Result<(), RedirectionError> {
    match programs_of(netns) {
        Some(programs) => bpf::purge(netns, &programs.pins),
        None => redirection::purge(netns),
    }
}

/// Creates a TCP socket as the application of a pod does, or as any process of a namespace without a pod.
pub(crate) fn socket(netns: &Netns, domain: Domain) -> io::Result<Socket> {
    match programs_of(netns) {
        Some(programs) => programs.socket(domain),
        None => netns.run(|| Socket::new(domain, Type::STREAM, Some(Protocol::TCP)))?,
    }
}

/// Connects as the application of a pod does.
pub(crate) fn connect(netns: &Netns, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(netns, Domain::for_address(to))?;
    connect_socket(socket, to, DEADLINE)
}

/// Connects to the application as the proxy does: from the client's address.
pub(crate) fn call_application(
    netns: &Netns,
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<TcpStream> {
    if programs_of(netns).is_none() {
        return super::world::connect_spoofed(netns, from, to);
    }
    call_captured_by_programs(netns, from, to)
}

/// Connects to the application of a pod that BPF programs capture.
pub(crate) fn call_captured_by_programs(
    netns: &Netns,
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<TcpStream> {
    super::world::connect_with(netns, to, Duration::from_secs(2), |socket| {
        socket.bind_device(Some(b"lo"))?;
        socket.set_mark(marks::SPOOFED)?;
        if from.is_ipv4() {
            socket.set_ip_transparent_v4(true)?;
        } else {
            socket.set_ip_transparent_v6(true)?;
        }
        socket.bind(&from.into())
    })
}
