//! Tests that clients that do not read, applications that do not read, and clients that disappear do not block others,
//! through waypoints and through node proxies alone, and none of their connections remains.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use ambit_lab::LabNetns;
use ambit_system_tests::{Mesh, idle_pod, read_head, wait_until, with_waypoint};

/// Captured namespace without a waypoint, and a second client in `shop`.
const MANIFESTS: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: flat, labels: {istio.io/dataplane-mode: ambient}}
";
const CLIENTS: [&str; 3] = ["shop/client", "flat/client", "legacy/client"];
const PORT: u16 = 8081;
/// Number of an attacker's connections: enough to fill the window of a shared connection.
const CONNECTIONS: usize = 12;
/// Number of another client's requests during an attack.
const REQUESTS: usize = 30;
/// Timeout of one client's requests, long enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(10);

/// HTTP/1.1 application in a pod, with its open connections.
struct Application {
    address: SocketAddr,
    open_connections: Arc<AtomicUsize>,
}

impl Application {
    /// Starts an application: `/big` has an endless response; for `/upload`, the application begins to respond without
    /// reading the request body; `/hang` has no response.
    fn start(mesh: &Mesh, pod: &str) -> Self {
        let open = Arc::new(AtomicUsize::new(0));
        let counted = open.clone();
        let address = mesh.serve_connections(pod, PORT, move |mut stream| {
            counted.fetch_add(1, SeqCst);
            let served = serve(&mut stream);
            counted.fetch_sub(1, SeqCst);
            served
        });
        Self {
            address,
            open_connections: open,
        }
    }
}

fn serve(stream: &mut TcpStream) -> io::Result<()> {
    while let Some(head) = read_head(stream)? {
        let path = head.split(' ').nth(1).unwrap_or_default();
        match path {
            "/big" => {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
                let piece = vec![b'a'; 64 << 10];
                loop {
                    stream.write_all(&piece)?;
                }
            }
            "/upload" => {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\na")?;
                return wait_for_reset(stream);
            }
            "/hang" => {
                stream.read_exact(&mut [0])?;
            }
            // The waypoint keeps no connection, which would count as one that an attack has left.
            _ => {
                let closing =
                    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsmall";
                return stream.write_all(closing.as_bytes());
            }
        }
    }
    Ok(())
}

/// Waits until a connection is reset, without reading from it.
fn wait_for_reset(stream: &TcpStream) -> io::Result<()> {
    let stream = stream.try_clone()?;
    stream.set_nonblocking(true)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_io().build()?.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        stream.ready(tokio::io::Interest::ERROR).await?;
        Ok(())
    })
}

/// Opens the connections of one attack from a pod, and sends the request on each.
fn open_attack_connections(
    mesh: &Mesh,
    pod: &str,
    to: SocketAddr,
    request: &str,
) -> Vec<TcpStream> {
    let dial = || {
        mesh.client()
            .dial(LabNetns::Pod(pod.to_owned()), to)
            .unwrap()
    };
    let mut all: Vec<_> = (0..CONNECTIONS).map(|_| dial()).collect();
    for stream in &mut all {
        stream.write_all(request.as_bytes()).unwrap();
    }
    all
}

/// Sends bytes on all connections, which are not read, until the flow-control windows are full.
fn fill_flow_control_windows(all: &[TcpStream]) {
    let piece = vec![b'a'; 64 << 10];
    for mut stream in all {
        stream
            .set_write_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        while stream.write_all(&piece).is_ok() {}
    }
}

/// Sends requests from the client `pod`, which is not the attacker, and returns the duration of the slowest request.
fn measure_other_clients(mesh: &Mesh, pod: &str, to: SocketAddr, what: &str) -> Duration {
    let mut slowest = Duration::ZERO;
    for number in 0..REQUESTS {
        let began = Instant::now();
        let request = "GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
        let answer = mesh
            .dial(pod, to)
            .and_then(|mut dialled| dialled.send_raw(request.as_bytes(), |_| false));
        let took = began.elapsed();
        let answer =
            answer.unwrap_or_else(|error| panic!("{what}: {pod}, request {number}: {error}"));
        assert!(answer.ends_with("small"), "{what}: {pod}: {answer}");
        assert!(took < DEADLINE, "{what}: {pod}: {took:?}");
        slowest = slowest.max(took);
    }
    slowest
}

#[test]
fn stalled_clients_block_nobody_and_leave_nothing() {
    let pods = [("flat/client", "node-1"), ("flat/server", "node-2")];
    let pods = pods.map(|(pod, node)| idle_pod(pod, node, "app: idle"));
    let (mesh, _) = with_waypoint(&format!("{MANIFESTS}{}", pods.concat()));
    mesh.wait_until_captured("flat/client", true);
    mesh.wait_until_captured("flat/server", true);
    for server in ["shop/server", "flat/server"] {
        let application = Application::start(&mesh, server);
        let Application {
            address,
            open_connections: ref open,
        } = application;
        for pod in CLIENTS {
            wait_until(&format!("{pod} reaches {server}"), || {
                mesh.dial(pod, address).is_ok_and(|mut dialled| {
                    let get = b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
                    dialled
                        .send_raw(get, |_| false)
                        .is_ok_and(|all| all.ends_with("small"))
                })
            });
        }
        let quiet = CLIENTS.map(|pod| measure_other_clients(&mesh, pod, address, "no attack"));
        eprintln!("{server}: slowest of {REQUESTS} requests without an attack: {quiet:?}");
        for (what, request) in [
            (
                "unread responses",
                "GET /big HTTP/1.1\r\nHost: server\r\n\r\n",
            ),
            (
                "unread uploads",
                "POST /upload HTTP/1.1\r\nHost: server\r\nContent-Length: 1000000000\r\n\r\n",
            ),
        ] {
            let what = format!("{what} at {server}");
            let attackers = CLIENTS.iter();
            let held: Vec<_> = attackers
                .flat_map(|attacker| open_attack_connections(&mesh, attacker, address, request))
                .collect();
            wait_until(&format!("{what} arrive"), || {
                open.load(SeqCst) >= held.len()
            });
            if request.starts_with("POST") {
                fill_flow_control_windows(&held);
            }
            let slowest = CLIENTS.map(|pod| measure_other_clients(&mesh, pod, address, &what));
            drop(held);
            let left = Instant::now();
            wait_until(&format!("{what} are over"), || open.load(SeqCst) == 0);
            eprintln!(
                "{what}: slowest {slowest:?}, over after {:?}",
                left.elapsed()
            );
        }
        if server == "shop/server" {
            requests_end_with_their_clients(&mesh, &application);
        }
    }
}

/// Checks that unanswered requests are cancelled when their clients disconnect, at a waypoint, which parses requests.
fn requests_end_with_their_clients(mesh: &Mesh, application: &Application) {
    let Application {
        address,
        open_connections: open,
    } = application;
    for attacker in ["shop/client", "legacy/client"] {
        let request = "GET /hang HTTP/1.1\r\nHost: server\r\n\r\n";
        let held = open_attack_connections(mesh, attacker, *address, request);
        wait_until("the requests arrive", || open.load(SeqCst) >= CONNECTIONS);
        drop(held);
        let left = Instant::now();
        wait_until("the requests are over", || open.load(SeqCst) == 0);
        eprintln!("{attacker}: requests over after {:?}", left.elapsed());
    }
}
