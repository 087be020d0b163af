//! Tests of ambiguous HTTP/2 requests to an HTTP/1.1 application: each is rejected, or reaches the application as
//! exactly one request, without a second one smuggled in it.

use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{
    application::{ReceivedRequest, StrictServer},
    fixture::{Client, HTTP1, TIMEOUT, World},
    http2::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, read_frames},
};

const VIP: &str = "10.0.0.1";

type Bytes = &'static [u8];

/// Difference between the request of a test case and `GET /` of the host `web`.
#[derive(Clone, Copy, Debug)]
enum Change {
    Without(Bytes),
    /// Replaces the value of a header field.
    Set(Bytes, Bytes),
    /// Appends a header field.
    Add(Bytes, Bytes),
    /// Inserts a header field before all others.
    First(Bytes, Bytes),
    /// Adds a body in one DATA frame.
    Body(Bytes),
    /// Adds a trailer field after the body; `OpenTrailer` does so without END_STREAM.
    Trailer(Bytes, Bytes),
    OpenTrailer(Bytes, Bytes),
    /// Adds a DATA frame after END_STREAM.
    LateBody(Bytes),
}

use Change::{Add, Body, First, LateBody, OpenTrailer, Set, Trailer, Without};

/// Expected requests that reach the application.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Nothing,
    /// One request with this request line and this body.
    One(&'static str, Bytes),
    /// At most one request, with this request line and this body: the waypoint may detect the error that follows before
    /// or after it forwards the request.
    AtMostOne(&'static str, Bytes),
    /// One request whose header section contains this line.
    Line(&'static str),
    /// One request whose header section has no field of this name.
    NoField(&'static str),
}

use Expected::{AtMostOne, Line, NoField, Nothing, One};

const ROOT: Expected = One("GET / HTTP/1.1", b"");
const SMUGGLED: Bytes = b"GET /smuggled HTTP/1.1\r\nHost: web\r\n\r\n";

#[rustfmt::skip]
const CASES: &[(&str, &[Change], Expected)] = &[
    // === pseudo header fields ===
    ("nothing unusual", &[], ROOT),
    ("no method", &[Without(b":method")], Nothing),
    ("no path", &[Without(b":path")], Nothing),
    ("no scheme", &[Without(b":scheme")], Nothing),
    ("no authority", &[Without(b":authority")], Nothing),
    ("two methods", &[First(b":method", b"POST")], Nothing),
    ("two paths", &[First(b":path", b"/smuggled")], Nothing),
    ("two authorities", &[First(b":authority", b"other")], Nothing),
    ("two schemes", &[First(b":scheme", b"https")], Nothing),
    ("a path behind fields", &[Without(b":path"), Add(b"a", b"b"), Add(b":path", b"/")], Nothing),
    ("a method behind fields", &[Without(b":method"), Add(b"a", b"b"), Add(b":method", b"GET")], Nothing),
    ("an unknown pseudo field", &[First(b":other", b"x")], Nothing),
    ("a pseudo field of responses", &[First(b":status", b"200")], Nothing),
    ("a pseudo field in capitals", &[First(b":Path", b"/")], Nothing),
    ("a pseudo field without a name", &[First(b":", b"/")], Nothing),
    // === method ===
    ("an empty method", &[Set(b":method", b"")], Nothing),
    ("a method with a space", &[Set(b":method", b"GET /smuggled")], Nothing),
    ("a method with a line end", &[Set(b":method", b"GET / HTTP/1.1\r\nX: ")], Nothing),
    ("a method with a NUL", &[Set(b":method", b"GE\0T")], Nothing),
    ("a method that is not known", &[Set(b":method", b"BREW")], One("BREW / HTTP/1.1", b"")),
    ("CONNECT with a path", &[Set(b":method", b"CONNECT")], Nothing),
    ("CONNECT to a host", &[Set(b":method", b"CONNECT"), Without(b":path"), Without(b":scheme"), Set(b":authority", b"web:80")], Nothing),
    ("extended CONNECT of another protocol", &[Set(b":method", b"CONNECT"), First(b":protocol", b"connect-udp")], Nothing),
    ("extended CONNECT of two protocols", &[Set(b":method", b"CONNECT"), First(b":protocol", b"websocket"), First(b":protocol", b"connect-udp")], Nothing),
    ("a protocol without CONNECT", &[First(b":protocol", b"websocket")], Nothing),
    // === path ===
    ("an empty path", &[Set(b":path", b"")], Nothing),
    ("a path without a slash", &[Set(b":path", b"smuggled")], Nothing),
    ("an asterisk for GET", &[Set(b":path", b"*")], Nothing),
    ("an asterisk for OPTIONS", &[Set(b":method", b"OPTIONS"), Set(b":path", b"*")], One("OPTIONS * HTTP/1.1", b"")),
    ("a whole URL", &[Set(b":path", b"http://other/smuggled")], Nothing),
    ("a path with a space", &[Set(b":path", b"/ HTTP/1.1")], Nothing),
    ("a path with line ends", &[Set(b":path", b"/ HTTP/1.1\r\nHost: web\r\n\r\nGET /smuggled")], Nothing),
    ("a path with a line feed", &[Set(b":path", b"/\n")], Nothing),
    ("a path with a NUL", &[Set(b":path", b"/\0")], Nothing),
    ("a path with a tab", &[Set(b":path", b"/\t")], Nothing),
    ("a path with DEL", &[Set(b":path", b"/\x7f")], Nothing),
    ("a path with dots", &[Set(b":path", b"/a/../b")], One("GET /b HTTP/1.1", b"")),
    // === authority ===
    ("an empty authority", &[Set(b":authority", b"")], Nothing),
    ("credentials", &[Set(b":authority", b"user@web")], Nothing),
    ("an authority with a line end", &[Set(b":authority", b"web\r\nX-Smuggled: 1")], Nothing),
    ("an authority with a space", &[Set(b":authority", b"web other")], Nothing),
    ("an authority with a path", &[Set(b":authority", b"web/smuggled")], Nothing),
    ("an authority with a NUL", &[Set(b":authority", b"web\0")], Nothing),
    ("another host", &[Add(b"host", b"other")], Nothing),
    ("the same host", &[Add(b"host", b"web")], Line("host: web")),
    ("a host alone", &[Without(b":authority"), Add(b"host", b"web")], Line("host: web")),
    ("two hosts", &[Without(b":authority"), Add(b"host", b"web"), Add(b"host", b"web")], Nothing),
    // === fields of connections ===
    ("connection", &[Add(b"connection", b"x-request-id")], Nothing),
    ("keep-alive", &[Add(b"keep-alive", b"timeout=5")], Nothing),
    ("proxy-connection", &[Add(b"proxy-connection", b"close")], Nothing),
    ("transfer-encoding", &[Set(b":method", b"POST"), Add(b"transfer-encoding", b"chunked"), Body(b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")], Nothing),
    ("upgrade", &[Add(b"upgrade", b"h2c")], Nothing),
    ("te of trailers", &[Add(b"te", b"trailers")], ROOT),
    ("te of another kind", &[Add(b"te", b"chunked")], Nothing),
    // === names and values ===
    ("a name in capitals", &[Add(b"X-Smuggled", b"1")], Nothing),
    ("a name with a space", &[Add(b"x smuggled", b"1")], Nothing),
    ("a name with a colon", &[Add(b"x:smuggled", b"1")], Nothing),
    ("a name with a line end", &[Add(b"x\r\nx-smuggled", b"1")], Nothing),
    ("a name with a NUL", &[Add(b"x\0", b"1")], Nothing),
    ("a name beyond ASCII", &[Add(b"x\x80", b"1")], Nothing),
    ("an empty name", &[Add(b"", b"1")], Nothing),
    ("a value with a line end", &[Add(b"x", b"a\r\nx-smuggled: 1")], Nothing),
    ("a value with a request", &[Add(b"x", b"a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: web\r\n\r\n")], Nothing),
    ("a value with a line feed", &[Add(b"x", b"a\nb")], Nothing),
    ("a value with a carriage return", &[Add(b"x", b"a\rb")], Nothing),
    ("a value with a NUL", &[Add(b"x", b"a\0b")], Nothing),
    ("who somebody is", &[Add(b"x-forwarded-client-cert", b"URI=spiffe://x")], NoField("x-forwarded-client-cert")),
    // === body and length ===
    ("a body that is a request", &[Set(b":method", b"POST"), Body(SMUGGLED)], One("POST / HTTP/1.1", SMUGGLED)),
    ("a body of GET that is a request", &[Body(SMUGGLED)], One("GET / HTTP/1.1", SMUGGLED)),
    ("the right length", &[Set(b":method", b"POST"), Add(b"content-length", b"3"), Body(b"abc")], One("POST / HTTP/1.1", b"abc")),
    ("more bytes than said", &[Set(b":method", b"POST"), Add(b"content-length", b"2"), Body(b"abc")], Nothing),
    ("fewer bytes than said", &[Set(b":method", b"POST"), Add(b"content-length", b"4"), Body(b"abc")], Nothing),
    ("a length and no body", &[Set(b":method", b"POST"), Add(b"content-length", b"4")], Nothing),
    ("no length and a body", &[Set(b":method", b"POST"), Add(b"content-length", b"0"), Body(SMUGGLED)], Nothing),
    ("two lengths", &[Set(b":method", b"POST"), Add(b"content-length", b"3"), Add(b"content-length", b"2"), Body(b"abc")], Nothing),
    ("a length twice", &[Set(b":method", b"POST"), Add(b"content-length", b"3"), Add(b"content-length", b"3"), Body(b"abc")], One("POST / HTTP/1.1", b"abc")),
    ("a list of lengths", &[Set(b":method", b"POST"), Add(b"content-length", b"3, 3"), Body(b"abc")], Nothing),
    ("a signed length", &[Set(b":method", b"POST"), Add(b"content-length", b"+3"), Body(b"abc")], Nothing),
    ("a negative length", &[Set(b":method", b"POST"), Add(b"content-length", b"-3"), Body(b"abc")], Nothing),
    ("a length in hexadecimal", &[Set(b":method", b"POST"), Add(b"content-length", b"0x3"), Body(b"abc")], Nothing),
    ("a length beyond 64 bits", &[Set(b":method", b"POST"), Add(b"content-length", b"18446744073709551619"), Body(b"abc")], Nothing),
    ("data behind the end", &[LateBody(SMUGGLED)], AtMostOne("GET / HTTP/1.1", b"")),
    // === trailers ===
    ("a trailer", &[Set(b":method", b"POST"), Body(b"abc"), Trailer(b"x", b"1")], One("POST / HTTP/1.1", b"abc")),
    ("a pseudo field in trailers", &[Set(b":method", b"POST"), Body(b"abc"), Trailer(b":path", b"/smuggled")], One("POST / HTTP/1.1", b"abc")),
    ("a trailer in capitals", &[Set(b":method", b"POST"), Body(b"abc"), Trailer(b"X", b"1")], Nothing),
    ("a trailer with a line end", &[Set(b":method", b"POST"), Body(b"abc"), Trailer(b"x", b"1\r\n\r\nGET /smuggled HTTP/1.1")], Nothing),
    ("trailers that are not the end", &[Set(b":method", b"POST"), Body(b"abc"), OpenTrailer(b"x", b"1")], Nothing),
    ("a length in trailers", &[Set(b":method", b"POST"), Body(b"abc"), Trailer(b"content-length", b"9")], One("POST / HTTP/1.1", b"abc")),
];

/// Encodes the request of a test case as HTTP/2 frames on stream 1.
fn encode_frames(changes: &[Change]) -> Vec<u8> {
    let mut fields: Vec<(Bytes, Bytes)> = vec![
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"web"),
    ];
    let mut rest = Vec::new();
    for change in changes {
        match *change {
            Without(name) => fields.retain(|(other, _)| *other != name),
            Set(name, value) => {
                for field in &mut fields {
                    if field.0 == name {
                        field.1 = value;
                    }
                }
            }
            Add(name, value) => fields.push((name, value)),
            First(name, value) => fields.insert(0, (name, value)),
            Body(bytes) => rest.push((DATA, 0, bytes.to_vec())),
            Trailer(name, value) => {
                rest.push((HEADERS, END_STREAM, encode_fields(&[(name, value)])))
            }
            OpenTrailer(name, value) => rest.push((HEADERS, 0, encode_fields(&[(name, value)]))),
            LateBody(_) => {}
        }
    }
    let has_trailers = rest.iter().any(|(kind, ..)| *kind == HEADERS);
    if let Some((_, flags, _)) = rest.last_mut().filter(|_| !has_trailers) {
        *flags = END_STREAM;
    }
    for change in changes {
        if let LateBody(bytes) = change {
            rest.push((DATA, END_STREAM, bytes.to_vec()));
        }
    }
    let is_alone = !changes
        .iter()
        .any(|change| matches!(change, Body(_) | Trailer(..) | OpenTrailer(..)));
    let end = if is_alone { END_STREAM } else { 0 };
    let mut bytes = frame(HEADERS, END_HEADERS | end, 1, &encode_fields(&fields));
    for (kind, flags, payload) in rest {
        let ends = if kind == HEADERS { END_HEADERS } else { 0 };
        bytes.extend(frame(kind, flags | ends, 1, &payload));
    }
    bytes
}

/// Encodes header fields in HPACK, as literals.
fn encode_fields(fields: &[(Bytes, Bytes)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            let length = u8::try_from(text.len()).unwrap();
            assert!(length < 127, "one byte says how long it is");
            block.push(length);
            block.extend_from_slice(text);
        }
    }
    block
}

/// Sends the request of a test case in a tunnel of its own. Returns whether the response has status 200.
async fn send_request(client: &Client, changes: &[Change]) -> bool {
    let tunnel = client.tunnel(VIP, HTTP1).await;
    let (read, mut write) = tokio::io::split(tunnel);
    let all = [
        PREFACE,
        &frame(SETTINGS, 0, 0, b""),
        &encode_frames(changes),
    ]
    .concat();
    write.write_all(&all).await.unwrap();
    write.flush().await.unwrap();
    let is_over = |observed: &crate::http2::ObservedFrames| {
        observed.headers > 0 || !observed.resets.is_empty()
    };
    let observed = timeout(TIMEOUT, read_frames(read, is_over))
        .await
        .expect("no answer");
    observed.headers > 0 && observed.resets.is_empty() && observed.is_success
}

fn is_expected(received: &[ReceivedRequest], expected: Expected) -> bool {
    let whole: Vec<_> = received
        .iter()
        .filter_map(|one| match one {
            ReceivedRequest::Complete { head, body, .. } => Some((head, body)),
            ReceivedRequest::Malformed(_) | ReceivedRequest::Truncated => None,
        })
        .collect();
    let malformed = |one: &ReceivedRequest| matches!(one, ReceivedRequest::Malformed(_));
    if received.iter().any(malformed) {
        return false;
    }
    match (expected, whole.as_slice()) {
        (Nothing | AtMostOne(..), []) => true,
        (One(line, body) | AtMostOne(line, body), [(head, got)]) => {
            head.lines().next() == Some(line) && *got == body
        }
        (Line(line), [(head, _)]) => head.lines().any(|one| one.eq_ignore_ascii_case(line)),
        (NoField(name), [(head, _)]) => !head.to_ascii_lowercase().contains(name),
        _ => false,
    }
}

#[tokio::test]
async fn ambiguous_requests_smuggle_nothing() {
    let (world, mut strict) = (World::new().await, StrictServer::start().await);
    world.serve("web", VIP, &[strict.address]);
    let client = world.client().await;
    let mut wrong = Vec::new();
    for (what, changes, expected) in CASES {
        let is_success = send_request(&client, changes).await;
        // A further request on the application's connection, if that was kept.
        assert_eq!(client.get(VIP, HTTP1).await, 200, "{what}");
        let mut received = strict.received();
        let after = received.pop();
        let is_whole = matches!(after, Some(ReceivedRequest::Complete { .. }));
        if !is_whole || !is_expected(&received, *expected) {
            wrong.push(format!("{what}: {is_success} {received:?} {after:?}"));
        } else if !matches!(expected, AtMostOne(..)) && is_success == matches!(expected, Nothing) {
            wrong.push(format!("{what}: answered with success: {is_success}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
