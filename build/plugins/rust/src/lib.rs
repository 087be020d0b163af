//! WasmPlugin for the system tests, which uses every part of the SDK. The path of a request selects the action; results
//! are added to the request's headers, which the application echoes.

mod streams;

use std::time::Duration;

use proxy_wasm::{
    hostcalls,
    traits::{Context, HttpContext, RootContext},
    types::{Action, ContextType, LogLevel, MetricType, Status},
};
use streams::TickStream;

/// Upstream of HTTP calls: the service of the test.
const HTTP: &str = "many.shop.svc.cluster.local:80";
const GRPC: &str = "outbound|81||many.shop.svc.cluster.local";

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| -> Box<dyn RootContext> { Box::<Root>::default() });
}}

/// State that all requests of an instance share.
#[derive(Default)]
struct Root {
    configuration: String,
    requests: u32,
    status: u32,
    sizes: u32,
    queue: u32,
    ticks: TickStream,
}

impl Context for Root {
    fn on_grpc_stream_message(&mut self, token: u32, size: usize) {
        let message = self.get_grpc_stream_message(0, size).unwrap_or_default();
        self.ticks.on_message(token, &message);
        add("told", 1);
    }

    fn on_grpc_stream_close(&mut self, token: u32, _: u32) {
        self.ticks.on_close(token);
    }
}

impl RootContext for Root {
    fn on_vm_start(&mut self, _: usize) -> bool {
        self.set_tick_period(Duration::from_millis(20));
        std::env::var("GREETING").is_ok_and(|greeting| greeting == "hello")
    }

    fn on_configure(&mut self, _: usize) -> bool {
        let configuration = self.get_plugin_configuration().unwrap_or_default();
        self.configuration = String::from_utf8(configuration).unwrap_or_default();
        let define = |kind, name| hostcalls::define_metric(kind, name).unwrap_or_default();
        self.requests = define(MetricType::Counter, "rust.requests");
        self.status = define(MetricType::Gauge, "rust.status");
        self.sizes = define(MetricType::Histogram, "rust.sizes");
        self.queue = self.register_shared_queue("words");
        self.ticks.open(GRPC);
        !self.configuration.contains("refuse")
    }

    fn on_tick(&mut self) {
        add("ticks", 1);
        self.ticks.tick();
    }

    fn on_queue_ready(&mut self, queue: u32) {
        while let Ok(Some(word)) = self.dequeue_shared_queue(queue) {
            let _set = self.set_shared_data("word", Some(&word), None);
        }
    }

    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request {
            configuration: self.configuration.clone(),
            requests: self.requests,
            status: self.status,
            sizes: self.sizes,
            queue: self.queue,
            path: String::new(),
            stream: 0,
            heard: Vec::new(),
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Request {
    configuration: String,
    requests: u32,
    status: u32,
    sizes: u32,
    queue: u32,
    path: String,
    /// Token of the gRPC stream.
    stream: u32,
    /// Messages received on the gRPC stream.
    heard: Vec<u8>,
}

/// Adds to a number that all instances share, and retries until no other instance has changed it meanwhile.
fn add(key: &str, by: u64) -> u64 {
    loop {
        let (old, version) = hostcalls::get_shared_data(key).unwrap_or_default();
        let old = old.and_then(|old| String::from_utf8(old).ok());
        let new = old
            .and_then(|old| old.parse::<u64>().ok())
            .unwrap_or_default()
            + by;
        let text = new.to_string();
        match hostcalls::set_shared_data(key, Some(text.as_bytes()), version) {
            Ok(()) => return new,
            Err(Status::CasMismatch) => {}
            Err(_) => return 0,
        }
    }
}

impl Request {
    fn property(&self, path: &[&str]) -> String {
        let value = self.get_property(path.to_vec()).unwrap_or_default();
        String::from_utf8_lossy(&value).into_owned()
    }

    fn shared(&self, key: &str) -> String {
        let (value, _) = self.get_shared_data(key);
        String::from_utf8_lossy(&value.unwrap_or_default()).into_owned()
    }

    fn note(&self, name: &str, value: &str) {
        self.add_http_request_header(name, value);
    }
}

impl Context for Request {
    fn on_http_call_response(&mut self, _: u32, _: usize, size: usize, _: usize) {
        let status = self.get_http_call_response_header(":status");
        let body = self
            .get_http_call_response_body(0, size)
            .unwrap_or_default();
        let body = String::from_utf8_lossy(&body);
        if status.as_deref() == Some("200") && body.starts_with("GET /asked ") {
            self.note("x-called", "200");
            self.resume_http_request();
        } else {
            self.send_http_response(
                401,
                vec![("x-why", "unanswered")],
                Some(b"nobody answers\n"),
            );
        }
    }

    fn on_grpc_call_response(&mut self, _: u32, status: u32, size: usize) {
        let message = self
            .get_grpc_call_response_body(0, size)
            .unwrap_or_default();
        self.note("x-status", &status.to_string());
        self.note("x-message", &String::from_utf8_lossy(&message));
        self.resume_http_request();
    }

    fn on_grpc_stream_initial_metadata(&mut self, _: u32, _: u32) {
        let value = self.get_grpc_stream_initial_metadata_value("x-began");
        self.note(
            "x-began",
            &String::from_utf8_lossy(&value.unwrap_or_default()),
        );
    }

    fn on_grpc_stream_message(&mut self, token: u32, size: usize) {
        let message = self.get_grpc_stream_message(0, size).unwrap_or_default();
        self.heard.extend(message);
        if self.heard == b"one" {
            self.send_grpc_stream_message(token, Some(b"two"), false);
        } else if self.path == "/cancel" {
            self.cancel_grpc_stream(token);
            self.note("x-heard", &String::from_utf8_lossy(&self.heard));
            self.resume_http_request();
        } else {
            self.close_grpc_stream(token);
        }
    }

    fn on_grpc_stream_trailing_metadata(&mut self, _: u32, _: u32) {
        let value = self.get_grpc_stream_trailing_metadata_value("grpc-status");
        self.note(
            "x-trailer",
            &String::from_utf8_lossy(&value.unwrap_or_default()),
        );
    }

    fn on_grpc_stream_close(&mut self, token: u32, status: u32) {
        assert_eq!(token, self.stream, "another stream");
        self.note("x-heard", &String::from_utf8_lossy(&self.heard));
        self.note("x-status", &status.to_string());
        self.resume_http_request();
    }
}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, count: usize, is_end: bool) -> Action {
        assert_eq!(
            count,
            self.get_http_request_headers().len(),
            "headers are counted"
        );
        let _counted = hostcalls::increment_metric(self.requests, 1);
        let _set = hostcalls::record_metric(self.status, count as u64);
        let _recorded = hostcalls::record_metric(self.sizes, count as u64);
        self.path = self.get_http_request_header(":path").unwrap_or_default();
        match self.path.as_str() {
            "/headers" => {
                self.set_http_request_header("x-removed", None);
                self.set_http_request_header("x-replaced", Some("anew"));
                self.note("x-added", &self.configuration);
                self.note("x-added", "twice");
                self.set_http_request_header(":path", Some("/elsewhere"));
            }
            "/properties" => {
                self.set_property(vec!["own"], Some(b"kept"));
                for path in [
                    &["own"][..],
                    &["plugin_name"],
                    &["plugin_root_id"],
                    &["source", "principal"],
                    &["request", "method"],
                    &["request", "headers", "host"],
                ] {
                    self.note(
                        &format!("x-{}", path.join("-").replace('_', "-")),
                        &self.property(path),
                    );
                }
                let port = self
                    .get_property(vec!["destination", "port"])
                    .unwrap_or_default();
                let port = port.try_into().map(i64::from_le_bytes).unwrap_or_default();
                self.note("x-port", &port.to_string());
            }
            "/shared" => {
                self.note("x-number", &add("number", 1).to_string());
                self.note("x-ticks", &self.shared("ticks"));
                self.note("x-word", &self.shared("word"));
                self.note("x-told", &self.shared("told"));
                let _queued = self.enqueue_shared_queue(self.queue, Some(b"said"));
            }
            "/http" | "/nobody" => {
                let upstream = if self.path == "/http" {
                    HTTP
                } else {
                    "nobody.shop:80"
                };
                let asked = vec![
                    (":method", "GET"),
                    (":path", "/asked"),
                    (":authority", "asked"),
                ];
                let call =
                    self.dispatch_http_call(upstream, asked, None, vec![], Duration::from_secs(5));
                return call.map_or(Action::Continue, |_| Action::Pause);
            }
            "/grpc" | "/failing" => {
                let method = if self.path == "/grpc" { "0" } else { "7" };
                let call = self.dispatch_grpc_call(
                    GRPC,
                    "test.Echo",
                    method,
                    vec![],
                    Some(b"a message"),
                    Duration::from_secs(5),
                );
                return call.map_or(Action::Continue, |_| Action::Pause);
            }
            "/stream" | "/cancel" => {
                let metadata = vec![("x-asked", &b"by a plugin"[..])];
                let Ok(stream) = self.open_grpc_stream(GRPC, "test.Echo", "0", metadata) else {
                    return Action::Continue;
                };
                self.stream = stream;
                self.send_grpc_stream_message(stream, Some(b"one"), false);
                return Action::Pause;
            }
            "/answer" => {
                self.send_http_response(418, vec![("x-by", "rust")], Some(b"a teapot\n"));
                return Action::Pause;
            }
            "/body" if !is_end => {
                self.set_http_request_header("content-length", None);
            }
            "/panic" => panic!("as it was asked to"),
            _ => {}
        }
        Action::Continue
    }

    fn on_http_request_body(&mut self, size: usize, is_end: bool) -> Action {
        if self.path != "/body" {
            return Action::Continue;
        }
        if !is_end {
            return Action::Pause;
        }
        let body = self.get_http_request_body(0, size).unwrap_or_default();
        let shouted = body.to_ascii_uppercase();
        self.set_http_request_body(0, size, &shouted);
        // A size of 0 at the end of the body appends.
        self.set_http_request_body(shouted.len(), 0, b"!");
        Action::Continue
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.add_http_request_trailer("x-request-trailer", "rust");
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        self.add_http_response_header("x-response", "rust");
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, is_end: bool) -> Action {
        if self.path == "/body" && is_end {
            self.set_http_response_body(size, 0, b" and more");
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        let heard = self
            .get_http_response_trailer("x-heard")
            .unwrap_or_default();
        self.set_http_response_trailer("x-heard", Some(&format!("{heard} by rust")));
        Action::Continue
    }
}
