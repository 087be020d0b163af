//! Tests of identity headers, forged by clients and applications in every spelling and position.

use ambit_model::{
    HttpAction, HttpAttribute, HttpCondition, HttpPolicy, HttpRule, HttpValue, PolicyKey,
    StringMatch, WaypointGateway, WaypointRecord,
};
use ambit_xds::WaypointUpdate;
use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use tokio::io::AsyncWriteExt;

use crate::{
    application::{ReceivedRequest, StrictServer, read_request_head, run_scripted_server},
    fixture::{Client, HTTP1, World, record_name},
};

const VIP: &str = "10.0.0.1";

/// Names of headers that only proxies of the mesh may send.
const MESH_ONLY_HEADERS: &[&str] = &[
    "client-cert",
    "client-cert-chain",
    "x-forwarded-client-cert",
    "x-ambit-original-peer",
    "x-ambit-waypoints-passed",
    "x-ambit-anything",
    "x-envoy-internal",
    "x-envoy-external-address",
    "x-envoy-peer-metadata-id",
];

/// Names of headers that clients may send, but not with underscores for hyphens: CGI-style applications read both as
/// the same variable.
const FORWARDING_HEADERS: &[&str] = &[
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
];

async fn world() -> (World, StrictServer) {
    let (world, strict) = (World::new().await, StrictServer::start().await);
    world.serve("web", VIP, &[strict.address]);
    (world, strict)
}

/// Returns the single request that the application has received, as text.
fn received_request(application: &mut StrictServer) -> String {
    match &application.received()[..] {
        [ReceivedRequest::Complete { head, trailers, .. }] => {
            format!("{head}{}", trailers.join("\n"))
        }
        other => panic!("{other:?}"),
    }
}

fn spellings(name: &str) -> [String; 3] {
    [
        name.to_owned(),
        name.replace('-', "_"),
        name.replacen('-', "_", 1),
    ]
}

async fn connect_http2(client: &Client) -> SendRequest<Bytes> {
    let tunnel = client.tunnel(VIP, HTTP1).await;
    let (requests, connection) = h2::client::handshake(tunnel).await.unwrap();
    ambit_rt::spawn("client", async move {
        // The connection ends with the test.
        let _ended = connection.await;
    });
    requests.ready().await.unwrap()
}

/// Sends an HTTP/2 request with these headers and trailers.
async fn send_request(
    requests: &SendRequest<Bytes>,
    headers: &[(&str, &str)],
    trailers: &[(&str, &str)],
) {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = "http://web/".parse().unwrap();
    let lines = |lines: &[(&str, &str)]| {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        map
    };
    *request.headers_mut() = lines(headers);
    for (name, _) in trailers {
        let name = HeaderValue::from_str(name).unwrap();
        request.headers_mut().append("trailer", name);
    }
    let mut requests = requests.clone().ready().await.unwrap();
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    body.send_data("x".into(), false).unwrap();
    body.send_trailers(lines(trailers)).unwrap();
    assert_eq!(answer.await.unwrap().status(), 200);
}

#[tokio::test]
async fn forged_identity_headers_never_reach_the_application() {
    let (world, mut application) = world().await;
    let client = world.client().await;
    let requests = connect_http2(&client).await;
    let mut reached = Vec::new();
    for spelling in MESH_ONLY_HEADERS.iter().flat_map(|name| spellings(name)) {
        let post = "POST / HTTP/1.1\r\nHost: web\r\nConnection: close";
        let chunks = "Transfer-Encoding: chunked\r\n";
        let rest = format!(
            "Trailer: {spelling}, x-kept\r\n\r\n1\r\nx\r\n0\r\n{spelling}: forged\r\nx-kept: 1\r\n\r\n"
        );
        let cases = [
            ("header", format!("{post}\r\n{spelling}: forged\r\n\r\n")),
            (
                "listed",
                format!("{post}, {spelling}\r\n{spelling}: forged\r\n\r\n"),
            ),
            ("trailer", format!("{post}\r\n{chunks}{rest}")),
        ];
        for (place, bytes) in cases {
            let response = client.send_bytes(VIP, HTTP1, bytes.as_bytes()).await;
            assert_eq!(
                response.statuses(),
                [200],
                "{spelling} as {place}: {response:?}"
            );
            let got = received_request(&mut application);
            if got.contains("forged") {
                reached.push(format!("{spelling} as {place}"));
            }
            // Other trailers are forwarded.
            assert_eq!(got.contains("x-kept: 1"), place == "trailer", "{got}");
        }
        let forged = [(spelling.as_str(), "forged")];
        send_request(&requests, &forged, &[]).await;
        if received_request(&mut application).contains("forged") {
            reached.push(format!("{spelling} as header of HTTP/2"));
        }
        send_request(&requests, &[], &forged).await;
        if received_request(&mut application).contains("forged") {
            reached.push(format!("{spelling} as trailer of HTTP/2"));
        }
    }
    for name in ["content_length", "transfer_encoding", "keep_alive"] {
        send_request(&requests, &[(name, "7")], &[]).await;
        let got = received_request(&mut application);
        if got.contains(name) {
            reached.push(name.to_owned());
        }
    }
    for name in FORWARDING_HEADERS {
        let requests = connect_http2(&client).await;
        send_request(
            &requests,
            &[(&name.replace('-', "_"), "forged")],
            &[(name, "forged")],
        )
        .await;
        if received_request(&mut application).contains("forged") {
            reached.push((*name).to_owned());
        }
    }
    assert!(reached.is_empty(), "{}", reached.join("\n"));
}

#[tokio::test]
async fn client_cert_header_is_only_the_waypoints() {
    let (world, mut application) = world().await;
    world.publish(WaypointUpdate::Upserted(
        "gw".into(),
        WaypointRecord::from(WaypointGateway {
            client_identity_header: true,
            ..WaypointGateway::default()
        }),
    ));
    let client = world.client().await;
    let forged = "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nX-Forwarded-Client-Cert: forged\r\n\
        X_Forwarded_Client_Cert: forged\r\nX-Real-IP: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n\r\n";
    let response = client.send_bytes(VIP, HTTP1, forged.as_bytes()).await;
    assert_eq!(response.statuses(), [200]);
    let got = received_request(&mut application);
    let is_claim = |line: &&str| {
        line.replace('_', "-")
            .starts_with("x-forwarded-client-cert")
    };
    let claims: Vec<_> = got.lines().filter(is_claim).collect();
    let [claim] = claims[..] else {
        panic!("{claims:?}")
    };
    assert!(claim.ends_with("/ns/ns/sa/client"), "{claim}");
    // Address headers of a client pass unchanged, as in Istio; no policy relies on them.
    for passed in ["x-real-ip: 192.0.2.1", "forwarded: for=192.0.2.1"] {
        assert!(got.contains(passed), "{got}");
    }
}

#[tokio::test]
async fn trailers_cannot_have_fields_that_policies_read() {
    let (world, mut application) = world().await;
    let client = world.client().await;
    let request =
        b"POST / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
        Trailer: x-role, x_role\r\n\r\n1\r\nx\r\n0\r\nx-role: root\r\nx_role: root\r\n\r\n";
    client.send_bytes(VIP, HTTP1, request).await;
    assert_eq!(
        received_request(&mut application)
            .matches("role: root")
            .count(),
        2
    );
    let condition = HttpCondition {
        attribute: HttpAttribute::Header("x-role".into()),
        values: vec![HttpValue::Text(StringMatch::Exact("root".into()))],
        not_values: Vec::new(),
    };
    let policy = HttpPolicy {
        key: PolicyKey::from_resource_name("ns/role"),
        for_gateway: true,
        action: HttpAction::Deny,
        rules: vec![HttpRule {
            conditions: vec![condition],
            ..HttpRule::default()
        }],
        ..HttpPolicy::default()
    };
    world.publish(WaypointUpdate::Upserted(
        record_name("role"),
        WaypointRecord::from(policy),
    ));
    let response = client.send_bytes(VIP, HTTP1, request).await;
    assert_eq!(response.statuses(), [200]);
    assert!(!received_request(&mut application).contains("root"));
}

#[tokio::test]
async fn split_cookies_reach_the_application_as_one_line() {
    let (world, mut application) = world().await;
    let requests = connect_http2(&world.client().await).await;
    let crumbs = [
        ("cookie", "a=1"),
        ("x-other", "1"),
        ("cookie", "b=2"),
        ("cookie", "c=3"),
    ];
    send_request(&requests, &crumbs, &[]).await;
    let got = received_request(&mut application);
    let cookies: Vec<_> = got
        .lines()
        .filter(|line| line.starts_with("cookie"))
        .collect();
    assert_eq!(cookies, ["cookie: a=1; b=2; c=3"]);
}

#[tokio::test]
async fn proxy_headers_of_applications_are_removed() {
    let world = World::new().await;
    let lines: String = MESH_ONLY_HEADERS
        .iter()
        .flat_map(|name| spellings(name))
        .map(|name| format!("{name}: forged\r\n"))
        .collect();
    let answer = format!("HTTP/1.1 200 OK\r\n{lines}x-version: 1\r\ncontent-length: 0\r\n\r\n");
    let (address, _) = run_scripted_server(move |_, mut stream| {
        let answer = answer.clone();
        async move {
            read_request_head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    world.serve("web", VIP, &[address]);
    let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let response = world
        .client()
        .await
        .send_bytes(VIP, HTTP1, request)
        .await
        .text();
    assert!(
        response.contains("x-version: 1") && !response.contains("forged"),
        "{response}"
    );
}
