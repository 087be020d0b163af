//! What a pod may do to the control plane without proving who it is: nothing that others notice. Debug
//! pages are not for it, and neither idle connections nor made up tokens keep a new pod from enrolling.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use ambit_system_tests::{Client, Mesh, PAIR, Place, until};

/// The control plane's address in a lab.
const CONTROL: [u8; 4] = [172, 18, 0, 2];
/// Connections that an attacker holds: more than the control plane ever shook hands with at once.
const HELD: usize = 600;

/// Holds connections to the control plane on which nothing is ever said, from a pod, until this is dropped;
/// one that is closed is followed by another.
struct IdleConnections {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl IdleConnections {
    fn hold(client: &Client, pod: &str) -> Self {
        let (stop, opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (ended, count) = (Arc::clone(&stop), Arc::clone(&opened));
        let (client, place) = (client.clone(), Place::Pod(pod.to_owned()));
        let thread = std::thread::spawn(move || {
            let address = SocketAddr::from((CONTROL, 15012));
            let mut held = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                held.retain(is_open);
                if held.len() >= HELD {
                    std::thread::yield_now();
                    continue;
                }
                if let Ok(stream) = client.dial(place.clone(), address)
                    && stream.set_nonblocking(true).is_ok()
                {
                    held.push(stream);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self {
            stop,
            opened,
            thread: Some(thread),
        }
    }
}

fn is_open(stream: &TcpStream) -> bool {
    let peeked = stream.peek(&mut [0; 1]);
    matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

impl Drop for IdleConnections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[test]
fn debug_pages_are_not_for_pods() {
    let mesh = Mesh::up(PAIR);
    for pod in ["legacy/client", "shop/client"] {
        for path in [
            "ambientz",
            "config_dump",
            "syncz",
            "connections",
            "problems",
        ] {
            let url = format!("http://172.18.0.2:15014/debug/{path}");
            let answer = mesh.get(pod, &url);
            assert!(answer.body.starts_with("403 "), "{pod} {path}: {answer:?}");
        }
        mesh.get(pod, "http://172.18.0.2:15014/metrics").ok();
    }
    // Who may look into the control plane's own pod sees everything.
    let inside = mesh
        .client()
        .dial(Place::Control, SocketAddr::from(([127, 0, 0, 1], 15014)))
        .unwrap();
    let page = ask(inside, "/debug/ambientz");
    assert!(page.contains("server.shop.svc.cluster.local"), "{page}");
}

fn ask(mut stream: TcpStream, path: &str) -> String {
    use std::io::{Read, Write};
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn idle_connections_do_not_keep_a_new_pod_from_enrolling() {
    let mesh = Mesh::up(PAIR);
    let attack = IdleConnections::hold(mesh.client(), "legacy/client");
    until("the attacker holds what it can get", || {
        attack.opened.load(Ordering::Relaxed) >= HELD
    });
    // A proxy that is replaced has to connect anew before it can ask for the new pod's certificate.
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
  - {name: main, image: none, command: [$AMBIT, lab-tool, sleep]}
",
    );
    mesh.until_captured("shop/late", true);
    until("the new pod's calls are answered", || {
        mesh.get("shop/late", "http://server.shop/").succeeded()
    });
    drop(attack);
}
