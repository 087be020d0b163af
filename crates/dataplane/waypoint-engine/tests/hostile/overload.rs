//! Tests of requests that exceed a memory budget, and of messages with too many fields: they are rejected and counted,
//! and their memory is released once their client has disconnected.

use ambit_testkit::wait_until;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    application::{StrictServer, read_request_head, run_scripted_server},
    fixture::{HTTP1, HTTP2, World, log_lines_about},
    http2::{END_HEADERS, END_STREAM, GET, HEADERS, PREFACE, SETTINGS, frame},
};

const VIP: &str = "10.0.0.1";
const HANGING_VIP: &str = "10.0.0.2";
const WHOLE_REQUEST_FLAGS: u8 = END_HEADERS | END_STREAM;

/// Memory limit of the waypoint: half of it is the process's budget, and the requests on one connection may use up to an
/// eighth.
const MEMORY_LIMIT: (&str, &str) = ("AMBIT_MEMORY_LIMIT", "67108864");

async fn never_respond(_: usize, mut stream: TcpStream) {
    read_request_head(&mut stream).await;
    std::future::pending::<()>().await;
}

/// Encodes a request in which a field occurs `times` times. The first request of a connection adds the field to HPACK's
/// dynamic table, and others refer to it.
fn amplified_request(number: u32, field: &[u8], times: usize) -> Vec<u8> {
    let mut block = b"\x82\x86\x84\x01\x03web".to_vec();
    if number == 0 {
        block.extend(field);
    }
    block.extend(vec![0x80 | 62; times]);
    frame(HEADERS, WHOLE_REQUEST_FLAGS, number * 2 + 1, &block)
}

#[tokio::test]
async fn requests_without_room_get_503_and_leave_nothing_behind() {
    let world = World::with_env(&[MEMORY_LIMIT]).await;
    let strict = StrictServer::start().await;
    world.serve("web", VIP, &[strict.address]);
    world.serve(
        "hangs",
        HANGING_VIP,
        &[run_scripted_server(never_respond).await.0],
    );
    let other = world.client().await;
    let attacker = world.attacker().await.unwrap();
    let mut tunnels = Vec::new();
    for _ in 0..8 {
        tunnels.push(attacker.tunnel(HANGING_VIP, HTTP1).await);
    }
    for tunnel in &mut tunnels {
        let begin = [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat();
        // A name of one byte and a value of 3,900 bytes: 15 of them reach the limit of header sections.
        let field = [&b"\x40\x01a\x7f\xbd\x1d"[..], &[b'v'; 3900]].concat();
        let requests = (0..100).flat_map(|number| amplified_request(number, &field, 15));
        let all: Vec<u8> = begin.into_iter().chain(requests).collect();
        tunnel.write_all(&all).await.unwrap();
    }
    wait_until("all that have no room are refused", || {
        world.rejected_count("memory_budget_connection") > 0
            && world.rejected_count("memory_budget_caller") > 0
    })
    .await;
    let (held, process) = world.memory_budget();
    assert!(held <= process / 2, "{held} bytes");
    assert!(world.request_count_with(503, "OM") > 0);
    let logged = log_lines_about(attacker.address);
    let refused = logged.iter().filter(|line| line.contains(" 503 OM "));
    assert!(refused.count() > 0, "{:?}", logged.first());
    for of in ["connection", "caller"] {
        let labels = ["reason=\"headers\"", &format!("scope=\"{of}\"")];
        assert!(world.metric_sum("ambit_memory_budget_refused_total", &labels) > 0);
    }
    for _ in 0..20 {
        assert_eq!(other.get(VIP, HTTP1).await, 200);
    }
    drop((tunnels, attacker, other));
    wait_until("all is given back", || world.memory_budget().0 == 0).await;
}

#[tokio::test]
async fn too_many_fields_of_http2_get_431_and_cookies_count_as_one() {
    let world = World::new().await;
    let strict = StrictServer::start().await;
    world.serve("web", VIP, &[strict.address]);
    let client = world.client().await;
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat();
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    let many = amplified_request(0, b"\x40\x01a\x01v", 150);
    let whole = frame(HEADERS, WHOLE_REQUEST_FLAGS, 3, GET);
    tunnel
        .write_all(&[&begin[..], &many, &whole].concat())
        .await
        .unwrap();
    wait_until("it is refused", || {
        world.request_count_with(431, "DPE") == 1
    })
    .await;
    assert_eq!(world.rejected_count("headers_too_many"), 1);
    // Other requests of its connection continue.
    wait_until("the next one is answered", || {
        world.request_count_with(200, "-") == 1
    })
    .await;
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    let cookies = amplified_request(0, b"\x40\x06cookie\x03a=b", 150);
    tunnel
        .write_all(&[&begin[..], &cookies].concat())
        .await
        .unwrap();
    wait_until("cookies are one field", || {
        world.request_count_with(200, "-") == 2 || world.rejected_count("headers_too_many") == 2
    })
    .await;
    assert_eq!(world.rejected_count("headers_too_many"), 1);
}

#[tokio::test]
async fn too_many_fields_of_a_response_are_a_bad_gateway() {
    let world = World::new().await;
    let (application, _) = run_scripted_server(|_, stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_request, mut respond))) = connection.accept().await {
            let mut response = http::Response::new(());
            for number in 0..150 {
                response.headers_mut().append("a", number.into());
            }
            // The client may have gone.
            let _gone = respond.send_response(response, true);
        }
    })
    .await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP2).await;
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat();
    let request = frame(HEADERS, WHOLE_REQUEST_FLAGS, 1, GET);
    tunnel
        .write_all(&[&begin[..], &request].concat())
        .await
        .unwrap();
    wait_until("it is answered", || {
        world.request_count_with(502, "UPE") == 1
    })
    .await;
}
