//! Tests of connection settings of a `DestinationRule` at a waypoint, with real programs: limits, timeouts, and
//! endpoints that accept no connections.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use ambit_system_tests::{
    LabNetns, Mesh, TIMEOUT, idle_pod, is_complete_response, read_head, wait_until, with_waypoint,
};
use http::{Request, Response};

const SERVICES: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: many, namespace: shop}
spec:
  selector: {app: many}
  ports:
  - {name: http, port: 80, targetPort: 8090}
  - {name: h2, port: 81, targetPort: 8091, appProtocol: kubernetes.io/h2c}
  - {name: tcp, port: 90, targetPort: 8092}
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: tcp, port: 90, targetPort: 9000}]
";

const TCP_ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: front, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 90}]
  rules: [{backendRefs: [{name: many, port: 90}]}]
";

const RETRIES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: many, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: many, port: 80}]
  rules:
  - retry: {codes: [500], attempts: 2, backoff: 1ms}
    backendRefs: [{name: many, port: 80}]
";

/// Pods that are endpoints of the service `many`, with their nodes.
const SERVER_A: (&str, &str) = ("shop/a", "node-1");
const SERVER_B: (&str, &str) = ("shop/b", "node-2");

/// Starts a mesh in which the services of these endpoints are behind a waypoint.
fn mesh(endpoints: &[(&str, &str)]) -> Mesh {
    let pods = endpoints.iter();
    let pods: String = pods
        .map(|(pod, node)| idle_pod(pod, node, "app: many"))
        .collect();
    let (mesh, _) = with_waypoint(&format!("{pods}{SERVICES}"));
    mesh
}

fn rule(host: &str, traffic_policy: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: rule, namespace: shop}}\n\
         spec: {{host: {host}, trafficPolicy: {traffic_policy}}}\n"
    )
}

fn apply(mesh: &Mesh, traffic_policy: &str) {
    mesh.apply("rule", &rule("many", traffic_policy));
}

fn metrics(mesh: &Mesh) -> String {
    let url = format!("http://{}:15020/metrics", mesh.ip("shop/waypoint"));
    mesh.get("legacy/client", &url).body
}

fn has_metric(mesh: &Mesh, name: &str, labels: &[&str]) -> bool {
    let all = metrics(mesh);
    let mut lines = all.lines().filter(|line| line.starts_with(name));
    lines.any(|line| labels.iter().all(|label| line.contains(label)))
}

fn dial(mesh: &Mesh, address: SocketAddr) -> TcpStream {
    let place = LabNetns::Pod("shop/client".into());
    let stream = mesh.client().dial(place, address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Runs an application that first sends its pod's name, and then echoes.
fn serve_greeting(mesh: &Mesh, pod: &'static str) {
    mesh.serve_connections(&format!("shop/{pod}"), 8092, move |mut stream| {
        stream.write_all(pod.as_bytes())?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream).map(drop)
    });
}

/// Opens a connection, and returns the connection with the pod name that the application sent first.
fn dial_greeting(mesh: &Mesh, address: SocketAddr) -> Option<(TcpStream, u8)> {
    let mut stream = dial(mesh, address);
    // Not every application sends first.
    let soon = Some(Duration::from_secs(5));
    stream.set_read_timeout(soon).ok()?;
    let mut name = [0];
    stream.read_exact(&mut name).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    Some((stream, name[0]))
}

/// Returns whether a byte sent on the connection is echoed.
fn echoes(stream: &mut TcpStream) -> bool {
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

#[test]
fn tcp_connections_are_limited_and_timed_out_by_rule() {
    let mesh = mesh(&[SERVER_A, SERVER_B]);
    serve_greeting(&mesh, "a");
    serve_greeting(&mesh, "b");
    let many = mesh.service_address("many.shop.svc", 90);
    wait_until("both answer", || dial_greeting(&mesh, many).is_some());
    apply(&mesh, "{connectionPool: {tcp: {maxConnections: 1}}}");
    wait_until("a second connection is refused", || {
        let first = dial_greeting(&mesh, many);
        first.is_some() && dial_greeting(&mesh, many).is_none()
    });
    let overflows = "ambit_destination_overflows_total";
    assert!(
        metrics(&mesh).contains("limit=\"connections\""),
        "{overflows}: {}",
        metrics(&mesh)
    );
    wait_until("one is let in again", || {
        dial_greeting(&mesh, many).is_some()
    });
    // The idle timeout closes a silent connection, but not one with a byte now and then.
    apply(&mesh, "{connectionPool: {tcp: {idleTimeout: 1s}}}");
    wait_until("a silent connection ends", || {
        let Some((mut stream, _)) = dial_greeting(&mesh, many) else {
            return false;
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => ![std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut]
                .contains(&error.kind()),
        }
    });
    let (mut talks, _) = dial_greeting(&mesh, many).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        assert!(echoes(&mut talks), "ended after {:?}", began.elapsed());
    }
    apply(
        &mesh,
        "{connectionPool: {tcp: {maxConnectionDuration: 1s}}}",
    );
    wait_until("a connection that talks ends", || {
        let Some((mut talks, _)) = dial_greeting(&mesh, many) else {
            return false;
        };
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            if !echoes(&mut talks) {
                return true;
            }
        }
        false
    });
}

#[test]
fn endpoint_without_connections_is_ejected() {
    let mesh = mesh(&[SERVER_A, SERVER_B]);
    serve_greeting(&mesh, "a");
    let front = mesh.service_address("front.shop.svc", 90);
    mesh.apply("route", TCP_ROUTE);
    apply(
        &mesh,
        "{outlierDetection: {consecutive5xxErrors: 2, baseEjectionTime: 60s, maxEjectionPercent: 50}, loadBalancer: {simple: ROUND_ROBIN}}",
    );
    wait_until("connections go to the one that takes them", || {
        dial_greeting(&mesh, front).is_some_and(|(_, name)| name == b'a')
    });
    wait_until("the other one is ejected", || {
        let _greeted = dial_greeting(&mesh, front);
        has_metric(
            &mesh,
            "ambit_endpoint_ejections_total",
            &["destination_service=\"many.shop.svc.cluster.local\""],
        )
    });
    let labels = ["destination_service_name=\"many\"", "reporter=\"waypoint\""];
    for name in [
        "istio_tcp_connections_opened_total",
        "istio_tcp_sent_bytes_total",
    ] {
        wait_until(&format!("{name} names the destination"), || {
            has_metric(&mesh, name, &labels)
        });
    }
}

/// Starts an HTTP/1.1 application that responds to all requests with an error; returns the counters of its connections
/// and requests.
fn fail_connections(mesh: &Mesh, pod: &str) -> [Arc<AtomicUsize>; 2] {
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let [connections, requests] = counts.clone();
    mesh.serve_connections(&format!("shop/{pod}"), 8090, move |mut stream| {
        let mut is_first = true;
        while read_head(&mut stream)?.is_some() {
            if std::mem::take(&mut is_first) {
                connections.fetch_add(1, SeqCst);
            }
            requests.fetch_add(1, SeqCst);
            stream.write_all(b"HTTP/1.1 500 X\r\ncontent-length: 4\r\n\r\nfail")?;
        }
        Ok(())
    });
    counts
}

fn ask(mesh: &Mesh, address: SocketAddr) -> String {
    let mut connection = mesh.dial("shop/client", address).unwrap();
    let request = b"POST / HTTP/1.1\r\nHost: many\r\ncontent-length: 0\r\n\r\n";
    let answer = connection.send_raw(request, is_complete_response);
    answer.unwrap_or_else(|error| format!("failed: {error}"))
}

/// Sends five requests; returns by how much the application's counters have increased.
fn count_five_requests(
    mesh: &Mesh,
    address: SocketAddr,
    counts: &[Arc<AtomicUsize>; 2],
) -> [usize; 2] {
    let now = || [counts[0].load(SeqCst), counts[1].load(SeqCst)];
    let before = now();
    for _ in 0..5 {
        let answer = ask(mesh, address);
        assert!(answer.ends_with("fail"), "{answer}");
    }
    let after = now();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn requests_per_connection_and_retry_budget_are_enforced() {
    let mesh = mesh(&[SERVER_A]);
    let counts = fail_connections(&mesh, "a");
    let many = mesh.service_address("many.shop.svc", 80);
    wait_until("it answers", || ask(&mesh, many).ends_with("fail"));
    wait_until("connections are kept", || {
        count_five_requests(&mesh, many, &counts) == [0, 5]
    });
    apply(
        &mesh,
        "{connectionPool: {http: {maxRequestsPerConnection: 1}}}",
    );
    wait_until("each request has its own", || {
        count_five_requests(&mesh, many, &counts) == [5, 5]
    });
    apply(
        &mesh,
        "{connectionPool: {http: {maxRequestsPerConnection: 2}}}",
    );
    wait_until("each has two", || {
        [2, 3].contains(&count_five_requests(&mesh, many, &counts)[0])
    });
    apply(
        &mesh,
        "{connectionPool: {tcp: {maxConnectionDuration: 1ms}}}",
    );
    wait_until("none lasts", || {
        count_five_requests(&mesh, many, &counts) == [5, 5]
    });
    mesh.apply("route", RETRIES);
    wait_until("each is tried three times", || {
        count_five_requests(&mesh, many, &counts)[1] == 15
    });
    wait_until("what was tried in vain is flagged", || {
        has_metric(
            &mesh,
            "istio_requests_total",
            &["response_flags=\"URX\"", "response_code=\"500\""],
        )
    });
    apply(&mesh, "{retryBudget: {percent: 0, minRetryConcurrency: 0}}");
    wait_until("nothing is tried again", || {
        count_five_requests(&mesh, many, &counts)[1] == 5
    });
    assert!(
        metrics(&mesh).contains("limit=\"retries\""),
        "{}",
        metrics(&mesh)
    );
    assert!(has_metric(
        &mesh,
        "istio_requests_total",
        &["response_flags=\"UO\"", "response_code=\"500\""]
    ));
}

#[test]
fn unresponsive_endpoint_is_abandoned_after_the_connect_timeout() {
    let mesh = mesh(&[SERVER_A, SERVER_B]);
    let silent = "nft add table inet silent && nft add chain inet silent in '{ type filter hook input priority 0; }' && nft add rule inet silent in tcp dport 8080 drop";
    mesh.run("legacy/server", &["sh", "-c", silent]);
    let outside = mesh.ip("legacy/server");
    mesh.apply(
        "entry",
        &format!(
            "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: outside, namespace: shop}}
spec:
  hosts: [outside.example]
  ports: [{{name: http, number: 80, protocol: HTTP, targetPort: 8080}}]
  resolution: STATIC
  endpoints: [{{address: {outside}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: many, namespace: shop}}
spec:
  parentRefs: [{{group: '', kind: Service, name: many, port: 80}}]
  rules:
  - backendRefs: [{{group: networking.istio.io, kind: Hostname, name: outside.example, port: 80}}]
---
{}",
            rule(
                "outside.example",
                "{connectionPool: {tcp: {connectTimeout: 200ms}}}"
            )
        ),
    );
    let many = mesh.service_address("many.shop.svc", 80);
    // Without the rule the connect timeout is ten seconds, longer than this client waits.
    wait_until("it is given up", || {
        let mut stream = dial(&mesh, many);
        let soon = Some(Duration::from_secs(4));
        stream.set_read_timeout(soon).unwrap();
        let request =
            b"POST / HTTP/1.1\r\nHost: many\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let mut answer = String::new();
        let is_whole =
            stream.write_all(request).is_ok() && stream.read_to_string(&mut answer).is_ok();
        is_whole && answer.contains("upstream connect error")
    });
    wait_until("the failure is counted", || {
        has_metric(&mesh, "istio_requests_total", &["response_flags=\"UF\""])
    });
}

/// HTTP/2 application that counts open connections, and holds requests until released.
#[derive(Clone, Default)]
struct HoldingApplication {
    open_connections: Arc<AtomicUsize>,
    total_connections: Arc<AtomicUsize>,
    held_requests: Arc<AtomicUsize>,
    /// Maximum number of concurrent requests on one connection.
    max_concurrent_requests: Arc<AtomicUsize>,
    release: Arc<tokio::sync::Notify>,
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

impl HoldingApplication {
    fn serve(mesh: &Mesh, pod: &str) -> Self {
        let own = Self::default();
        let of = own.clone();
        mesh.serve_connections(&format!("shop/{pod}"), 8091, move |stream| {
            stream.set_nonblocking(true)?;
            of.total_connections.fetch_add(1, SeqCst);
            of.open_connections.fetch_add(1, SeqCst);
            let served = runtime().block_on(async {
                let stream = tokio::net::TcpStream::from_std(stream)?;
                let connection = h2::server::handshake(stream).await;
                let mut connection = connection.map_err(std::io::Error::other)?;
                let here = Arc::new(AtomicUsize::new(0));
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let (of, here) = (of.clone(), here.clone());
                    tokio::spawn(async move {
                        let let_go = of.release.notified();
                        of.max_concurrent_requests
                            .fetch_max(here.fetch_add(1, SeqCst) + 1, SeqCst);
                        of.held_requests.fetch_add(1, SeqCst);
                        let_go.await;
                        here.fetch_sub(1, SeqCst);
                        let response = Response::builder().body(()).unwrap();
                        let _gone = respond.send_response(response, true);
                    });
                }
                Ok(())
            });
            of.open_connections.fetch_sub(1, SeqCst);
            served
        });
        own
    }

    /// Sends concurrent requests on one client connection, and returns the number of connections that the application
    /// received for them.
    fn ask(&self, mesh: &Mesh, address: SocketAddr, many: usize) -> usize {
        let (before, held) = (
            self.total_connections.load(SeqCst),
            self.held_requests.load(SeqCst),
        );
        let stream = dial(mesh, address);
        stream.set_nonblocking(true).unwrap();
        runtime().block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let mut answers = Vec::new();
            for _ in 0..many {
                let request = Request::get("http://many/").body(()).unwrap();
                client = client.ready().await.unwrap();
                answers.push(client.send_request(request, true).unwrap().0);
            }
            let all_are_held = async {
                while self.held_requests.load(SeqCst) < held + many {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(TIMEOUT, all_are_held).await.unwrap();
            self.release.notify_waiters();
            for answer in answers {
                assert_eq!(answer.await.unwrap().status(), 200);
            }
        });
        self.total_connections.load(SeqCst) - before
    }
}

#[test]
fn http2_connections_are_limited_in_streams_and_end_idle() {
    let mesh = mesh(&[SERVER_A]);
    let app = HoldingApplication::serve(&mesh, "a");
    let many = mesh.service_address("many.shop.svc", 81);
    app.ask(&mesh, many, 1);
    // One connection serves all requests.
    wait_until("it is shared", || app.ask(&mesh, many, 6) == 0);
    let before = app.open_connections.load(SeqCst);
    apply(
        &mesh,
        "{connectionPool: {http: {maxConcurrentStreams: 2, idleTimeout: 2s}}}",
    );
    // Existing connections are used: of several requests without a free one, each opens one.
    wait_until("each carries two, and they are used again", || {
        app.max_concurrent_requests.store(0, SeqCst);
        app.ask(&mesh, many, 6) == 0 && app.max_concurrent_requests.load(SeqCst) == 2
    });
    // Except for connections from before the rule, of which each worker of the waypoint may have
    // one.
    wait_until("what carries nothing ends", || {
        app.open_connections.load(SeqCst) <= before + 1
    });
}
