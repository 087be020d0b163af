//! Tests of a caller whose checks at its own rate-limit service, which never responds, exceed the limit of checks in
//! flight.

use std::{sync::Arc, time::Duration};

use ambit_model::{
    GlobalLimit, HttpAction, HttpPolicy, HttpProvider, HttpRule, LimitDescriptor, LimitValue,
    NamespacedHostname, PolicyKey, Provider, ProviderProtocol, RateLimit, WaypointRecord,
};
use ambit_testkit::{build, wait_until};
use ambit_xds::WaypointUpdate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    application::{StrictServer, read_request_head, run_scripted_server},
    fixture::{HTTP1, HTTP2, World, record_name},
    http2::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame},
};

const WEB: &str = "10.0.0.1";
const LIMITED_VIP: &str = "10.0.0.2";
const PROVIDER: &str = "10.0.0.8";
const LIMIT_SERVICE_VIP: &str = "10.0.0.9";
/// Number of tunnels with 100 requests each, which together exceed the limit of checks in flight.
const TUNNELS: usize = 11;

fn name(service: &str) -> NamespacedHostname {
    NamespacedHostname::new("ns", build::service(service, &[], &[]).hostname)
}

/// Builds a CUSTOM policy for the service `web`, whose provider fails open or closed.
fn custom_policy(fail_open: bool) -> WaypointUpdate {
    let provider = Provider {
        name: "authz".into(),
        target: Ok((name("authz"), HTTP1)),
        timeout: Duration::from_secs(10),
        status_on_error: 599,
        fail_open,
        body: None,
        protocol: ProviderProtocol::Http(HttpProvider::default()),
    };
    let policy = HttpPolicy {
        key: PolicyKey::from_resource_name("ns/ask"),
        services: vec![name("web")],
        action: HttpAction::Custom,
        rules: vec![HttpRule::default()],
        provider: Some(Arc::new(provider)),
        ..HttpPolicy::default()
    };
    WaypointUpdate::Upserted(record_name("ask"), WaypointRecord::from(policy))
}

/// Builds a RateLimit for the service `limited` that fails open.
fn rate_limit() -> WaypointUpdate {
    let global = GlobalLimit {
        target: Ok((name("limits"), HTTP2)),
        domain: "tenant".into(),
        timeout: Duration::from_secs(3600),
        hits: 1,
        descriptors: vec![LimitDescriptor {
            matches: Vec::new(),
            entries: vec![("key".into(), LimitValue::Text("value".into()))],
        }],
    };
    let object = RateLimit {
        key: PolicyKey::from_resource_name("tenant/limit"),
        services: vec![name("limited")],
        global: Some(global),
        fail_open: true,
        ..RateLimit::default()
    };
    WaypointUpdate::Upserted(record_name("limit"), WaypointRecord::from(object))
}

#[tokio::test]
async fn flooding_caller_neither_blocks_others_nor_skips_its_checks() {
    let world = World::new().await;
    let (web, mut limited) = (StrictServer::start().await, StrictServer::start().await);
    let (provider, _) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let _gone = stream.write_all(answer).await;
    })
    .await;
    let (hangs, _) = run_scripted_server(|_, mut stream| async move {
        while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
    })
    .await;
    world.serve("web", WEB, &[web.address]);
    world.serve("limited", LIMITED_VIP, &[limited.address]);
    world.serve("authz", PROVIDER, &[provider]);
    world.serve("limits", LIMIT_SERVICE_VIP, &[hangs]);
    world.publish(custom_policy(false));
    world.publish(rate_limit());

    let attacker = world.attacker().await.unwrap();
    let mut held = Vec::new();
    for _ in 0..TUNNELS {
        let mut tunnel = attacker.tunnel(LIMITED_VIP, HTTP1).await;
        let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat();
        for number in 0..100 {
            let get = b"\x82\x86\x84\x01\x03web";
            let flags = END_HEADERS | END_STREAM;
            bytes.extend(frame(HEADERS, flags, number * 2 + 1, get));
        }
        tunnel.write_all(&bytes).await.unwrap();
        held.push(tunnel);
    }
    let refused = || {
        let labels = ["kind=\"global\"", "outcome=\"too_many\""];
        world.metric_sum("ambit_rate_limit_decisions_total", &labels)
    };
    wait_until("the caller has more checks in flight than it may", || {
        refused() > 0
    })
    .await;

    let client = world.client().await;
    assert_eq!(
        client.get(WEB, HTTP1).await,
        200,
        "a check of another caller"
    );
    // The flooding caller's own requests are not checked, and therefore refused, even if the policy fails open.
    world.publish(custom_policy(true));
    assert_eq!(
        attacker.get(WEB, HTTP1).await,
        599,
        "a provider that fails open"
    );
    assert_eq!(limited.received(), [], "a limit that fails open");
    assert_eq!(
        client.get(WEB, HTTP1).await,
        200,
        "a check of another caller"
    );
    drop(held);
}
