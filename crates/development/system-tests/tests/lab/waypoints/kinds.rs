//! Tests of GRPCRoutes, TCPRoutes and TLSRoutes: destinations of gRPC requests, connections and TLS connections, and
//! traffic that is rejected instead of being sent elsewhere.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
};

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, LabNetns, Mesh, is_closed, wait_until, with_waypoint,
};
use http::{HeaderMap, Request, Response};

/// Services with one port each, whose applications respond with their port number.
const SERVICES: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec:
  selector: {app: server}
  ports:
  - {name: grpc, port: 80, targetPort: 8081}
  - {name: tcp, port: 90, targetPort: 8091}
  - {name: tls, port: 443, targetPort: 8091}
---
apiVersion: v1
kind: Service
metadata: {name: next, namespace: shop}
spec:
  selector: {app: server}
  ports:
  - {name: grpc, port: 80, targetPort: 8082}
  - {name: tcp, port: 90, targetPort: 8092}
";

fn route(kind: &str, port: u16, spec: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: front, namespace: shop}}\n\
         spec:\n  parentRefs: [{{group: '', kind: Service, name: front, port: {port}}}]\n{spec}"
    )
}

const GRPC_RULES: &str = "  rules:
  - matches: [{method: {service: shop.Orders, method: Next}}, {method: {service: shop.Secrets}}]
    filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-rule, value: by-route}]}}]
    backendRefs: [{name: next, port: 80}]
  - matches: [{method: {service: shop.Orders}}]
    backendRefs: [{name: front, port: 80}]
  - matches: [{method: {service: shop.Gone}}]
    backendRefs: [{name: gone, port: 80}]
";

const NO_SECRETS: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-secrets, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: front}]
  action: DENY
  rules: [{to: [{operation: {paths: [/shop.Secrets/*]}}]}]
";

const NOT_FROM_CLIENT: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: not-from-client, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: front}]
  action: DENY
  rules: [{when: [{key: connection.sni, values: [forbidden.example]}]}]
";

/// Serves gRPC; responses contain the server's port number.
async fn serve_grpc(stream: tokio::net::TcpStream, port: u16) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (_, mut respond) = request?;
        let response = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "0")
            .header("served-by", port.to_string());
        respond.send_response(response.body(()).unwrap(), true)?;
    }
    Ok(())
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Makes a gRPC call, and returns the response headers.
fn call_grpc(mesh: &Mesh, address: SocketAddr, path: &str) -> HeaderMap {
    let stream = mesh
        .client()
        .dial(LabNetns::Pod("shop/client".into()), address);
    let stream = stream.unwrap();
    stream.set_nonblocking(true).unwrap();
    runtime().block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(format!("http://front{path}"))
            .header("content-type", "application/grpc+proto")
            .header("te", "trailers");
        let mut ready = client.ready().await.unwrap();
        let sent = ready.send_request(request.body(()).unwrap(), true);
        let answer = sent.unwrap().0.await.unwrap();
        assert_eq!(answer.status(), 200, "{answer:?}");
        answer.into_parts().0.headers
    })
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name);
    value.map_or("", |value| value.to_str().unwrap())
}

#[test]
fn grpc_requests_are_routed_by_method() {
    let (mesh, _) = with_waypoint(SERVICES);
    for port in [8081, 8082] {
        mesh.serve_connections("shop/server", port, move |stream| {
            stream.set_nonblocking(true)?;
            runtime().block_on(async {
                let stream = tokio::net::TcpStream::from_std(stream)?;
                let served = serve_grpc(stream, port).await;
                served.map_err(std::io::Error::other)
            })
        });
    }
    let front = mesh.service_address("front.shop.svc", 80);
    let until_status = |path: &str, status: &str| {
        let mut answer = HeaderMap::new();
        wait_until(&format!("{path} ends with {status}"), || {
            answer = call_grpc(&mesh, front, path);
            header_text(&answer, "grpc-status") == status
        });
        answer
    };
    let direct = until_status("/shop.Orders/Next", "0");
    assert_eq!(header_text(&direct, "served-by"), "8081");
    mesh.apply("policy", NO_SECRETS);
    mesh.apply("route", &route("GRPCRoute", 80, GRPC_RULES));
    // No application implements the method.
    until_status("/shop.Other/Next", "12");
    let next = call_grpc(&mesh, front, "/shop.Orders/Next");
    assert_eq!(header_text(&next, "served-by"), "8082");
    assert_eq!(header_text(&next, "x-rule"), "by-route");
    let other = call_grpc(&mesh, front, "/shop.Orders/Place");
    assert_eq!(header_text(&other, "served-by"), "8081");
    assert_eq!(header_text(&other, "x-rule"), "");
    // The backend does not exist.
    let gone = until_status("/shop.Gone/Any", "14");
    assert_eq!(header_text(&gone, "content-type"), "application/grpc");
    // A route and a policy apply to it, in every spelling of the path.
    for path in [
        "/shop.Secrets/All",
        "/shop.%53ecrets/All",
        "/a/../shop.Secrets/All",
    ] {
        until_status(path, "7");
    }
    // An invalid route causes rejections, and is not ignored.
    mesh.apply(
        "route",
        &route(
            "GRPCRoute",
            80,
            "  rules: [{matches: [{method: {service: a/b}}]}]\n",
        ),
    );
    mesh.remove("policy");
    let (mut kept, mut refused) = (0, 0);
    wait_until("what was understood last, or nothing, is served", || {
        match header_text(&call_grpc(&mesh, front, "/shop.Orders/Place"), "served-by") {
            "8081" => kept += 1,
            _ => refused += 1,
        }
        kept + refused > 20
    });
    assert!(refused == 0, "the last good form does not serve");
    mesh.remove("route");
    let again = wait_for_serving_port(&mesh, front, "/shop.Other/Next");
    assert_eq!(again, "8081");
    mesh.apply(
        "route",
        &route(
            "GRPCRoute",
            80,
            "  rules: [{matches: [{method: {service: a/b}}]}]\n",
        ),
    );
    until_status("/shop.Orders/Place", "14");
}

fn wait_for_serving_port(mesh: &Mesh, address: SocketAddr, path: &str) -> String {
    let mut by = String::new();
    wait_until("an application answers", || {
        header_text(&call_grpc(mesh, address, path), "served-by").clone_into(&mut by);
        !by.is_empty()
    });
    by
}

/// Starts applications that send their port number first, and then echo.
fn serve_greetings(mesh: &Mesh) {
    for port in [8091_u16, 8092] {
        mesh.serve_connections("shop/server", port, move |mut stream| {
            stream.write_all(format!("{port}\n").as_bytes())?;
            let mut reader = stream.try_clone()?;
            std::io::copy(&mut reader, &mut stream).map(drop)
        });
    }
}

/// Returns the port number of the application that a connection reaches; `None` if the connection is rejected.
fn greeted_port(mesh: &Mesh, address: SocketAddr) -> Option<String> {
    let mut connection = mesh.dial("shop/client", address).ok()?;
    let greeting = connection.send_raw(b"", |greeting| greeting.ends_with('\n'));
    let greeting = greeting.unwrap_or_else(|error| {
        assert!(is_closed(&error), "{error}");
        String::new()
    });
    (!greeting.is_empty()).then(|| greeting.trim().to_owned())
}

#[test]
fn connections_are_split_by_weight_or_rejected_without_backend() {
    let (mesh, _) = with_waypoint(SERVICES);
    serve_greetings(&mesh);
    let front = mesh.service_address("front.shop.svc", 90);
    let tcp = |backends: &str| {
        route(
            "TCPRoute",
            90,
            &format!("  rules: [{{backendRefs: [{backends}]}}]\n"),
        )
    };
    assert_eq!(greeted_port(&mesh, front).as_deref(), Some("8091"));
    mesh.apply("route", &tcp("{name: next, port: 90}"));
    // Also for a server that sends first.
    wait_until("connections go to the backend", || {
        greeted_port(&mesh, front).as_deref() == Some("8092")
    });
    mesh.apply(
        "route",
        &tcp("{name: front, port: 90}, {name: next, port: 90, weight: 0}, {name: gone, port: 90}"),
    );
    let (mut served, mut refused) = (0, 0);
    wait_until("one of two is refused", || {
        match greeted_port(&mesh, front).as_deref() {
            Some("8091") => served += 1,
            None => refused += 1,
            // As before, and then no longer.
            Some(other) => assert_eq!(
                (served, refused),
                (0, 0),
                "{other} has a connection, and no weight"
            ),
        }
        served > 5 && refused > 5
    });
    mesh.apply("route", &tcp("{name: next, port: 90, weight: 0}"));
    wait_until("nothing has a weight", || {
        greeted_port(&mesh, front).is_none()
    });
    // Other ports are unaffected.
    let other = mesh.service_address("next.shop.svc", 90);
    assert_eq!(greeted_port(&mesh, other).as_deref(), Some("8092"));
    mesh.apply("route", &tcp("{name: next, port: 90}"));
    wait_until("connections go to the backend", || {
        greeted_port(&mesh, front).as_deref() == Some("8092")
    });
    // The service's policies apply before its routes.
    let denied = NOT_FROM_CLIENT.replace(
        "when: [{key: connection.sni, values: [forbidden.example]}]",
        "from: [{source: {namespaces: [shop]}}]",
    );
    mesh.apply("policy", &denied);
    wait_until("the policy refuses", || {
        greeted_port(&mesh, front).is_none()
    });
    mesh.remove("policy");
    mesh.remove("route");
    wait_until("requests reach the service itself", || {
        greeted_port(&mesh, front).as_deref() == Some("8091")
    });
}

/// Returns a ClientHello with this SNI, and with padding.
fn client_hello(name: Option<&str>, padding: usize) -> Vec<u8> {
    fn length_prefixed(length: usize, of: &[u8]) -> Vec<u8> {
        let size = of.len().to_be_bytes();
        [&size[size.len() - length..], of].concat()
    }
    let mut extensions = Vec::new();
    if let Some(name) = name {
        let list = length_prefixed(
            2,
            &[&[0][..], &length_prefixed(2, name.as_bytes())].concat(),
        );
        extensions.extend([&[0, 0][..], &length_prefixed(2, &list)].concat());
    }
    extensions.extend([0, 13, 0, 4, 0, 2, 4, 3]);
    extensions.extend([&[0, 21][..], &length_prefixed(2, &vec![0; padding])].concat());
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    body.extend(length_prefixed(2, &extensions));
    let message = [&[1][..], &length_prefixed(3, &body)].concat();
    let record = |part: &[u8]| [&[0x16, 3, 1][..], &length_prefixed(2, part)].concat();
    message.chunks(1 << 14).flat_map(record).collect()
}

/// Sends bytes; returns the port number of the application that receives all of them; `None` if the connection is
/// closed.
fn reached_port(mesh: &Mesh, address: SocketAddr, says: &[u8]) -> Option<String> {
    let place = LabNetns::Pod("shop/client".into());
    let mut stream = mesh.client().dial(place, address).unwrap();
    let timeout = std::time::Duration::from_secs(20);
    stream.set_read_timeout(Some(timeout)).unwrap();
    // Writing may fail, since a rejected connection may be reset meanwhile.
    let _reset = stream.write_all(says);
    let mut received = vec![0; 5 + says.len()];
    match stream.read_exact(&mut received) {
        Ok(()) => {
            assert_eq!(received[5..], *says, "it is passed on as it came");
            let port = String::from_utf8(received[..4].to_vec());
            Some(port.unwrap())
        }
        Err(error) => {
            let is_end = error.kind() == std::io::ErrorKind::UnexpectedEof;
            assert!(is_end || is_closed(&error), "{error}");
            None
        }
    }
}

const TLS_ROUTE: &str = "  hostnames: [next.example, '*.below.example', forbidden.example]
  rules: [{backendRefs: [{name: next, port: 90}]}]
";

#[test]
fn tls_connections_are_routed_by_server_name_or_closed() {
    let (mesh, _) = with_waypoint(SERVICES);
    serve_greetings(&mesh);
    let front = mesh.service_address("front.shop.svc", 443);
    let port_for = |name: Option<&str>| reached_port(&mesh, front, &client_hello(name, 1500));
    assert_eq!(port_for(Some("next.example")).as_deref(), Some("8091"));
    mesh.apply("route", &route("TLSRoute", 443, TLS_ROUTE));
    mesh.apply("policy", NOT_FROM_CLIENT);
    let to_next = Some("8092".to_owned());
    wait_until("the name decides", || {
        port_for(Some("Next.Example")) == to_next
    });
    assert_eq!(port_for(Some("a.b.below.example")), to_next);
    // Names without a route, including the service's own, and bytes that are not TLS or too long.
    for name in [
        Some("below.example"),
        Some("front.shop.svc.cluster.local"),
        Some("10.0.0.1"),
        None,
    ] {
        assert_eq!(port_for(name), None, "{name:?}");
    }
    assert_eq!(reached_port(&mesh, front, b"GET / HTTP/1.1\r\n\r\n"), None);
    let long = client_hello(Some("next.example"), 40_000);
    assert_eq!(reached_port(&mesh, front, &long), None);
    // A policy matches the name.
    wait_until("the policy refuses the name", || {
        port_for(Some("forbidden.example")).is_none()
    });
    assert_eq!(port_for(Some("next.example")), to_next);
    // A TCPRoute serves all other connections.
    let rest = "  rules: [{backendRefs: [{name: front, port: 90}]}]\n";
    mesh.apply("rest", &route("TCPRoute", 443, rest));
    wait_until("the rest goes elsewhere", || {
        port_for(None).as_deref() == Some("8091")
    });
    assert_eq!(port_for(Some("next.example")), to_next);
    assert_eq!(
        reached_port(&mesh, front, b"hello").as_deref(),
        Some("8091")
    );
}

/// Second waypoint `canary`, to which a route sends a percentage of the connections.
const CANARY: &str = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: xcanary, namespace: shop}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: v1
kind: Service
metadata:
  name: shared
  namespace: shop
  labels: {istio.io/use-waypoint: waypoint, istio.io/use-waypoint-canary: xcanary}
  annotations: {istio.io/use-waypoint-canary-weight: '50'}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

#[test]
fn canary_waypoint_gets_its_percentage_until_deleted() {
    // Only for services: connections that the canary of a pods' waypoint delivers would pass that
    // waypoint, too.
    let gateways = format!("{GATEWAY}{CANARY}").replace(
        "namespace: shop}\nspec:\n  gatewayClassName",
        "namespace: shop, labels: {istio.io/waypoint-for: service}}\nspec:\n  gatewayClassName",
    );
    let mesh = Mesh::up(&format!("{CLIENT_AND_SERVER}\n---{gateways}"));
    let [waypoint, canary] = ["waypoint", "xcanary"].map(|name| {
        mesh.wait_for_status("the waypoints are ready", |status| {
            let mut pods = status.pods.iter();
            pods.any(|pod| pod.name.starts_with(name) && pod.ready)
        });
        mesh.ip(&format!("shop/{name}")).to_string()
    });
    let by = |address: &str| {
        let answer = mesh.get("shop/client", "http://shared.shop/");
        answer.succeeded() && answer.body.contains(&format!("called by {address}"))
    };
    let (mut first, mut second) = (0, 0);
    wait_until("both have their share", || {
        if by(&waypoint) {
            first += 1;
        }
        if by(&canary) {
            second += 1;
        }
        first > 3 && second > 3
    });
    let changed = gateways.replace("weight: '50'", "weight: 'none'");
    mesh.apply("manifests", &format!("{CLIENT_AND_SERVER}\n---{changed}"));
    let mut in_a_row = 0;
    wait_until("the first has all", || {
        in_a_row = if by(&waypoint) { in_a_row + 1 } else { 0 };
        in_a_row == 12
    });
}
