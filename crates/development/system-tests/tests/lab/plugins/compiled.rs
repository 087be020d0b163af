//! Tests of plugins compiled from Rust and from Go with published SDKs (`build/plugins`): requests
//! and responses of an application show the plugin's callbacks and effects.

use std::io;

use ambit_system_tests::{LabNetns, wait_until};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use crate::plugins::scene::PluginFixture;

const RUST_PLUGIN: &str = "plugin-rust.wasm";
const GO_PLUGIN: &str = "plugin-go.wasm";
const VM_CONFIG: &str = "vmConfig: {env: [{name: GREETING, value: hello}]}";

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: many\r\n{headers}\r\n")
}

impl PluginFixture {
    fn with_plugin(program: &str, more: &str) -> Self {
        let scene = Self::new();
        scene.install_compiled_module("compiled", program);
        scene.apply_plugin(
            "compiled",
            &format!("pluginConfig: {{team: bank}}\n  {VM_CONFIG}\n  {more}"),
        );
        let mut last = String::new();
        wait_until("the plugin runs", || {
            last = scene.send(&get("/headers", ""));
            last.contains("{\"team\":\"bank\"}")
        });
        scene
    }

    fn wait_for_response(
        &self,
        what: &str,
        request: &str,
        expected: impl Fn(&str) -> bool,
    ) -> String {
        let mut last = String::new();
        wait_until(what, || {
            last = self.send(request);
            expected(&last)
        });
        last
    }

    /// Serves gRPC in the application's pod: echoes each message; the `grpc-status` is the last segment of the path.
    fn serve_grpc(&self) {
        self.mesh.serve_connections("shop/a", 8091, |stream| {
            stream.set_nonblocking(true)?;
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build()?.block_on(async {
                let stream = tokio::net::TcpStream::from_std(stream)?;
                echo(stream).await.map_err(io::Error::other)
            })
        });
    }
}

impl PluginFixture {
    /// Sends a request with trailers, and returns the trailers of the response.
    fn send_trailers(&self) -> HeaderMap {
        let place = LabNetns::Pod("shop/client".into());
        let service = self.mesh.service_address("many.shop.svc", 81);
        let stream = self.mesh.client().dial(place, service).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let (client, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let request = http::Request::post("http://many/test.Echo/0")
                .header("content-type", "application/grpc")
                .header("te", "trailers");
            let mut ready = client.ready().await.unwrap();
            let (answer, mut send) = ready
                .send_request(request.body(()).unwrap(), false)
                .unwrap();
            send.send_data(Bytes::from_static(b"\0\0\0\0\x02hi"), false)
                .unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-client-trailer", HeaderValue::from_static("1"));
            send.send_trailers(trailers).unwrap();
            let mut body = answer.await.unwrap().into_body();
            while let Some(data) = body.data().await {
                let length = data.unwrap().len();
                body.flow_control().release_capacity(length).unwrap();
            }
            body.trailers().await.unwrap().unwrap()
        })
    }
}

async fn echo(stream: tokio::net::TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request?;
        tokio::spawn(async move {
            let status = request.uri().path().rsplit('/').next().unwrap().to_owned();
            let asked = request.headers().get("x-asked").cloned();
            let began = asked.unwrap_or_else(|| HeaderValue::from_static("not asked"));
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_str(&status).unwrap());
            let response = Response::builder()
                .header("content-type", "application/grpc")
                .header("x-began", began);
            let mut send = respond
                .send_response(response.body(()).unwrap(), false)
                .unwrap();
            let mut body = request.into_body();
            while let Some(Ok(data)) = body.data().await {
                body.flow_control().release_capacity(data.len()).unwrap();
                // A failing call returns only the status.
                if status != "7" && send.send_data(data, false).is_err() {
                    return;
                }
            }
            if let Ok(Some(names)) = body.trailers().await {
                let names = names.keys().map(|name| name.as_str()).collect::<Vec<_>>();
                trailers.insert("x-heard", HeaderValue::from_str(&names.join(" ")).unwrap());
            }
            // The client may have disconnected.
            let _sent = send.send_trailers(trailers);
        });
    }
    Ok(())
}

#[test]
fn rust_plugin_changes_heads_bodies_and_trailers() {
    let scene = PluginFixture::with_plugin(RUST_PLUGIN, "pluginName: root");
    let answer = scene.send(&get("/headers", "x-removed: 1\r\nx-replaced: before\r\n"));
    assert!(answer.contains("GET /elsewhere HTTP/1.1"), "{answer}");
    for there in [
        "x-added: {\"team\":\"bank\"}\r\n",
        "x-added: twice\r\n",
        "x-replaced: anew\r\n",
        "x-response: rust\r\n",
    ] {
        assert!(answer.contains(there), "{there}{answer}");
    }
    assert!(
        !answer.contains("x-removed") && !answer.contains("before"),
        "{answer}"
    );
    let answer = scene.send(&get("/properties", ""));
    for there in [
        "x-own: kept\r\n",
        "x-plugin-name: shop/compiled\r\n",
        "x-plugin-root-id: root\r\n",
        "x-source-principal: spiffe://cluster.local/ns/shop/sa/",
        "x-request-method: GET\r\n",
        "x-port: 80\r\n",
    ] {
        assert!(answer.contains(there), "{there}{answer}");
    }
    // The plugin holds the whole body, whatever its pieces, and the body is framed anew.
    let chunked = "POST /body HTTP/1.1\r\nHost: many\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n";
    let answer = scene.send(chunked);
    assert!(
        answer.contains("HELLO, WORLD") && answer.contains(" and more"),
        "{answer}"
    );
    let whole = "POST /body HTTP/1.1\r\nHost: many\r\nContent-Length: 5\r\n\r\nhello";
    let answer = scene.send(whole);
    assert!(
        answer.contains("HELLO!") && answer.contains(" and more"),
        "{answer}"
    );
    let answer = scene.send(&get("/answer", ""));
    assert!(
        answer.contains(" 418 ") && answer.contains("x-by: rust") && answer.contains("a teapot"),
        "{answer}"
    );
    scene.serve_grpc();
    let trailers = scene.send_trailers();
    assert_eq!(
        trailers["x-heard"],
        "x-client-trailer x-request-trailer by rust"
    );
}

#[test]
fn rust_plugin_uses_metrics_shared_data_queues_and_ticks() {
    let scene = PluginFixture::with_plugin(RUST_PLUGIN, "");
    // Each of the waypoint's workers has an instance, and they share the counter.
    let number = |answer: &str| -> Option<u64> {
        let (_, rest) = answer.split_once("x-number: ")?;
        rest.lines().next()?.parse().ok()
    };
    let before = number(&scene.send(&get("/shared", ""))).unwrap();
    for more in 1..10 {
        let now = number(&scene.send(&get("/shared", "")));
        assert_eq!(now, Some(before + more));
    }
    scene.wait_for_response(
        "a message went through the queue",
        &get("/shared", ""),
        |answer| answer.contains("x-word: said\r\n"),
    );
    scene.wait_for_response("the timer woke it", &get("/shared", ""), |answer| {
        !answer.contains("x-ticks: \r\n")
    });
    let metrics = scene.metrics();
    for there in [
        "envoy_wasmcustom_rust_requests_total{plugin=\"shop/compiled\"}",
        "envoy_wasmcustom_rust_status{plugin=\"shop/compiled\"}",
        "envoy_wasmcustom_rust_sizes_count{plugin=\"shop/compiled\"}",
    ] {
        assert!(metrics.contains(there), "{there}\n{metrics}");
    }
    // A panic ends the instance, and its requests; the next instance takes over.
    let answer = scene.send(&get("/panic", ""));
    assert!(answer.contains(" 503 "), "{answer}");
    scene.wait_for_response("it runs again", &get("/headers", ""), |answer| {
        answer.contains(" 200 ")
    });
    // The plugin itself refuses to start.
    scene.apply_plugin(
        "compiled",
        &format!("pluginConfig: {{refuse: all}}\n  {VM_CONFIG}"),
    );
    scene.wait_for_response(
        "it refuses its configuration",
        &get("/headers", ""),
        |answer| answer.contains(" 503 "),
    );
}

#[test]
fn rust_plugin_calls_services() {
    let scene = PluginFixture::with_plugin(RUST_PLUGIN, "");
    scene.serve_grpc();
    let answer = scene.send(&get("/http", ""));
    assert!(answer.contains("x-called: 200\r\n"), "{answer}");
    let answer = scene.send(&get("/nobody", ""));
    assert!(
        answer.contains(" 401 ") && answer.contains("x-why: unanswered"),
        "{answer}"
    );
    let answer = scene.send(&get("/grpc", ""));
    assert!(
        answer.contains("x-status: 0\r\n") && answer.contains("x-message: a message\r\n"),
        "{answer}"
    );
    let answer = scene.send(&get("/failing", ""));
    assert!(answer.contains("x-status: 7\r\n"), "{answer}");
}

#[test]
fn rust_plugin_uses_grpc_streams() {
    let scene = PluginFixture::with_plugin(RUST_PLUGIN, "");
    scene.serve_grpc();
    let answer = scene.send(&get("/stream", ""));
    for there in [
        "x-began: by a plugin\r\n",
        "x-heard: onetwo\r\n",
        "x-trailer: 0\r\n",
        "x-status: 0\r\n",
    ] {
        assert!(answer.contains(there), "{there}{answer}");
    }
    let answer = scene.send(&get("/cancel", ""));
    assert!(
        answer.contains("x-heard: onetwo\r\n") && !answer.contains("x-status"),
        "{answer}"
    );
    // A stream that belongs to no request continues.
    let until_counted = |least: u64| {
        scene.wait_for_response(
            "the plugin is told of answers",
            &get("/shared", ""),
            |answer| {
                let count = answer.split_once("x-told: ").map(|(_, rest)| rest);
                let count = count.and_then(|rest| rest.lines().next()?.parse::<u64>().ok());
                count.is_some_and(|count| count > least)
            },
        );
    };
    until_counted(0);
    until_counted(10);
}

#[test]
fn go_plugin_runs_with_the_wasi_calls_of_its_runtime() {
    let scene = PluginFixture::new();
    scene.install_compiled_module("compiled", GO_PLUGIN);
    scene.apply_plugin(
        "compiled",
        &format!("pluginConfig: {{team: bank}}\n  {VM_CONFIG}"),
    );
    let answer = scene.wait_for_response("the plugin runs", &get("/headers", ""), |answer| {
        answer.contains("x-go: {\"team\":\"bank\"}")
    });
    for there in [
        "x-environment: hello\r\n",
        "x-slept: xxxtrue\r\n",
        "x-namespace: shop\r\n",
    ] {
        assert!(answer.contains(there), "{there}{answer}");
    }
    scene.wait_for_response("the timer woke it", &get("/headers", ""), |answer| {
        answer.contains("x-ticks: ") && !answer.contains("x-ticks: 0\r\n")
    });
    let body = "POST /body HTTP/1.1\r\nHost: many\r\nContent-Length: 5\r\n\r\nhello";
    let answer = scene.send(body);
    assert!(answer.contains("HELLO!"), "{answer}");
    let answer = scene.send(&get("/call", ""));
    assert!(answer.contains("x-called: true\r\n"), "{answer}");
    let answer = scene.send(&get("/answer", ""));
    assert!(
        answer.contains(" 418 ") && answer.contains("x-by: go"),
        "{answer}"
    );
    assert!(
        scene
            .metrics()
            .contains("envoy_wasmcustom_go_requests_total"),
        "the metric"
    );
    let answer = scene.send(&get("/panic", ""));
    assert!(answer.contains(" 503 "), "{answer}");
    scene.wait_for_response("it runs again", &get("/headers", ""), |answer| {
        answer.contains(" 200 ")
    });
    assert!(!std::path::Path::new("/tmp/written-by-a-plugin").exists());
    assert!(scene.waypoint_log().contains("a line that go writes"));
}

#[test]
fn published_filters_run_unchanged() {
    let scene = PluginFixture::new();
    for name in ["http-headers", "http-body", "http-config"] {
        scene.install_compiled_module(name, &format!("published-{name}.wasm"));
        scene.apply_plugin(name, "pluginConfig: {by: others}");
    }
    let tag = "custom-header: {\"by\":\"others\"}\r\n";
    let plain = scene.wait_for_response("the last one runs", &get("/x", ""), |answer| {
        answer.contains(tag)
    });
    assert!(plain.contains("GET /x HTTP/1.1"), "{plain}");
    // A local response replaces the application's one completely.
    let secret = get("/x", "x-note: a secret\r\n");
    let redacted = scene.wait_for_response("the second one runs", &secret, |answer| {
        answer.contains("Original message body (") && answer.contains(" bytes) redacted.")
    });
    assert!(!redacted.contains("secret"), "{redacted}");
    let answered = scene.wait_for_response("the first one runs", &get("/hello", ""), |answer| {
        answer.contains("Hello, World!")
    });
    for there in [
        tag,
        " 200 ",
        "hello: World\r\n",
        "powered-by: proxy-wasm\r\n",
    ] {
        assert!(answered.contains(there), "{there}{answered}");
    }
}
