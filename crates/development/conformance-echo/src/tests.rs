use std::net::SocketAddr;

use clap::Parser;
use tokio::net::TcpListener;

use crate::{client, server};

async fn start_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(server::serve(listener, None));
    address
}

async fn run_client(args: &[&str]) -> String {
    let args = client::Args::parse_from([&["client"], args].concat());
    client::run(&args).await.unwrap()
}

/// Returns the value of a field as the conformance suite parses it: the text after the field's name in the first line
/// that contains the name.
fn field<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = output.split_once(&format!("{name}="))?;
    rest.lines().next()
}

#[tokio::test]
async fn response_describes_the_request_for_the_suite() {
    let address = start_server().await;
    let output = run_client(&[
        &format!("http://{address}/one?two=three"),
        "--method=DELETE",
        "-H",
        "Host:echo-v1",
        "-H",
        "X-Header-Add:a",
        "-H",
        "X-Header-Add:b",
    ])
    .await;
    for (name, value) in [
        ("StatusCode", "200"),
        ("Host", "echo-v1"),
        ("URL", "/one?two=three"),
        ("Method", "DELETE"),
        ("Proto", "HTTP/1.1"),
        ("IP", "127.0.0.1"),
    ] {
        assert_eq!(field(&output, name), Some(value), "{output}");
    }
    for line in [
        "RequestHeader=x-header-add:a",
        "RequestHeader=x-header-add:b",
        "ResponseHeader=content-type:text/plain",
    ] {
        assert!(
            output.lines().any(|found| found.ends_with(line)),
            "{output}"
        );
    }
    assert!(!field(&output, "Hostname").unwrap().is_empty(), "{output}");
}

#[tokio::test]
async fn responses_are_separated_by_an_empty_line() {
    let address = start_server().await;
    for scheme in ["http", "grpc"] {
        let output = run_client(&[&format!("{scheme}://{address}"), "--count=3"]).await;
        let answers: Vec<_> = output.split("\n\n").collect();
        assert_eq!(answers.len(), 3, "{output}");
        for answer in answers {
            assert_eq!(field(answer, "StatusCode"), Some("200"), "{output}");
            assert!(field(answer, "Hostname").is_some(), "{output}");
        }
    }
}

#[tokio::test]
async fn grpc_call_keeps_its_headers() {
    let address = start_server().await;
    let output = run_client(&[&format!("grpc://{address}"), "-H", "x-one:1"]).await;
    assert_eq!(field(&output, "Proto"), Some("HTTP/2.0"), "{output}");
    assert_eq!(
        field(&output, "URL"),
        Some(crate::grpc::ECHO_METHOD_PATH),
        "{output}"
    );
    assert!(output.contains("RequestHeader=x-one:1\n"), "{output}");
}
