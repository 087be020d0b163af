//! Tests of upgrades that clients request, and of protocol switches that applications make on their own.

use std::{net::SocketAddr, sync::Arc};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    application::run_scripted_server,
    fixture::{HTTP1, HTTP2, World, read_response},
};

const VIP: &str = "10.0.0.1";

/// Texts that an application has read: header sections of requests, and data after the protocol switch.
type ReadTexts = Arc<Mutex<Vec<String>>>;

/// Reads the next header section with its body of declared length; `None` at the end of the connection.
async fn read_message(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&read).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(head)
}

/// Header line with the WebSocket key of the tests' requests.
const KEY_HEADER: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

/// Returns a `Sec-WebSocket-Accept` header for the key in a request's header section; empty without a key. The key's
/// header name may be in lower case.
fn accept_header(head: &str) -> String {
    let lower = KEY_HEADER.to_ascii_lowercase();
    let Some((_, key)) = head
        .contains(&lower)
        .then(|| KEY_HEADER.split_once(": "))
        .flatten()
    else {
        return String::new();
    };
    let whole = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, whole.as_bytes());
    format!("Sec-WebSocket-Accept: {}\r\n", STANDARD.encode(digest))
}

/// Runs an application that switches protocols on request. Its response accepts a wrong key for paths below `/forged/`,
/// and no key below `/silent/`.
async fn run_application() -> (SocketAddr, ReadTexts) {
    let read = ReadTexts::default();
    let noted = read.clone();
    let (address, _) = run_scripted_server(move |_, mut stream| {
        let noted = noted.clone();
        async move {
            while let Some(head) = read_message(&mut stream).await {
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                noted.lock().push(head);
                let mut parts = path.split('/').skip(1);
                let accept = match parts.next() {
                    Some("switch") => accept_header(noted.lock().last().unwrap()),
                    Some("forged") => {
                        "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n".to_owned()
                    }
                    Some("silent") => String::new(),
                    _ => {
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                        stream.write_all(answer).await.unwrap();
                        continue;
                    }
                };
                let line = match parts.next() {
                    None | Some("none") => String::new(),
                    Some(to) => format!("Upgrade: {to}\r\n"),
                };
                let answer = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n{line}{accept}\r\n"
                );
                // Sent twice: the bytes after the first are data of the new protocol.
                stream
                    .write_all(format!("{answer}HTTP/1.1 101 Again\r\n\r\n").as_bytes())
                    .await
                    .unwrap();
                let mut rest = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut rest).await {
                    noted.lock().push(format!(
                        "switched: {}",
                        String::from_utf8_lossy(&rest[..count])
                    ));
                    // The peer may have gone.
                    let _gone = stream.write_all(&rest[..count]).await;
                }
            }
        }
    })
    .await;
    (address, read)
}

async fn world(upgrades: &'static str) -> (World, ReadTexts) {
    let world = World::with_env(&[("AMBIT_UPGRADES", upgrades)]).await;
    let (address, read) = run_application().await;
    world.serve("web", VIP, &[address]);
    (world, read)
}

fn request(line: &str, lines: &[&str], body: &str) -> String {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    format!("{line}\r\nHost: web\r\n{lines}\r\n{body}")
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table is as long as it is")]
async fn unsupported_upgrades_are_ordinary_requests() {
    let (world, read) = world("").await;
    let client = world.client().await;
    let settings = "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA";
    for (what, line, lines, body) in [
        (
            "curl's h2c",
            "GET / HTTP/1.1",
            &[
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                settings,
            ][..],
            "",
        ),
        (
            "Java's h2c",
            "POST / HTTP/1.1",
            &[
                "Connection: Upgrade, HTTP2-Settings",
                "Content-Length: 2",
                settings,
                "Upgrade: h2c",
            ],
            "hi",
        ),
        (
            "a list",
            "GET / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: h2c, websocket"],
            "",
        ),
        (
            "a list of two",
            "GET / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: websocket, websocket"],
            "",
        ),
        (
            "two lines",
            "GET / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c"],
            "",
        ),
        (
            "another protocol",
            "GET / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: foo"],
            "",
        ),
        (
            "a version",
            "GET / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: websocket/13"],
            "",
        ),
        (
            "TLS",
            "OPTIONS / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: TLS/1.0"],
            "",
        ),
        (
            "POST",
            "POST / HTTP/1.1",
            &[
                "Connection: upgrade",
                "Upgrade: websocket",
                "Content-Length: 0",
            ],
            "",
        ),
        (
            "get",
            "get / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: websocket"],
            "",
        ),
        (
            "a body",
            "GET / HTTP/1.1",
            &[
                "Connection: upgrade",
                "Upgrade: websocket",
                "Content-Length: 2",
            ],
            "hi",
        ),
        (
            "HTTP/1.0",
            "GET / HTTP/1.0",
            &["Connection: upgrade, keep-alive", "Upgrade: websocket"],
            "",
        ),
        (
            "not listed",
            "GET / HTTP/1.1",
            &["Upgrade: websocket", KEY_HEADER],
            "",
        ),
        (
            "no key",
            "GET / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: websocket"],
            "",
        ),
        (
            "a key that is no base64",
            "GET / HTTP/1.1",
            &[
                "Connection: upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZ!==",
            ],
            "",
        ),
        (
            "a key of fifteen bytes",
            "GET / HTTP/1.1",
            &[
                "Connection: upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAA",
            ],
            "",
        ),
        (
            "two keys",
            "GET / HTTP/1.1",
            &[
                "Connection: upgrade",
                "Upgrade: websocket",
                KEY_HEADER,
                KEY_HEADER,
            ],
            "",
        ),
        (
            "empty",
            "GET / HTTP/1.1",
            &["Connection: upgrade", "Upgrade: "],
            "",
        ),
    ] {
        // Early bytes after it are the next request, authorized separately.
        let first = request(line, lines, body);
        let then = request("GET /then HTTP/1.1", &[], "") + &request("GET /%00 HTTP/1.1", &[], "");
        let response = client
            .send_bytes(VIP, HTTP1, (first + &then).as_bytes())
            .await
            .text();
        let statuses: Vec<_> = response
            .split("HTTP/1.")
            .skip(1)
            .map(|line| line[2..5].to_owned())
            .collect();
        assert_eq!(statuses, ["200", "200", "400"], "{what}: {response}");
        let heads = std::mem::take(&mut *read.lock());
        assert_eq!(heads.len(), 2, "{what}: {heads:?}");
        for gone in ["upgrade", "connection:", "http2-settings"] {
            assert!(!heads[0].contains(gone), "{what}: {}", heads[0]);
        }
        assert!(heads[1].starts_with("get /then "), "{what}: {heads:?}");
    }
    // The HTTP/2 preface after a refused h2c ends the connection, and does not reach the application.
    let h2c = request(
        "GET / HTTP/1.1",
        &[
            "Connection: Upgrade, HTTP2-Settings",
            "Upgrade: h2c",
            settings,
        ],
        "",
    );
    let response = client
        .send_bytes(
            VIP,
            HTTP1,
            (h2c + "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").as_bytes(),
        )
        .await;
    assert!(
        response.statuses().iter().all(|status| *status == 200),
        "{response:?}"
    );
    assert_eq!(std::mem::take(&mut *read.lock()).len(), 1);
}

#[tokio::test]
async fn unrequested_protocol_switch_is_refused() {
    let (world, read) = world("").await;
    let client = world.client().await;
    let websocket = &["Connection: upgrade", "Upgrade: websocket", KEY_HEADER][..];
    for (what, line, lines) in [
        ("nothing asked for", "GET /switch/foo HTTP/1.1", &[][..]),
        (
            "nothing asked for, websocket",
            "GET /switch/websocket HTTP/1.1",
            &[],
        ),
        (
            "another asked for",
            "GET /switch/foo HTTP/1.1",
            &["Connection: upgrade", "Upgrade: foo"],
        ),
        (
            "h2c asked for",
            "GET /switch/h2c HTTP/1.1",
            &[
                "Connection: upgrade, http2-settings",
                "Upgrade: h2c",
                "HTTP2-Settings: AA",
            ],
        ),
        (
            "websocket asked for by POST",
            "POST /switch/websocket HTTP/1.1",
            websocket,
        ),
        (
            "websocket asked for, foo",
            "GET /switch/foo HTTP/1.1",
            websocket,
        ),
        (
            "websocket asked for, a list",
            "GET /switch/websocket,foo HTTP/1.1",
            websocket,
        ),
        (
            "websocket asked for, nothing said",
            "GET /switch/none HTTP/1.1",
            websocket,
        ),
        (
            "HTTP/1.0",
            "GET /switch/websocket HTTP/1.0",
            &[
                "Connection: keep-alive, upgrade",
                "Upgrade: websocket",
                KEY_HEADER,
            ],
        ),
        (
            "the answer to another key",
            "GET /forged/websocket HTTP/1.1",
            websocket,
        ),
        (
            "no answer to the key",
            "GET /silent/websocket HTTP/1.1",
            websocket,
        ),
        (
            "no key to answer",
            "GET /switch/websocket HTTP/1.1",
            &["Connection: upgrade", "Upgrade: websocket"],
        ),
    ] {
        let bytes =
            request(line, lines, "") + &request("GET /then HTTP/1.1", &["Connection: close"], "");
        let response = client.send_bytes(VIP, HTTP1, bytes.as_bytes()).await.text();
        assert!(
            response.contains(" 502 ") && !response.contains(" 101 "),
            "{what}: {response}"
        );
        let read = std::mem::take(&mut *read.lock());
        assert!(
            !read.iter().any(|one| one.starts_with("switched")),
            "{what}: {read:?}"
        );
    }
    // Other clients are not affected.
    assert_eq!(client.get(VIP, HTTP1).await, 200);
}

#[tokio::test]
async fn only_configured_protocols_are_switched_to() {
    for (upgrades, name, is_passed) in [
        ("", "websocket", true),
        ("", "WebSocket", true),
        ("", "spice", false),
        ("spice", "spice", true),
        ("spice", "websocket", false),
        ("none", "websocket", false),
    ] {
        let (world, read) = world(upgrades).await;
        let upgrade = format!("Upgrade: {name}");
        let path = format!("GET /switch/{} HTTP/1.1", name.to_lowercase());
        let asked = request(&path, &["Connection: Upgrade", &upgrade, KEY_HEADER], "");
        let mut tunnel = world.client().await.tunnel(VIP, HTTP1).await;
        tunnel
            .write_all(format!("{asked}early").as_bytes())
            .await
            .unwrap();
        tunnel.shutdown().await.unwrap();
        let response = read_response(tunnel).await.text();
        assert_eq!(
            response.starts_with("HTTP/1.1 101 "),
            is_passed,
            "{upgrades} {name}: {response}"
        );
        assert_eq!(
            response.ends_with("HTTP/1.1 101 Again\r\n\r\nearly"),
            is_passed,
            "{response}"
        );
        let is_switched = read.lock().iter().any(|one| one == "switched: early");
        assert_eq!(is_switched, is_passed, "{upgrades} {name}");
    }
}

#[tokio::test]
async fn http2_offers_websocket_only_if_configured() {
    for (upgrades, is_offered) in [("", true), ("spice", false), ("none", false)] {
        let (world, _) = world(upgrades).await;
        let tunnel = world.client().await.tunnel(VIP, HTTP2).await;
        let (requests, connection) = h2::client::handshake(tunnel).await.unwrap();
        ambit_rt::spawn("client", async move {
            // The connection ends with the test.
            let _ended: Result<(), h2::Error> = connection.await;
        });
        let mut requests: h2::client::SendRequest<bytes::Bytes> = requests.ready().await.unwrap();
        let request = http::Request::get("http://web/%00").body(()).unwrap();
        // The response comes after the settings.
        let (answer, _) = requests.send_request(request, true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 400);
        assert_eq!(
            requests.is_extended_connect_protocol_enabled(),
            is_offered,
            "{upgrades}"
        );
    }
}
