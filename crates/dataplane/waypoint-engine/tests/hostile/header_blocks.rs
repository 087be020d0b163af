//! Tests of HTTP/2 header blocks without end, inside of a tunnel: their connection ends after the timeout of HTTP/1
//! header sections.

use ambit_testkit::wait_until;
use tokio::io::AsyncWriteExt;

use crate::{
    application::StrictServer,
    fixture::{HTTP1, World, read_response},
    http2::{
        CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, HEADERS, POST, PREFACE, SETTINGS, frame,
    },
};

const VIP: &str = "10.0.0.1";

#[tokio::test]
async fn endless_header_block_ends_its_connection() {
    let world = World::with_env(&[("AMBIT_REQUEST_HEADERS_TIMEOUT", "1s")]).await;
    let application = StrictServer::start().await;
    world.serve("web", VIP, &[application.address]);
    let client = world.client().await;
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat();
    // A connection that is idle after a request, and one with an unfinished body.
    let mut quiet = client.tunnel(VIP, HTTP1).await;
    let whole = frame(HEADERS, END_HEADERS | END_STREAM, 1, GET);
    quiet
        .write_all(&[&begin[..], &whole].concat())
        .await
        .unwrap();
    let mut body = client.tunnel(VIP, HTTP1).await;
    let open = frame(HEADERS, END_HEADERS, 1, POST);
    body.write_all(&[&begin[..], &open].concat()).await.unwrap();
    let unfinished: [(&str, Vec<u8>); 4] = [
        ("no CONTINUATION", frame(HEADERS, END_STREAM, 1, GET)),
        (
            "half of a frame",
            frame(HEADERS, END_HEADERS, 1, GET)[..12].to_vec(),
        ),
        (
            "a CONTINUATION that is not the last",
            [
                frame(HEADERS, 0, 1, GET),
                frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b"),
            ]
            .concat(),
        ),
        (
            "trailers after a whole request",
            [
                open,
                frame(DATA, 0, 1, b"d"),
                frame(HEADERS, END_STREAM, 1, b"\x00\x01a\x01b"),
            ]
            .concat(),
        ),
    ];
    for (number, (what, bytes)) in (1..).zip(unfinished) {
        let mut slow = client.tunnel(VIP, HTTP1).await;
        slow.write_all(&[&begin[..], &bytes].concat())
            .await
            .unwrap();
        let _said = read_response(slow).await;
        wait_until(what, || world.rejected_count("headers_too_slow") == number).await;
    }
    // Both connections are still served.
    let again = frame(HEADERS, END_HEADERS | END_STREAM, 3, GET);
    quiet.write_all(&again).await.unwrap();
    let rest = frame(DATA, END_STREAM, 1, b"bc");
    body.write_all(&rest).await.unwrap();
    wait_until("all are answered", || {
        world.request_count_with(200, "-") == 3
    })
    .await;
}
