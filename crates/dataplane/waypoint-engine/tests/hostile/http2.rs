//! Tests of invalid HTTP/2 frames of clients, on the connection that carries tunnels and inside of a tunnel.

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use crate::{
    application::StrictServer,
    fixture::{HTTP1, HTTP2, TIMEOUT, World},
};

const VIP: &str = "10.0.0.1";
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// HPACK-encoded header sections: `GET` and `POST` are requests for `/` with the host `web`, `CONNECT` a CONNECT to the service.
pub(crate) const GET: &[u8] = b"\x82\x86\x84\x41\x03web";
pub(crate) const POST: &[u8] = b"\x83\x86\x84\x41\x03web";
const CONNECT: &[u8] = b"\x42\x07CONNECT\x41\x0b10.0.0.1:80";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Maximum growth of the process's memory during an attack, in bytes.
const MAX_MEMORY_GROWTH: u64 = 128 << 20;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Attack by HTTP/2 frames: an initial sequence, and then numbered repetitions until the connection is closed or enough
/// was sent.
struct Attack {
    description: &'static str,
    initial_frames: Vec<u8>,
    repeated_frames: fn(u32, &[u8]) -> Vec<u8>,
    repetitions: u32,
    /// Expected error code of the GOAWAY that ends the connection.
    expected_error: u32,
}

#[expect(clippy::too_many_lines, reason = "a table is as long as it is")]
fn attacks(request: &[u8]) -> Vec<Attack> {
    let nothing = |_: u32, _: &[u8]| Vec::new();
    let open = |flags| frame(HEADERS, flags, 1, request);
    let once = |what, first, ended_with| Attack {
        description: what,
        initial_frames: first,
        repeated_frames: nothing,
        repetitions: 0,
        expected_error: ended_with,
    };
    vec![
        Attack {
            description: "requests that are reset at once",
            initial_frames: Vec::new(),
            repeated_frames: |number, request| {
                let stream = number * 2 - 1;
                let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, request);
                [open, frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
            },
            repetitions: 100_000,
            expected_error: ENHANCE_YOUR_CALM,
        },
        Attack {
            description: "headers that never end",
            initial_frames: open(0),
            repeated_frames: |_, _| frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b"),
            repetitions: 100_000,
            expected_error: ENHANCE_YOUR_CALM,
        },
        Attack {
            description: "empty headers that never end",
            initial_frames: open(0),
            repeated_frames: |_, _| frame(CONTINUATION, 0, 1, b""),
            repetitions: 100_000,
            expected_error: ENHANCE_YOUR_CALM,
        },
        Attack {
            description: "data without bytes",
            initial_frames: open(END_HEADERS),
            repeated_frames: |_, _| frame(DATA, 0, 1, b""),
            repetitions: 100_000,
            expected_error: ENHANCE_YOUR_CALM,
        },
        once(
            "a window beyond 31 bits",
            frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
            FLOW_CONTROL_ERROR,
        ),
        once(
            "a window that grows by nothing",
            frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
            PROTOCOL_ERROR,
        ),
        once(
            "the end of a stream that was never opened",
            frame(RST_STREAM, 0, 5, &8u32.to_be_bytes()),
            PROTOCOL_ERROR,
        ),
        once(
            "data for a stream that was never opened",
            frame(DATA, 0, 5, b"a"),
            PROTOCOL_ERROR,
        ),
        once(
            "data for no stream",
            frame(DATA, 0, 0, b"a"),
            PROTOCOL_ERROR,
        ),
        once(
            "a stream with a server's number",
            frame(HEADERS, END_HEADERS | END_STREAM, 2, request),
            PROTOCOL_ERROR,
        ),
        once(
            "a continuation of nothing",
            frame(CONTINUATION, END_HEADERS, 1, request),
            PROTOCOL_ERROR,
        ),
        once(
            "a ping in the middle of headers",
            [open(0), frame(PING, 0, 0, &[0; 8])].concat(),
            PROTOCOL_ERROR,
        ),
        once(
            "an index that there is not in HPACK",
            frame(HEADERS, END_HEADERS, 1, b"\xff\xff\x7f"),
            // RFC 9113 requires COMPRESSION_ERROR; h2 does not distinguish the two.
            PROTOCOL_ERROR,
        ),
        once(
            "a table larger than was allowed",
            frame(HEADERS, END_HEADERS, 1, b"\x3f\xff\xff\xff\x7f\x82"),
            // RFC 9113 requires COMPRESSION_ERROR; h2 does not distinguish the two.
            PROTOCOL_ERROR,
        ),
        once(
            "a frame longer than was allowed",
            [&[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1][..], &[0; 64]].concat(),
            FRAME_SIZE_ERROR,
        ),
        once(
            "settings of half a parameter",
            frame(SETTINGS, 0, 0, b"abc"),
            // RFC 9113 requires FRAME_SIZE_ERROR.
            PROTOCOL_ERROR,
        ),
        once("a short ping", frame(PING, 0, 0, b"abc"), PROTOCOL_ERROR),
    ]
}

/// Response and errors that the waypoint has sent on an HTTP/2 connection.
#[derive(Debug, Default)]
pub(crate) struct ObservedFrames {
    pub(crate) goaway: Option<u32>,
    pub(crate) resets: Vec<(u32, u32)>,
    pub(crate) headers: usize,
    /// Whether the first header section begins with `:status: 200` (by its index in HPACK's static table).
    pub(crate) is_success: bool,
}

/// Reads HTTP/2 frames until `until` returns true or the connection ends.
pub(crate) async fn read_frames(
    mut io: impl AsyncRead + Unpin,
    until: impl Fn(&ObservedFrames) -> bool,
) -> ObservedFrames {
    let mut observed = ObservedFrames::default();
    loop {
        let mut head = [0; 9];
        if until(&observed) || io.read_exact(&mut head).await.is_err() {
            return observed;
        }
        let [a, b, c, kind, _, stream @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap();
        let mut payload = vec![0; length];
        if io.read_exact(&mut payload).await.is_err() {
            return observed;
        }
        let word = |from: usize| u32::from_be_bytes(payload[from..from + 4].try_into().unwrap());
        match kind {
            GOAWAY => observed.goaway = Some(word(4)),
            RST_STREAM => observed.resets.push((u32::from_be_bytes(stream), word(0))),
            HEADERS => {
                observed.is_success |= observed.headers == 0 && payload.first() == Some(&0x88);
                observed.headers += 1;
            }
            _ => {}
        }
    }
}

async fn run_attack<IO>(io: IO, request: &[u8], attack: &Attack) -> ObservedFrames
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (read, mut write) = tokio::io::split(io);
    let hearing = ambit_rt::spawn("listening", read_frames(read, |_| false));
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, b""), &attack.initial_frames].concat();
    let sending = async {
        write.write_all(&begin).await?;
        for number in 1..=attack.repetitions {
            write
                .write_all(&(attack.repeated_frames)(number, request))
                .await?;
            if hearing.is_finished() {
                break;
            }
            // Yields to the listener.
            tokio::task::yield_now().await;
        }
        write.flush().await
    };
    // The connection is expected to be closed.
    let _cut: std::io::Result<()> = timeout(TIMEOUT, sending).await.unwrap();
    timeout(TIMEOUT, hearing)
        .await
        .unwrap_or_else(|_| panic!("{} goes on for ever", attack.description))
        .unwrap()
}

/// Returns the resident memory of this process in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

async fn world() -> (World, StrictServer) {
    let (world, strict) = (World::new().await, StrictServer::start().await);
    world.serve("web", VIP, &[strict.address]);
    (world, strict)
}

#[tokio::test]
async fn invalid_frames_end_only_their_hbone_connection() {
    let (world, _application) = world().await;
    let other = world.client().await;
    let before = resident_bytes();
    for one in attacks(CONNECT) {
        let (connection, _) = world.open_tls().await;
        let observed = run_attack(connection, CONNECT, &one).await;
        assert_eq!(
            observed.goaway,
            Some(one.expected_error),
            "{}: {observed:?}",
            one.description
        );
        assert_eq!(other.get(VIP, HTTP1).await, 200, "{}", one.description);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < MAX_MEMORY_GROWTH, "{grown} bytes");
}

#[tokio::test]
async fn invalid_frames_in_a_tunnel_end_only_its_connection() {
    let (world, _application) = world().await;
    let client = world.client().await;
    let before = resident_bytes();
    for (number, one) in (0..).zip(attacks(GET)) {
        let tunnel = client.tunnel(VIP, HTTP2).await;
        let observed = run_attack(tunnel, GET, &one).await;
        assert_eq!(
            observed.goaway,
            Some(one.expected_error),
            "{}: {observed:?}",
            one.description
        );
        // On the same connection of tunnels.
        assert_eq!(client.get(VIP, HTTP1).await, 200, "{}", one.description);
        assert_eq!(
            world.rejected_count("http2"),
            number + 1,
            "{}",
            one.description
        );
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < MAX_MEMORY_GROWTH, "{grown} bytes");
}

/// Sends the connection preface and these bytes, and reads frames until `enough` returns true.
async fn send_and_read<IO>(
    io: IO,
    bytes: &[u8],
    enough: impl Fn(&ObservedFrames) -> bool,
) -> ObservedFrames
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (read, mut write) = tokio::io::split(io);
    let all = [PREFACE, &frame(SETTINGS, 0, 0, b""), bytes].concat();
    write.write_all(&all).await.unwrap();
    write.flush().await.unwrap();
    timeout(TIMEOUT, read_frames(read, enough))
        .await
        .expect("in vain")
}

#[tokio::test]
async fn excess_streams_are_refused_singly() {
    let (world, _application) = world().await;
    let opens = |request: &[u8]| -> Vec<u8> {
        let open = |number: u32| frame(HEADERS, END_HEADERS, number * 2 + 1, request);
        (0..300).flat_map(open).collect()
    };
    let refused = |observed: &ObservedFrames| {
        let refused = observed
            .resets
            .iter()
            .filter(|(_, code)| *code == REFUSED_STREAM);
        refused.count() >= 50
    };
    let (connection, _) = world.open_tls().await;
    let observed = send_and_read(connection, &opens(CONNECT), refused).await;
    assert!(
        refused(&observed) && observed.goaway.is_none(),
        "{observed:?}"
    );
    let client = world.client().await;
    let tunnel = client.tunnel(VIP, HTTP2).await;
    let observed = send_and_read(tunnel, &opens(GET), refused).await;
    assert!(
        refused(&observed) && observed.goaway.is_none(),
        "{observed:?}"
    );
    assert_eq!(client.get(VIP, HTTP1).await, 200);
}

#[tokio::test]
async fn headers_over_the_limit_end_only_their_stream() {
    let (world, _application) = world().await;
    // Seventy lines of a kilobyte each.
    let line = [&b"\x00\x01a\x7f\xf9\x07"[..], &[b'a'; 1144]].concat();
    let send = |request: &[u8]| {
        let mut bytes = frame(HEADERS, 0, 1, request);
        for _ in 0..5 {
            bytes.extend(frame(CONTINUATION, 0, 1, &line.repeat(14)));
        }
        bytes.extend(frame(CONTINUATION, END_HEADERS, 1, b""));
        bytes
    };
    let ended = |observed: &ObservedFrames| observed.headers > 0 || !observed.resets.is_empty();
    let (connection, _) = world.open_tls().await;
    let observed = send_and_read(connection, &send(CONNECT), ended).await;
    assert!(
        ended(&observed) && observed.goaway.is_none(),
        "{observed:?}"
    );
    let client = world.client().await;
    let tunnel = client.tunnel(VIP, HTTP2).await;
    let observed = send_and_read(tunnel, &send(GET), ended).await;
    assert!(
        ended(&observed) && observed.goaway.is_none(),
        "{observed:?}"
    );
    assert_eq!(client.get(VIP, HTTP1).await, 200);
}

#[tokio::test]
async fn unread_acknowledgements_delay_only_their_client() {
    let (world, _application) = world().await;
    let client = world.client().await;
    let before = resident_bytes();
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(50_000);
    let settings = frame(SETTINGS, 0, 0, b"").repeat(50_000);
    let mut held = Vec::new();
    for flood in [pings, settings] {
        let (mut connection, _) = world.open_tls().await;
        let mut tunnel = client.tunnel(VIP, HTTP2).await;
        let begin = [PREFACE, &frame(SETTINGS, 0, 0, b""), &flood].concat();
        let inside = begin.clone();
        held.push(ambit_rt::spawn_abortable("outside", async move {
            // Sends until the waypoint closes the connection, and never reads.
            let _cut = connection.write_all(&begin).await;
            std::future::pending::<()>().await;
        }));
        held.push(ambit_rt::spawn_abortable("inside", async move {
            let _cut = tunnel.write_all(&inside).await;
            std::future::pending::<()>().await;
        }));
        for _ in 0..20 {
            assert_eq!(client.get(VIP, HTTP1).await, 200);
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < MAX_MEMORY_GROWTH, "{grown} bytes");
}
