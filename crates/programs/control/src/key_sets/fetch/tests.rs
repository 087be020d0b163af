//! Tests of fetching from servers that respond correctly and incorrectly.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ambit_egress::Guard;
use ambit_k8s_api::ObjectKey;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

const KEY: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// Starts a server that sends the next of these responses on each connection and closes it; returns its address.
async fn server(responses: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, responses);
    address
}

fn serve(listener: TcpListener, responses: Vec<String>) {
    ambit_rt::spawn("server", async move {
        for answer in responses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            // A client that has read enough may have disconnected.
            stream.write_all(answer.as_bytes()).await.ok();
        }
    });
}

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn source(url: String, format: KeyFormat) -> KeySource {
    KeySource {
        url: url.into(),
        format,
        timeout: Duration::from_secs(10),
        namespace: None,
    }
}

fn fetcher() -> Fetcher {
    let everywhere = ["0.0.0.0/0", "::/0"].map(|net| net.parse().unwrap());
    let guard = Guard::new(everywhere.into());
    // The root namespace causes no inquiry.
    Fetcher::new(Client::new(guard, "ambit-test"), CalleeChecker::new().0)
}

async fn fetched(responses: Vec<String>) -> Result<String, FetchError> {
    let address = server(responses).await;
    fetcher()
        .fetch_key_set(&source(format!("http://{address}/keys"), KeyFormat::KeySet))
        .await
}

#[tokio::test]
async fn key_set_is_returned_unchanged() {
    assert_eq!(fetched(vec![ok(KEY)]).await.unwrap(), KEY);
    let chunked = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{KEY}\r\n0\r\n\r\n",
        KEY.len()
    );
    assert_eq!(fetched(vec![chunked]).await.unwrap(), KEY);
    assert_eq!(
        fetched(vec![format!("HTTP/1.1 200 OK\r\n\r\n{KEY}")])
            .await
            .unwrap(),
        KEY
    );
}

#[tokio::test]
async fn issuer_metadata_yields_key_url_and_issuer() {
    let keys = server(vec![ok(KEY)]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let discovery_document = |issuer: &str| {
        ok(&format!(
            r#"{{"issuer":"{issuer}","jwks_uri":"http://{keys}/k"}}"#
        ))
    };
    serve(
        listener,
        vec![
            discovery_document(&issuer),
            discovery_document("http://other"),
            ok("{}"),
        ],
    );
    let fetcher = fetcher();
    let of_issuer = source(issuer, KeyFormat::Issuer);
    assert_eq!(fetcher.fetch_key_set(&of_issuer).await.unwrap(), KEY);
    for _ in 0..2 {
        let refused = fetcher.fetch_key_set(&of_issuer).await;
        assert!(
            matches!(refused, Err(FetchError::InvalidDiscoveryDocument)),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn other_responses_are_not_key_sets() {
    let huge = format!(
        "HTTP/1.1 200 OK\r\n\r\n{}",
        " ".repeat(MAX_KEY_SET_BYTES + 1)
    );
    let cut = format!("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{KEY}");
    let elsewhere =
        |to: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
    for (answer, expected) in [
        (huge, "longer"),
        (cut, "is truncated"),
        (
            "HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "404",
        ),
        (ok("<html>"), "no JSON"),
        (ok(r#"{"keys":[]}"#), "no key that can be used"),
        (
            ok(r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#),
            "no key that can be used",
        ),
        ("nonsense\r\n\r\n".to_owned(), "is not valid HTTP"),
        (elsewhere("ftp://x/"), "no address of http"),
    ] {
        let error = fetched(vec![answer]).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, not {expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_server_is_timed_out_by_the_rule() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let source = KeySource {
        timeout: Duration::from_secs(3),
        ..source(url, KeyFormat::KeySet)
    };
    let began = tokio::time::Instant::now();
    let hanging = fetcher().fetch_key_set(&source).await;
    assert!(
        matches!(hanging, Err(FetchError::Timeout(_))),
        "{hanging:?}"
    );
    assert_eq!(began.elapsed().as_secs(), 3);
}

#[tokio::test]
async fn control_plane_and_metadata_addresses_are_not_called() {
    for host in [
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "[fe80::1]",
        "0.0.0.0",
    ] {
        let source = source(format!("http://{host}:1/"), KeyFormat::KeySet);
        let client = Client::new(Guard::default(), "ambit-test");
        let refused = Fetcher::new(client, CalleeChecker::new().0)
            .fetch_key_set(&source)
            .await;
        assert!(
            matches!(
                refused,
                Err(FetchError::Connect(ConnectError::Forbidden { .. }))
            ),
            "{host}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn tenants_fetch_only_from_permitted_addresses() {
    let own = server(vec![ok(KEY), ok(KEY)]).await;
    let leads_there = format!(
        "HTTP/1.1 302 Found\r\nlocation: http://localhost:{}/\r\ncontent-length: 0\r\n\r\n",
        own.port()
    );
    let (callees, mut inquiries) = CalleeChecker::new();
    ambit_rt::spawn("mesh", async move {
        while let Some(inquiry) = inquiries.recv().await {
            assert_eq!(inquiry.namespace, "tenant");
            // The address counts as a Service's.
            let is_foreign = inquiry.ip != IpAddr::from([127, 0, 0, 2]);
            let owner = || ObjectKey::new(ambit_k8s_api::Kind::Service, "store", "web");
            inquiry.reply(if is_foreign { Err(owner()) } else { Ok(()) });
        }
    });
    let everywhere = ["0.0.0.0/0", "::/0"].map(|net| net.parse().unwrap());
    let client = Client::new(Guard::new(everywhere.into()), "ambit-test");
    let fetcher = Fetcher::new(client, callees);
    let tenants = |url: String| KeySource {
        namespace: Some("tenant".into()),
        ..source(url, KeyFormat::KeySet)
    };
    let refused = fetcher
        .fetch_key_set(&tenants(format!("http://{own}/")))
        .await;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("Service store/web") && text.contains("ReferenceGrant"),
        "{text}"
    );
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let allowed = listener.local_addr().unwrap();
    serve(listener, vec![ok(KEY), leads_there]);
    let url = || tenants(format!("http://{allowed}/"));
    assert_eq!(fetcher.fetch_key_set(&url()).await.unwrap(), KEY);
    let redirected = fetcher.fetch_key_set(&url()).await;
    assert!(
        matches!(redirected, Err(FetchError::ForbiddenCallee(_))),
        "{redirected:?}"
    );
    // The administrator's key sets cause no inquiry.
    let of_root = source(format!("http://{own}/"), KeyFormat::KeySet);
    assert_eq!(fetcher.fetch_key_set(&of_root).await.unwrap(), KEY);
}

#[tokio::test]
async fn trust_bundle_yields_its_roots() {
    let bundle = r#"{"keys":[{"use":"x509-svid","kty":"EC","x5c":["AAAA"]}]}"#;
    let address = server(vec![ok(bundle), ok(KEY), ok("[]")]).await;
    let bundle = || source(format!("http://{address}/"), KeyFormat::TrustBundle);
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert_eq!(fetcher().fetch_key_set(&bundle()).await.unwrap(), pem);
    // Keys for tokens are not roots.
    assert_eq!(fetcher().fetch_key_set(&bundle()).await.unwrap(), "");
    let refused = fetcher().fetch_key_set(&bundle()).await;
    assert!(matches!(refused, Err(FetchError::Bundle(_))), "{refused:?}");
}
