//! Tests that objects of the mesh do not open or divert any traffic: a policy is enforced in every form that Istio
//! accepts, an invalid one denies everything in its scope from its creation, and no ServiceEntry or WorkloadEntry
//! attracts traffic for other namespaces' pods and Services.

use std::net::IpAddr;

use ambit_system_tests::{CLIENT_AND_SERVER, LAB_TOOL, Mesh, built_binary, wait_until};

const EMPTY_REFS: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: empty-refs, namespace: shop}
spec: {targetRefs: [], action: DENY, rules: [{from: [], to: [{operation: {ports: ['8080'], hosts: []}}]}]}
";

const EMPTY_SELECTOR: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: empty-selector, namespace: shop}
spec: {selector: {matchLabels: {}}, mtls: {mode: STRICT}}
";

/// AuthorizationPolicy with an unknown field.
const INVALID_POLICY: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: unreadable, namespace: shop}
spec: {selector: {matchLabels: {app: server}}, action: DENY, rulez: [{}]}
";

/// MeshConfig that makes ServiceEntries visible to all namespaces.
const VISIBLE_TO_ALL: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'defaultServiceExportTo: [\"*\"]'}
";

/// Returns entries of an attacker that claim a pod, a Service, every existing address, and an unused address.
fn diverting_entries(pod: &str, service: &str, own: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: diversion, namespace: legacy}}
spec:
  hosts: [diversion.example, server.shop.svc.cluster.local, db.shop.svc.cluster.local]
  addresses: [{pod}, {service}, 0.0.0.0/0, 192.0.2.77]
  resolution: STATIC
  ports: [{{number: 8080, name: tcp, targetPort: 8080}}, {{number: 80, name: http, targetPort: 8080}}]
  endpoints: [{{address: {own}}}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: diversion, namespace: legacy}}
spec: {{address: {pod}, serviceAccount: default}}
"
    )
}

/// Sends requests until `policy` denies them.
fn wait_until_denied(mesh: &Mesh, pod: &str, url: &str, policy: &str) {
    wait_until(&format!("{policy} refuses"), || {
        !mesh.get(pod, url).succeeded() && mesh.access_log().contains(policy)
    });
    mesh.get(pod, url).assert_refused();
}

#[test]
fn policy_is_enforced_in_every_form() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let url = format!("http://{}:8080/", mesh.ip("shop/server"));
    mesh.get("legacy/client", &url).ok();
    mesh.apply("policy", EMPTY_REFS);
    wait_until_denied(&mesh, "shop/client", &url, "shop/empty-refs");
    mesh.remove("policy");
    mesh.wait_for_get("shop/client", &url, true);
    mesh.apply("policy", EMPTY_SELECTOR);
    let strict = "istio-system/istio_converted_static_strict";
    wait_until_denied(&mesh, "legacy/client", &url, strict);
    mesh.get("shop/client", &url).ok();
    mesh.remove("policy");
    mesh.wait_for_get("legacy/client", &url, true);
    // A new invalid policy denies everything in its scope, all else is unchanged.
    mesh.apply("policy", INVALID_POLICY);
    wait_until_denied(&mesh, "shop/client", &url, "shop/unreadable");
    wait_until_denied(&mesh, "legacy/client", &url, "shop/unreadable");
    let other = format!("http://{}:8080/", mesh.ip("legacy/server"));
    mesh.get("shop/client", &other).ok();
    // The denial ends when the object is deleted.
    mesh.remove("policy");
    mesh.wait_for_get("legacy/client", &url, true);
}

#[test]
fn entry_diverts_no_traffic_of_other_namespaces() {
    let mesh = Mesh::up(CLIENT_AND_SERVER);
    let pod = mesh.ip("shop/server").to_string();
    let own = mesh.ip("legacy/server").to_string();
    let by_name = "http://server.shop/";
    // Pods are ready before all proxies know all services.
    mesh.wait_for_get("shop/client", by_name, true);
    let tool = built_binary(LAB_TOOL);
    let service = "server.shop.svc.cluster.local";
    let resolve = [tool.to_str().unwrap(), "resolve", service];
    let output = mesh.run("shop/client", &resolve);
    let mut addresses = output
        .split_whitespace()
        .filter(|word| word.parse::<IpAddr>().is_ok());
    let vip = addresses.next().expect("the Service's address").to_owned();
    mesh.apply("settings", VISIBLE_TO_ALL);
    mesh.apply("diversion", &diverting_entries(&pod, &vip, &own));
    // The entry is in force where it is allowed.
    wait_until("the entry is known", || {
        let answer = mesh.get("shop/client", "http://192.0.2.77:8080/");
        answer.body.contains("legacy-server")
    });
    for url in [
        format!("http://{pod}:8080/"),
        format!("http://{vip}/"),
        by_name.to_owned(),
    ] {
        let answer = mesh.get("shop/client", &url);
        assert!(answer.ok().contains("plain-marker"), "{url}: {answer:?}");
    }
    let log = mesh.access_log();
    assert!(
        !log.contains("spiffe://cluster.local/ns/legacy/sa/default"),
        "{log}"
    );
}
