//! Tests of `ambit policy test` with an API server: objects, settings and logs are those of the cluster, and an
//! ext_authz provider's decision is reported as unknown.

use std::process::Command;

use ambit_system_tests::{CommandOutput, built_binary};
use ambit_testkit::ApiServer;
use serde_json::{Value, json};

const CUSTOM: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: way}]
  action: CUSTOM
  provider: {name: decides}
  rules: [{to: [{operation: {paths: [/admin*]}}]}]
";

const DENY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: way}]
  action: DENY
  rules: [{from: [{source: {principals: [example.org/ns/shop/sa/front]}}], to: [{operation: {paths: [/admin*]}}]}]
";

const STRICT: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

fn pod(namespace: &str, name: &str, ip: &str, labels: Value) -> Value {
    let captured = match namespace {
        "shop" => json!({"ambient.istio.io/redirection": "enabled"}),
        _ => json!({}),
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": name, "labels": labels, "annotations": captured,
        },
        "spec": {"nodeName": "n", "serviceAccountName": name, "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Returns an API server with a mesh of a trust domain other than the default, whose waypoint and node proxy have
/// observed traffic.
fn start_api_server() -> ApiServer {
    let server = ApiServer::start();
    for (name, labels) in [
        ("shop", json!({"istio.io/dataplane-mode": "ambient"})),
        ("out", json!({})),
        ("istio-system", json!({})),
    ] {
        server.put(
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}),
        );
    }
    for one in [
        pod("shop", "web", "10.0.0.1", json!({"app": "web"})),
        pod("shop", "front", "10.0.0.3", json!({"app": "front"})),
        pod("out", "batch", "10.0.0.4", json!({"app": "batch"})),
        pod(
            "istio-system",
            "proxy",
            "10.0.0.8",
            json!({"app": "ztunnel"}),
        ),
        pod(
            "shop",
            "way-1",
            "10.0.0.9",
            json!({"gateway.networking.k8s.io/gateway-name": "way"}),
        ),
    ] {
        server.put("/api/v1/pods", one);
    }
    server.put(
        "/api/v1/services",
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "labels": {"istio.io/use-waypoint": "way"}},
            "spec": {
                "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            },
        }),
    );
    server.put(
        "/apis/gateway.networking.k8s.io/v1/gateways",
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "way", "namespace": "shop", "labels": {"istio.io/waypoint-for": "service"}},
            "spec": {
                "gatewayClassName": "istio-waypoint",
                "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
            },
        }),
    );
    server.put(
        "/apis/apps/v1/deployments",
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "ambit-control", "namespace": "istio-system"},
            "spec": {"template": {"spec": {"containers": [{
                "name": "control", "env": [{"name": "TRUST_DOMAIN", "value": "example.org"}],
            }]}}},
        }),
    );
    // A server responds with one value, and lines may be JSON.
    server.set_fixed_response(
        "/api/v1/namespaces/shop/pods/way-1/log",
        json!({
            "start_time": "2020-11-25T21:26:18.409Z", "method": "GET", "path": "/admin/a?b=c", "authority": "web",
            "upstream_cluster": "inbound-vip|80|http|web.shop.svc.cluster.local",
            "downstream_local_address": "10.96.0.1:80", "downstream_remote_address": "10.0.0.3:37652",
        }),
    );
    server.set_fixed_response(
        "/api/v1/namespaces/istio-system/pods/proxy/log",
        json!({
            "level": "info", "scope": "access", "message": "connection complete", "src.addr": "10.0.0.4:1",
            "dst.addr": "10.0.0.1:8080", "direction": "inbound", "bytes_sent": 1, "duration": "1ms",
        }),
    );
    server
}

fn run_policy_test(server: &ApiServer, policy: &str) -> CommandOutput {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let output = Command::new(built_binary("ambit"))
        .args(["policy", "test"])
        .arg(file("policy.yaml", policy))
        .arg("--kubeconfig")
        .arg(file("kubeconfig", &server.kubeconfig()))
        .env("AMBIT_LAB_DIR", directory.path())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandOutput {
        code: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout) + &text(&output.stderr),
    }
}

#[test]
fn policies_are_rehearsed_on_a_clusters_objects_and_logs() {
    let server = start_api_server();
    let report = run_policy_test(&server, DENY);
    assert_eq!(report.code, 1, "{}", report.stdout);
    for part in [
        "spiffe://example.org/ns/shop/sa/front",
        "GET /admin/a",
        "shop/no-admin",
        "1 refused, 0 admitted, 0 undecided",
    ] {
        assert!(report.stdout.contains(part), "{part} in {}", report.stdout);
    }
    let report = run_policy_test(&server, STRICT);
    assert_eq!(report.code, 1, "{}", report.stdout);
    assert!(
        report.stdout.contains("out/batch (plaintext)"),
        "{}",
        report.stdout
    );

    // Without the provider in the mesh's settings everything is denied; with it, the provider
    // decides.
    let report = run_policy_test(&server, CUSTOM);
    assert_eq!(report.code, 1, "{}", report.stdout);
    assert!(
        report
            .stdout
            .contains("MeshConfig has no provider with the name decides"),
        "{}",
        report.stdout
    );
    server.put(
        "/api/v1/services",
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "authz", "namespace": "out"},
            "spec": {"clusterIP": "10.96.0.2", "clusterIPs": ["10.96.0.2"], "ports": [{"port": 9000}]},
        }),
    );
    let settings = "extensionProviders: [{name: decides, envoyExtAuthzGrpc: {service: authz.out.svc.cluster.local, port: 9000}}]";
    server.put(
        "/api/v1/configmaps",
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio", "namespace": "istio-system"},
            "data": {"mesh": settings},
        }),
    );
    let report = run_policy_test(&server, CUSTOM);
    assert_eq!(report.code, 0, "{}", report.stdout);
    for part in [
        "cannot be decided",
        "provider decides of shop/ask decides",
        "0 refused, 0 admitted, 1 undecided",
    ] {
        assert!(report.stdout.contains(part), "{part} in {}", report.stdout);
    }
    // The ConfigMap is requested by name: users of the rehearsal need not be allowed to list
    // ConfigMaps.
    let asked = server.requests();
    assert!(
        asked
            .iter()
            .all(|one| !one.path.starts_with("/api/v1/configmaps"))
    );
}
