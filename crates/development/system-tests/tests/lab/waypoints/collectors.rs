//! Tests of collectors that hang, fail, flood and recover: requests are still served, and rejected
//! records are counted; of reports about connections other than HTTP; and of trace headers that
//! stay unchanged.

use std::{
    io::{Read as _, Write as _},
    sync::{Arc, Mutex},
    thread,
};

use ambit_system_tests::{
    LogSource, Mesh, RecordedHeads, is_complete_response, read_head, wait_until, with_waypoint,
};

const MANIFESTS: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: sink, namespace: legacy}
spec:
  selector: {app: server}
  ports: [{name: http, port: 4318}]
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}, {name: tcp, port: 81, targetPort: 8082}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - {name: sink, opentelemetry: {service: sink.legacy.svc.cluster.local, port: 4318, http: {path: /v1/traces, timeout: 1s}}}
    - {name: line, envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: \"told %BYTES_RECEIVED% %RESPONSE_CODE% %PROTOCOL% %UPSTREAM_CLUSTER% %DOWNSTREAM_PEER_URI_SAN% %CONNECTION_TERMINATION_DETAILS%\\n\"}}}
";

/// Scripted behaviour of the collector on export requests.
#[derive(Clone, Copy)]
enum CollectorBehavior {
    AcceptsAll,
    NeverResponds,
    ReturnsError,
    /// Accepts all records of a request except one (partial success).
    AcceptsInPart,
    SendsEndlessResponse,
}

struct CollectorFixture {
    mesh: Mesh,
    heads: RecordedHeads,
    behavior: Arc<Mutex<CollectorBehavior>>,
}

impl CollectorFixture {
    fn new() -> Self {
        let (mesh, _) = with_waypoint(MANIFESTS);
        let (_, heads) = mesh.serve_heads("shop/server", 8081);
        let answers = Arc::new(Mutex::new(CollectorBehavior::AcceptsAll));
        let of = answers.clone();
        mesh.serve_connections("legacy/server", 4318, move |mut stream| {
            while let Some(head) = read_head(&mut stream)? {
                let head = head.to_ascii_lowercase();
                let mut lines = head.lines();
                let length = lines.find_map(|line| line.strip_prefix("content-length: "));
                let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
                stream.read_exact(&mut vec![0; length])?;
                let answers = *of.lock().unwrap();
                match answers {
                    CollectorBehavior::AcceptsAll => {
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
                    }
                    CollectorBehavior::NeverResponds => loop {
                        thread::park();
                    },
                    CollectorBehavior::ReturnsError => {
                        stream.write_all(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n")?;
                    }
                    CollectorBehavior::AcceptsInPart => {
                        // `partial_success: {rejected_spans: 1}`.
                        stream.write_all(
                            b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\x0a\x02\x08\x01",
                        )?;
                    }
                    CollectorBehavior::SendsEndlessResponse => {
                        stream
                            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
                        loop {
                            stream.write_all(b"8\r\naaaaaaaa\r\n")?;
                        }
                    }
                }
            }
            Ok(())
        });
        Self {
            mesh,
            heads,
            behavior: answers,
        }
    }

    fn set_behavior(&self, answers: CollectorBehavior) {
        *self.behavior.lock().unwrap() = answers;
    }

    /// Sends a request from a client, and returns the response.
    fn ask(&self, path: &str, headers: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: app\r\n{headers}\r\n");
        let service = self.mesh.service_address("app.shop.svc", 80);
        let mut connection = self.mesh.dial("shop/client", service).unwrap();
        connection
            .send_raw(request.as_bytes(), is_complete_response)
            .unwrap()
    }

    fn request_head(&self, path: &str) -> String {
        let of = format!("get {path} ");
        let heads = self.heads.recorded();
        let request_head = heads.iter().rev().find(|head| head.contains(&of));
        request_head.cloned().unwrap_or_default()
    }

    fn metrics(&self) -> String {
        let url = format!("http://{}:15020/metrics", self.mesh.ip("shop/waypoint"));
        self.mesh.get("legacy/client", &url).body
    }

    fn exported_records(&self, outcome: &str) -> u64 {
        let series =
            format!("ambit_telemetry_exported_total{{signal=\"traces\",outcome=\"{outcome}\"}} ");
        let metrics = self.metrics();
        let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Sends requests until the counter of exported records with this outcome has grown.
    fn send_until_exported(&self, outcome: &str) {
        let before = self.exported_records(outcome);
        wait_until(&format!("spans are counted as {outcome}"), || {
            let answer = self.ask("/asked", "");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            self.exported_records(outcome) > before
        });
    }

    fn log(&self) -> String {
        let source = LogSource::Pod {
            pod: "shop/waypoint".to_owned(),
            container: None,
        };
        self.mesh.client().log_text(source).unwrap()
    }
}

fn tracing_config(more: &str) -> String {
    format!(
        "
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {{name: mesh, namespace: shop}}
spec:
  tracing:
  - providers: [{{name: sink}}]
    randomSamplingPercentage: 100
{more}"
    )
}

#[test]
fn broken_collectors_affect_no_request_and_recover() {
    let scene = CollectorFixture::new();
    scene.mesh.apply("telemetry", &tracing_config(""));
    scene.send_until_exported("sent");
    for answers in [
        CollectorBehavior::NeverResponds,
        CollectorBehavior::ReturnsError,
        CollectorBehavior::AcceptsInPart,
        CollectorBehavior::SendsEndlessResponse,
    ] {
        scene.set_behavior(answers);
        scene.send_until_exported("failed");
    }
    scene.set_behavior(CollectorBehavior::AcceptsAll);
    scene.send_until_exported("sent");
}

#[test]
fn trace_contexts_stay_unchanged_without_propagation() {
    let scene = CollectorFixture::new();
    scene.mesh.apply("telemetry", &tracing_config(""));
    wait_until("requests are traced", || {
        scene.ask("/traced", "");
        scene.request_head("/traced").contains("-01\r\n")
    });
    let alone = tracing_config("    disableContextPropagation: true\n");
    scene.mesh.apply("telemetry", &alone);
    wait_until("contexts are not passed on", || {
        scene.ask("/alone", "");
        let request_head = scene.request_head("/alone");
        // A span that a waypoint starts without a trace context is not sampled.
        request_head.contains("-00\r\n") && request_head.contains("\r\nx-request-id: ")
    });
    let sent = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    scene.ask("/parent", sent);
    assert!(scene.request_head("/parent").contains(sent));
    // Spans are reported nevertheless.
    scene.send_until_exported("sent");
}

#[test]
fn non_http_connections_are_reported_by_telemetry() {
    let scene = CollectorFixture::new();
    scene
        .mesh
        .serve_connections("shop/server", 8082, |mut stream| {
            let mut bytes = [0; 64];
            loop {
                match stream.read(&mut bytes)? {
                    0 => return Ok(()),
                    read => stream.write_all(&bytes[..read])?,
                }
            }
        });
    let service = scene.mesh.service_address("app.shop.svc", 81);
    let say = |text: &str| {
        let mut connection = scene.mesh.dial("shop/client", service).unwrap();
        connection.exchange_line(text).unwrap();
    };
    // By default a waypoint logs in Istio's format, and its metrics have Istio's labels.
    say("hello");
    let own = "] \"- - -\" 0 - - - \"-\" 5 5 ";
    wait_until("the line is written", || scene.log().contains(own));
    let opened = |metrics: &str, label: &str| {
        let mut lines = metrics.lines();
        lines
            .find(|line| {
                line.starts_with("istio_tcp_connections_opened_total{") && line.contains(label)
            })
            .map(str::to_owned)
    };
    let app = "destination_service=\"app.shop.svc.cluster.local\"";
    let metrics = scene.metrics();
    assert!(opened(&metrics, app).is_some(), "{metrics}");
    assert!(metrics.contains("istio_tcp_sent_bytes_total{"), "{metrics}");

    scene.mesh.apply(
        "telemetry",
        "
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: shop}
spec:
  accessLogging:
  - providers: [{name: line}]
    filter: {expression: 'request.size > 6'}
  metrics:
  - overrides:
    - match: {metric: TCP_OPENED_CONNECTIONS}
      tagOverrides: {to_port: {value: string(destination.port)}, source_app: {operation: REMOVE}}
    - match: {metric: TCP_RECEIVED_BYTES}
      disabled: true
",
    );
    let line =
        "\ntold 8 0 - app.shop.svc.cluster.local spiffe://cluster.local/ns/shop/sa/client -\n";
    wait_until("lines are as they are configured", || {
        say("12345678");
        scene.log().contains(line)
    });
    let lines = |log: &str| log.matches("\ntold ").count();
    let before = scene.log();
    say("short");
    // Its records are exported before the next ones.
    wait_until("the next line is written", || {
        say("12345678");
        lines(&scene.log()) > lines(&before)
    });
    let log = scene.log();
    assert!(!log.contains("\ntold 5 "), "{log}");
    let metrics = scene.metrics();
    let found = opened(&metrics, "to_port=\"81\"");
    assert!(
        found.is_some_and(|line| line.contains(app) && !line.contains("source_app=")),
        "{metrics}"
    );

    // A denial has a log line, with the policy.
    scene.mesh.apply(
        "policy",
        "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: shop}
spec:
  targetRefs: [{kind: Service, group: '', name: app}]
  action: DENY
  rules: [{to: [{operation: {ports: ['81']}}]}]
",
    );
    scene.mesh.remove("telemetry");
    let refused = "rbac_access_denied_matched_policy[ns[shop]-policy[closed]-rule[0]]";
    wait_until("a refusal is written", || {
        let connection = scene.mesh.dial("shop/client", service);
        // The connection is rejected, or closed with the client's first byte.
        drop(connection.and_then(|mut connection| connection.exchange_line("no")));
        scene.log().contains(refused)
    });
}
