//! Tests of a Gateway of class `istio-waypoint`, and of requests to the pods that it covers.

use std::net::SocketAddr;

use ambit_system_tests::{
    CLIENT_AND_SERVER, EchoConnection, GATEWAY, Mesh, is_complete_response, wait_until,
    with_waypoint,
};

const NO_ADMIN: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules:
  - to: [{operation: {paths: [/admin, /admin/*]}}]
";

const ONLY_CLIENT: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-client, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]
    to: [{operation: {methods: [GET]}}]
";

const OTHER: &str = "
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: shop, labels: {app: other}}
spec:
  nodeName: node-1
  serviceAccountName: server
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, serve, --port, '8080', --name, other, --text, other-text]
    readinessProbe: {tcpSocket: {port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec:
  selector: {app: other}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: HTTPRoute
metadata: {name: server, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: server, port: 80}]
  rules:
  - backendRefs: [{name: other, port: 80}]
";

/// Returns the first address of a service, with its HTTP port.
fn address_of(mesh: &Mesh, host: &str) -> SocketAddr {
    let dump = mesh.proxy_dump("node-1");
    let services = dump["services"].as_array().unwrap();
    let service = services
        .iter()
        .find(|service| service["hostname"].as_str().unwrap().starts_with(host));
    let vip = service.unwrap()["vips"][0].as_str().unwrap();
    SocketAddr::new(vip.trim_start_matches('/').parse().unwrap(), 80)
}

/// Sends requests until a response has this status.
fn wait_for_status(mesh: &Mesh, client: &str, url: &str, status: &str) {
    wait_until(&format!("{url} is answered with {status}"), || {
        mesh.get(client, url).body.starts_with(status)
    });
}

/// Sends one request verbatim on a new connection; returns head and body of the response.
fn send_raw_request(mesh: &Mesh, address: SocketAddr, request: &str) -> String {
    let mut connection: EchoConnection = mesh.dial("shop/client", address).unwrap();
    let answer = connection.send_raw(request.as_bytes(), |_| false);
    answer.unwrap_or_else(|error| format!("failed: {error}"))
}

#[test]
fn waypoint_delivers_every_request_to_a_covered_pod() {
    let (mesh, waypoint) = with_waypoint("");
    let server = mesh.ip("shop/server");
    let wire = mesh.capture_between_nodes(&["plain-marker"]);
    for url in [
        format!("http://{server}:8080/"),
        "http://server.shop/".to_owned(),
    ] {
        let answer = mesh.get("shop/client", &url);
        assert!(
            answer.ok().contains(&format!("called by {waypoint}")),
            "{answer:?}"
        );
    }
    let client = mesh.ip("shop/client");
    let captured = [client, server];
    ambit_system_tests::assert_only_tls(&wire.finish(), &captured);
    // Clients outside of the mesh do not know the waypoint: the pod's own proxy redirects the
    // connection to it.
    let answer = mesh.get("legacy/client", &format!("http://{server}:8080/"));
    assert!(
        answer.ok().contains(&format!("called by {waypoint}")),
        "{answer:?}"
    );
}

#[test]
fn non_http_passes_through_whichever_side_speaks_first() {
    let (mesh, _) = with_waypoint("");
    let server = SocketAddr::new(mesh.ip("shop/server"), 9000);
    let mut echo = mesh.dial("shop/client", server).unwrap();
    echo.exchange_line("binary \u{1} and more").unwrap();
    echo.exchange_line("again").unwrap();
}

#[test]
fn waypoint_authorizes_requests_and_follows_changes_at_once() {
    let (mesh, _) = with_waypoint("");
    let server = format!("http://{}:8080", mesh.ip("shop/server"));
    mesh.apply("policy", NO_ADMIN);
    for base in [server.as_str(), "http://server.shop"] {
        wait_for_status(&mesh, "shop/client", &format!("{base}/admin"), "403");
        mesh.get("shop/client", &format!("{base}/adminx")).ok();
    }
    wait_for_status(&mesh, "legacy/client", &format!("{server}/admin/x"), "403");
    mesh.apply("policy", ONLY_CLIENT);
    wait_for_status(&mesh, "legacy/client", &format!("{server}/"), "403");
    mesh.get("shop/client", &format!("{server}/admin")).ok();
    let address = SocketAddr::new(mesh.ip("shop/server"), 8080);
    let post = "POST / HTTP/1.1\r\nHost: server\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let refused = send_raw_request(&mesh, address, post);
    assert!(
        refused.starts_with("HTTP/1.1 403") && refused.ends_with("RBAC: access denied"),
        "{refused}"
    );
    mesh.remove("policy");
    mesh.wait_for_get("legacy/client", &format!("{server}/"), true);
}

#[test]
fn no_spelling_of_a_path_bypasses_a_policy() {
    let (mesh, _) = with_waypoint("");
    mesh.apply("policy", NO_ADMIN);
    let address = SocketAddr::new(mesh.ip("shop/server"), 8080);
    wait_for_status(
        &mesh,
        "shop/client",
        &format!("http://{address}/admin"),
        "403",
    );
    let spellings = [
        "/admin",
        "/admin/",
        "/admin/x",
        "/admin?x",
        "//admin",
        "/./admin",
        "/x/../admin",
        "/x/%2e%2e/admin",
        "/%61dmin",
        "/%61%64min",
        "/a%64min/x",
        "/admin/.",
        "/admin/..;/admin",
        "/\\admin",
        "/x\\..\\admin",
        "/%2Fadmin",
        "/%5cadmin",
        "/admin%2f",
        "/admin%00",
        "/admin#x",
        "/admin;x=1",
        "/;/admin",
        "/admin/../admin",
        "/%2e/admin",
        "/.%2e/admin",
        "/x/..%2fadmin",
        "/%c0%afadmin",
        "/admin/%2e%2e/admin",
        "http://server/admin",
        "http://server/x/../admin",
    ];
    for spelling in spellings {
        let request =
            format!("GET {spelling} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
        let answer = send_raw_request(&mesh, address, &request);
        let refused = answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 400");
        assert!(refused, "{spelling:?} was answered with {answer:?}");
    }
    let allowed = send_raw_request(
        &mesh,
        address,
        "GET /x HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n",
    );
    assert!(allowed.starts_with("HTTP/1.1 200"), "{allowed}");
}

#[test]
fn route_forwards_requests_to_another_service() {
    let (mesh, _) = with_waypoint("");
    assert!(
        mesh.get("shop/client", "http://server.shop/")
            .ok()
            .contains("plain-marker")
    );
    // An open connection uses the new route with its next request.
    let mut open = mesh
        .dial("shop/client", address_of(&mesh, "server.shop.svc"))
        .unwrap();
    let mut ask = || {
        let request = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n";
        open.send_raw(request, is_complete_response).unwrap()
    };
    assert!(ask().contains("plain-marker"));
    mesh.apply("other", OTHER);
    wait_until("the open connection is routed anew", || {
        ask().contains("other-text")
    });
    wait_until("the route forwards to the other service", || {
        mesh.get("shop/client", "http://server.shop/")
            .body
            .contains("other-text")
    });
    // The route is for the service, not for its pods.
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    assert!(
        mesh.get("shop/client", &direct)
            .ok()
            .contains("plain-marker")
    );
    mesh.remove("other");
    wait_until("requests reach the service itself again", || {
        mesh.get("shop/client", "http://server.shop/")
            .body
            .contains("plain-marker")
    });
}

#[test]
fn pod_needs_its_waypoint_until_the_gateway_is_deleted() {
    let (mesh, waypoint) = with_waypoint("");
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    let scaled = GATEWAY.replace(
        "{name: waypoint, namespace: shop}",
        "{name: waypoint, namespace: shop, annotations: {ambit.io/waypoint-replicas: '0'}}",
    );
    mesh.apply("manifests", &format!("{CLIENT_AND_SERVER}\n---{scaled}"));
    wait_until("the waypoint has gone", || {
        !mesh.get("shop/client", &direct).succeeded()
    });
    for (client, url) in [
        ("shop/client", direct.as_str()),
        ("shop/client", "http://server.shop/"),
        ("legacy/client", direct.as_str()),
    ] {
        let answer = mesh.get(client, url);
        assert!(!answer.succeeded(), "{client} reached {url}: {answer:?}");
    }
    mesh.apply("manifests", CLIENT_AND_SERVER);
    for client in ["shop/client", "legacy/client"] {
        let answer = mesh.wait_for_get(client, &direct, true);
        let called_by = format!("called by {}", mesh.ip(client));
        assert!(
            answer.body.contains(&called_by),
            "not by {waypoint}: {answer:?}"
        );
    }
}

#[test]
fn connection_is_closed_when_a_policy_starts_to_deny_it() {
    let (mesh, _) = with_waypoint("");
    let server = SocketAddr::new(mesh.ip("shop/server"), 9000);
    let mut denied = mesh.dial("legacy/client", server).unwrap();
    let mut allowed = mesh.dial("shop/client", server).unwrap();
    for connection in [&mut denied, &mut allowed] {
        connection.exchange_line("hello").unwrap();
    }
    mesh.apply(
        "policy",
        &ONLY_CLIENT.replace("    to: [{operation: {methods: [GET]}}]\n", ""),
    );
    denied.wait_until_closed();
    allowed.exchange_line("still here").unwrap();
}

/// Sends requests that proxies and applications interpret differently, and checks the responses.
#[test]
#[expect(clippy::too_many_lines, reason = "a table is as long as it is")]
fn ambiguous_requests_are_rejected() {
    let (mesh, _) = with_waypoint("");
    // With a policy on paths, all bytes must be HTTP.
    mesh.apply("policy", NO_ADMIN);
    let address = SocketAddr::new(mesh.ip("shop/server"), 8080);
    wait_for_status(
        &mesh,
        "shop/client",
        &format!("http://{address}/admin"),
        "403",
    );
    let post = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    let get = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    let many: String = (0..200).map(|index| format!("x{index}: 1\r\n")).collect();
    let chunks = |chunks: &str| format!("{post}Transfer-Encoding: chunked\r\n\r\n{chunks}");
    let cases = [
        (
            "two codings",
            format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "an unknown coding",
            format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "chunked is not the last",
            format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "a space before the colon",
            format!("{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "a folded header",
            format!("{post}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "two lengths",
            format!("{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
            "400",
        ),
        (
            "a list of lengths",
            format!("{post}Content-Length: 5, 5\r\n\r\nhello"),
            "400",
        ),
        (
            "a signed length",
            format!("{post}Content-Length: +5\r\n\r\nhello"),
            "400",
        ),
        (
            "an endless length",
            format!("{post}Content-Length: 99999999999999999999999\r\n\r\n"),
            "400",
        ),
        ("an endless chunk", chunks("ffffffffffffffffff\r\nx"), "400"),
        (
            "a chunk of hexadecimal with a prefix",
            chunks("0x1\r\nx\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "an endless chunk extension",
            chunks(&format!("1;{}\r\nx\r\n0\r\n\r\n", "a".repeat(20_000))),
            "400",
        ),
        (
            "no host",
            "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            "400",
        ),
        ("two hosts", format!("{get}Host: b\r\n\r\n"), "400"),
        (
            "credentials in the host",
            "GET / HTTP/1.1\r\nHost: a@b\r\nConnection: close\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "another host in the target",
            "GET http://b/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "a header removed by name",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, host\r\n\r\n".to_owned(),
            "400",
        ),
        ("a bare CR", format!("{get}X: a\rY: b\r\n\r\n"), "400"),
        ("a NUL", format!("{get}X: a\0b\r\n\r\n"), "400"),
        ("no version", "GET /\r\n\r\n".to_owned(), "400"),
        (
            "another version",
            "GET / HTTP/3.0\r\nHost: a\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "a method that is none",
            "G(T / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "a tunnel",
            "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nConnection: close\r\n\r\n".to_owned(),
            "405",
        ),
        ("many headers", format!("{get}{many}\r\n"), "431"),
        (
            "a long header",
            format!("{get}X: {}\r\n\r\n", "a".repeat(100_000)),
            "431",
        ),
        (
            "an upgrade to HTTP/2",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, http2-settings, close\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
                .to_owned(),
            "200",
        ),
    ];
    for (what, request, status) in cases {
        let answer = send_raw_request(&mesh, address, &request);
        let expected = format!("HTTP/1.1 {status}");
        assert!(
            answer.starts_with(&expected),
            "{what}: expected {status}, got {answer:?}"
        );
    }
}
