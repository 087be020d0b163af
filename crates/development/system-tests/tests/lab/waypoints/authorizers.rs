//! Tests of CUSTOM policies in the lab, with an ext_authz provider built from the messages that Envoy's project
//! publishes (`build/authorizer`), inside and outside of the mesh: its checks, its decisions, and requests while it is
//! unavailable.

mod behaviour;
mod compared;

use std::net::SocketAddr;

use ambit_system_tests::{LogSource, Mesh, built_binary, find_pod, wait_until, with_waypoint};
use serde_json::{Value, json};

/// Port of the ext_authz provider for checks over gRPC; [`HTTP_PORT`] is that for checks over HTTP.
const GRPC_PORT: u16 = 9000;
/// Port of an ext_authz provider that denies every request.
const DENYING_PROVIDER_PORT: u16 = 9001;
const HTTP_PORT: u16 = 8000;
/// Port at which a provider returns the checks that it has received.
const CHECKS_PORT: u16 = 9002;

/// Returns objects as the text of a manifest file.
fn manifests(objects: &[Value]) -> String {
    let documents: Vec<_> = objects.iter().map(|one| format!("---\n{one}\n")).collect();
    documents.concat()
}

fn provider_program() -> String {
    built_binary("ext-authz-provider").display().to_string()
}

/// Returns a pod that runs a program, and its Service.
fn pod_and_service(
    namespace: &str,
    name: &str,
    command: &[&str],
    ports: &[(&str, u16)],
) -> [Value; 2] {
    let program = provider_program();
    let command: Vec<&str> = [program.as_str()].iter().chain(command).copied().collect();
    let ready = ports.last().map(|(_, port)| *port);
    let ports: Vec<_> = ports
        .iter()
        .map(|(name, port)| json!({"name": name, "port": port}))
        .collect();
    [
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
            "spec": {"nodeName": "node-2", "serviceAccountName": name, "containers": [{
                "name": "main", "image": "none", "command": command,
                "readinessProbe": {"tcpSocket": {"port": ready}},
            }]},
        }),
        service(namespace, name, name, json!(ports)),
    ]
}

fn service(namespace: &str, name: &str, app: &str, ports: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": app}, "ports": ports},
    })
}

/// Returns the pod and Service of an ext_authz provider in a namespace.
fn provider_objects(namespace: &str) -> [Value; 2] {
    let ports = [
        ("grpc", GRPC_PORT),
        ("grpc-other", DENYING_PROVIDER_PORT),
        ("http", HTTP_PORT),
        ("http-asked", CHECKS_PORT),
    ];
    pod_and_service(namespace, "authz", &["serve"], &ports)
}

fn mesh_config(extension_providers: &Value) -> Value {
    let mesh = json!({ "extensionProviders": extension_providers });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "istio", "namespace": "istio-system"},
        "data": {"mesh": mesh.to_string()},
    })
}

/// Returns a CUSTOM policy for a Service of `shop`.
fn custom_policy(service: &str, provider: &str) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": format!("ask-{service}"), "namespace": "shop"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": service}],
            "action": "CUSTOM", "provider": {"name": provider}, "rules": [{}],
        },
    })
}

struct AuthorizerFixture {
    mesh: Mesh,
}

impl AuthorizerFixture {
    /// Starts a mesh with an application `app` in `shop`, an ext_authz provider in `legacy`, and more objects.
    fn new(more: &[Value]) -> Self {
        let app = pod_and_service("shop", "app", &["backend"], &[("http", 8081)]);
        let objects: Vec<Value> = app
            .into_iter()
            .chain(provider_objects("legacy"))
            .chain(more.iter().cloned())
            .collect();
        let (mesh, _) = with_waypoint(&manifests(&objects));
        Self { mesh }
    }

    /// Sends a request from a pod; returns the response's `status`, `headers`, `body`, and `heard`, the request that
    /// the application received.
    fn ask(&self, pod: &str, service: SocketAddr, request: &Value) -> Value {
        let (program, service) = (provider_program(), service.to_string());
        let command = [program.as_str(), "ask", &service, &request.to_string()];
        let output = self.mesh.client().output(pod, &command);
        let output = output.unwrap_or_else(|error| panic!("cannot run in {pod}: {error}"));
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|_| json!({"status": 0, "body": output.stdout + &output.stderr}))
    }

    /// Returns the checks that a provider has received since the last call, as JSON.
    fn take_checks(&self, from: &str, provider: &str) -> Vec<Value> {
        let status = self.mesh.client().status().expect("the lab answers");
        let ip = find_pod(&status, provider).and_then(|pod| pod.ips.first().copied());
        let place = SocketAddr::new(ip.expect("the provider has an address"), CHECKS_PORT);
        let answer = self.ask(from, place, &get("/", &[]));
        let all = answer["body"].as_str().map(serde_json::from_str::<Value>);
        let all = all.and_then(Result::ok).unwrap_or_default();
        all.as_array().cloned().unwrap_or_default()
    }

    /// Waits until a line of the control plane's log contains all these texts.
    fn wait_until_published(&self, parts: &[&str]) {
        let log = || {
            let source = LogSource::Daemon {
                name: "control".to_owned(),
                node: None,
            };
            self.mesh.client().log_text(source).unwrap_or_default()
        };
        wait_until(&format!("{parts:?} is logged"), || {
            log()
                .lines()
                .any(|line| parts.iter().all(|part| line.contains(part)))
        });
    }
}

fn get(target: &str, headers: &[(&str, &str)]) -> Value {
    json!({"method": "GET", "target": target, "host": "app.shop", "headers": headers})
}

/// Returns the value of the request header that selects the provider's decision.
fn decision_header(of: &Value) -> String {
    of.as_str().map_or_else(|| of.to_string(), str::to_owned)
}
