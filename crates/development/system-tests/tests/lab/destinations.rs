//! Tests of failing and overloaded endpoints behind a waypoint, with a `DestinationRule` and real programs.

use std::{
    collections::BTreeSet,
    io::Write as _,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst},
    },
};

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, Mesh, idle_pod, is_complete_response, read_head, wait_until,
};

const PORT: u16 = 8090;

/// Returns the manifest of a pod of the service.
fn pod(name: &str, node: &str) -> String {
    idle_pod(&format!("shop/{name}"), node, "app: many")
}

const SERVICE: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: many, namespace: shop}
spec:
  selector: {app: many}
  ports: [{name: http, port: 80, targetPort: 8090}]
";

fn rule(traffic_policy: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: many, namespace: shop}}
spec:
  host: many
  trafficPolicy: {traffic_policy}
"
    )
}

/// Application in one endpoint's pod, which sends scripted responses.
#[derive(Clone, Debug)]
struct Application {
    status: Arc<AtomicU16>,
    /// Whether the application delays its responses beyond any timeout.
    is_slow: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl Application {
    fn serve(mesh: &Mesh, pod: &'static str) -> Self {
        let own = Self {
            status: Arc::new(AtomicU16::new(200)),
            is_slow: Arc::default(),
            requests: Arc::default(),
        };
        let of = own.clone();
        mesh.serve_connections(&format!("shop/{pod}"), PORT, move |mut stream| {
            while read_head(&mut stream)?.is_some() {
                of.requests.fetch_add(1, SeqCst);
                while of.is_slow.load(SeqCst) {
                    std::thread::yield_now();
                }
                let status = of.status.load(SeqCst);
                let body = format!("from {pod}");
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}"
                )?;
            }
            Ok(())
        });
        own
    }

    fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }
}

struct DestinationFixture {
    mesh: Mesh,
    service: SocketAddr,
}

impl DestinationFixture {
    fn new(pods: &[(&str, &str)], more: &str) -> Self {
        let pods: String = pods.iter().map(|(name, node)| pod(name, node)).collect();
        let mesh = Mesh::up(&format!(
            "{CLIENT_AND_SERVER}\n---{GATEWAY}{SERVICE}{pods}{more}"
        ));
        let service = mesh.service_address("many.shop.svc", 80);
        Self { mesh, service }
    }

    /// Sends a POST, which is never retried; returns the response.
    fn send_post(&self, headers: &str) -> String {
        let request =
            format!("POST / HTTP/1.1\r\nHost: many\r\ncontent-length: 0\r\n{headers}\r\n");
        let Ok(mut connection) = self.mesh.dial("shop/client", self.service) else {
            return String::new();
        };
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        answer.unwrap_or_default()
    }

    /// Sends a request; returns the name of the pod that responds.
    fn responding_pod(&self, headers: &str) -> Option<String> {
        let answer = self.send_post(headers);
        let (_, body) = answer.split_once("\r\n\r\nfrom ")?;
        Some(body.to_owned())
    }

    fn wait_until_all_respond(&self, pods: &[&str]) {
        let all: BTreeSet<String> = pods.iter().map(|pod| (*pod).to_owned()).collect();
        let mut seen = BTreeSet::new();
        wait_until("all pods answer through the waypoint", || {
            seen.extend(self.responding_pod(""));
            seen == all
        });
    }

    fn metrics(&self) -> String {
        let url = format!("http://{}:15020/metrics", self.mesh.ip("shop/waypoint"));
        self.mesh.get("legacy/client", &url).body
    }

    fn apply(&self, traffic_policy: &str) {
        self.mesh.apply("rule", &rule(traffic_policy));
    }
}

const OUTLIER_POLICY: &str = "{outlierDetection: {consecutive5xxErrors: 3, interval: 1s, baseEjectionTime: 5s, maxEjectionPercent: 50}, loadBalancer: {simple: ROUND_ROBIN}}";

#[test]
fn failing_endpoint_is_ejected_and_returns() {
    let scene = DestinationFixture::new(&[("a", "node-1"), ("b", "node-2")], "");
    let a = Application::serve(&scene.mesh, "a");
    let b = Application::serve(&scene.mesh, "b");
    scene.wait_until_all_respond(&["a", "b"]);
    scene.apply(OUTLIER_POLICY);
    a.status.store(503, SeqCst);
    let ten_by_b = || (0..10).all(|_| scene.responding_pod("").as_deref() == Some("b"));
    wait_until("the failing endpoint gets nothing", ten_by_b);
    wait_until("the ejection is shown", || {
        scene.responding_pod("");
        let shown = scene.mesh.ambit(&["waypoint", "endpoints"]).stdout;
        let mut rows = shown
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Columns: waypoint, service, endpoint, address, health, requests, remaining ejection time.
        rows.any(|row| {
            row.get(2) == Some(&"a") && row.get(6).is_some_and(|rest| rest.ends_with('s'))
        })
    });
    // An invalid rule leaves the last valid one in force.
    scene.apply("{outlierDetection: {interval: -1s}}");
    a.status.store(200, SeqCst);
    scene.wait_until_all_respond(&["a", "b"]);
    // Not all endpoints are ejected, whatever their responses.
    for one in [&a, &b] {
        one.status.store(503, SeqCst);
    }
    let before = (a.requests(), b.requests());
    for _ in 0..40 {
        assert!(!scene.send_post("").contains("no healthy upstream"));
    }
    let all = a.requests() - before.0 + b.requests() - before.1;
    assert!(all >= 40, "{all}");
    let metrics = scene.metrics();
    assert!(
        metrics.contains("ambit_endpoint_ejections_total{destination_service=\"many.shop.svc.cluster.local\",cause=\"5xx\"}"),
        "{metrics}"
    );
}

#[test]
fn consistent_hash_keeps_its_endpoint_while_others_change() {
    let scene = DestinationFixture::new(&[("a", "node-1"), ("b", "node-2")], "");
    for pod in ["a", "b"] {
        Application::serve(&scene.mesh, pod);
    }
    scene.wait_until_all_respond(&["a", "b"]);
    scene.apply("{loadBalancer: {consistentHash: {httpHeaderName: x-user}}}");
    let user = |n: u32| format!("x-user: {n}\r\n");
    let of_all =
        || -> Vec<Option<String>> { (0..12).map(|n| scene.responding_pod(&user(n))).collect() };
    let mut first = of_all();
    wait_until("each user is answered by one", || {
        let before = std::mem::replace(&mut first, of_all());
        before == first && of_all() == first
    });
    let users: BTreeSet<_> = first.iter().flatten().collect();
    assert_eq!(users.len(), 2, "{first:?}");
    // A new endpoint takes over some users, and no other user moves.
    scene
        .mesh
        .apply("c", pod("c", "node-1").trim_start_matches("\n---"));
    scene
        .mesh
        .wait_for_status("the new pod has an address", |status| {
            let mut pods = status.pods.iter();
            pods.any(|pod| pod.name == "c" && !pod.ips.is_empty())
        });
    scene.mesh.wait_until_captured("shop/c", true);
    Application::serve(&scene.mesh, "c");
    wait_until("the new pod gets users", || {
        of_all().iter().any(|who| who.as_deref() == Some("c"))
    });
    let second = of_all();
    for (before, after) in first.iter().zip(&second) {
        assert!(
            before == after || after.as_deref() == Some("c"),
            "{first:?} {second:?}"
        );
    }
    // A client's value of the header selects no endpoint, in whatever format.
    for value in ["\u{7f}", "a", "10.0.0.1:8090", &"x".repeat(8000)] {
        let one = scene.responding_pod(&format!("x-user: {value}\r\n"));
        assert_eq!(one, scene.responding_pod(&format!("x-user: {value}\r\n")));
    }
    scene.apply("{loadBalancer: {consistentHash: {httpCookie: {name: id, ttl: 60s, path: /}}}}");
    let mut set = None;
    wait_until("a cookie is set", || {
        let answer = scene.send_post("").to_ascii_lowercase();
        let line = answer
            .lines()
            .find(|line| line.starts_with("set-cookie: id="));
        set = line.map(|line| (line.to_owned(), answer.clone()));
        set.is_some()
    });
    let (line, answer) = set.unwrap();
    assert!(line.ends_with("; max-age=60; path=/; httponly"), "{line}");
    let cookie = line
        .trim_start_matches("set-cookie: ")
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let who = answer.split_once("\r\n\r\nfrom ").unwrap().1.to_owned();
    for _ in 0..10 {
        let again = scene.send_post(&format!("cookie: x=y; {cookie}\r\n"));
        assert!(again.ends_with(&format!("from {who}")), "{again}");
        assert!(
            !again.to_ascii_lowercase().contains("set-cookie"),
            "{again}"
        );
    }
}

#[test]
fn requests_over_a_limit_are_rejected_at_once() {
    let scene = DestinationFixture::new(&[("a", "node-1")], "");
    let a = Application::serve(&scene.mesh, "a");
    scene.wait_until_all_respond(&["a"]);
    scene.apply("{connectionPool: {tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1}}}");
    std::thread::scope(|scope| {
        let mut overflow = String::new();
        wait_until("a third request is refused", || {
            a.is_slow.store(true, SeqCst);
            let under_way = a.requests();
            let held: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| scene.send_post("")))
                .collect();
            wait_until("one is under way", || a.requests() > under_way);
            let third = scope.spawn(|| scene.send_post(""));
            // Without the rule the third request waits for the application like the others.
            wait_until("there is an answer, or all wait", || {
                third.is_finished() || a.requests() > under_way + 2
            });
            a.is_slow.store(false, SeqCst);
            overflow = third.join().unwrap();
            let others: Vec<String> = held.into_iter().map(|one| one.join().unwrap()).collect();
            let answers = others.iter().chain([&overflow]);
            let refused: Vec<_> = answers.filter(|one| one.contains("overflow")).collect();
            if let [one] = refused.as_slice() {
                overflow = (*one).clone();
            }
            overflow.contains("overflow")
        });
        let overflow = overflow.to_ascii_lowercase();
        assert!(overflow.starts_with("http/1.1 503"), "{overflow}");
        assert!(overflow.contains("x-envoy-overloaded: true"), "{overflow}");
    });
    assert_eq!(scene.responding_pod("").as_deref(), Some("a"));
    let metrics = scene.metrics();
    assert!(metrics.contains("response_flags=\"UO\""), "{metrics}");
    assert!(metrics.contains("limit=\"pending\""), "{metrics}");
}

const NODE_LOCALITIES: &str = "
---
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: near}}
---
apiVersion: v1
kind: Node
metadata: {name: node-2, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: far}}
";

#[test]
fn requests_stay_local_until_local_endpoints_fail() {
    let scene = DestinationFixture::new(&[("a", "node-1"), ("b", "node-2")], NODE_LOCALITIES);
    let near = Application::serve(&scene.mesh, "a");
    let far = Application::serve(&scene.mesh, "b");
    scene.wait_until_all_respond(&["a", "b"]);
    scene.apply("{outlierDetection: {consecutive5xxErrors: 2, baseEjectionTime: 5s, maxEjectionPercent: 100}, loadBalancer: {localityLbSetting: {enabled: true}}}");
    let mut who = None;
    wait_until("all requests go to one zone", || {
        let ten: BTreeSet<_> = (0..10).map(|_| scene.responding_pod("")).collect();
        who = ten.first().cloned().flatten();
        ten.len() == 1 && who.is_some()
    });
    let who = who.unwrap();
    let (one, other) = if who == "a" {
        (&near, "b")
    } else {
        (&far, "a")
    };
    one.status.store(503, SeqCst);
    wait_until("the other zone answers", || {
        (0..10).all(|_| scene.responding_pod("").as_deref() == Some(other))
    });
    one.status.store(200, SeqCst);
    wait_until("requests come back", || {
        (0..10).all(|_| scene.responding_pod("").as_deref() == Some(&*who))
    });
}
