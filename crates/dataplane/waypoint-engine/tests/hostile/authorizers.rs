//! Tests of authorization providers of CUSTOM policies: some respond, others hang, send invalid or excessive responses,
//! or disconnect.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ambit_model::{
    HttpAction, HttpAttribute, HttpCondition, HttpPolicy, HttpProvider, HttpRule, HttpValue,
    NamespacedHostname, PolicyKey, Provider, ProviderBody, ProviderProtocol, StringMatch,
    WaypointRecord, WaypointRecordType,
};
use ambit_testkit::{build, wait_until};
use ambit_xds::WaypointUpdate;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    application::{ReceivedRequest, StrictServer, run_scripted_server},
    fixture::{HTTP1, HTTP2, TCP, TIMEOUT, World, read_response, record_name},
};

const VIP: &str = "10.0.0.1";
const PROVIDER_VIP: &str = "10.0.0.9";

fn provider(protocol: ProviderProtocol) -> Provider {
    let service = build::service("authz", &[PROVIDER_VIP], &[]);
    let port = match protocol {
        ProviderProtocol::Grpc => HTTP2,
        ProviderProtocol::Http(_) => HTTP1,
    };
    Provider {
        name: "authz".into(),
        target: Ok((NamespacedHostname::new("ns", service.hostname), port)),
        timeout: Duration::from_secs(10),
        status_on_error: 403,
        fail_open: false,
        body: None,
        protocol,
    }
}

fn http_provider() -> Provider {
    provider(ProviderProtocol::Http(HttpProvider {
        path_prefix: "/check".into(),
        headers: vec![StringMatch::Prefix("x-in".into())],
        added: vec![("x-added".into(), "1".into())],
        to_application: vec![StringMatch::Presence],
        ..HttpProvider::default()
    }))
}

fn custom_policy(name: &str, provider: Provider) -> WaypointUpdate {
    let policy = HttpPolicy {
        key: PolicyKey::from_resource_name(&format!("ns/{name}")),
        for_gateway: true,
        action: HttpAction::Custom,
        rules: vec![HttpRule::default()],
        provider: Some(Arc::new(provider)),
        ..HttpPolicy::default()
    };
    WaypointUpdate::Upserted(record_name(name), WaypointRecord::from(policy))
}

/// Runs a gRPC authorization provider that gives every check the same response. Returns its address and the received
/// checks.
async fn run_grpc_provider(
    message: &'static [u8],
    status: Option<&'static str>,
) -> (SocketAddr, Arc<Mutex<Vec<Bytes>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let (address, _) = run_scripted_server(move |_, stream| {
        let noted = noted.clone();
        async move {
            let Ok(mut connection) = h2::server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(
                    request.uri().path(),
                    "/envoy.service.auth.v3.Authorization/Check"
                );
                let noted = noted.clone();
                ambit_rt::spawn("provider", async move {
                    let mut body = request.into_body();
                    let mut all = Vec::new();
                    while let Some(Ok(data)) = body.data().await {
                        let _released = body.flow_control().release_capacity(data.len());
                        all.extend_from_slice(&data);
                    }
                    noted.lock().push(Bytes::from(all));
                    let response = Response::builder().header("content-type", "application/grpc");
                    let response = response.body(()).unwrap();
                    let mut send = respond.send_response(response, false).unwrap();
                    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
                    let framed = [&[0][..], &length[..], message].concat();
                    let _sent = send.send_data(framed.into(), status.is_none());
                    if let Some(status) = status {
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", HeaderValue::from_static(status));
                        let _sent = send.send_trailers(trailers);
                    }
                });
            }
        }
    })
    .await;
    (address, asked)
}

async fn world(provider_at: SocketAddr) -> (World, StrictServer) {
    let world = World::new().await;
    let strict = StrictServer::start().await;
    world.serve("web", VIP, &[strict.address]);
    world.serve("authz", PROVIDER_VIP, &[provider_at]);
    (world, strict)
}

fn received_heads(strict: &mut StrictServer) -> Vec<String> {
    let heads = strict
        .received()
        .into_iter()
        .map(|received| match received {
            ReceivedRequest::Complete { head, .. } => head.to_ascii_lowercase(),
            other => panic!("{other:?}"),
        });
    heads.collect()
}

async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap().to_ascii_lowercase())
}

/// Runs an HTTP authorization provider that responds to every check with these bytes. Returns its address and the
/// received checks.
async fn run_http_provider(answer: &'static [u8]) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let (address, _) = run_scripted_server(move |_, mut stream| {
        let noted = noted.clone();
        async move {
            while let Some(head) = read_head(&mut stream).await {
                noted.lock().push(head);
                if stream.write_all(answer).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    (address, asked)
}

#[tokio::test]
async fn http_provider_changes_only_permitted_headers() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-user: ann\r\nhost: evil\r\nx-forwarded-client-cert: evil\r\n\r\n";
    let (at, asked) = run_http_provider(answer).await;
    let (world, mut strict) = world(at).await;
    world.publish(custom_policy("ask", http_provider()));
    let client = world.client().await;
    let request = b"GET /a?b=1 HTTP/1.1\r\nHost: web\r\nx-in-1: a\r\nx-out: b\r\nauthorization: c\r\nx-user: mallory\r\nConnection: close\r\n\r\n";
    let reply = client.send_bytes(VIP, HTTP1, request).await;
    assert_eq!(reply.statuses(), [200], "{}", reply.text());
    let head = received_heads(&mut strict).pop().unwrap();
    assert!(head.contains("x-user: ann"), "{head}");
    assert!(
        !head.contains("mallory") && !head.contains("evil"),
        "{head}"
    );
    let question = asked.lock().pop().unwrap();
    assert!(
        question.starts_with("get /check/a?b=1 http/1.1"),
        "{question}"
    );
    for there in ["x-in-1: a", "authorization: c", "x-added: 1", "host: web"] {
        assert!(question.contains(there), "{question}");
    }
    assert!(!question.contains("x-out"), "{question}");
}

#[tokio::test]
async fn denial_has_the_providers_response() {
    let answer =
        b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 5\r\nwww-authenticate: Basic\r\n\r\nlogin";
    let (at, _) = run_http_provider(answer).await;
    let (world, mut strict) = world(at).await;
    world.publish(custom_policy("ask", http_provider()));
    let client = world.client().await;
    let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let reply = client.send_bytes(VIP, HTTP1, request).await;
    assert_eq!(reply.statuses(), [401]);
    assert!(reply.text().contains("www-authenticate: Basic") && reply.text().ends_with("login"));
    assert!(strict.received().is_empty());
    wait_until("it is counted", || {
        world.request_count_with(401, "UAEX") == 1
    })
    .await;
    assert_eq!(
        world.metric_sum("ambit_ext_authz_total", &["outcome=\"denied\""]),
        1
    );
}

#[tokio::test]
async fn provider_changes_are_authorized_by_other_policies() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-role: guest\r\n\r\n";
    let (at, _) = run_http_provider(answer).await;
    let (world, mut strict) = world(at).await;
    world.publish(custom_policy("ask", http_provider()));
    let guests = HttpPolicy {
        key: PolicyKey::from_resource_name("ns/guests"),
        for_gateway: true,
        action: HttpAction::Deny,
        rules: vec![HttpRule {
            conditions: vec![HttpCondition {
                attribute: HttpAttribute::Header("x-role".into()),
                values: vec![HttpValue::Text(StringMatch::Exact("guest".into()))],
                not_values: Vec::new(),
            }],
            ..HttpRule::default()
        }],
        ..HttpPolicy::default()
    };
    world.publish(WaypointUpdate::Upserted(
        record_name("guests"),
        WaypointRecord::from(guests),
    ));
    assert_eq!(world.client().await.get(VIP, HTTP1).await, 403);
    assert!(strict.received().is_empty());
}

#[tokio::test]
async fn unresponsive_provider_denies_unless_it_fails_open() {
    let (hanging, _) = run_scripted_server(|_, stream| async move {
        let _held = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let (gone, _) = run_scripted_server(|_, stream| async move { drop(stream) }).await;
    let (failing, _) = run_http_provider(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await;
    let (flooding, _) = run_scripted_server(|_, mut stream| async move {
        let _read = read_head(&mut stream).await;
        let _sent = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
        while stream
            .write_all(b"x-flood: aaaaaaaaaaaaaaaa\r\n")
            .await
            .is_ok()
        {}
    })
    .await;
    for (at, outcome) in [
        (hanging, "late"),
        (gone, "unreachable"),
        (failing, "failed"),
        (flooding, "unreachable"),
    ] {
        let (world, mut strict) = world(at).await;
        let closed = Provider {
            timeout: Duration::from_millis(500),
            status_on_error: 599,
            ..http_provider()
        };
        world.publish(custom_policy("ask", closed.clone()));
        let client = world.client().await;
        assert_eq!(client.get(VIP, HTTP1).await, 599, "{outcome}");
        assert!(strict.received().is_empty(), "{outcome}");
        let label = format!("outcome=\"{outcome}\"");
        assert_eq!(
            world.metric_sum("ambit_ext_authz_total", &[&label]),
            1,
            "{outcome}"
        );
        let open = Provider {
            fail_open: true,
            ..closed
        };
        world.publish(custom_policy("ask", open));
        assert_eq!(client.get(VIP, HTTP1).await, 200, "{outcome}");
        assert_eq!(strict.received().len(), 1, "{outcome}");
    }
}

#[tokio::test]
async fn grpc_provider_is_trusted_only_within_the_protocol() {
    // Status OK, and x-user in the request's headers.
    let allowed = b"\x0a\x00\x1a\x11\x12\x0f\x0a\x0d\x0a\x06x-user\x12\x03ann";
    let (at, asked) = run_grpc_provider(allowed, Some("0")).await;
    let (world, mut strict) = world(at).await;
    world.publish(custom_policy("ask", provider(ProviderProtocol::Grpc)));
    assert_eq!(world.client().await.get(VIP, HTTP1).await, 200);
    assert!(received_heads(&mut strict)[0].contains("x-user: ann"));
    let question = asked.lock().pop().unwrap();
    let question = String::from_utf8_lossy(&question).into_owned();
    for there in [
        ":path",
        "HTTP/1.1",
        "spiffe://cluster.local/ns/ns/sa/client",
        "127.0.0.1",
    ] {
        assert!(question.contains(there), "{question}");
    }
    let denied = b"\x0a\x02\x08\x07\x12\x05\x0a\x03\x08\xad\x03";
    for (message, status, code) in [
        (&denied[..], Some("0"), 429),
        (&allowed[..], Some("13"), 403),
        (&allowed[..], None, 403),
        (b"", Some("0"), 403),
        (b"\xff\xff\xff", Some("0"), 403),
        (b"\x0a\x00\x12\x00", Some("0"), 403),
    ] {
        let (at, _) = run_grpc_provider(message, status).await;
        let (world, mut strict) = self::world(at).await;
        world.publish(custom_policy("ask", provider(ProviderProtocol::Grpc)));
        let got = world.client().await.get(VIP, HTTP1).await;
        assert_eq!(got, code, "{message:?} {status:?}");
        assert!(strict.received().is_empty());
    }
}

#[tokio::test]
async fn provider_gets_a_body_prefix_and_the_application_all_of_it() {
    let (at, asked) = run_grpc_provider(b"\x0a\x00", Some("0")).await;
    let (world, mut strict) = world(at).await;
    let mut body = ProviderBody {
        max_bytes: 4,
        allow_partial: true,
        as_bytes: false,
    };
    let with = |body| Provider {
        body: Some(body),
        ..provider(ProviderProtocol::Grpc)
    };
    world.publish(custom_policy("ask", with(body)));
    let client = world.client().await;
    let request = b"POST / HTTP/1.1\r\nHost: web\r\ncontent-length: 10\r\nConnection: close\r\n\r\n0123456789";
    assert_eq!(
        client.send_bytes(VIP, HTTP1, request).await.statuses(),
        [200]
    );
    let Some(ReceivedRequest::Complete { body: whole, .. }) = strict.received().pop() else {
        panic!("no request");
    };
    assert_eq!(whole, b"0123456789");
    let question = asked.lock().pop().unwrap();
    let question = String::from_utf8_lossy(&question).into_owned();
    assert!(
        question.contains("0123") && !question.contains("01234"),
        "{question}"
    );
    body.allow_partial = false;
    world.publish(custom_policy("ask", with(body)));
    assert_eq!(
        client.send_bytes(VIP, HTTP1, request).await.statuses(),
        [413]
    );
    assert!(asked.lock().is_empty() && strict.received().is_empty());
}

#[tokio::test]
async fn everything_is_denied_without_a_usable_provider() {
    let (at, asked) = run_grpc_provider(b"\x0a\x00", Some("0")).await;
    let (world, mut strict) = world(at).await;
    let good = provider(ProviderProtocol::Grpc);
    world.publish(custom_policy("ask", good.clone()));
    let client = world.client().await;
    assert_eq!(client.get(VIP, HTTP1).await, 200);
    let other = Provider {
        name: "other".into(),
        ..good.clone()
    };
    world.publish(custom_policy("other", other));
    assert_eq!(client.get(VIP, HTTP1).await, 403);
    let missing = Provider {
        target: Err("there is none".into()),
        fail_open: true,
        ..good
    };
    world.publish(WaypointUpdate::Removed(
        WaypointRecordType::Policy,
        record_name("other"),
    ));
    world.publish(custom_policy("ask", missing));
    assert_eq!(client.get(VIP, HTTP1).await, 403);
    assert_eq!((asked.lock().len(), strict.received().len()), (1, 1));
}

#[tokio::test]
async fn non_http_connections_are_checked_by_grpc_only() {
    let world = World::new().await;
    let (echo, _) = run_scripted_server(|_, mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _ended = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    let (at, asked) = run_grpc_provider(b"\x0a\x00", Some("0")).await;
    world.serve("web", VIP, &[echo]);
    world.serve("authz", PROVIDER_VIP, &[at]);
    world.publish(custom_policy("ask", provider(ProviderProtocol::Grpc)));
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, TCP).await;
    tunnel.write_all(b"ping").await.unwrap();
    let mut echoed = [0; 4];
    let echo = tunnel.read_exact(&mut echoed);
    timeout(TIMEOUT, echo).await.expect("no echo").unwrap();
    assert_eq!((&echoed, asked.lock().len()), (b"ping", 1));
    // Only the first provider has allowed the request.
    let other = Provider {
        name: "other".into(),
        ..provider(ProviderProtocol::Grpc)
    };
    world.publish(custom_policy("ask", other));
    assert_eq!(read_response(tunnel).await.bytes, b"");
    assert_eq!(asked.lock().len(), 1);
    world.publish(custom_policy("ask", http_provider()));
    assert!(client.try_tunnel(VIP, TCP).await.is_err());
}
