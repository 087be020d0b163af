//! Tests of the dashboard's server over real connections: responses to its own page, and refusals of other callers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::flows::FlowUpdate;

/// Starts a dashboard whose mesh is unreachable, and returns its address, guard and API.
async fn dashboard() -> (SocketAddr, Arc<RequestGuard>, Arc<DashboardApi>) {
    let listener = rt_http::bind(([127, 0, 0, 1], 0).into(), "a test").await;
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    let guard = Arc::new(RequestGuard::new(address.port()));
    let mut source = Source::any_node_proxy(None, &Target::default());
    source.address = Some("127.0.0.1:1".to_owned());
    let api = DashboardApi::start(source);
    let (drain, watcher) = ambit_rt::drain::channel();
    let (its_guard, its_api) = (guard.clone(), api.clone());
    let handler = move |request| handle_request(its_guard.clone(), its_api.clone(), request);
    let serving = rt_http::serve("dashboard", listener, server_options(), watcher, handler);
    ambit_rt::spawn("a test's dashboard", async move {
        let _kept = drain;
        serving.await;
    });
    (address, guard, api)
}

/// Sends a request with these header lines, and returns the complete response.
async fn ask(address: SocketAddr, request: &str, headers: &[String], body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut text = format!(
        "{request} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for line in headers {
        text += &format!("{line}\r\n");
    }
    text += &format!("\r\n{body}");
    // A server that has seen enough may close before all is written.
    let _refused = stream.write_all(text.as_bytes()).await;
    let mut response = Vec::new();
    let _reset = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

fn own(address: SocketAddr, guard: &RequestGuard) -> Vec<String> {
    let url = guard.url();
    let (_, token) = url.split_once("token=").unwrap();
    vec![
        format!("host: {address}"),
        format!("x-ambit-token: {token}"),
    ]
}

#[tokio::test]
async fn page_is_confined_and_holds_no_token() {
    let (address, guard, _) = dashboard().await;
    let own = own(address, &guard);
    for path in ["/", "/app.js", "/app.css", "/icon.svg", "/licenses.txt"] {
        let response = ask(address, &format!("GET {path}"), &own[..1], "").await;
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
        assert!(response.contains("content-security-policy: default-src 'none'"));
        assert!(response.contains("x-content-type-options: nosniff"));
        let (_, token) = own[1].split_once(": ").unwrap();
        assert!(!response.contains(token), "{path}");
        assert!(!response.to_lowercase().contains("access-control-allow"));
    }
    let missing = ask(address, "GET /../Cargo.toml", &own[..1], "").await;
    assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
}

#[tokio::test]
async fn data_is_for_the_page_with_the_token_alone() {
    let (address, guard, _) = dashboard().await;
    let own = own(address, &guard);
    let rebound = [
        format!("host: rebound.example:{}", address.port()),
        own[1].clone(),
    ];
    let foreign = [&own[..], &["origin: http://evil.example".to_owned()]].concat();
    for (headers, status) in [
        (&own[..], "200"),
        (&own[..1], "401"),
        (&own[1..], "421"),
        (&rebound[..], "421"),
        (&foreign[..], "403"),
    ] {
        let response = ask(address, "GET /api/about", headers, "").await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status}")),
            "{headers:?}: {response}"
        );
    }
    // Leave for a header of another origin is never given.
    let preflight = [&foreign[..1], &foreign[2..]].concat();
    let response = ask(address, "OPTIONS /api/about", &preflight, "").await;
    assert!(response.starts_with("HTTP/1.1 403"), "{response}");
    assert!(!response.to_lowercase().contains("access-control-allow"));
    let written = ask(address, "GET /api/rehearse", &own, "").await;
    assert!(written.starts_with("HTTP/1.1 405"), "{written}");
}

#[tokio::test]
async fn oversized_requests_are_refused_and_the_server_continues() {
    let (address, guard, _) = dashboard().await;
    let own = own(address, &guard);
    // Of 64 KiB the server keeps no more than a read beyond.
    for size in [60 * 1024, 4 << 20] {
        let large = [&own[..], &[format!("x-large: {}", "x".repeat(size))]].concat();
        let response = ask(address, "GET /api/about", &large, "").await;
        let expected = if size < 64 * 1024 { "200" } else { "431" };
        let is_refused =
            response.is_empty() || response.starts_with(&format!("HTTP/1.1 {expected}"));
        assert!(is_refused, "{size}: {response}");
    }
    let body = "x".repeat(MAX_BODY_BYTES + 1);
    let response = ask(address, "POST /api/rehearse", &own, &body).await;
    assert!(
        response.is_empty() || response.starts_with("HTTP/1.1 413"),
        "{response}"
    );
    let response = ask(address, "GET /api/about", &own, "").await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

#[tokio::test]
async fn unresponsive_mesh_is_reported_with_the_reason() {
    let (address, guard, _) = dashboard().await;
    let response = ask(address, "GET /api/mesh?after=0", &own(address, &guard), "").await;
    assert!(
        response.contains("cannot connect to 127.0.0.1:1"),
        "{response}"
    );
    assert!(response.contains("\"mesh\":null"), "{response}");
    let response = ask(
        address,
        "GET /api/explain?from=10.0.0.1&to=b&port=1",
        &own(address, &guard),
        "",
    )
    .await;
    assert!(response.starts_with("HTTP/1.1 502"), "{response}");
}

#[tokio::test]
async fn waiting_page_gets_a_denial_at_once() {
    let (address, guard, api) = dashboard().await;
    let denial = r#"{"type": "flow", "time": "2026-01-01T00:00:00.000000Z", "event": "refused", "connection": 1,
        "reporter": {"kind": "destination", "pod": "z", "namespace": "istio-system", "node": "n"},
        "source": {"address": "10.0.0.1:4000"}, "destination": {"workload": "orders-1", "namespace": "shop"},
        "transport": "plaintext", "refusal": {"policy": "shop/deny", "reason": "denied"}}"#;
    let own = own(address, &guard);
    let waiting = ask(address, "GET /api/traffic?after=0", &own, "");
    let begin = std::time::Instant::now();
    let (response, ()) = tokio::join!(waiting, async {
        api.receive_flow_event(FlowUpdate::Item(serde_json::from_str(denial).unwrap()));
    });
    assert!(begin.elapsed() < Duration::from_secs(1));
    assert!(response.contains(r#""policy":"shop/deny""#), "{response}");
    assert!(
        response.contains(r#""to":["workload","shop","orders-1"]"#),
        "{response}"
    );
    // A page that knows the events of an earlier server gets all.
    let response = ask(address, "GET /api/traffic?after=77", &own, "").await;
    assert!(response.contains(r#""policy":"shop/deny""#), "{response}");
}
