//! Tests of ports with undeclared protocol: HTTP is detected only by a valid request line or the HTTP/2 preface, and
//! other bytes reach no application if a policy, JWT rule, plugin or rate limit needs HTTP requests.

use std::{sync::Arc, time::Duration};

use ambit_model::{
    AppProtocol, Authentication, GatewayAddress, GatewayDestination, HBONE_PORT, HttpAction,
    HttpOperation, HttpPolicy, HttpRule, LocalLimit, NamespacedHostname, PolicyKey, Provider,
    ProviderProtocol, RateLimit, WaypointExtension, WaypointRecord, WaypointRecordType,
};
use ambit_proxy::state::MeshUpdate;
use ambit_testkit::{build, wait_until};
use ambit_xds::WaypointUpdate;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::{
    application::run_scripted_server,
    fixture::{TIMEOUT, UNDECLARED, World, log_lines_about, read_response, record_name},
};

const VIP: &str = "10.0.0.1";

/// First bytes that some lenient server accepts as a request, but that RFC 9112 does not allow.
const LENIENT_REQUESTS: &[&[u8]] = &[
    b"SET a b\r\n",
    b"NICK foo\r\n",
    b"INVITE sip:bob@example.com SIP/2.0\r\n\r\n",
    b"SELECT 1;\n",
    b"PING\r\n",
    b"GET /secret\r\n",
    b"GET /secret\r\n\r\n",
    b"GET  /secret HTTP/1.1\r\nHost: web\r\n\r\n",
    b"GET /secret  HTTP/1.1\r\nHost: web\r\n\r\n",
    b"GET\t/secret HTTP/1.1\r\nHost: web\r\n\r\n",
    b"GET /secret\tHTTP/1.1\r\nHost: web\r\n\r\n",
    b"GET /secret HTTP/1.1 \r\nHost: web\r\n\r\n",
    b"GET /secret http/1.1\r\nHost: web\r\n\r\n",
    b"GET /secret HTTP/2.0\r\nHost: web\r\n\r\n",
    b"GET /secret HTTP/0.9\r\n\r\n",
    b"GET /secret HTTP/1.10\r\nHost: web\r\n\r\n",
    b"GET /a b HTTP/1.1\r\nHost: web\r\n\r\n",
    b" GET /secret HTTP/1.1\r\nHost: web\r\n\r\n",
    b"\0GET /secret HTTP/1.1\r\nHost: web\r\n\r\n",
    b"\rGET /secret HTTP/1.1\r\nHost: web\r\n\r\n",
    b"GET /secret HTTP/1.1\rHost: web\r\r",
    b"GET /\xc3\xa4 HTTP/1.1\r\nHost: web\r\n\r\n",
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
];

/// Valid request lines in unusual spellings: the waypoint must authorize them as requests.
const VALID_REQUEST_LINES: &[&[u8]] = &[
    b"GET /secret HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n",
    b"GET /secret HTTP/1.0\r\nHost: web\r\n\r\n",
    b"GET /secret HTTP/1.1\nHost: web\nConnection: close\n\n",
    b"\r\n\r\nGET /secret HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n",
    b"get /secret HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n",
];

/// Application that records all received bytes, and responds to the first bytes of each connection.
struct RecordingServer {
    address: std::net::SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
}

impl RecordingServer {
    async fn start() -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let kept = received.clone();
        let (address, _) = run_scripted_server(move |_, mut stream| {
            let kept = kept.clone();
            async move {
                let mut bytes = [0; 4096];
                let mut is_answered = false;
                while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                    kept.lock().extend_from_slice(&bytes[..read]);
                    if !is_answered && stream.write_all(b"+OK\r\n").await.is_err() {
                        return;
                    }
                    is_answered = true;
                }
            }
        })
        .await;
        Self { address, received }
    }

    fn take_received(&self) -> Vec<u8> {
        std::mem::take(&mut *self.received.lock())
    }
}

fn secret_paths() -> HttpPolicy {
    let path = ambit_model::StringMatch::from_pattern("/secret*");
    let operation = HttpOperation {
        paths: vec![ambit_model::PathPattern::Text(path)],
        ..HttpOperation::default()
    };
    HttpPolicy {
        key: PolicyKey::from_resource_name("ns/paths"),
        for_gateway: true,
        action: HttpAction::Deny,
        rules: vec![HttpRule {
            operations: vec![operation],
            ..HttpRule::default()
        }],
        ..HttpPolicy::default()
    }
}

/// Returns one object of each kind that needs HTTP requests, the update that removes it, and its name in a rejection.
fn objects_requiring_http() -> Vec<(WaypointUpdate, WaypointUpdate, &'static str)> {
    let web = NamespacedHostname::new("ns", build::service("web", &[], &[]).hostname);
    let key = |name: &str| PolicyKey::from_resource_name(&format!("ns/{name}"));
    let at = |name: &str| record_name(name);
    let nowhere = Provider {
        name: "nowhere".into(),
        target: Err("there is none".into()),
        timeout: TIMEOUT,
        status_on_error: 403,
        fail_open: false,
        body: None,
        protocol: ProviderProtocol::Grpc,
    };
    let custom = HttpPolicy {
        key: key("custom"),
        for_gateway: true,
        action: HttpAction::Custom,
        rules: vec![HttpRule::default()],
        provider: Some(Arc::new(nowhere)),
        ..HttpPolicy::default()
    };
    let tokens = Authentication {
        key: key("tokens"),
        for_gateway: true,
        ..Authentication::default()
    };
    let limit = RateLimit {
        key: key("limit"),
        services: vec![web.clone()],
        local: vec![LocalLimit {
            matches: Vec::new(),
            bucket_keys: Vec::new(),
            requests: 1000,
            per: Duration::from_secs(1),
            burst: 1000,
            buckets: 1,
        }],
        ..RateLimit::default()
    };
    let plugin = WaypointExtension {
        namespace: "ns".into(),
        name: "plugin".into(),
        services: vec![web],
        url: "file:///nowhere".into(),
        ..WaypointExtension::default()
    };
    vec![
        (
            WaypointUpdate::Upserted(at("paths"), WaypointRecord::from(secret_paths())),
            WaypointUpdate::Removed(WaypointRecordType::Policy, at("paths")),
            "AuthorizationPolicy ns/paths",
        ),
        (
            WaypointUpdate::Upserted(at("custom"), WaypointRecord::from(custom)),
            WaypointUpdate::Removed(WaypointRecordType::Policy, at("custom")),
            "AuthorizationPolicy ns/custom",
        ),
        (
            WaypointUpdate::Upserted(at("tokens"), WaypointRecord::from(tokens)),
            WaypointUpdate::Removed(WaypointRecordType::Authentication, at("tokens")),
            "RequestAuthentication ns/tokens",
        ),
        (
            WaypointUpdate::Upserted(at("limit"), WaypointRecord::from(limit)),
            WaypointUpdate::Removed(WaypointRecordType::RateLimit, at("limit")),
            "rate limit ns/limit",
        ),
        (
            WaypointUpdate::Upserted(at("plugin"), WaypointRecord::from(plugin)),
            WaypointUpdate::Removed(WaypointRecordType::Extension, at("plugin")),
            "plugin ns/plugin",
        ),
    ]
}

/// Whether a line of the access log about a client contains all texts. Access logs write spaces within a field in
/// hexadecimal.
fn is_logged(client: std::net::SocketAddr, texts: &[&str]) -> bool {
    let lines = log_lines_about(client);
    let has_all = |line: &String| {
        let line = line.replace("\\x20", " ");
        texts.iter().all(|text| line.contains(text))
    };
    lines.iter().any(has_all)
}

#[tokio::test]
async fn non_http_passes_only_without_objects_for_requests() {
    let world = World::new().await;
    let application = RecordingServer::start().await;
    world.serve("web", VIP, &[application.address]);
    for bytes in LENIENT_REQUESTS {
        let response = world
            .client()
            .await
            .send_bytes(VIP, UNDECLARED, bytes)
            .await;
        let name = bytes.escape_ascii().to_string();
        assert_eq!(response.bytes, b"+OK\r\n", "{name}");
        assert_eq!(application.take_received(), *bytes, "{name}");
    }
    for (object, gone, name) in objects_requiring_http() {
        world.publish(object);
        for bytes in LENIENT_REQUESTS {
            let before = world.rejected_count("not_http");
            let client = world.client().await;
            let response = client.send_bytes(VIP, UNDECLARED, bytes).await;
            let what = format!("{name}, {}: {:?}", bytes.escape_ascii(), response.text());
            assert_eq!(application.take_received(), b"", "{what}");
            assert_eq!(response.statuses(), [400], "{what}");
            assert!(response.text().contains(name), "{what}");
            assert_eq!(world.rejected_count("not_http"), before + 1, "{what}");
            let is_logged = is_logged(client.address, &["not_http", name]);
            assert!(is_logged, "{what}: {:?}", log_lines_about(client.address));
        }
        world.publish(gone);
    }
}

#[tokio::test]
async fn every_request_spelling_is_authorized_on_undeclared_ports() {
    let world = World::new().await;
    let application = RecordingServer::start().await;
    world.serve("web", VIP, &[application.address]);
    let policy = Box::new(secret_paths());
    world.publish(WaypointUpdate::Upserted(
        record_name("paths"),
        WaypointRecord::Policy(policy),
    ));
    for bytes in VALID_REQUEST_LINES {
        let response = world
            .client()
            .await
            .send_bytes(VIP, UNDECLARED, bytes)
            .await;
        let what = format!("{}: {:?}", bytes.escape_ascii(), response.text());
        assert!(response.text().contains(" 403 "), "{what}");
        assert_eq!(application.take_received(), b"", "{what}");
    }
}

#[tokio::test]
async fn open_connection_ends_when_an_object_requires_http() {
    let world = World::new().await;
    let application = RecordingServer::start().await;
    world.serve("web", VIP, &[application.address]);
    for (object, gone, name) in objects_requiring_http() {
        let client = world.client().await;
        let mut tunnel = client.tunnel(VIP, UNDECLARED).await;
        tunnel.write_all(b"SET a b\r\n").await.unwrap();
        let mut reply = [0; 5];
        let read = timeout(TIMEOUT, tunnel.read_exact(&mut reply)).await;
        read.unwrap().unwrap();
        world.publish(object);
        let rest = read_response(tunnel).await;
        assert!(rest.bytes.is_empty(), "{name}: {rest:?}");
        wait_until("it is logged", || is_logged(client.address, &[name])).await;
        world.publish(gone);
    }
}

#[tokio::test]
async fn incomplete_request_lines_are_refused_by_name() {
    let world = World::with_env(&[("AMBIT_REQUEST_HEADERS_TIMEOUT", "500ms")]).await;
    let application = RecordingServer::start().await;
    world.serve("web", VIP, &[application.address]);
    // Without such objects, a client of a server-first protocol gets its greeting.
    let mut tunnel = world.client().await.tunnel(VIP, UNDECLARED).await;
    tunnel.write_all(b"SELECT 1;").await.unwrap();
    let mut reply = [0; 5];
    let read = timeout(TIMEOUT, tunnel.read_exact(&mut reply)).await;
    read.unwrap().unwrap();
    assert_eq!(application.take_received(), b"SELECT 1;");
    let policy = Box::new(secret_paths());
    world.publish(WaypointUpdate::Upserted(
        record_name("paths"),
        WaypointRecord::Policy(policy),
    ));
    for (bytes, reason) in [(&b""[..], "not_http"), (b"GET /secret", "headers_too_slow")] {
        let before = world.rejected_count(reason);
        let client = world.client().await;
        let mut tunnel = client.tunnel(VIP, UNDECLARED).await;
        tunnel.write_all(bytes).await.unwrap();
        let response = read_response(tunnel).await;
        assert!(response.bytes.is_empty(), "{response:?}");
        wait_until("it is counted", || {
            world.rejected_count(reason) == before + 1
        })
        .await;
        let is_logged = is_logged(client.address, &["AuthorizationPolicy ns/paths"]);
        assert!(is_logged, "{:?}", log_lines_about(client.address));
    }
    assert_eq!(application.take_received(), b"");
}

/// Publishes a pod behind the waypoint which is selected by a service that the waypoint does not serve.
fn publish_pod(
    world: &World,
    name: &str,
    application: std::net::SocketAddr,
    declared_protocol: Option<AppProtocol>,
) {
    let port = application.port();
    let mut service = build::service(name, &[], &[(port, port)]);
    service.app_protocols = declared_protocol
        .map(|speaks| (port, speaks))
        .into_iter()
        .collect();
    let hostname = NamespacedHostname::new("ns", service.hostname.clone());
    let pod =
        build::workload_outside_mesh(&format!("{name}-pod"), &[&application.ip().to_string()]);
    let mut pod = build::make_endpoint(pod, &hostname.to_string(), &[(port, port)]);
    pod.waypoint = Some(GatewayAddress {
        destination: GatewayDestination::Hostname(NamespacedHostname::new(
            "ns",
            "waypoint.ns.svc.cluster.local",
        )),
        hbone_mtls_port: HBONE_PORT,
    });
    world.state.apply(&mut vec![
        MeshUpdate::Service(Box::new(service)),
        MeshUpdate::Workload(Box::new(pod)),
    ]);
}

#[tokio::test]
async fn declared_protocols_apply_to_pod_addresses() {
    let world = World::new().await;
    let (tokens, ..) = objects_requiring_http().swap_remove(2);
    world.publish(tokens);
    for (name, speaks, passes) in [
        ("tcp", Some(AppProtocol::Tcp), true),
        ("tls", Some(AppProtocol::Tls), true),
        ("http", Some(AppProtocol::Http11), false),
        ("undeclared", None, false),
    ] {
        let application = RecordingServer::start().await;
        publish_pod(&world, name, application.address, speaks);
        let (ip, port) = (
            application.address.ip().to_string(),
            application.address.port(),
        );
        for bytes in [&b"HELLO\r\n"[..], b"GET  / HTTP/1.1\r\n\r\n"] {
            let client = world.client().await;
            let response = client.send_bytes(&ip, port, bytes).await;
            let expected = if passes { bytes } else { b"" };
            assert_eq!(
                application.take_received(),
                expected,
                "{name}: {:?}",
                response.text()
            );
            assert_eq!(response.text().starts_with("+OK"), passes, "{name}");
        }
    }
}
