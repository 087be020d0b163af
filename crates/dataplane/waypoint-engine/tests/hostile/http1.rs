//! Tests of malformed and ambiguous HTTP/1 requests.

use ambit_testkit::wait_until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    application::{ReceivedRequest, StrictServer},
    fixture::{HTTP1, TIMEOUT, World, log_lines_about, read_response},
};

const VIP: &str = "10.0.0.1";
/// Beginning of a well-formed request, to which each test case appends header lines.
const REQUEST_START: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\n";

/// Expected handling of the bytes in a test case.
enum Outcome {
    /// Application receives well-formed requests with these bodies.
    Served(&'static [&'static str]),
    /// Waypoint rejects the request with this status, and counts the rejection under this reason.
    Refused(u16, &'static str),
    /// Application receives the first request; the waypoint rejects the bytes after it with this status and reason.
    ThenRefused(u16, &'static str),
}
use Outcome::{Refused, Served, ThenRefused};

#[rustfmt::skip]
const CASES: &[(&str, &[u8], Outcome)] = &[
    ("a request", b"GET / HTTP/1.1\r\nHost: web\r\n\r\n", Served(&[""])),
    ("empty lines before it", b"\r\n\r\nGET / HTTP/1.1\r\nHost: web\r\n\r\n", Served(&[""])),
    ("two in a row", b"GET / HTTP/1.1\r\nHost: web\r\n\r\nGET /b HTTP/1.1\r\nHost: web\r\n\r\n", Served(&["", ""])),
    // Framing: RFC 9112, sections 6 and 7.
    ("both framings, TE last", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", Served(&["x"])),
    ("both framings, TE first", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n1\r\nx\r\n0\r\n\r\n", Served(&["x"])),
    ("a second encoding", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", Refused(501, "transfer_encoding")),
    ("identity, then chunked", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refused(501, "transfer_encoding")),
    ("chunked twice", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refused(501, "transfer_encoding")),
    ("chunked, then something", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n", Refused(400, "malformed")),
    ("chunked, then identity", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", Refused(400, "malformed")),
    ("an unknown encoding", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", Refused(400, "malformed")),
    ("an encoding with a control character", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", Refused(400, "malformed")),
    ("an encoding in HTTP/1.0", b"POST / HTTP/1.0\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refused(400, "malformed")),
    ("a space before the colon", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", Refused(400, "malformed")),
    ("a folded encoding", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", Refused(400, "malformed")),
    ("the same length twice", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", Served(&["x"])),
    ("two lengths", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", Refused(400, "malformed")),
    ("a list of lengths", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1, 1\r\n\r\nx", Refused(400, "malformed")),
    ("a signed length", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: +1\r\n\r\nx", Refused(400, "malformed")),
    ("a negative length", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: -1\r\n\r\nx", Refused(400, "malformed")),
    ("a hexadecimal length", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 0x1\r\n\r\nx", Refused(400, "malformed")),
    ("an empty length", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: \r\n\r\n", Refused(400, "malformed")),
    ("a length beyond 64 bits", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 18446744073709551617\r\n\r\nx", Refused(400, "malformed")),
    ("the largest length of 64 bits", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 18446744073709551615\r\n\r\nx", Refused(431, "headers_too_large")),
    ("a chunk's extension", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n1;a=\"b\"\r\nx\r\n0\r\n\r\n", Served(&["x"])),
    ("a line feed in an extension", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nx\r\n0\r\n\r\n", Refused(400, "body")),
    ("a chunk of no size", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n\r\n\r\n", Refused(400, "body")),
    ("a chunk of a negative size", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n", Refused(400, "body")),
    ("a chunk of a prefixed size", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n", Refused(400, "body")),
    ("a chunk beyond 64 bits", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000001\r\nx\r\n0\r\n\r\n", Refused(400, "body")),
    ("a chunk longer than it says", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n0\r\n\r\n", Refused(400, "body")),
    ("a chunk that is cut", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nx", Refused(400, "body")),
    ("a body that is cut", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 5\r\n\r\nx", Refused(400, "body")),
    ("a request in a body of HEAD", b"HEAD / HTTP/1.1\r\nHost: web\r\nContent-Length: 35\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: w\r\n\r\n", Served(&["GET /smuggled HTTP/1.1\r\nHost: w\r\n\r\n"])),
    ("a tab before an encoding", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding:\tchunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", Served(&["x"])),
    ("an encoding in capitals", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: CHUNKED\r\n\r\n1\r\nx\r\n0\r\n\r\n", Served(&["x"])),
    ("a length in another spelling", b"POST / HTTP/1.1\r\nHost: web\r\nContent_Length: 5\r\nContent-Length: 1\r\n\r\nx", Served(&["x"])),
    ("an encoding in another spelling", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer_Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", Served(&["0\r\n\r\n"])),
    ("trailers that frame", b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n1\r\nx\r\n0\r\nContent-Length: 9\r\n\r\n", Served(&["x"])),
    ("an unknown expectation", b"POST / HTTP/1.1\r\nHost: web\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\nx", Served(&["x"])),
    ("a length that the connection header names", b"POST / HTTP/1.1\r\nHost: web\r\nConnection: content-length\r\nContent-Length: 1\r\n\r\nx", Refused(400, "connection_header")),
    ("what follows a body", b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 1\r\n\r\nxyz\r\n\r\n", ThenRefused(400, "malformed")),
    // Lines: RFC 9112, sections 2.2, 3 and 5.
    ("lines that end with LF alone", b"GET / HTTP/1.1\nHost: web\n\n", Served(&[""])),
    ("a CR in a value", b"GET / HTTP/1.1\r\nHost: web\r\nX: a\rb\r\n\r\n", Refused(400, "malformed")),
    ("a line that ends with CR alone", b"GET / HTTP/1.1\r\nHost: web\r\nX: a\rY: b\r\n\r\n", Refused(400, "malformed")),
    ("a NUL in a value", b"GET / HTTP/1.1\r\nHost: web\r\nX: a\0b\r\n\r\n", Refused(400, "malformed")),
    ("a NUL in a name", b"GET / HTTP/1.1\r\nHost: web\r\nX\0: a\r\n\r\n", Refused(400, "malformed")),
    ("no name", b"GET / HTTP/1.1\r\nHost: web\r\n: a\r\n\r\n", Refused(400, "malformed")),
    ("no colon", b"GET / HTTP/1.1\r\nHost: web\r\nX\r\n\r\n", Refused(400, "malformed")),
    ("a folded line", b"GET / HTTP/1.1\r\nHost: web\r\nX: a\r\n b\r\n\r\n", Refused(400, "malformed")),
    ("a space before the first header", b"GET / HTTP/1.1\r\n Host: web\r\n\r\n", Refused(400, "malformed")),
    ("a name that is not ASCII", b"GET / HTTP/1.1\r\nHost: web\r\nX\xc3\xa4: a\r\n\r\n", Refused(400, "malformed")),
    ("bytes that are no UTF-8 in a value", b"GET / HTTP/1.1\r\nHost: web\r\nX: \xff\xfe\r\n\r\n", Served(&[""])),
    ("bytes that are no UTF-8 in the path", b"GET /\xff\xfe HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("a NUL in the path", b"GET /\0 HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("an escaped NUL in the path", b"GET /%00 HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "path_control_character")),
    ("two spaces", b"GET  / HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("a tab for a space", b"GET\t/ HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("a space in the path", b"GET /a b HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("an unknown version", b"GET / HTTP/1.9\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("a version of HTTP/2", b"GET / HTTP/2.0\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("a version of three digits", b"GET / HTTP/1.10\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("a request behind one that is none", b"GET / HTTP/1.x\r\n\r\nGET / HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("a version in lower case", b"GET / http/1.1\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("no version", b"GET /\r\nHost: web\r\n\r\n", Refused(400, "malformed")),
    ("no request at all", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", Refused(400, "malformed")),
    // Hosts and targets: RFC 9112, section 3.2.
    ("no host", b"GET / HTTP/1.1\r\n\r\n", Refused(400, "host")),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: web\r\nHost: web\r\n\r\n", Refused(400, "host")),
    ("an empty host", b"GET / HTTP/1.1\r\nHost: \r\n\r\n", Served(&[""])),
    ("a host with a user", b"GET / HTTP/1.1\r\nHost: a@web\r\n\r\n", Refused(400, "host")),
    ("a host with a path", b"GET / HTTP/1.1\r\nHost: web/admin\r\n\r\n", Refused(400, "host")),
    ("a host with a space", b"GET / HTTP/1.1\r\nHost: web other\r\n\r\n", Refused(400, "host")),
    ("a list of hosts", b"GET / HTTP/1.1\r\nHost: web, other\r\n\r\n", Refused(400, "host")),
    ("a host that is no text", b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n", Refused(400, "host")),
    ("a whole target", b"GET http://web/a HTTP/1.1\r\nHost: web\r\n\r\n", Served(&[""])),
    ("a whole target of another host", b"GET http://other/a HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "host")),
    ("a whole target with a user", b"GET http://a@web/a HTTP/1.1\r\nHost: a@web\r\n\r\n", Refused(400, "host")),
    ("a target without a slash", b"GET admin HTTP/1.1\r\nHost: web\r\n\r\n", Refused(400, "host")),
    // The authorized form is the forwarded one: the path without a fragment.
    ("a fragment", b"GET /a#b HTTP/1.1\r\nHost: web\r\n\r\n", Served(&[""])),
    // Hop-by-hop headers.
    ("a connection header that takes the host away", b"GET / HTTP/1.1\r\nHost: web\r\nConnection: host\r\n\r\n", Refused(400, "connection_header")),
    ("a tunnel", b"CONNECT web:80 HTTP/1.1\r\nHost: web\r\n\r\n", Refused(405, "method")),
];

#[tokio::test]
async fn malformed_requests_never_reach_applications() {
    let world = World::new().await;
    let mut application = StrictServer::start().await;
    world.serve("web", VIP, &[application.address]);
    let mut wrong = Vec::new();
    for (what, bytes, outcome) in CASES {
        let client = world.client().await;
        let (refused, reason) = match outcome {
            Refused(_, reason) | ThenRefused(_, reason) => (world.rejected_count(reason), *reason),
            Served(_) => (0, ""),
        };
        let response = client.send_bytes(VIP, HTTP1, bytes).await;
        let received = application.received();
        let bodies: Vec<_> = received
            .iter()
            .filter_map(|received| match received {
                ReceivedRequest::Complete { body, .. } => {
                    Some(String::from_utf8_lossy(body).into_owned())
                }
                _ => None,
            })
            .collect();
        let is_clean = !received
            .iter()
            .any(|received| matches!(received, ReceivedRequest::Malformed(_)));
        let is_counted = || world.rejected_count(reason) == refused + 1;
        let lines = log_lines_about(client.address);
        let logged = |status: u16| {
            let code = format!(" {status} ");
            lines
                .iter()
                .any(|line| line.contains(&code) && line.contains(reason))
        };
        let is_right = match outcome {
            Served(expected) => {
                response.statuses() == vec![200; expected.len()] && bodies == *expected
            }
            Refused(status, _) => {
                response.statuses() == [*status]
                    && bodies.is_empty()
                    && is_counted()
                    && logged(*status)
            }
            ThenRefused(status, _) => {
                response.statuses() == [200, *status]
                    && bodies.len() == 1
                    && is_counted()
                    && logged(*status)
            }
        };
        if !(is_right && is_clean) {
            wrong.push(format!(
                "{what}: {:?}, received {received:?}, refused {:?}, logged {lines:?}",
                response.text(),
                world
                    .metrics()
                    .lines()
                    .filter(|line| line.starts_with("ambit_requests_refused_total"))
                    .collect::<Vec<_>>(),
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn endless_headers_and_lines_are_terminated() {
    let world = World::new().await;
    let mut application = StrictServer::start().await;
    world.serve("web", VIP, &[application.address]);
    let line = b"X: a\r\n";
    let many = [REQUEST_START, &line.repeat(101), b"\r\n"].concat();
    let long_line = [REQUEST_START, b"X: ", &vec![b'a'; 1 << 20]].concat();
    let long_name = [REQUEST_START, &vec![b'a'; 1 << 20]].concat();
    let target = [b"GET /", &vec![b'a'; 1 << 20][..]].concat();
    let client = world.client().await;
    let response = client.send_bytes(VIP, HTTP1, &many).await;
    assert_eq!(response.statuses(), [431], "{response:?}");
    assert!(
        response.text().contains("AMBIT_MAX_HEADERS"),
        "{response:?}"
    );
    assert_eq!(world.rejected_count("headers_too_many"), 1);
    let far_too_many = [REQUEST_START, &line.repeat(1000), b"\r\n"].concat();
    let floods = [
        ("far too many", far_too_many),
        ("a line without end", long_line),
        ("a name without end", long_name),
        ("a target without end", target),
    ];
    for (before, (what, bytes)) in (0..).zip(floods) {
        let client = world.client().await;
        let mut tunnel = client.tunnel(VIP, HTTP1).await;
        // The sender never ends: the waypoint must close the connection.
        let _cut = timeout(TIMEOUT, tunnel.write_all(&bytes)).await.unwrap();
        let response = read_response(tunnel).await;
        assert_eq!(response.statuses(), [431], "{what}: {response:?}");
        assert_eq!(
            world.rejected_count("headers_too_large"),
            before + 1,
            "{what}"
        );
        assert_eq!(world.request_count_with(431, "DPE"), before + 2, "{what}");
        let is_named = |line: &String| line.contains("AMBIT_MAX_HEADERS");
        assert!(
            log_lines_about(client.address).iter().any(is_named),
            "{what}"
        );
    }
    let client = world.client().await;
    let fitting = [
        REQUEST_START,
        &line.repeat(90),
        b"Connection: close\r\n\r\n",
    ]
    .concat();
    let response = client.send_bytes(VIP, HTTP1, &fitting).await;
    assert_eq!(response.statuses(), [200], "{response:?}");
    assert_eq!(application.received().len(), 1);
}

#[tokio::test]
async fn request_sent_byte_by_byte_is_served_and_delays_nobody() {
    let world = World::new().await;
    let application = StrictServer::start().await;
    world.serve("web", VIP, &[application.address]);
    let client = world.client().await;
    let mut slow = client.tunnel(VIP, HTTP1).await;
    for byte in [
        REQUEST_START,
        b"Content-Length: 3\r\nConnection: close\r\n\r\nabc",
    ]
    .concat()
    {
        slow.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(client.get(VIP, HTTP1).await, 200);
    assert_eq!(read_response(slow).await.statuses(), [200]);
}

#[tokio::test]
async fn endless_header_section_is_terminated_and_slow_peers_are_not() {
    let world = World::with_env(&[("AMBIT_REQUEST_HEADERS_TIMEOUT", "1s")]).await;
    let application = StrictServer::start().await;
    world.serve("web", VIP, &[application.address]);
    let client = world.client().await;
    // A connection that is idle between requests, and one with an unfinished body.
    let mut quiet = client.tunnel(VIP, HTTP1).await;
    let request = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
    quiet.write_all(request).await.unwrap();
    quiet.read_u8().await.unwrap();
    let mut body = client.tunnel(VIP, HTTP1).await;
    let begun = [
        REQUEST_START,
        b"Content-Length: 3\r\nConnection: close\r\n\r\na",
    ]
    .concat();
    body.write_all(&begun).await.unwrap();
    let mut slow = client.tunnel(VIP, HTTP1).await;
    slow.write_all(REQUEST_START).await.unwrap();
    let response = read_response(slow).await;
    assert!(response.bytes.is_empty(), "{response:?}");
    wait_until("it is counted", || {
        world.rejected_count("headers_too_slow") == 1
    })
    .await;
    body.write_all(b"bc").await.unwrap();
    assert_eq!(read_response(body).await.statuses(), [200]);
    // The second header section of a connection has the same timeout as the first.
    quiet.write_all(request).await.unwrap();
    quiet.write_all(REQUEST_START).await.unwrap();
    let response = read_response(quiet).await;
    assert_eq!(
        response.text().matches("TTP/1.1 200").count(),
        2,
        "{response:?}"
    );
    wait_until("it is counted", || {
        world.rejected_count("headers_too_slow") == 2
    })
    .await;
}

#[tokio::test]
async fn pipelined_requests_are_authorized_singly_and_in_order() {
    let world = World::new().await;
    let mut application = StrictServer::start().await;
    world.serve("web", VIP, &[application.address]);
    let client = world.client().await;
    let mut bytes = Vec::new();
    for number in 0..50 {
        let target = if number % 10 == 9 { "/%00" } else { "/" };
        let request = format!("GET {target} HTTP/1.1\r\nHost: web\r\nX: {number}\r\n\r\n");
        bytes.extend_from_slice(request.as_bytes());
    }
    let response = client.send_bytes(VIP, HTTP1, &bytes).await;
    let statuses = response.statuses();
    assert_eq!(statuses.len(), 50, "{response:?}");
    for (number, status) in statuses.into_iter().enumerate() {
        assert_eq!(status, if number % 10 == 9 { 400 } else { 200 }, "{number}");
    }
    assert_eq!(application.received().len(), 45);
}

#[tokio::test]
async fn client_that_does_not_read_delays_only_itself() {
    let world = World::new().await;
    let application = StrictServer::start().await;
    world.serve("web", VIP, &[application.address]);
    let stalled = world.client().await;
    let mut tunnel = stalled.tunnel(VIP, HTTP1).await;
    let requests = [REQUEST_START, b"\r\n"].concat().repeat(2000);
    ambit_rt::spawn("stalled", async move {
        // Sends until the waypoint closes the connection.
        let _cut = tunnel.write_all(&requests).await;
        let _never = tunnel.read_u8().await;
        std::future::pending::<()>().await;
    });
    for _ in 0..20 {
        assert_eq!(stalled.get(VIP, HTTP1).await, 200);
    }
    assert_eq!(world.client().await.get(VIP, HTTP1).await, 200);
}
