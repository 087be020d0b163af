//! Table of floods: the bytes that clients send in each.

use super::{ENDLESS_VIP, HANGING_VIP, SWITCHING_VIP, TUNNEL_VIP};
use crate::{
    fixture::{HTTP1, TCP},
    http2::{
        DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
        frame,
    },
};

/// HPACK-encoded header sections of `GET /` and of `POST /` with the host `web`, which add no entries to the dynamic
/// table.
const GET: &[u8] = b"\x82\x86\x84\x01\x03web";
const POST: &[u8] = b"\x83\x86\x84\x01\x03web";
/// Request for an upgrade to WebSocket.
const WEBSOCKET: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// HPACK index of the newest entry of the dynamic table.
const NEWEST_TABLE_ENTRY: u8 = 0x80 | 62;
/// SETTINGS parameter for the largest initial stream window.
const HUGE_WINDOWS: [u8; 6] = [0, 4, 0x7f, 0xff, 0xff, 0xff];

/// Flood by the bytes that it sends in each tunnel: an initial sequence, and then repetitions numbered from zero.
pub(super) struct Flood {
    pub(super) description: &'static str,
    /// Number of tunnels; a soak has many times more.
    pub(super) tunnels: usize,
    /// Number of connections that share the tunnels.
    pub(super) connections: usize,
    pub(super) target: (&'static str, u16),
    pub(super) initial_bytes: fn() -> Vec<u8>,
    pub(super) repeated_bytes: fn(u32) -> Vec<u8>,
    pub(super) repetitions: u32,
    /// Whether the clients read responses.
    pub(super) reads_responses: bool,
}

fn connection_start() -> Vec<u8> {
    [
        PREFACE,
        &frame(SETTINGS, 0, 0, &HUGE_WINDOWS),
        &frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes()),
    ]
    .concat()
}

fn stream_id(number: u32) -> u32 {
    number * 2 + 1
}

/// Encodes a field that HPACK adds to its dynamic table.
fn indexed_field(name: &[u8], value: usize) -> Vec<u8> {
    let mut field = vec![0x40, u8::try_from(name.len()).unwrap()];
    field.extend(name);
    if value < 127 {
        field.push(u8::try_from(value).unwrap());
    } else {
        let mut rest = value - 127;
        field.push(127);
        while rest > 127 {
            field.push(u8::try_from(rest % 128).unwrap() | 0x80);
            rest /= 128;
        }
        field.push(u8::try_from(rest).unwrap());
    }
    field.extend(vec![b'v'; value]);
    field
}

/// Encodes a request whose fields are `many` references to the newest entry of the dynamic table, which the first
/// request of a connection adds.
fn amplified_request(
    number: u32,
    request: &[u8],
    (name, value): (&[u8], usize),
    many: usize,
    flags: u8,
) -> Vec<u8> {
    let mut block = request.to_vec();
    if number == 0 {
        block.extend(indexed_field(name, value));
    }
    block.extend(vec![NEWEST_TABLE_ENTRY; many]);
    frame(HEADERS, flags, stream_id(number), &block)
}

const WHOLE_REQUEST_FLAGS: u8 = END_HEADERS | END_STREAM;

/// Returns the table of all floods.
#[expect(clippy::too_many_lines, reason = "a table is as long as it is")]
pub(super) fn floods() -> Vec<Flood> {
    let inside = |what, tunnels, to, repeated, times| Flood {
        description: what,
        tunnels,
        connections: 1,
        target: to,
        initial_bytes: connection_start,
        repeated_bytes: repeated,
        repetitions: times,
        reads_responses: true,
    };
    let slow = (HANGING_VIP, HTTP1);
    let over_http1 = |what, tunnels, to, first, repeated, times| Flood {
        description: what,
        tunnels,
        connections: 1,
        target: to,
        initial_bytes: first,
        repeated_bytes: repeated,
        repetitions: times,
        reads_responses: false,
    };
    vec![
        inside(
            "HPACK, large fields",
            20,
            slow,
            |n| amplified_request(n, GET, (b"a", 3900), 15, WHOLE_REQUEST_FLAGS),
            100,
        ),
        inside(
            "HPACK, small fields",
            5,
            slow,
            |n| amplified_request(n, GET, (b"a", 0), 1900, WHOLE_REQUEST_FLAGS),
            100,
        ),
        inside(
            "HPACK, cookies",
            5,
            slow,
            |n| amplified_request(n, GET, (b"cookie", 3), 1500, WHOLE_REQUEST_FLAGS),
            100,
        ),
        inside(
            "HPACK in trailers",
            5,
            slow,
            |n| {
                let open = frame(HEADERS, END_HEADERS, stream_id(n), POST);
                let mut block = if n == 0 {
                    indexed_field(b"a", 0)
                } else {
                    Vec::new()
                };
                block.extend(vec![NEWEST_TABLE_ENTRY; 1900]);
                [
                    open,
                    frame(HEADERS, WHOLE_REQUEST_FLAGS, stream_id(n), &block),
                ]
                .concat()
            },
            100,
        ),
        Flood {
            reads_responses: false,
            ..inside(
                "unread downloads, HTTP/2",
                10,
                (ENDLESS_VIP, HTTP1),
                |n| frame(HEADERS, WHOLE_REQUEST_FLAGS, stream_id(n), GET),
                100,
            )
        },
        over_http1(
            "unread downloads, HTTP/1",
            100,
            (ENDLESS_VIP, HTTP1),
            || b"GET / HTTP/1.1\r\nHost: web\r\n\r\n".to_vec(),
            |_| Vec::new(),
            0,
        ),
        inside(
            "unread uploads, HTTP/2",
            40,
            slow,
            |_| {
                let open = frame(HEADERS, END_HEADERS, 1, POST);
                // Fits into the smallest window.
                [open, frame(DATA, 0, 1, &[b'd'; 16_000]).repeat(4)].concat()
            },
            1,
        ),
        over_http1(
            "unread uploads, HTTP/1",
            100,
            slow,
            || b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 999999999\r\n\r\n".to_vec(),
            |_| vec![b'd'; 16_000],
            100,
        ),
        over_http1(
            "slow headers, HTTP/1",
            100,
            slow,
            || [&b"GET / HTTP/1.1\r\nHost: web\r\nX: "[..], &[b'x'; 60_000]].concat(),
            |_| Vec::new(),
            0,
        ),
        inside(
            "unfinished header blocks, HTTP/2",
            100,
            slow,
            |n| amplified_request(n, GET, (b"a", 0), 1900, END_STREAM),
            1,
        ),
        inside(
            "rapid reset",
            5,
            slow,
            |n| {
                let open = frame(HEADERS, WHOLE_REQUEST_FLAGS, stream_id(n), GET);
                [
                    open,
                    frame(RST_STREAM, 0, stream_id(n), &8u32.to_be_bytes()),
                ]
                .concat()
            },
            2000,
        ),
        Flood {
            reads_responses: false,
            ..inside(
                "pings, unread",
                5,
                slow,
                |_| frame(PING, 0, 0, &[0; 8]).repeat(1000),
                50,
            )
        },
        Flood {
            reads_responses: false,
            ..inside(
                "settings, unread",
                5,
                slow,
                |_| frame(SETTINGS, 0, 0, b"").repeat(1000),
                50,
            )
        },
        inside(
            "priority and unknown frames",
            5,
            slow,
            |_| {
                [frame(2, 0, 1, &[0; 5]), frame(0x42, 0, 0, &[0; 16])]
                    .concat()
                    .repeat(500)
            },
            50,
        ),
        inside(
            "tiny DATA frames",
            10,
            slow,
            |n| match n {
                0 => frame(HEADERS, END_HEADERS, 1, POST),
                _ => frame(DATA, 0, 1, b"d").repeat(1000),
            },
            50,
        ),
        Flood {
            initial_bytes: || [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat(),
            ..inside(
                "zero windows",
                10,
                (ENDLESS_VIP, HTTP1),
                |n| frame(HEADERS, WHOLE_REQUEST_FLAGS, stream_id(n), GET),
                100,
            )
        },
        over_http1(
            "pipelining",
            20,
            slow,
            Vec::new,
            |_| b"GET / HTTP/1.1\r\nHost: web\r\n\r\n".repeat(500),
            20,
        ),
        over_http1(
            "chunk extensions",
            50,
            slow,
            || b"POST / HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
            |_| [&b"1;"[..], &[b'x'; 4000], b"\r\nd\r\n"].concat(),
            100,
        ),
        over_http1(
            "requests that wait, HTTP/1",
            400,
            slow,
            || b"GET / HTTP/1.1\r\nHost: web\r\n\r\n".to_vec(),
            |_| Vec::new(),
            0,
        ),
        inside(
            "requests that wait, HTTP/2",
            4,
            slow,
            |n| frame(HEADERS, WHOLE_REQUEST_FLAGS, stream_id(n), GET),
            100,
        ),
        over_http1(
            "upgrades that wait",
            200,
            slow,
            || WEBSOCKET.to_vec(),
            |_| Vec::new(),
            0,
        ),
        over_http1(
            "unread upgrades",
            200,
            (SWITCHING_VIP, HTTP1),
            || WEBSOCKET.to_vec(),
            // The data is not read either.
            |_| vec![b'd'; 16_000],
            4,
        ),
        Flood {
            connections: 18,
            ..over_http1(
                "unread tunnels",
                18 * 200,
                slow,
                // Bytes after a request wait for its response.
                || b"GET / HTTP/1.1\r\nHost: web\r\n\r\n".to_vec(),
                |_| vec![b'd'; 16_000],
                20,
            )
        },
        over_http1(
            "unread endpoints behind tunnels",
            200,
            (TUNNEL_VIP, TCP),
            Vec::new,
            |_| Vec::new(),
            0,
        ),
        Flood {
            connections: 20,
            ..over_http1("idle tunnels", 2000, slow, Vec::new, |_| Vec::new(), 0)
        },
        Flood {
            connections: 100,
            ..over_http1("idle connections", 100, slow, Vec::new, |_| Vec::new(), 0)
        },
        over_http1(
            "unread bytes, TCP",
            50,
            (HANGING_VIP, TCP),
            Vec::new,
            |_| vec![b'd'; 16_000],
            400,
        ),
    ]
}
