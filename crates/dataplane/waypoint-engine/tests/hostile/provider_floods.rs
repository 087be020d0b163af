//! Tests of a client whose requests cause checks at an authorization provider that does not respond. The memory of the
//! checks is charged to the client, and checks of other clients at the same provider continue.

use std::{sync::Arc, time::Duration};

use ambit_model::{
    HttpAction, HttpPolicy, HttpRule, NamespacedHostname, PolicyKey, Provider, ProviderBody,
    ProviderProtocol, WaypointRecord,
};
use ambit_testkit::{build, wait_until};
use ambit_xds::WaypointUpdate;
use http::{HeaderMap, HeaderValue, Response};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};

use crate::{
    application::StrictServer,
    fixture::{Client, HTTP1, HTTP2, World, bind_listener, read_response, record_name},
    http2::resident_bytes,
};

const WEB: &str = "10.0.0.1";
const PROVIDER: &str = "10.0.0.9";
/// Size in bytes of request bodies that the provider checks. It exceeds the receive window of the provider's
/// connections.
const BODY_BYTES: usize = 200 << 10;
/// Number of requests whose checks together exceed the memory budget of one caller.
const FLOOD_REQUESTS: usize = 90;
/// Memory limit of the waypoint, in bytes. Half of it, 64 MiB, is the budget for callers. The requests of one caller
/// may use the free bytes of three quarters of that: at most 24 MiB.
const MEMORY_LIMIT: &str = "134217728";

fn custom_policy() -> WaypointUpdate {
    let service = build::service("authz", &[], &[]).hostname;
    let provider = Provider {
        name: "authz".into(),
        target: Ok((NamespacedHostname::new("ns", service), HTTP2)),
        timeout: Duration::from_secs(3600),
        status_on_error: 599,
        fail_open: true,
        body: Some(ProviderBody {
            max_bytes: 1 << 20,
            allow_partial: true,
            as_bytes: true,
        }),
        protocol: ProviderProtocol::Grpc,
    };
    let policy = HttpPolicy {
        key: PolicyKey::from_resource_name("ns/ask"),
        for_gateway: true,
        action: HttpAction::Custom,
        rules: vec![HttpRule::default()],
        provider: Some(Arc::new(provider)),
        ..HttpPolicy::default()
    };
    WaypointUpdate::Upserted(record_name("ask"), WaypointRecord::from(policy))
}

/// Runs an authorization provider that allows checks which fit in the receive window of its connection. It reads no
/// more than the window.
async fn run_provider(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        ambit_rt::spawn("provider", allow_small_checks(stream));
    }
}

async fn allow_small_checks(stream: TcpStream) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        ambit_rt::spawn("check", async move {
            let mut body = request.into_body();
            let mut bytes = 0;
            while let Some(Ok(data)) = body.data().await {
                bytes += data.len();
            }
            let _released = body.flow_control().release_capacity(bytes);
            let response = Response::builder().header("content-type", "application/grpc");
            let response = response.body(()).unwrap();
            let Ok(mut send) = respond.send_response(response, false) else {
                return;
            };
            let _sent = send.send_data((&b"\0\0\0\0\x02\x0a\0"[..]).into(), false);
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let _sent = send.send_trailers(trailers);
        });
    }
}

async fn scene() -> (World, StrictServer) {
    let world = World::with_env(&[
        ("AMBIT_MEMORY_LIMIT", MEMORY_LIMIT),
        ("AMBIT_CANCEL_ON_HALF_CLOSE", "true"),
    ])
    .await;
    let strict = StrictServer::start().await;
    world.serve("web", WEB, &[strict.address]);
    let (at, address) = bind_listener().await;
    ambit_rt::spawn("provider", run_provider(at));
    world.serve("authz", PROVIDER, &[address]);
    world.publish(custom_policy());
    (world, strict)
}

/// Sends requests whose checks the provider does not read completely.
async fn start_flood(client: &Client, requests: usize) -> Vec<ambit_hbone::TunnelIo> {
    let head = format!("POST / HTTP/1.1\r\nHost: web\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
    let request = [head.as_bytes(), &[b'x'; BODY_BYTES]].concat();
    let mut held = Vec::new();
    for _ in 0..requests {
        held.push(client.tunnel(WEB, HTTP1).await);
    }
    for tunnel in &mut held {
        // A rejected request may be closed before it is sent completely.
        let _cut = tunnel.write_all(&request).await;
    }
    held
}

/// Sends a request and waits for the response; returns its status.
async fn get(client: &Client) -> u16 {
    let mut tunnel = client.tunnel(WEB, HTTP1).await;
    let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    tunnel.write_all(request).await.unwrap();
    read_response(tunnel)
        .await
        .statuses()
        .first()
        .copied()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_checks_are_charged_to_their_caller() {
    let (world, _web) = scene().await;
    let attacker = world.attacker().await.unwrap();
    let (before, process) = world.memory_budget();
    let resident_before = resident_bytes();
    let one = start_flood(&attacker, 1).await;
    wait_until("the body and the call with it are charged", || {
        world.memory_budget().0 >= before + 2 * BODY_BYTES
    })
    .await;
    let more = start_flood(&attacker, FLOOD_REQUESTS).await;
    wait_until("no more calls are made for the caller", || {
        world.refused_charges("caller") > 0
    })
    .await;
    // Requests over the budget are rejected even if the provider's policy fails open.
    wait_until("what is refused is answered", || {
        world.request_count_with(503, "OM") > 0
    })
    .await;
    assert_eq!(world.request_count_with(200, "-"), 0);
    let (held, _) = world.memory_budget();
    // Three quarters of the budget, of which the attacker's connections take half, and its requests half of the rest.
    assert!(held <= process / 16 * 9, "{held} of {process}");
    let grown = usize::try_from(resident_bytes().saturating_sub(resident_before)).unwrap();
    assert!(grown < process, "{grown} of {process}");
    let client = world.client().await;
    assert_eq!(get(&client).await, 200, "another caller's check");
    drop((one, more));
    // Except for the connection's windows, which do not shrink after its tunnels have ended: some bytes for each tunnel, and
    // their growth, an eighth of the three quarters that a caller's connections may hold.
    let windows = FLOOD_REQUESTS * (16 << 10) + process / 32 * 3;
    wait_until("what the calls held is given back", || {
        world.memory_budget().0 <= before + 4 * BODY_BYTES + windows
    })
    .await;
}

#[tokio::test]
async fn unread_check_does_not_stall_others() {
    let (world, _web) = scene().await;
    let attacker = world.attacker().await.unwrap();
    let client = world.client().await;
    let (before, _) = world.memory_budget();
    let _held = start_flood(&attacker, 1).await;
    wait_until("the check is under way", || {
        world.memory_budget().0 >= before + 2 * BODY_BYTES
    })
    .await;
    assert_eq!(get(&client).await, 200);
}
