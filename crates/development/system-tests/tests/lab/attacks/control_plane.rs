//! Tests that an unauthenticated pod cannot affect other clients of the control plane. It cannot read debug pages, and
//! neither idle connections nor forged tokens keep a new pod from enrolling.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use ambit_system_tests::{CLIENT_AND_SERVER, Client, LabNetns, Mesh, wait_until};

/// Address of the control plane in a lab.
const CONTROL_PLANE_ADDRESS: [u8; 4] = [172, 18, 0, 2];
/// Number of the attacker's threads. All their connections together exceed the listener's backlog and its concurrent
/// TLS handshakes.
const THREADS: usize = 8;
const CONNECTIONS_PER_THREAD: usize = 200;
/// Number of open connections at which the attack has its full rate.
const FULL_RATE_CONNECTIONS: usize = 1000;

/// Idle connections from a pod to the control plane, which are replaced when closed, until this value is dropped.
struct IdleConnections {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl IdleConnections {
    fn start(client: &Client, pod: &str) -> Self {
        let (stop, opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let thread = |_| {
            let (stop, opened) = (Arc::clone(&stop), Arc::clone(&opened));
            let (client, place) = (client.clone(), LabNetns::Pod(pod.to_owned()));
            std::thread::spawn(move || {
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    held.retain(is_open);
                    if held.len() >= CONNECTIONS_PER_THREAD {
                        std::thread::yield_now();
                    } else if let Ok(stream) = open(&client, &place) {
                        held.push(stream);
                        opened.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        let threads = (0..THREADS).map(thread).collect();
        Self {
            stop,
            opened,
            threads,
        }
    }
}

fn open(client: &Client, place: &LabNetns) -> std::io::Result<TcpStream> {
    let address = SocketAddr::from((CONTROL_PLANE_ADDRESS, 15012));
    let stream = client.dial(place.clone(), address);
    let stream = stream.map_err(std::io::Error::other)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn is_open(stream: &TcpStream) -> bool {
    let peeked = stream.peek(&mut [0; 1]);
    matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

impl Drop for IdleConnections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

#[test]
fn pods_cannot_read_debug_pages() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    for pod in ["legacy/client", "shop/client"] {
        for path in [
            "ambientz",
            "config_dump",
            "syncz",
            "registryz",
            "configz",
            "connections",
            "problems",
        ] {
            let url = format!("http://172.18.0.2:15014/debug/{path}");
            let answer = mesh.get(pod, &url);
            assert!(answer.body.starts_with("403 "), "{pod} {path}: {answer:?}");
        }
        mesh.get(pod, "http://172.18.0.2:15014/metrics").ok();
    }
    // Processes in the control plane's own pod can read everything.
    let inside = mesh
        .client()
        .dial(LabNetns::Control, SocketAddr::from(([127, 0, 0, 1], 15014)))
        .unwrap();
    let page = read_response(inside, "/debug/ambientz");
    assert!(page.contains("server.shop.svc.cluster.local"), "{page}");
}

fn read_response(mut stream: TcpStream, path: &str) -> String {
    use std::io::{Read, Write};
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn idle_connections_do_not_prevent_enrolment() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let attack = IdleConnections::start(mesh.client(), "legacy/client");
    wait_until("the attack is in full swing", || {
        attack.opened.load(Ordering::Relaxed) >= FULL_RATE_CONNECTIONS
    });
    // A restarted proxy must reconnect before it can request the new pod's certificate.
    mesh.kill("proxy", Some("node-1"));
    mesh.apply(
        "late",
        "apiVersion: v1
kind: Pod
metadata: {name: late, namespace: shop, labels: {app: late}}
spec:
  nodeName: node-1
  serviceAccountName: late
  containers:
  - {name: main, image: none, command: [$LAB_TOOL, sleep]}
",
    );
    mesh.wait_until_captured("shop/late", true);
    wait_until("the new pod's calls are answered", || {
        mesh.get("shop/late", "http://server.shop/").succeeded()
    });
    drop(attack);
}
