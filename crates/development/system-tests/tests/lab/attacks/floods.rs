//! Tests that the requests of one pod cost a waypoint a bounded number of bytes, and others are still served: a
//! megabyte of HPACK indexes, which would expand to hundreds of megabytes of headers, is rejected beyond the pod's
//! budget.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::SocketAddr,
};

use ambit_lab::LogSource;
use ambit_system_tests::{EchoConnection, Mesh, options, wait_until, with_waypoint_options};

/// Number of the attacker's connections, each with the maximum number of concurrent requests.
const CONNECTIONS: usize = 20;
const REQUESTS: u32 = 100;
/// Memory limit of the waypoint's process, in bytes.
const MEMORY_LIMIT: u64 = 256 << 20;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns requests whose headers repeat `times` an entry of HPACK's dynamic table, which the first request adds.
fn repeat_header(field: &[u8], times: usize) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, b""));
    for number in 0..REQUESTS {
        let mut block = b"\x82\x86\x84\x01\x06server".to_vec();
        if number == 0 {
            block.extend(field);
        }
        block.extend(vec![0x80 | 62; times]);
        bytes.extend(frame(1, 5, number * 2 + 1, &block));
    }
    bytes
}

/// Returns the resident memory in bytes of the largest of the waypoint's processes.
fn resident_bytes() -> u64 {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let of_waypoint = processes.filter_map(|process| {
        let path = process.path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let environment = fs::read(path.join("environ")).ok()?;
        let is_ours = environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == format!("AMBIT_MEMORY_LIMIT={MEMORY_LIMIT}").as_bytes());
        if !name.starts_with("ambit-waypoint") || !is_ours {
            return None;
        }
        let statm = fs::read_to_string(path.join("statm")).ok()?;
        statm.split(' ').nth(1)?.parse::<u64>().ok()
    });
    of_waypoint.max().expect("a waypoint") * 4096
}

/// Starts a mesh whose waypoint has the memory limit [`MEMORY_LIMIT`].
fn with_limited_waypoint() -> Mesh {
    let mut options = options();
    let limit = MEMORY_LIMIT.to_string();
    options.env.insert("AMBIT_MEMORY_LIMIT".to_owned(), limit);
    with_waypoint_options("", options).0
}

fn is_served(mesh: &Mesh) -> bool {
    mesh.get("shop/client", "http://server.shop/").succeeded()
}

#[test]
fn indexed_headers_cost_a_waypoint_bounded_memory() {
    let mesh = with_limited_waypoint();
    // The application reads the start of a request, and never responds.
    mesh.serve_connections("shop/server", 8081, |mut stream| {
        let _read = stream.read(&mut [0; 1024])?;
        loop {
            std::thread::park();
        }
    });
    let server = SocketAddr::new(mesh.ip("shop/server"), 8081);
    let before = resident_bytes();
    let fields: [(&[u8], usize); 3] = [
        (&[&b"\x40\x01a\x7f\xbd\x1d"[..], &[b'v'; 3900]].concat(), 15),
        (b"\x40\x01a\x00", 1900),
        (b"\x40\x06cookie\x03a=b", 1500),
    ];
    let mut held: Vec<EchoConnection> = Vec::new();
    for number in 0..CONNECTIONS {
        let (field, times) = fields[number % fields.len()];
        let mut connection = mesh.dial("legacy/client", server).unwrap();
        let bytes = repeat_header(field, times);
        // The server's settings frame arrives in any case.
        let _received = connection.send_raw(&bytes, |received| !received.is_empty());
        held.push(connection);
        assert!(is_served(&mesh), "after {number} connections");
    }
    wait_until("requests are refused as overload", || {
        let log = LogSource::Pod {
            pod: "shop/waypoint".into(),
            container: None,
        };
        mesh.client().log_text(log).unwrap().contains(" 503 OM ")
    });
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < MEMORY_LIMIT / 2, "{grown} bytes");
}

/// WebSocket upgrade request.
const UPGRADE: &[u8] = b"GET /socket HTTP/1.1\r\nHost: server\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const UPGRADE_RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// Number of upgraded connections from which the client does not read: more than one caller's memory budget allows.
const UPGRADED_CONNECTIONS: usize = 600;

#[test]
fn unread_websockets_behind_tunnels_cost_bounded_memory() {
    let mesh = with_limited_waypoint();
    mesh.serve_connections("shop/server", 8081, |mut stream| {
        let _read = stream.read(&mut [0; 1024])?;
        stream.write_all(UPGRADE_RESPONSE)?;
        loop {
            stream.write_all(&[0; 16 << 10])?;
        }
    });
    let server = SocketAddr::new(mesh.ip("shop/server"), 8081);
    let before = resident_bytes();
    let mut held: Vec<EchoConnection> = Vec::new();
    for _ in 0..UPGRADED_CONNECTIONS {
        let mut connection = mesh.dial("legacy/client", server).unwrap();
        let received = connection.send_raw(UPGRADE, |received| received.contains("\r\n\r\n"));
        if !received.is_ok_and(|received| received.contains(" 101 ")) {
            break;
        }
        held.push(connection);
    }
    let switched = held.len();
    assert!(
        (10..UPGRADED_CONNECTIONS).contains(&switched),
        "{switched} have switched"
    );
    assert!(is_served(&mesh));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < MEMORY_LIMIT / 2, "{grown} bytes");
}
