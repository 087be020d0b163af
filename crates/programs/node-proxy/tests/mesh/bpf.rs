//! Tests pods that BPF programs capture, whose applications have a cgroup of their own.

use std::{
    fs, io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use ambit_bpf::Pins;
use ambit_bpf_testkit::{Bpffs, enter_cgroup, new_cgroup, remove_cgroup};
use ambit_netplan::{Backend, RedirectionSpec};
use ambit_node_proxy::pod::Pod;
use ambit_sys::{
    netns::Netns,
    redirection::bpf::{BpfPod, apply, apply_rules, cookie_of, prepare},
};
use ambit_testkit::build;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost, read_line, read_until_end};

/// File system with the directory of the pods' programs.
struct PinDirectory {
    _bpffs: Bpffs,
    pins: Pins,
}

impl PinDirectory {
    fn new() -> Self {
        let bpffs = Bpffs::new();
        let pins = Pins::at(bpffs.path().join("ambit"));
        pins.create().unwrap();
        Self {
            _bpffs: bpffs,
            pins,
        }
    }

    async fn mesh(&self) -> Mesh {
        let root = self.pins.root().display().to_string();
        Mesh::with_env(&[("AMBIT_BPF_DIR", &root)]).await
    }
}

/// Pod that BPF programs capture.
struct BpfCaptured {
    host: PodHost,
    place: Arc<Place>,
}

/// Places of a pod's capture, and its proxy instance.
struct Place {
    netns: Netns,
    cgroup: PathBuf,
    pins: PathBuf,
    proxy: Arc<Pod>,
}

impl Place {
    fn bpf(&self) -> BpfPod<'_> {
        BpfPod {
            netns: &self.netns,
            cgroup: &self.cgroup,
            pins: &self.pins,
        }
    }

    fn capture_by_programs(&self) {
        prepare(&self.bpf(), &spec()).unwrap();
        // The agent orders it with each announcement of the pod.
        self.proxy.enter_listeners();
        apply(&self.bpf(), &spec()).unwrap();
    }

    /// Calls the first time to replace the programs, and the second time to remove them.
    fn capture_by_rules(&self) {
        apply_rules(&self.netns, &self.pins, &spec()).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove_cgroup(&self.cgroup);
    }
}

impl BpfCaptured {
    async fn new(mesh: &mut Mesh, bpffs: &PinDirectory, node: usize, name: &str, ip: &str) -> Self {
        let mut host = mesh.pod(name, ip).await;
        host.host.bring_up("lo").await.unwrap();
        mesh.publish_workload(build::workload(name, &[ip]));
        let cookie = cookie_of(host.netns()).unwrap();
        let (cgroup, pins) = (new_cgroup(), bpffs.pins.path_of(cookie));
        let bpf = BpfPod {
            netns: host.netns(),
            cgroup: &cgroup,
            pins: &pins,
        };
        prepare(&bpf, &spec()).unwrap();
        mesh.serve(node, &mut host);
        let place = Place {
            netns: host.netns().clone(),
            proxy: host.pod.clone().unwrap(),
            cgroup,
            pins,
        };
        apply(&place.bpf(), &spec()).unwrap();
        Self {
            host,
            place: Arc::new(place),
        }
    }

    /// Opens a connection from the pod's application, which is in the pod's cgroup.
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let place = Arc::clone(&self.place);
        let connecting = std::thread::spawn(move || {
            enter_cgroup(&place.cgroup);
            let connect = || std::net::TcpStream::connect_timeout(&to, OPERATION_TIMEOUT);
            place.netns.run(connect).unwrap()
        });
        let joined = tokio::task::spawn_blocking(move || connecting.join());
        let stream = joined.await.unwrap().unwrap()?;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }
}

fn spec() -> RedirectionSpec {
    RedirectionSpec {
        backend: Backend::Bpf,
        ..RedirectionSpec::default()
    }
}

/// Exchanges bytes with an echo, which sees the client's address.
async fn converse(mut stream: TcpStream, from: &PodHost) {
    assert_eq!(read_line(&mut stream).await.unwrap(), from.ip.to_string());
    stream.write_all(b"hello\n").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_until_end(&mut stream).await.unwrap(), b"hello\n");
}

#[tokio::test]
async fn pods_reach_each_other_through_tunnels_and_by_plaintext() {
    let bpffs = PinDirectory::new();
    let mut mesh = bpffs.mesh().await;
    let client = BpfCaptured::new(&mut mesh, &bpffs, 0, "client", "10.9.0.1").await;
    let server = BpfCaptured::new(&mut mesh, &bpffs, 1, "server", "10.9.0.2").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    server.host.serve_echo(8080);
    let to = SocketAddr::new(server.host.ip, 8080);
    converse(client.connect(to).await.unwrap(), &client.host).await;
    let tunnelled = mesh.nodes[1].metrics();
    assert!(tunnelled.contains("mutual_tls"), "{tunnelled}");
    converse(outside.connect(to).await.unwrap(), &outside).await;
    // Without the proxy in between.
    converse(server.connect(to).await.unwrap(), &server.host).await;
    let port = SocketAddr::new(outside.ip, 80);
    outside.serve_echo(80);
    converse(client.connect(port).await.unwrap(), &client.host).await;
}

/// The application's end answers the proxy's FIN from TIME-WAIT, where it is no socket of the application any more.
#[tokio::test]
async fn connections_that_the_application_closes_end() {
    const COUNT: usize = 10;
    let bpffs = PinDirectory::new();
    let mut mesh = bpffs.mesh().await;
    let client = BpfCaptured::new(&mut mesh, &bpffs, 0, "client", "10.9.0.1").await;
    let server = BpfCaptured::new(&mut mesh, &bpffs, 1, "server", "10.9.0.2").await;
    server.host.serve_echo(8080);
    for _ in 0..COUNT {
        let to = SocketAddr::new(server.host.ip, 8080);
        let mut stream = client.connect(to).await.unwrap();
        read_line(&mut stream).await.unwrap();
    }
    let in_state = |state: &str| {
        let read = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
        let tables = || ["tcp", "tcp6"].map(read).concat();
        let tables = client.host.netns().run(tables).unwrap();
        let states = tables.lines().map(|line| line.split_whitespace().nth(3));
        states.filter(|found| *found == Some(state)).count()
    };
    let (time_wait, last_ack) = ("06", "09");
    ambit_testkit::wait_until("all connections have ended", || {
        in_state(time_wait) >= COUNT && in_state(last_ack) == 0
    })
    .await;
}

/// The client may use the port that the proxy uses in its name, and the other way round.
#[tokio::test]
async fn plaintext_connections_of_many_ports_are_distinguished() {
    let bpffs = PinDirectory::new();
    let mut mesh = bpffs.mesh().await;
    let server = BpfCaptured::new(&mut mesh, &bpffs, 0, "server", "10.9.0.2").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    // A narrow range, from which both choose.
    for host in [&outside, &server.host] {
        let range = || fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40015");
        host.netns().run(range).unwrap().unwrap();
    }
    server.host.serve_echo(8080);
    let mut open = Vec::new();
    for _ in 0..6 {
        let to = SocketAddr::new(server.host.ip, 8080);
        let mut stream = outside.connect(to).await.unwrap();
        assert_eq!(read_line(&mut stream).await.unwrap(), "10.9.0.3");
        open.push(stream);
    }
    for mut stream in open {
        stream.write_all(b"hello\n").await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(read_until_end(&mut stream).await.unwrap(), b"hello\n");
    }
}

#[tokio::test]
async fn proxys_own_ports_are_refused_and_those_of_others_are_not() {
    let bpffs = PinDirectory::new();
    let mut mesh = bpffs.mesh().await;
    let client = BpfCaptured::new(&mut mesh, &bpffs, 0, "client", "10.9.0.1").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    for port in [15001, 15006, 15008] {
        outside.serve_echo(port);
        let to = SocketAddr::new(outside.ip, port);
        converse(client.connect(to).await.unwrap(), &client.host).await;
    }
    for port in [15001, 15006] {
        let to = SocketAddr::new(client.host.ip, port);
        assert!(is_refused(client.connect(to).await).await, "{port}");
    }
}

/// Connections of every kind succeed while both ends change between rules and programs.
#[tokio::test]
async fn no_request_fails_while_the_backend_changes() {
    let bpffs = PinDirectory::new();
    let mut mesh = bpffs.mesh().await;
    let client = BpfCaptured::new(&mut mesh, &bpffs, 0, "client", "10.9.0.1").await;
    let server = BpfCaptured::new(&mut mesh, &bpffs, 1, "server", "10.9.0.2").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    server.host.serve_echo(8080);
    let to = SocketAddr::new(server.host.ip, 8080);
    let mut lasting = client.connect(to).await.unwrap();
    assert_eq!(read_line(&mut lasting).await.unwrap(), "10.9.0.1");
    let places = [&client, &server].map(|pod| Arc::clone(&pod.place));
    let count = Arc::new(AtomicU32::new(0));
    let answered = Arc::clone(&count);
    let changing = tokio::task::spawn_blocking(move || {
        for _ in 0..5 {
            for place in &places {
                place.capture_by_rules();
            }
            // The agent removes the programs half a minute later, when the proxy has seen the openings before.
            let before = answered.load(Ordering::Relaxed);
            let until = Instant::now() + OPERATION_TIMEOUT;
            while answered.load(Ordering::Relaxed) < before + 2 && Instant::now() < until {
                std::thread::yield_now();
            }
            for place in &places {
                place.capture_by_rules();
            }
            for place in &places {
                place.capture_by_programs();
            }
        }
    });
    while !changing.is_finished() {
        converse(client.connect(to).await.unwrap(), &client.host).await;
        converse(outside.connect(to).await.unwrap(), &outside).await;
        count.fetch_add(1, Ordering::Relaxed);
    }
    changing.await.unwrap();
    assert!(count.load(Ordering::Relaxed) >= 10);
    lasting.write_all(b"hello\n").await.unwrap();
    lasting.shutdown().await.unwrap();
    assert_eq!(read_until_end(&mut lasting).await.unwrap(), b"hello\n");
}

/// The proxy's call would not reach the application: it refuses at once instead of when the call times out.
#[tokio::test]
async fn plaintext_connections_are_refused_by_a_proxy_that_sees_no_map() {
    let bpffs = PinDirectory::new();
    let mut mesh = bpffs.mesh().await;
    let server = BpfCaptured::new(&mut mesh, &bpffs, 0, "server", "10.9.0.2").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    server.host.serve_echo(8080);
    let to = SocketAddr::new(server.host.ip, 8080);
    converse(outside.connect(to).await.unwrap(), &outside).await;
    let opened = || {
        let metrics = mesh.nodes[0].metrics();
        let lines = metrics.lines();
        let opened = lines.filter(|line| line.starts_with("istio_tcp_connections_opened_total"));
        opened.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = opened();
    assert!(!before.is_empty());
    fs::remove_file(server.place.pins.join("LISTENERS")).unwrap();
    let calling = async { is_refused(outside.connect(to).await).await };
    // Far less than the timeout of calls to the application.
    let refused = tokio::time::timeout(Duration::from_secs(5), calling).await;
    assert!(refused.unwrap());
    assert_eq!(opened(), before);
}

/// Whether a connection was refused, or ended before a line arrived. The reset may come before `connect` returns.
async fn is_refused(connecting: io::Result<TcpStream>) -> bool {
    match connecting {
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
        ),
        Ok(mut stream) => read_line(&mut stream).await.is_err(),
    }
}

/// Fail closed: neither the pod nor those who call it get around a proxy that is not there.
#[tokio::test]
async fn connections_without_a_proxy_are_refused() {
    let bpffs = PinDirectory::new();
    let mut mesh = bpffs.mesh().await;
    let server = BpfCaptured::new(&mut mesh, &bpffs, 0, "server", "10.9.0.2").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    server.host.serve_echo(8080);
    outside.serve_echo(80);
    server
        .place
        .proxy
        .drain_connections(Some(Duration::ZERO))
        .await;
    let until = Instant::now() + OPERATION_TIMEOUT;
    let to = SocketAddr::new(server.host.ip, 8080);
    // The workers close their listeners some time later.
    while outside.connect(to).await.is_ok() && Instant::now() < until {
        tokio::task::yield_now().await;
    }
    assert!(is_refused(outside.connect(to).await).await);
    let out = SocketAddr::new(outside.ip, 80);
    assert!(is_refused(server.connect(out).await).await);
}
