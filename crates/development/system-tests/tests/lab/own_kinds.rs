//! Tests of Ambit's own kinds at a waypoint, with real programs: faults that routes inject, and
//! subsets of services as backends.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, LogSource, Mesh, answer_ok, is_complete_response, read_head,
    wait_until,
};

const PORT: u16 = 8090;

fn pod(name: &str, version: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: many, version: {version}}}}}
spec:
  nodeName: node-1
  serviceAccountName: many
  containers:
  - {{name: main, image: none, command: [$LAB_TOOL, sleep]}}
"
    )
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

const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: many, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: many}]
  rules:
";

struct OwnKindsFixture {
    mesh: Mesh,
    service: SocketAddr,
    /// Number of requests that the applications have received.
    requests: Arc<AtomicUsize>,
}

impl OwnKindsFixture {
    /// Starts a mesh with a Service of these pods, given by name and version label.
    fn new(pods: &[(&'static str, &str)]) -> Self {
        let all: String = pods
            .iter()
            .map(|(name, version)| pod(name, version))
            .collect();
        let mesh = Mesh::up(&format!("{CLIENT_AND_SERVER}\n---{GATEWAY}{SERVICE}{all}"));
        let scene = Self {
            service: mesh.service_address("many.shop.svc", 80),
            requests: Arc::default(),
            mesh,
        };
        for (name, _) in pods {
            scene.serve(name);
        }
        scene.wait_until_answered_by("/", pods.iter().map(|(name, _)| *name));
        scene
    }

    /// Runs an application that responds with its pod's name.
    fn serve(&self, pod: &'static str) {
        let requests = self.requests.clone();
        self.mesh
            .serve_connections(&format!("shop/{pod}"), PORT, move |mut stream| {
                while read_head(&mut stream)?.is_some() {
                    requests.fetch_add(1, SeqCst);
                    let body = format!("from {pod}");
                    answer_ok(&mut stream, &body)?;
                }
                Ok(())
            });
    }

    fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }

    /// Sends a request, and returns the response; a POST is never retried by the waypoint.
    fn ask(&self, path: &str, headers: &str) -> String {
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: many\r\ncontent-length: 0\r\n{headers}\r\n");
        let Ok(mut connection) = self.mesh.dial("shop/client", self.service) else {
            return String::new();
        };
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        answer.unwrap_or_default()
    }

    /// Sends a request, and returns the pod that responds.
    fn responding_pod(&self, path: &str) -> Option<String> {
        let answer = self.ask(path, "");
        let (_, body) = answer.split_once("\r\n\r\nfrom ")?;
        Some(body.to_owned())
    }

    fn wait_until_answered_by<'a>(&self, path: &str, pods: impl IntoIterator<Item = &'a str>) {
        let all: BTreeSet<String> = pods.into_iter().map(str::to_owned).collect();
        let mut seen = BTreeSet::new();
        wait_until("all these pods answer, and no other", || {
            seen = (0..12).filter_map(|_| self.responding_pod(path)).collect();
            seen == all
        });
    }

    fn wait_for_status(&self, path: &str, status: &str) -> String {
        let mut answer = String::new();
        wait_until(&format!("{path} is answered with {status}"), || {
            answer = self.ask(path, "");
            answer.starts_with(&format!("HTTP/1.1 {status}"))
        });
        answer
    }

    /// Returns the waypoint's access log.
    fn log(&self) -> String {
        let source = LogSource::Pod {
            pod: "shop/waypoint".into(),
            container: None,
        };
        self.mesh.client().log_text(source).unwrap()
    }

    fn wait_until_logged(&self, path: &str, flags: &str) {
        wait_until(&format!("{path} is logged with{flags}"), || {
            let log = self.log();
            let mut lines = log.lines();
            lines.any(|line| line.contains(path) && line.contains(flags))
        });
    }

    fn metrics(&self) -> String {
        let url = format!("http://{}:15020/metrics", self.mesh.ip("shop/waypoint"));
        self.mesh.get("legacy/client", &url).body
    }
}

fn fault(name: &str, spec: &str) -> String {
    format!(
        "
apiVersion: ambit.io/v1alpha1
kind: HTTPFault
metadata: {{name: {name}, namespace: shop}}
spec: {spec}
"
    )
}

const FAULTY: &str = "
  - matches: [{path: {value: /abort}}]
    filters: [{type: ExtensionRef, extensionRef: {group: ambit.io, kind: HTTPFault, name: aborts}}]
    backendRefs: [{name: many, port: 80}]
  - matches: [{path: {value: /delay}}]
    filters: [{type: ExtensionRef, extensionRef: {group: ambit.io, kind: HTTPFault, name: delays}}]
    timeouts: {request: 200s}
    backendRefs: [{name: many, port: 80}]
  - matches: [{path: {value: /late}}]
    filters: [{type: ExtensionRef, extensionRef: {group: ambit.io, kind: HTTPFault, name: hangs}}]
    timeouts: {request: 300ms}
    backendRefs: [{name: many, port: 80}]
  - matches: [{path: {value: /backend}}]
    backendRefs:
    - name: many
      port: 80
      filters: [{type: ExtensionRef, extensionRef: {group: ambit.io, kind: HTTPFault, name: aborts}}]
  - matches: [{path: {value: /missing}}]
    filters: [{type: ExtensionRef, extensionRef: {group: ambit.io, kind: HTTPFault, name: gone}}]
    backendRefs: [{name: many, port: 80}]
  - backendRefs: [{name: many, port: 80}]
";

#[test]
fn faults_apply_only_to_matching_requests() {
    let scene = OwnKindsFixture::new(&[("a", "v1")]);
    let mesh = &scene.mesh;
    mesh.apply("aborts", &fault("aborts", "{abort: {httpStatus: 418}}"));
    mesh.apply("delays", &fault("delays", "{delay: {fixedDelay: 700ms}}"));
    mesh.apply("hangs", &fault("hangs", "{delay: {fixedDelay: 5m}}"));
    mesh.apply("route", &format!("{ROUTE}{FAULTY}"));
    let aborted = scene.wait_for_status("/abort", "418");
    assert!(aborted.ends_with("fault filter abort"), "{aborted}");
    // None of these requests reaches the application.
    let before = scene.requests();
    let answer = scene.ask("/abort", "");
    assert!(answer.starts_with("HTTP/1.1 418"), "{answer}");
    let grpc = scene.ask("/abort", "content-type: application/grpc\r\n");
    assert!(grpc.starts_with("HTTP/1.1 200"), "{grpc}");
    assert!(
        grpc.to_ascii_lowercase().contains("grpc-status: 2\r\n"),
        "{grpc}"
    );
    let of_backend = scene.ask("/backend", "");
    assert!(of_backend.starts_with("HTTP/1.1 418"), "{of_backend}");
    let late = scene.ask("/late", "");
    assert!(late.starts_with("HTTP/1.1 504"), "{late}");
    let missing = scene.ask("/missing", "");
    assert!(missing.starts_with("HTTP/1.1 500"), "{missing}");
    assert_eq!(scene.requests(), before);
    // A rule without a fault.
    assert_eq!(scene.responding_pod("/").as_deref(), Some("a"));
    let began = Instant::now();
    assert_eq!(scene.responding_pod("/delay").as_deref(), Some("a"));
    assert!(began.elapsed() >= Duration::from_millis(700));
    scene.wait_until_logged("/abort", " FI fault_filter_abort");
    scene.wait_until_logged("/late", " UT,DI ");
    scene.wait_until_logged("/delay", " DI via_upstream");
    let metrics = scene.metrics();
    for flags in ["FI", "DI", "UT,DI"] {
        assert!(
            metrics.contains(&format!("response_flags=\"{flags}\"")),
            "{metrics}"
        );
    }
    // An invalid object leaves the last valid one in force.
    mesh.apply("aborts", &fault("aborts", "{abort: {httpStatus: 42}}"));
    mesh.apply("gone", &fault("gone", "{abort: {grpcStatus: UNAVAILABLE}}"));
    scene.wait_for_status("/missing", "503");
    scene.wait_for_status("/abort", "418");
    // With another percentage.
    let none = "{abort: {httpStatus: 418, fraction: {numerator: 0, denominator: 1000}}}";
    mesh.apply("aborts", &fault("aborts", none));
    scene.wait_for_status("/abort", "200");
    // The requests fail when its object is deleted.
    mesh.remove("aborts");
    scene.wait_for_status("/abort", "500");
}

fn rule(subsets: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: many, namespace: shop}}
spec:
  host: many
  subsets: {subsets}
"
    )
}

const SUBSETS: &str = "
  - matches: [{path: {value: /v1}}]
    backendRefs: [{group: ambit.io, kind: Subset, name: many.v1, port: 80}]
  - matches: [{path: {value: /v2}}]
    backendRefs: [{group: ambit.io, kind: Subset, name: many.v2, port: 80}]
  - matches: [{path: {value: /both}}]
    backendRefs:
    - {group: ambit.io, kind: Subset, name: many.v1, port: 80, weight: 1}
    - {group: ambit.io, kind: Subset, name: many.v2, port: 80, weight: 1}
  - matches: [{path: {value: /none}}]
    backendRefs: [{group: ambit.io, kind: Subset, name: many.none, port: 80}]
  - matches: [{path: {value: /unknown}}]
    backendRefs: [{group: ambit.io, kind: Subset, name: many.unknown, port: 80}]
";

#[test]
fn subset_gets_only_requests_routed_to_it() {
    let scene = OwnKindsFixture::new(&[("a", "v1"), ("b", "v2"), ("c", "v1")]);
    let mesh = &scene.mesh;
    let closed = "{connectionPool: {http: {http2MaxRequests: 1}}}";
    let subsets = format!(
        "[{{name: v1, labels: {{version: v1}}, trafficPolicy: {closed}}}, {{name: v2, labels: {{version: v2}}}}, {{name: none, labels: {{version: v9}}}}]"
    );
    mesh.apply("rule", &rule(&subsets));
    mesh.apply("route", &format!("{ROUTE}{SUBSETS}"));
    scene.wait_until_answered_by("/v1", ["a", "c"]);
    scene.wait_until_answered_by("/v2", ["b"]);
    scene.wait_until_answered_by("/both", ["a", "b", "c"]);
    let before = scene.requests();
    let none = scene.ask("/none", "");
    assert!(none.starts_with("HTTP/1.1 503"), "{none}");
    let unknown = scene.ask("/unknown", "");
    assert!(unknown.starts_with("HTTP/1.1 500"), "{unknown}");
    assert_eq!(scene.requests(), before);
    scene.wait_until_logged("/none", " UH ");
    // A pod with other labels is in another subset.
    mesh.apply("c", pod("c", "v2").trim_start_matches("\n---"));
    scene.wait_until_answered_by("/v2", ["b", "c"]);
    scene.wait_until_answered_by("/v1", ["a"]);
    // Requests for a deleted subset fail, and do not go to the service's other endpoints.
    mesh.apply("rule", &rule("[{name: v2, labels: {version: v2}}]"));
    scene.wait_for_status("/v1", "500");
    scene.wait_until_answered_by("/v2", ["b", "c"]);
}
