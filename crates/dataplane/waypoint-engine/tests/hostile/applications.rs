//! Tests of applications that use parts of HTTP which proxies often break: old versions, early and interim responses,
//! trailers.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use ambit_model::{
    DestinationHttpVersion, DestinationPolicy, NamespacedHostname, WaypointDestination,
    WaypointRecord,
};
use ambit_testkit::build;
use ambit_xds::WaypointUpdate;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    application::{read_request_head, run_scripted_server},
    fixture::{HTTP1, HTTP2, TIMEOUT, World, read_response, record_name},
};

const VIP: &str = "10.0.0.1";

/// Reads from a stream until the received bytes contain this text.
async fn read_until(stream: &mut (impl tokio::io::AsyncRead + Unpin), text: &str) -> String {
    let mut seen = Vec::new();
    while !seen.ends_with(text.as_bytes()) {
        let byte = timeout(TIMEOUT, stream.read_u8()).await;
        match byte {
            Ok(Ok(byte)) => seen.push(byte),
            ended => panic!("{:?}, then {ended:?}", String::from_utf8_lossy(&seen)),
        }
    }
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn clients_get_the_waypoints_version_and_keep_their_connection() {
    let world = World::new().await;
    let (application, _) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        let response = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nold";
        let _gone = stream.write_all(response).await;
    })
    .await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    for _ in 0..3 {
        let request = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
        tunnel.write_all(request).await.unwrap();
        let response = read_until(&mut tunnel, "\r\n0\r\n\r\n").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(response.contains("\r\n3\r\nold\r\n"), "{response}");
        assert!(!response.contains("close"), "{response}");
    }
    let request = b"GET / HTTP/1.0\r\nHost: web\r\n\r\n";
    let reply = world.client().await.send_bytes(VIP, HTTP1, request).await;
    assert!(reply.text().starts_with("HTTP/1.0 200 OK\r\n"), "{reply:?}");
    assert!(reply.text().ends_with("\r\n\r\nold"), "{reply:?}");
}

#[tokio::test]
async fn response_to_an_unread_upload_reaches_the_client() {
    let world = World::new().await;
    let (application, _) = run_scripted_server(|_, mut stream: TcpStream| async move {
        read_request_head(&mut stream).await;
        // The application never reads the request body: the connection is reset right after the response.
        let response = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge";
        let _gone = stream.write_all(response).await;
    })
    .await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    let mut lost = Vec::new();
    for number in 0..200 {
        let tunnel = client.tunnel(VIP, HTTP1).await;
        let (mut reading, mut writing) = tokio::io::split(tunnel);
        let upload = ambit_rt::spawn("upload", async move {
            let head = b"PUT / HTTP/1.1\r\nHost: web\r\nContent-Length: 1073741824\r\n\r\n";
            let mut sent = writing.write_all(head).await;
            let part = vec![b'a'; 64 << 10];
            for _ in 0..64 {
                if sent.is_err() {
                    break;
                }
                sent = writing.write_all(&part).await;
            }
            writing
        });
        let mut bytes = vec![0; 4096];
        let mut response = Vec::new();
        while !response.ends_with(b"large") {
            match timeout(TIMEOUT, reading.read(&mut bytes)).await.unwrap() {
                Ok(read @ 1..) => response.extend_from_slice(&bytes[..read]),
                Ok(0) | Err(_) => break,
            }
        }
        let response = String::from_utf8_lossy(&response).into_owned();
        if !response.starts_with("HTTP/1.1 413 ") || !response.ends_with("large") {
            lost.push((number, response));
        }
        drop(upload);
    }
    assert!(lost.is_empty(), "{} of 200: {:?}", lost.len(), lost[0]);
}

#[tokio::test]
async fn interim_responses_are_forwarded_before_the_final_one() {
    let world = World::new().await;
    let (application, _) = run_scripted_server(|_, mut stream| async move {
        loop {
            read_request_head(&mut stream).await;
            let hints = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\
                Connection: x-hop\r\nX-Hop: 1\r\nx-envoy-peer-metadata: no\r\n\r\n";
            if stream.write_all(hints.as_bytes()).await.is_err() {
                return;
            }
            // The client signals that it has received them.
            read_request_head(&mut stream).await;
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            if stream.write_all(response).await.is_err() {
                return;
            }
        }
    })
    .await;
    world.serve("web", VIP, &[application]);
    let client = world.client().await;
    let mut tunnel = client.tunnel(VIP, HTTP1).await;
    for _ in 0..3 {
        let request = b"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\n\r\n";
        tunnel.write_all(request).await.unwrap();
        let interim = read_until(&mut tunnel, "103 Early Hints\r\nlink: </a>\r\n\r\n").await;
        assert!(
            interim.starts_with("HTTP/1.1 102 Processing\r\n\r\n"),
            "{interim}"
        );
        tunnel.write_all(b"\r\n\r\n").await.unwrap();
        let response = read_until(&mut tunnel, "\r\n\r\nok").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    }
    // HTTP/1.0 clients do not know interim responses.
    let request = b"POST / HTTP/1.0\r\nHost: web\r\nContent-Length: 4\r\n\r\n\r\n\r\n";
    let reply = client.send_bytes(VIP, HTTP1, request).await;
    assert!(reply.text().starts_with("HTTP/1.0 200 OK\r\n"), "{reply:?}");
}

#[tokio::test]
async fn expectations_are_forwarded_to_the_application() {
    let world = World::new().await;
    let uploaded = Arc::new(AtomicUsize::new(0));
    let counted = uploaded.clone();
    let (application, _) = run_scripted_server(move |_, mut stream| {
        let counted = counted.clone();
        async move {
            let asked = read_until(&mut stream, "\r\n\r\n").await;
            assert!(
                asked.to_lowercase().contains("expect: 100-continue"),
                "{asked}"
            );
            let (response, reads) = match asked.split(' ').nth(1).unwrap() {
                "/wanted" => (&b"HTTP/1.1 100 Continue\r\n\r\n"[..], true),
                "/too-large" => (
                    &b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"[..],
                    false,
                ),
                "/failed" => (
                    &b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"[..],
                    false,
                ),
                _ => (&b""[..], true),
            };
            stream.write_all(response).await.unwrap();
            if reads {
                read_until(&mut stream, "body").await;
                let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(response).await.unwrap();
            }
            // The application stops with the connection.
            while let Ok(1..) = stream.read(&mut [0; 64]).await {
                counted.fetch_add(1, Relaxed);
            }
        }
    })
    .await;
    world.serve("web", VIP, &[application]);
    for (path, expected) in [
        ("/wanted", 200),
        // An application that ignores the expectation receives the body after a timeout.
        ("/unknown", 200),
        ("/too-large", 413),
        ("/failed", 417),
    ] {
        let mut tunnel = world.client().await.tunnel(VIP, HTTP1).await;
        let request = format!(
            "PUT {path} HTTP/1.1\r\nHost: web\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        );
        tunnel.write_all(request.as_bytes()).await.unwrap();
        let response = read_until(&mut tunnel, "\r\n\r\n").await;
        if expected == 200 {
            assert_eq!(response, "HTTP/1.1 100 Continue\r\n\r\n", "{path}");
            tunnel.write_all(b"body").await.unwrap();
            let response = read_until(&mut tunnel, "\r\n\r\n").await;
            assert!(response.starts_with("HTTP/1.1 200 "), "{path}: {response}");
        } else {
            let status = format!("HTTP/1.1 {expected} ");
            assert!(response.starts_with(&status), "{path}: {response}");
            // A body sent now comes after the response; the application does not receive it.
            let _closed = tunnel.write_all(b"body").await;
            let _closed = tunnel.shutdown().await;
            read_response(tunnel).await;
        }
    }
    assert_eq!(uploaded.load(Relaxed), 0);
}

#[tokio::test]
async fn trailers_are_forwarded_regardless_of_te_and_trailer() {
    let world = World::new().await;
    let (application, _) = run_scripted_server(|_, mut stream| async move {
        loop {
            let asked = read_until(&mut stream, "\r\n0\r\nx-sum: 2\r\n\r\n").await;
            if asked.is_empty() {
                return;
            }
            let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                5\r\n0\r\n\r\n\r\n2\r\nok\r\n0\r\nGrpc-Status: 0\r\nX-Sum: 1\r\nX-Sum: 2\r\nContent-Length: 9\r\n\r\n";
            if stream.write_all(response.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await;
    world.serve("web", VIP, &[application]);
    let mut tunnel = world.client().await.tunnel(VIP, HTTP1).await;
    for more in ["", "TE: trailers\r\n", "Trailer: x-sum\r\n"] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: web\r\n{more}Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 2\r\n\r\n"
        );
        tunnel.write_all(request.as_bytes()).await.unwrap();
        let end = "0\r\ngrpc-status: 0\r\nx-sum: 1\r\nx-sum: 2\r\n\r\n";
        let response = read_until(&mut tunnel, end).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(
            response.contains("\r\n5\r\n0\r\n\r\n\r\n2\r\nok\r\n0\r\n"),
            "{response}"
        );
    }
}

#[tokio::test]
async fn limits_of_header_sections_are_settings_and_named_in_refusals() {
    let settings = [
        ("AMBIT_MAX_HEADERS", "150"),
        ("AMBIT_MAX_HEADER_BYTES", "98304"),
    ];
    let world = World::with_env(&settings).await;
    let (application, _) = run_scripted_server(|_, mut stream| async move {
        loop {
            let asked = read_until(&mut stream, "\r\n\r\n").await;
            // The path gives the number of fields.
            let path = asked.split(' ').nth(1).unwrap_or_default();
            let fields: usize = path.trim_start_matches('/').parse().unwrap_or_default();
            let fields = "X: a\r\n".repeat(fields);
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n");
            if stream.write_all(response.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await;
    world.serve("web", VIP, &[application]);
    let request = |path: &str, fields: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n{fields}\r\n")
    };
    let long = |bytes: usize| format!("Y: {}\r\n", "a".repeat(bytes));
    for (path, fields, status, name) in [
        ("/0", "X: a\r\n".repeat(140), 200, ""),
        ("/0", "X: a\r\n".repeat(160), 431, "AMBIT_MAX_HEADERS"),
        ("/0", long(90 << 10), 200, ""),
        ("/0", long(100 << 10), 431, "AMBIT_MAX_HEADER_BYTES"),
        ("/140", String::new(), 200, ""),
        ("/160", String::new(), 502, "AMBIT_MAX_HEADERS"),
    ] {
        let client = world.client().await;
        let reply = client
            .send_bytes(VIP, HTTP1, request(path, &fields).as_bytes())
            .await;
        let what = format!("{path}, {} bytes: {:.400}", fields.len(), reply.text());
        assert_eq!(reply.statuses(), [status], "{what}");
        assert!(reply.text().contains(name), "{what}");
    }
}

#[tokio::test]
async fn endpoints_are_called_by_the_clients_address_family() {
    let world = World::with_env(&[("AMBIT_WILDCARD_ADDRESSES", "127.0.0.0/8,::1")]).await;
    let listener = tokio::net::TcpListener::bind("[::1]:0").await.unwrap();
    let application = listener.local_addr().unwrap();
    ambit_rt::spawn("application", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            read_request_head(&mut stream).await;
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _gone = stream.write_all(response).await;
        }
    });
    world.serve_dual_stack(
        "web",
        [VIP, "fd00::1"],
        ["127.0.7.250", "::1"],
        application.port(),
    );
    let client = world.client().await;
    assert_eq!(client.get("[fd00::1]", HTTP1).await, 200);
    assert_eq!(client.get(VIP, HTTP1).await, 503);
}

#[tokio::test]
async fn destination_rules_choose_the_upstream_http_version() {
    let world = World::new().await;
    let (tell, mut telemetry) = tokio::sync::mpsc::unbounded_channel();
    let (application, _) = run_scripted_server(move |_, mut stream| {
        let tell = tell.clone();
        async move {
            let mut first = [0; 3];
            let _cut = stream.read_exact(&mut first).await;
            let _over = tell.send(first);
        }
    })
    .await;
    world.serve("web", VIP, &[application]);
    let service = NamespacedHostname::new("ns", build::service("web", &[], &[]).hostname);
    for (http_version, port, expected) in [
        (DestinationHttpVersion::AsDeclared, HTTP1, b"GET"),
        (DestinationHttpVersion::AsDeclared, HTTP2, b"PRI"),
        (DestinationHttpVersion::AsClient, HTTP2, b"GET"),
        (DestinationHttpVersion::AlwaysHttp2, HTTP1, b"PRI"),
    ] {
        let rule = WaypointDestination {
            policy: DestinationPolicy {
                http_version,
                ..DestinationPolicy::default()
            },
            ..WaypointDestination::without_policy(service.clone())
        };
        world.publish(WaypointUpdate::Upserted(
            record_name("web"),
            WaypointRecord::from(rule),
        ));
        world.client().await.get(VIP, port).await;
        let first = timeout(TIMEOUT, telemetry.recv()).await.unwrap().unwrap();
        assert_eq!(&first, expected, "{http_version:?} at {port}");
        while telemetry.try_recv().is_ok() {}
    }
}

#[tokio::test]
async fn response_names_an_application_of_another_http_version() {
    let world = World::new().await;
    let (of_http2, _) = run_scripted_server(|_, mut stream| async move {
        read_request_head(&mut stream).await;
        // SETTINGS, as a server of HTTP/2 would send them.
        let _gone = stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await;
        let _read = stream.read(&mut [0; 1024]).await;
    })
    .await;
    let (of_http1, _) = run_scripted_server(|_, mut stream| async move {
        let _read = stream.read(&mut [0; 24]).await;
        let response = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        let _gone = stream.write_all(response).await;
        let _read = stream.read(&mut [0; 1024]).await;
    })
    .await;
    world.serve("new", VIP, &[of_http2]);
    world.serve("old", "10.0.0.2", &[of_http1]);
    let client = world.client().await;
    let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    for (vip, port, advice) in [
        (VIP, HTTP1, "declare appProtocol (grpc, kubernetes.io/h2c)"),
        ("10.0.0.2", HTTP2, "declare appProtocol http"),
    ] {
        let reply = client.send_bytes(vip, port, request).await;
        let text = reply.text();
        assert!(text.starts_with("HTTP/1.1 502 "), "{advice}: {text}");
        assert!(text.contains(advice), "{advice}: {text}");
    }
}
