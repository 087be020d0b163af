//! Tests of the separation of tenants on one waypoint: by the namespaces that its Gateway allows,
//! and by policies for each tenant's entries.

use std::io::Write as _;

use ambit_system_tests::{read_head, wait_until};

use crate::egress::outside::{
    send_request, service_entry, start_mesh, start_waypoint, wait_for_response,
};

const PORT: u16 = 8090;

#[test]
fn tenant_cannot_call_through_anothers_entry() {
    let files = tempfile::tempdir().unwrap();
    let spec = |host: &str| {
        format!(
            "hosts: [{host}]\n  resolution: DNS\n  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: {PORT}}}]"
        )
    };
    let more = format!(
        "{}{}{}",
        service_entry("shop", "of-shop", 3, &spec("shop.outside.example")),
        service_entry("bank", "of-bank", 4, &spec("bank.outside.example")),
        service_entry("legacy", "of-legacy", 5, &spec("legacy.outside.example")),
    );
    let mesh = start_mesh(files.path(), &more);
    mesh.serve_connections("legacy/server", PORT, |mut stream| {
        while read_head(&mut stream)?.is_some() {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\noutside"
            )?;
        }
        Ok(())
    });
    let ip = mesh.ip("legacy/server").to_string();
    let hosts = ["shop", "bank", "legacy"].map(|of| format!("{of}.outside.example"));
    let hosts = hosts.each_ref().map(|host| (host.as_str(), ip.as_str()));
    start_waypoint(&mesh, &hosts);
    let until_answered = |pod: &str, address: u8, host: &str, text: &str| {
        wait_for_response(&mesh, pod, address, host, text);
    };
    // An entry is visible only in its own namespace, also at a waypoint of another namespace.
    until_answered("shop/client", 3, "shop.outside.example", "outside");
    until_answered("bank/client", 4, "bank.outside.example", "outside");
    assert!(!send_request(&mesh, "bank/client", 3, "shop.outside.example").contains("outside"));
    // Once entries are visible to all, policies separate tenants.
    mesh.apply(
        "settings",
        "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'defaultServiceExportTo: [\"*\"]'}
",
    );
    for pod in ["shop/client", "bank/client"] {
        until_answered(pod, 3, "shop.outside.example", "outside");
        until_answered(pod, 4, "bank.outside.example", "outside");
    }
    // A namespace that the Gateway does not allow cannot call out through it, nor bypass it.
    wait_until("the pods are ready and the call is rejected", || {
        let status = mesh.client().status().unwrap();
        status.pods.iter().all(|pod| pod.ready)
            && send_request(&mesh, "shop/client", 5, "legacy.outside.example").is_empty()
    });
    for pod in ["shop/client", "bank/client"] {
        assert_eq!(send_request(&mesh, pod, 5, "legacy.outside.example"), "");
    }

    let policy = |namespace: &str| {
        format!(
            "
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: own, namespace: {namespace}}}
spec:
  targetRefs: [{{group: networking.istio.io, kind: ServiceEntry, name: of-{namespace}}}]
  rules: [{{from: [{{source: {{namespaces: [{namespace}]}}}}]}}]
"
        )
    };
    mesh.apply("policies", &format!("{}{}", policy("shop"), policy("bank")));
    until_answered(
        "bank/client",
        3,
        "shop.outside.example",
        "RBAC: access denied",
    );
    until_answered(
        "shop/client",
        4,
        "bank.outside.example",
        "RBAC: access denied",
    );
    until_answered("shop/client", 3, "shop.outside.example", "outside");
    until_answered("bank/client", 4, "bank.outside.example", "outside");
    // The host of a request does not make it that of another entry.
    let answer = send_request(&mesh, "bank/client", 3, "bank.outside.example");
    assert!(answer.contains("RBAC: access denied"), "{answer}");
}
