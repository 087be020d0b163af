//! Tests of telemetry to an OpenTelemetry collector: spans with their parents, over gRPC and HTTP, and access log
//! records; and of requests while the collector hangs or disappears.

use ambit_system_tests::{
    LogSource, Mesh, RecordedHeads, built_binary, is_complete_response, wait_until, with_waypoint,
};
use serde_json::Value;

fn additional_manifests() -> String {
    let collector = built_binary("otlp-collector");
    let collector = collector.display();
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: collector, namespace: legacy, labels: {{app: collector}}}}
spec:
  nodeName: node-2
  containers:
  - name: main
    image: none
    command: [{collector}]
    readinessProbe: {{tcpSocket: {{port: 4318}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: collector, namespace: legacy}}
spec:
  selector: {{app: collector}}
  ports: [{{name: grpc, port: 4317}}, {{name: http, port: 4318}}]
---
apiVersion: v1
kind: Service
metadata: {{name: app, namespace: shop}}
spec:
  selector: {{app: server}}
  ports: [{{name: http, port: 80, targetPort: 8081}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data:
  mesh: |
    extensionProviders:
    - {{name: grpc, opentelemetry: {{service: collector.legacy.svc.cluster.local, port: 4317}}}}
    - {{name: http, opentelemetry: {{service: collector.legacy.svc.cluster.local, port: 4318, http: {{path: /v1/traces}}}}}}
    - {{name: lines, envoyOtelAls: {{service: collector.legacy.svc.cluster.local, port: 4317, logFormat: {{labels: {{path: '%REQ(:PATH)%', code: '%RESPONSE_CODE%'}}}}}}}}
"
    )
}

fn telemetry(provider: &str, percentage: u32) -> String {
    format!(
        "
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {{name: mesh, namespace: shop}}
spec:
  tracing:
  - providers: [{{name: {provider}}}]
    randomSamplingPercentage: {percentage}
    customTags: {{team: {{literal: {{value: cart}}}}, asked: {{header: {{name: x-asked}}}}}}
  accessLogging:
  - providers: [{{name: lines}}]
    filter: {{expression: \"request.url_path.startsWith('/logged')\"}}
  metrics:
  - overrides:
    - match: {{metric: REQUEST_COUNT}}
      tagOverrides: {{asked_host: {{value: request.host}}, source_app: {{operation: REMOVE}}}}
"
    )
}

struct TelemetryFixture {
    mesh: Mesh,
    heads: RecordedHeads,
}

impl TelemetryFixture {
    fn new() -> Self {
        let (mesh, _) = with_waypoint(&additional_manifests());
        let (_, heads) = mesh.serve_heads("shop/server", 8081);
        Self { mesh, heads }
    }

    /// Sends a request, and returns the head that the application received, in lower case.
    fn ask(&self, path: &str, headers: &str) -> Option<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: app\r\n{headers}\r\n");
        let service = self.mesh.service_address("app.shop.svc", 80);
        let mut connection = self.mesh.dial("shop/client", service).ok()?;
        connection
            .send_raw(request.as_bytes(), is_complete_response)
            .ok()?;
        let heads = self.heads.recorded();
        let request_head = heads
            .iter()
            .rev()
            .find(|head| head.contains(&format!("get {path} ")));
        request_head.cloned()
    }

    /// Returns the JSON lines that the collector has written about received telemetry.
    fn collected(&self) -> Vec<Value> {
        let source = LogSource::Pod {
            pod: "legacy/collector".to_owned(),
            container: None,
        };
        let text = self.mesh.client().log_text(source).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Returns the collected span with this ID.
    fn span(&self, id: &str) -> Option<(Value, Value)> {
        for line in self.collected() {
            for of in line["resourceSpans"].as_array().into_iter().flatten() {
                for scope in of["scopeSpans"].as_array().into_iter().flatten() {
                    for span in scope["spans"].as_array().into_iter().flatten() {
                        if span["spanId"] == id {
                            return Some((of["resource"].clone(), span.clone()));
                        }
                    }
                }
            }
        }
        None
    }

    fn wait_for_span(&self, id: &str) -> (Value, Value) {
        let mut found = None;
        wait_until("the collector has the span", || {
            found = self.span(id);
            found.is_some()
        });
        found.unwrap()
    }

    /// Sends requests until one is traced; returns its trace ID and span ID as the application received them.
    fn send_until_traced(&self, path: &str, headers: &str) -> (String, String) {
        let mut found = None;
        wait_until("a request is traced", || {
            let head = self.ask(path, headers);
            found = head
                .as_deref()
                .and_then(traceparent)
                .filter(|(_, _, flags)| flags == "01");
            found.is_some()
        });
        let (trace, span, _) = found.unwrap();
        (trace, span)
    }

    fn metrics(&self) -> String {
        let url = format!("http://{}:15020/metrics", self.mesh.ip("shop/waypoint"));
        self.mesh.get("legacy/client", &url).body
    }
}

fn traceparent(head: &str) -> Option<(String, String, String)> {
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("traceparent: "))?;
    let mut parts = line.split('-').skip(1).map(str::to_owned);
    Some((parts.next()?, parts.next()?, parts.next()?))
}

fn attribute(of: &Value, name: &str) -> Option<String> {
    let mut all = of["attributes"].as_array()?.iter();
    let value = &all.find(|one| one["key"] == name)?["value"];
    let text = value["stringValue"].as_str().map(str::to_owned);
    text.or_else(|| value["intValue"].as_str().map(str::to_owned))
}

#[test]
fn spans_and_log_records_reach_a_collector() {
    let scene = TelemetryFixture::new();
    // Without telemetry nothing is recorded.
    let head = scene.ask("/plain", "").unwrap();
    assert!(
        traceparent(&head).is_none_or(|(_, _, flags)| flags == "00"),
        "{head}"
    );

    scene.mesh.apply("telemetry", &telemetry("grpc", 100));
    let (trace, span) = scene.send_until_traced("/first?x=1", "x-asked: yes\r\n");
    let (resource, found) = scene.wait_for_span(&span);
    assert_eq!(found["traceId"], trace.as_str());
    assert_eq!((&found["name"], &found["kind"]), (&"GET".into(), &2.into()));
    assert_eq!(
        attribute(&resource, "service.name").as_deref(),
        Some("waypoint.shop")
    );
    for (name, value) in [
        ("http.request.method", "GET"),
        ("url.path", "/first"),
        ("http.response.status_code", "200"),
        ("server.address", "app"),
        ("team", "cart"),
        ("asked", "yes"),
        ("istio.source_workload", "client"),
        ("istio.destination_workload", "server"),
        ("istio.destination_service_name", "app"),
    ] {
        assert_eq!(
            attribute(&found, name).as_deref(),
            Some(value),
            "{name} of {found}"
        );
    }

    // A trace continues, in whichever format its context is; an unsampled context is passed on
    // unchanged.
    let parent = "00f067aa0ba902b7";
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let sent = format!("b3: {trace}-{parent}-1\r\n");
    let (passed, span) = scene.send_until_traced("/b3", &sent);
    assert_eq!(passed, trace);
    let (_, found) = scene.wait_for_span(&span);
    assert_eq!(found["parentSpanId"], parent);
    let head = scene.ask(
        "/unrecorded",
        &format!("traceparent: 00-{trace}-{parent}-00\r\n"),
    );
    let passed = head.as_deref().and_then(traceparent).unwrap();
    assert_eq!(
        passed,
        (trace.to_owned(), parent.to_owned(), "00".to_owned())
    );

    // The same over HTTP.
    scene.mesh.apply("telemetry", &telemetry("http", 100));
    wait_until("spans come over HTTP", || {
        let (_, span) = scene.send_until_traced("/http", "");
        let metrics = scene.metrics();
        metrics.contains("outcome=\"sent\"") && scene.span(&span).is_some()
    });

    // Log records, but only of requests that match the filter.
    scene.ask("/other", "");
    let (_, span) = scene.send_until_traced("/logged", "");
    let mut records = Vec::new();
    wait_until("the collector has the line", || {
        records = scene
            .collected()
            .iter()
            .flat_map(|line| line["resourceLogs"].as_array().cloned().unwrap_or_default())
            .flat_map(|of| of["scopeLogs"].as_array().cloned().unwrap_or_default())
            .flat_map(|of| of["logRecords"].as_array().cloned().unwrap_or_default())
            .collect();
        records
            .iter()
            .any(|record| record["spanId"] == span.as_str())
    });
    assert!(
        records
            .iter()
            .all(|record| attribute(record, "path").as_deref() == Some("/logged"))
    );
    assert!(
        records
            .iter()
            .all(|record| attribute(record, "code").as_deref() == Some("200"))
    );

    // Labels of metrics.
    let metrics = scene.metrics();
    let line = metrics.lines().find(|line| {
        line.starts_with("istio_requests_total{") && line.contains("asked_host=\"app\"")
    });
    assert!(
        line.is_some_and(|line| !line.contains("source_app=")),
        "{metrics}"
    );
}

#[test]
fn lost_collector_affects_no_request() {
    let scene = TelemetryFixture::new();
    scene.mesh.apply("telemetry", &telemetry("grpc", 100));
    let (_, span) = scene.send_until_traced("/first", "");
    scene.wait_for_span(&span);
    // No server has the name any more.
    let gone = additional_manifests().replace("app: collector}\n  ports", "app: nobody}\n  ports");
    let gone = gone
        .split("\n---\n")
        .find(|one| one.contains("kind: Service") && one.contains("nobody"));
    scene
        .mesh
        .apply("collector", gone.expect("the collector's service"));
    wait_until("spans are not taken", || {
        let (_, _) = scene.send_until_traced("/gone", "");
        let failed = "ambit_telemetry_exported_total{signal=\"traces\",outcome=\"failed\"}";
        scene.metrics().contains(failed)
    });
}
