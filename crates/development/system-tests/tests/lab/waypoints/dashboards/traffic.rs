//! Mesh with a waypoint, and traffic of every kind that the dashboards show.

use std::{
    io::Write as _,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use ambit_system_tests::{
    Mesh, Options, built_binary, is_complete_response, options, read_head, wait_until,
    with_waypoint_options,
};

use crate::waypoints::protocols::{call_grpc, serve_grpc_on};

/// Objects besides the waypoint's namespace: a namespace without a waypoint, whose node proxies enforce a policy;
/// Services of the server for each feature of waypoints; an ext_authz provider for CUSTOM policies, and a collector.
const MANIFESTS: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: plain, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: echo, namespace: plain, labels: {app: echo}}
spec:
  nodeName: node-2
  serviceAccountName: echo
  containers:
  - {name: open, image: none, command: [$LAB_TOOL, echo, --port, '9000'], readinessProbe: {tcpSocket: {port: 9000}}}
  - {name: closed, image: none, command: [$LAB_TOOL, echo, --port, '9001'], readinessProbe: {tcpSocket: {port: 9001}}}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: plain}
spec:
  selector: {app: echo}
  ports: [{name: tcp, port: 9000}, {name: closed, port: 9001}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: plain}
spec:
  action: DENY
  rules: [{to: [{operation: {ports: ['9001']}}]}]
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}, {name: grpc, port: 81, targetPort: 8083}]
---
apiVersion: v1
kind: Service
metadata: {name: limited, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}]
---
apiVersion: ambit.io/v1alpha1
kind: RateLimit
metadata: {name: one, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: limited}]
  local: [{requests: 1, per: 1h}]
---
apiVersion: v1
kind: Service
metadata: {name: asked, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asked, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: asked}]
  action: CUSTOM
  provider: {name: decides}
  rules: [{}]
---
apiVersion: v1
kind: Service
metadata: {name: failing, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: failing, namespace: shop}
spec:
  host: failing.shop.svc.cluster.local
  trafficPolicy:
    outlierDetection: {consecutive5xxErrors: 1, interval: 1s, baseEjectionTime: 1s, maxEjectionPercent: 100}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: denied, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{to: [{operation: {paths: [/denied]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: trial, namespace: shop, annotations: {istio.io/dry-run: 'true'}}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{to: [{operation: {paths: [/trial]}}]}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: shop}
spec:
  tracing: [{providers: [{name: collector}], randomSamplingPercentage: 100}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - {name: collector, opentelemetry: {service: collector.legacy.svc.cluster.local, port: 4317}}
    - {name: decides, envoyExtAuthzGrpc: {service: authz.legacy.svc.cluster.local, port: 9000}}
---
apiVersion: v1
kind: Service
metadata: {name: collector, namespace: legacy}
spec:
  selector: {app: collector}
  ports: [{name: grpc, port: 4317}]
---
apiVersion: v1
kind: Service
metadata: {name: authz, namespace: legacy}
spec:
  selector: {app: authz}
  ports: [{name: grpc, port: 9000}]
";

fn program_manifests() -> String {
    let (collector, provider) = (
        built_binary("otlp-collector"),
        built_binary("ext-authz-provider"),
    );
    let (collector, provider) = (collector.display(), provider.display());
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: collector, namespace: legacy, labels: {{app: collector}}}}
spec:
  nodeName: node-2
  containers: [{{name: main, image: none, command: [{collector}], readinessProbe: {{tcpSocket: {{port: 4318}}}}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: authz, namespace: legacy, labels: {{app: authz}}}}
spec:
  nodeName: node-2
  containers: [{{name: main, image: none, command: [{provider}, serve], readinessProbe: {{tcpSocket: {{port: 9000}}}}}}]
"
    )
}

/// Mesh with its applications, whose programs are scraped.
pub(super) struct TrafficFixture {
    pub mesh: Mesh,
    grpc: SocketAddr,
    rounds: AtomicUsize,
    /// Directory in which the agents install the CNI plugin; the lab itself never calls that plugin.
    _node: tempfile::TempDir,
}

/// Returns options of a lab whose agents install the CNI plugin below the directory `node`.
fn options_with_plugin_installation(node: &tempfile::TempDir) -> Options {
    let mut options = options();
    let below = |name: &str| {
        let path = node.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path.display().to_string()
    };
    let plugins = built_binary("ambit-cni")
        .parent()
        .unwrap()
        .display()
        .to_string();
    options.env.extend([
        ("INSTALL_CNI".to_owned(), "true".to_owned()),
        ("CNI_MODE".to_owned(), "standalone".to_owned()),
        ("CNI_SOURCE_DIR".to_owned(), plugins),
        ("MOUNTED_CNI_BIN_DIR".to_owned(), below("bin")),
        ("MOUNTED_CNI_NET_DIR".to_owned(), below("net")),
    ]);
    options
}

impl TrafficFixture {
    pub(super) fn new() -> Self {
        let node = tempfile::tempdir().unwrap();
        let more = format!("{MANIFESTS}{}", program_manifests());
        let (mesh, _) = with_waypoint_options(&more, options_with_plugin_installation(&node));
        // Responds with the status in the path.
        mesh.serve_connections("shop/server", 8081, |mut stream| {
            while let Some(head) = read_head(&mut stream)? {
                let path = head.split(' ').nth(1).unwrap_or_default();
                let status = path.trim_start_matches('/').parse().unwrap_or(200);
                write!(
                    stream,
                    "HTTP/1.1 {status} Said\r\ncontent-length: 4\r\n\r\nbody"
                )?;
            }
            Ok(())
        });
        serve_grpc_on(&mesh, 8083);
        let grpc = mesh.service_address("app.shop.svc", 81);
        let scene = Self {
            mesh,
            grpc,
            rounds: AtomicUsize::new(0),
            _node: node,
        };
        for (service, path, status) in [
            ("app", "/200", "200"),
            ("app", "/denied", "403"),
            ("limited", "/200", "429"),
            ("asked", "/200", "200"),
        ] {
            wait_until(
                &format!("{service}{path} is answered with {status}"),
                || scene.ask(service, path) == status,
            );
        }
        scene
    }

    /// Sends a request to a service, and returns the response status.
    fn ask(&self, service: &str, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {service}\r\n\r\n");
        let service = self
            .mesh
            .service_address(&format!("{service}.shop.svc"), 80);
        let Ok(mut connection) = self.mesh.dial("shop/client", service) else {
            return String::new();
        };
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        let answer = answer.unwrap_or_default();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    /// Sends traffic of every kind that the dashboards show.
    pub(super) fn send_all_traffic(&self) {
        // A change for the control plane.
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let another = format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: another, namespace: shop}}
spec: {{selector: {{app: server}}, ports: [{{name: http, port: {}}}]}}
",
            1000 + round
        );
        self.mesh.apply("another", &another);
        for path in ["/200", "/404", "/503", "/denied", "/trial"] {
            self.ask("app", path);
        }
        for service in ["limited", "asked"] {
            self.ask(service, "/200");
        }
        self.ask("failing", "/503");
        // Without a host, which HTTP forbids.
        let mut bad = self
            .mesh
            .dial("shop/client", self.mesh.service_address("app.shop.svc", 80))
            .unwrap();
        bad.send_raw(b"GET / HTTP/1.1\r\n\r\n", is_complete_response)
            .unwrap();
        call_grpc(&self.mesh, self.grpc, "/shop.Orders/Ok/0");
        call_grpc(&self.mesh, self.grpc, "/shop.Orders/Missing/5");
        // By name, so that DNS is queried; one of the names does not exist.
        self.mesh.get("shop/client", "http://server.shop/").ok();
        self.mesh.get("shop/client", "http://nobody.example/");
        for port in [9000, 9001] {
            let echo = self.mesh.service_address("echo.plain.svc", port);
            if let Ok(mut connection) = self.mesh.dial("shop/client", echo) {
                // The policy ends the connection that it denies.
                connection.exchange_line("hello").ok();
            }
        }
    }
}
