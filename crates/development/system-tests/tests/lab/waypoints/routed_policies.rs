//! Tests that policies of a route's backend apply as well: to requests, mirrored requests, connections, and those in
//! flight when policies change; and of routes with hosts as backends.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
};

use ambit_system_tests::{
    Mesh, answer_ok, is_closed, is_complete_response, read_head, wait_until, with_waypoint,
};

const SERVICES: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}, {name: tcp, port: 90, targetPort: 8091}]
---
apiVersion: v1
kind: Service
metadata: {name: back, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8082}, {name: tcp, port: 90, targetPort: 8092}]
";

const ROUTES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 80}]
  rules:
  - matches: [{path: {value: /led}}]
    filters:
    - {type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /sent}}}
    backendRefs: [{name: back, port: 80}]
  - matches: [{path: {value: /copied}}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: back, port: 80}}}]
    backendRefs: [{name: front, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: front, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 90}]
  rules: [{backendRefs: [{name: back, port: 90}]}]
";

/// Returns a policy for the service that is the routes' backend.
fn policy(action: &str, rule: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: back, namespace: shop}}\n\
         spec:\n  targetRefs: [{{kind: Service, name: back}}]\n  action: {action}\n  rules: [{rule}]\n"
    )
}

/// Runs applications that send their name; one path has an endless response body.
fn serve_backends(mesh: &Mesh) {
    for (port, name) in [(8081, "front"), (8082, "back")] {
        mesh.serve_connections("shop/server", port, move |mut stream| {
            while let Some(head) = read_head(&mut stream)? {
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                if path.ends_with("/endless") {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                    loop {
                        stream.write_all(b"1\r\nx\r\n")?;
                    }
                }
                let body = format!("{name} {path}");
                answer_ok(&mut stream, &body)?;
            }
            Ok(())
        });
    }
    for (port, name) in [(8091, "front"), (8092, "back!")] {
        mesh.serve_connections("shop/server", port, move |mut stream| {
            writeln!(stream, "{name}")?;
            let mut reader = stream.try_clone()?;
            std::io::copy(&mut reader, &mut stream).map(drop)
        });
    }
}

fn ask(mesh: &Mesh, address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: front\r\n\r\n");
    let mut connection = mesh.dial("shop/client", address).unwrap();
    let answer = connection.send_raw(request.as_bytes(), is_complete_response);
    answer.unwrap_or_else(|error| format!("failed: {error}"))
}

fn wait_for_response(mesh: &Mesh, address: SocketAddr, path: &str, expected: &str) {
    let mut answer = String::new();
    wait_until(&format!("{path} is answered with {expected}"), || {
        answer = ask(mesh, address, path);
        answer.contains(expected)
    });
}

/// Returns the first bytes that the server sends; `None` if the connection is rejected.
fn greeting(mesh: &Mesh, address: SocketAddr) -> Option<String> {
    let mut connection = mesh.dial("shop/client", address).ok()?;
    let greeting = connection.send_raw(b"", |greeting| greeting.ends_with('\n'));
    let greeting = greeting.unwrap_or_else(|error| {
        assert!(is_closed(&error), "{error}");
        String::new()
    });
    (!greeting.is_empty()).then(|| greeting.trim().to_owned())
}

fn metrics(mesh: &Mesh) -> String {
    let url = format!("http://{}:15020/metrics", mesh.ip("shop/waypoint"));
    mesh.get("legacy/client", &url).body
}

#[test]
fn route_does_not_bypass_policies_of_its_backend() {
    let (mesh, _) = with_waypoint(SERVICES);
    serve_backends(&mesh);
    mesh.apply("routes", ROUTES);
    let front = mesh.service_address("front.shop.svc", 80);
    let back = mesh.service_address("back.shop.svc", 80);
    wait_for_response(&mesh, front, "/led/secret", "back /sent/secret");
    wait_for_response(&mesh, front, "/copied/a", "front /copied/a");
    wait_until("the copy is answered", || {
        metrics(&mesh).contains("ambit_requests_mirrored_total{outcome=\"answered\"}")
    });
    // Policies match the forwarded request, not the received one, on its own port.
    mesh.apply(
        "policy",
        &policy(
            "DENY",
            "{to: [{operation: {paths: [/sent/secret, /copied/*], ports: ['80']}}]}",
        ),
    );
    wait_for_response(&mesh, front, "/led/secret", "RBAC: access denied");
    wait_for_response(&mesh, front, "/led//secret", "RBAC: access denied");
    wait_for_response(&mesh, back, "/sent/secret", "RBAC: access denied");
    wait_for_response(&mesh, front, "/led/other", "back /sent/other");
    wait_for_response(&mesh, front, "/copied/b", "front /copied/b");
    wait_until("the copy is denied", || {
        metrics(&mesh).contains("ambit_requests_mirrored_total{outcome=\"denied\"}")
    });
    // An ALLOW policy of the backend must match.
    mesh.apply(
        "policy",
        &policy("ALLOW", "{to: [{operation: {paths: [/sent/open]}}]}"),
    );
    wait_for_response(&mesh, front, "/led/other", "RBAC: access denied");
    wait_for_response(&mesh, front, "/led/open", "back /sent/open");
    wait_for_response(&mesh, front, "/copied/c", "front /copied/c");
    mesh.remove("policy");
    wait_for_response(&mesh, front, "/led/secret", "back /sent/secret");
}

#[test]
fn requests_in_flight_end_when_backend_policies_deny_them() {
    let (mesh, _) = with_waypoint(SERVICES);
    serve_backends(&mesh);
    mesh.apply("routes", ROUTES);
    let front = mesh.service_address("front.shop.svc", 80);
    let tcp = mesh.service_address("front.shop.svc", 90);
    wait_for_response(&mesh, front, "/led/a", "back /sent/a");
    wait_until("connections go to the backend", || {
        greeting(&mesh, tcp).as_deref() == Some("back!")
    });
    let dial = |address| {
        let place = ambit_system_tests::LabNetns::Pod("shop/client".into());
        let stream = mesh.client().dial(place, address).unwrap();
        stream
            .set_read_timeout(Some(ambit_system_tests::TIMEOUT))
            .unwrap();
        stream
    };
    let mut endless = dial(front);
    endless
        .write_all(b"GET /led/endless HTTP/1.1\r\nHost: front\r\n\r\n")
        .unwrap();
    let mut begun = [0; 64];
    endless.read_exact(&mut begun).unwrap();
    assert!(begun.starts_with(b"HTTP/1.1 200"));
    let mut open = dial(tcp);
    let mut received = [0; 6];
    open.read_exact(&mut received).unwrap();
    mesh.apply(
        "policy",
        &policy("DENY", "{from: [{source: {namespaces: [shop]}}]}"),
    );
    // Each ends, by end of data or by reset.
    let _reset = std::io::copy(&mut endless, &mut std::io::sink());
    let _reset = std::io::copy(&mut open, &mut std::io::sink());
    assert_eq!(greeting(&mesh, tcp), None);
    wait_for_response(&mesh, front, "/led/a", "RBAC: access denied");
    mesh.apply(
        "policy",
        &policy("ALLOW", "{from: [{source: {namespaces: [elsewhere]}}]}"),
    );
    for _ in 0..5 {
        assert_eq!(greeting(&mesh, tcp), None);
    }
    mesh.remove("policy");
    wait_until("connections go to the backend again", || {
        greeting(&mesh, tcp).as_deref() == Some("back!")
    });
}

#[test]
fn route_forwards_to_hosts_of_services_and_entries() {
    let (mesh, _) = with_waypoint(SERVICES);
    serve_backends(&mesh);
    let front = mesh.service_address("front.shop.svc", 80);
    let outside = mesh.ip("legacy/server");
    let entries = format!(
        "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: outside, namespace: shop}}
spec:
  hosts: [outside.example]
  ports: [{{name: http, number: 80, protocol: HTTP, targetPort: 8080}}]
  resolution: STATIC
  endpoints: [{{address: {outside}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: front, namespace: shop}}
spec:
  parentRefs: [{{group: '', kind: Service, name: front, port: 80}}]
  rules:
  - matches: [{{path: {{value: /host}}}}]
    backendRefs: [{{group: networking.istio.io, kind: Hostname, name: outside.example, port: 80}}]
  - matches: [{{path: {{value: /entry}}}}]
    backendRefs: [{{group: networking.istio.io, kind: ServiceEntry, name: outside, port: 80}}]
  - matches: [{{path: {{value: /service}}}}]
    backendRefs: [{{group: networking.istio.io, kind: Hostname, name: back.shop.svc.cluster.local, port: 80}}]
  - matches: [{{path: {{value: /nowhere}}}}]
    backendRefs: [{{group: networking.istio.io, kind: Hostname, name: nowhere.example, port: 80}}]
"
    );
    mesh.apply("entries", &entries);
    wait_for_response(&mesh, front, "/host", "legacy-server");
    wait_for_response(&mesh, front, "/entry", "legacy-server");
    wait_for_response(&mesh, front, "/service", "back /service");
    wait_for_response(&mesh, front, "/nowhere", "HTTP/1.1 500");
    // The policies of the service apply, in whatever form it is named.
    mesh.apply(
        "policy",
        &policy("DENY", "{to: [{operation: {paths: [/service]}}]}"),
    );
    wait_for_response(&mesh, front, "/service", "RBAC: access denied");
    let hidden = entries.replace("  hosts: [outside.example]", "  hosts: [other.example]");
    mesh.apply("entries", &hidden);
    wait_for_response(&mesh, front, "/host", "HTTP/1.1 500");
    wait_for_response(&mesh, front, "/entry", "legacy-server");
}
