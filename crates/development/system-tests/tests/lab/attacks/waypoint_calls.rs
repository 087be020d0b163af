//! Tests that a waypoint does not lend its identity: calls on behalf of a tenant's object are authorized as calls of
//! that object's namespace, by the node proxy and by the waypoint of the callee, and reach other namespaces only with a
//! grant.

use ambit_system_tests::{
    Mesh, RecordedHeads, idle_pod, is_complete_response, options, wait_until,
};

/// Gateway of a waypoint that all namespaces share, and the test's namespaces.
const SHARED_GATEWAY: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: infra}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: infra}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: v1
kind: Namespace
metadata: {name: tenant, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {istio.io/dataplane-mode: ambient}}
";

/// Policies of the services in `bank`: the vault's node proxy allows the waypoint's own identity, as for any pod behind
/// a waypoint; the waypoint allows tellers to call the ledger.
const POLICIES: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: vault, namespace: bank}
spec:
  selector: {matchLabels: {app: vault}}
  rules: [{from: [{source: {principals: [cluster.local/ns/infra/sa/waypoint]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ledger, namespace: bank}
spec:
  targetRefs: [{kind: Service, group: '', name: ledger}]
  rules: [{from: [{source: {principals: [cluster.local/ns/bank/sa/teller]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: own, namespace: tenant}
spec:
  selector: {matchLabels: {app: own}}
  rules: [{from: [{source: {principals: [cluster.local/ns/tenant/sa/waypoint_calls]}}]}]
";

/// Grant that lets WasmPlugins of `tenant` call all services of `bank`.
const GRANT: &str = "
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: plugins, namespace: bank}
spec:
  from: [{group: extensions.istio.io, kind: WasmPlugin, namespace: tenant}]
  to: [{group: '', kind: Service}]
";

fn service(namespace: &str, name: &str, labels: &str) -> String {
    let pod = idle_pod(
        &format!("{namespace}/{name}"),
        "node-2",
        &format!("app: {name}"),
    );
    format!(
        "{pod}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}
spec:
  selector: {{app: {name}}}
  ports: [{{name: http, port: 80, targetPort: 8090}}]
"
    )
}

/// Returns a Wasm module that calls a service for each request, and responds with 401 if the call has no response.
fn calling_plugin(upstream: &str) -> String {
    let pairs: [(&[u8], &[u8]); 3] = [
        (b":method", b"GET"),
        (b":path", b"/check"),
        (b":authority", b"asked"),
    ];
    let text: String = [3u32, 7, 3, 5, 6, 10, 5]
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .chain(pairs.iter().flat_map(|(name, value)| {
            let parts = [name, &b"\0"[..], value, &b"\0"[..]];
            parts.concat()
        }))
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    let length = text.len() / 3;
    format!(
        r#"(module
    (import "env" "proxy_http_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))
    (import "env" "proxy_send_local_response" (func $answer (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "proxy_set_effective_context" (func $effective (param i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 64) "{upstream}")
    (data (i32.const 256) "{text}")
    (global $id (mut i32) (i32.const 0))
    (func (export "proxy_abi_version_0_2_1"))
    (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 4096))
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (global.set $id (local.get 0))
        (if (call $call (i32.const 64) (i32.const {upstream_length}) (i32.const 256) (i32.const {length}) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const 5000) (i32.const 0))
            (then (unreachable)))
        (i32.const 1))
    (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
        (drop (call $effective (global.get $id)))
        (if (i32.gt_u (local.get 2) (i32.const 0))
            (then (drop (call $continue (i32.const 0))))
            (else (drop (call $answer (i32.const 401) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const -1)))))))"#,
        upstream_length = upstream.len(),
    )
}

struct WaypointCallFixture {
    mesh: Mesh,
    modules: tempfile::TempDir,
    number: usize,
}

impl WaypointCallFixture {
    /// Makes the tenant's plugin call a service, and checks the response to a request that runs the plugin.
    fn call(&mut self, upstream: &str, expected: &str) {
        self.number += 1;
        let path = self.modules.path().join(format!("{}.wasm", self.number));
        std::fs::write(&path, wat::parse_str(calling_plugin(upstream)).unwrap()).unwrap();
        self.mesh.apply(
            "plugin",
            &format!(
                "
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: asks, namespace: tenant}}
spec:
  targetRefs: [{{group: '', kind: Service, name: app}}]
  url: file://{}
",
                path.display()
            ),
        );
        let url = format!("file://{}", path.display());
        wait_until("the module is in use", || {
            let dump = self
                .mesh
                .get("infra/waypoint", "http://127.0.0.1:15000/config_dump")
                .body;
            dump.contains(&url) && dump.contains("\"ready\"")
        });
        let address = self.mesh.service_address("app.tenant.svc", 80);
        let mut last = String::new();
        wait_until(&format!("{upstream} is called"), || {
            let request = b"GET /app HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n";
            let connection = self.mesh.dial("tenant/client", address);
            last = connection
                .and_then(|mut connection| connection.send_raw(request, is_complete_response))
                .unwrap_or_default();
            last.contains(expected)
        });
    }
}

fn call_count(heads: &RecordedHeads) -> usize {
    heads
        .recorded()
        .iter()
        .filter(|head| head.contains("/check"))
        .count()
}

#[test]
fn plugin_calls_have_the_identity_of_their_namespace() {
    let shared = "istio.io/use-waypoint: waypoint, istio.io/use-waypoint-namespace: infra";
    let manifests = [
        SHARED_GATEWAY.to_owned(),
        idle_pod("tenant/client", "node-1", "app: client"),
        service("tenant", "app", shared),
        service("tenant", "own", ""),
        service("bank", "vault", ""),
        service("bank", "ledger", shared),
        format!("\n---{POLICIES}"),
    ];
    let mesh = Mesh::up_with(&manifests.concat(), options());
    let serve = |pod: &str| mesh.serve_heads(pod, 8090).1;
    let (_app, own) = (serve("tenant/app"), serve("tenant/own"));
    let (vault, ledger) = (serve("bank/vault"), serve("bank/ledger"));
    let mut scene = WaypointCallFixture {
        mesh,
        modules: tempfile::tempdir().unwrap(),
        number: 0,
    };
    // Its own namespace: under the reserved identity of its calls, which the node proxy has
    // verified.
    scene.call("own.tenant.svc.cluster.local:80", " 200 ");
    assert!(call_count(&own) > 0);
    // Another namespace without a grant, in whatever spelling.
    for upstream in [
        "vault.bank.svc.cluster.local:80",
        "outbound|80||vault.bank.svc.cluster.local",
        "bank/ledger.bank.svc.cluster.local:80",
    ] {
        scene.call(upstream, " 401 ");
    }
    assert_eq!((call_count(&vault), call_count(&ledger)), (0, 0));
    // With a grant, policies decide, which allow the waypoint and the tellers, and not the tenant.
    scene.mesh.apply("grant", GRANT);
    scene.call("ledger.bank.svc.cluster.local:80", " 200 ");
    scene.call("outbound|80||vault.bank.svc.cluster.local", " 401 ");
    assert_eq!((call_count(&vault), call_count(&ledger)), (0, 0));
    // Until policies allow its calls.
    let allowed = POLICIES
        .replace(
            "cluster.local/ns/infra/sa/waypoint]",
            "cluster.local/ns/tenant/sa/waypoint_calls]",
        )
        .replace(
            "cluster.local/ns/bank/sa/teller]",
            "cluster.local/ns/tenant/sa/waypoint_calls]",
        );
    scene
        .mesh
        .apply("allowed", &allowed.replace("{name: ", "{name: second-"));
    scene.call("vault.bank.svc.cluster.local:80", " 200 ");
    wait_until("the vault is called", || call_count(&vault) > 0);
    scene.call("outbound|80||ledger.bank.svc.cluster.local", " 200 ");
    wait_until("the ledger is called", || call_count(&ledger) > 0);
}
