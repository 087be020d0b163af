//! Tests of the command line's output of the records that a waypoint has received (`ambit waypoint`): the records are
//! current, and contain no secrets.

use ambit_system_tests::{Mesh, wait_until, with_waypoint};

/// Value of every field that may hold a secret.
const SECRET: &str = "hunter2";

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: canary, namespace: shop}
spec:
  parentRefs: [{group: \"\", kind: Service, name: app}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /new}, method: GET}]
    backendRefs: [{name: app, port: 80, weight: 3}, {name: gone, port: 80, weight: 1}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-get, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: app}]
  rules: [{to: [{operation: {methods: [GET]}}]}]
---
apiVersion: ambit.io/v1alpha1
kind: RateLimit
metadata: {name: few, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: app}]
  local: [{requests: 50, per: 1h, by: [{source: Principal}]}]
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: tag, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: app}]
  url: file:///nowhere/tag.wasm
  failStrategy: FAIL_OPEN
  pluginConfig: {password: hunter2}
  vmConfig: {env: [{name: TOKEN, value: hunter2}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: app}]
  jwtRules: [{issuer: https://i, jwks: '{\"keys\":[{\"kty\":\"oct\",\"k\":\"hunter2\"}]}'}]
";

fn waypoint_command_output(mesh: &Mesh, section: &str, more: &[&str]) -> String {
    let output = mesh.ambit(&[&["waypoint", section, "-n", "shop"], more].concat());
    assert_eq!(output.code, 0, "{section}: {}", output.stdout);
    output.stdout
}

#[test]
fn waypoint_records_are_shown_live_and_without_secrets() {
    let (mesh, _) = with_waypoint("");
    mesh.apply("objects", OBJECTS);
    let has = |section: &str, texts: &[&str]| {
        wait_until(&format!("{section} with {texts:?}"), || {
            let text = waypoint_command_output(&mesh, section, &[]);
            texts.iter().all(|one| text.contains(one))
        });
    };
    let app = "shop/app.shop.svc.cluster.local";
    let backend = format!("{app}:80 x3, none (");
    has("routes", &["HTTPRoute/shop/canary", "GET /new*", &backend]);
    has("policies", &["shop/only-get", "ALLOW", app]);
    has("limits", &["shop/few", "50 per 3600s by principal", app]);
    has("endpoints", &[app, "Healthy"]);
    // A change is shown, and a deleted record is not.
    mesh.apply(
        "objects",
        &OBJECTS
            .replace("weight: 3", "weight: 7")
            .replace("name: only-get", "name: only-read"),
    );
    has("routes", &[&backend.replace("x3", "x7")]);
    has("policies", &["shop/only-read"]);
    assert!(!waypoint_command_output(&mesh, "policies", &[]).contains("only-get"));
    for section in ["routes", "policies", "endpoints", "limits"] {
        let json = waypoint_command_output(&mesh, section, &["-o", "json"]);
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read[0]["waypoint"], "shop/waypoint");
        assert!(!json.contains(SECRET), "{section}: {json}");
    }
    let absent = mesh.ambit(&["waypoint", "routes", "-w", "nobody"]);
    assert_ne!(absent.code, 0);

    // The whole dump of the waypoint, as requested in its own pod.
    let dump = "http://127.0.0.1:15000/config_dump";
    let dump = mesh.get("shop/waypoint", dump).body;
    for object in ["shop/tag", "shop/tokens", "shop/few", "canary"] {
        assert!(dump.contains(object), "{object} in {dump}");
    }
    assert!(!dump.contains(SECRET), "{dump}");
}

#[test]
fn status_of_a_lab_shows_its_nodes_and_waypoints() {
    let (mesh, _) = with_waypoint("");
    let status = || mesh.ambit(&["status", "-o", "json"]);
    let in_order = |status: &serde_json::Value| {
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        let waypoints = status["waypoints"].as_array().cloned().unwrap_or_default();
        let is_synced = |one: &serde_json::Value| one["xds"] == "SYNCED";
        nodes.len() == 2
            && nodes.iter().all(is_synced)
            && nodes.iter().all(|node| node["wanted"] == node["captured"])
            && waypoints.len() == 1
            && waypoints.iter().all(|one| is_synced(&one["pods"][0]))
            && status["problems"].as_array().is_some_and(Vec::is_empty)
    };
    let parsed = || serde_json::from_str(&status().stdout).unwrap();
    wait_until("everything is in order", || in_order(&parsed()));
    let table = mesh.ambit(&["status"]).stdout;
    for text in ["node-1", "node-2", "shop/waypoint", "ambit-control"] {
        assert!(table.contains(text), "{text} in {table}");
    }
    // An incomplete mesh is not in order.
    let one = mesh
        .ambit(&["status", "--node", "node-1", "-o", "json"])
        .stdout;
    let one: serde_json::Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["nodes"].as_array().map(Vec::len), Some(1));
    wait_until("the lost control plane is a problem", || {
        // The lab starts another one, maybe before the status is queried.
        mesh.kill("control", None);
        !parsed()["problems"].as_array().is_none_or(Vec::is_empty)
    });
}
