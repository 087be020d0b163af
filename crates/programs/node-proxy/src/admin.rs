//! The admin, metrics and readiness servers' answers.

use std::sync::Arc;

use ambit_rt::{
    Readiness, ShutdownTrigger,
    http::{Request, Response, json_pretty, method_not_allowed, not_found, respond, text},
    logging::LogHandle,
};
use http::Method;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::{
    config_dump::{DumpExtras, config_dump},
    pod::Proxy,
    pods::Served,
};

const HOME: &str = "<!doctype html><title>Ambit node proxy</title><h1>Ambit node proxy</h1><ul>\
<li><a href=/config_dump>/config_dump</a>: workloads, services, policies, certificates, connections\
<li>/logging: POST with ?level=debug or ?level=info,name=debug or ?reset; without query shows it\
<li>/quitquitquit: POST ends the process in order</ul>\n";

/// What the admin server answers from.
#[derive(Debug)]
pub struct Admin {
    /// The process's parts.
    pub proxy: Arc<Proxy>,
    /// The pods served.
    pub served: Served,
    /// Log levels; none when logging was set up by somebody else.
    pub logs: Option<LogHandle>,
    /// Ends the process.
    pub quit: ShutdownTrigger,
    /// What a local file gave, if the mesh comes from one.
    pub static_config: Value,
}

impl Admin {
    /// Answers a request to the admin port.
    pub fn respond(&self, request: &Request) -> Response {
        match (request.uri().path(), request.method()) {
            ("/", &Method::GET) => respond(200, "text/html; charset=utf-8", HOME),
            ("/config_dump", &Method::GET) => self.dump(),
            ("/config_dump" | "/", _) => method_not_allowed("GET"),
            ("/logging", _) => match &self.logs {
                Some(logs) => logs.respond(request),
                None => text(503, "logging is not under this server's control\n"),
            },
            ("/quitquitquit", &Method::POST) => {
                self.quit.shut_down("/quitquitquit");
                text(200, "shutdown now\n")
            }
            ("/quitquitquit", _) => method_not_allowed("POST"),
            ("/workload_state", &Method::GET) => json_pretty(200, &self.served.dump()),
            _ => not_found(),
        }
    }

    fn dump(&self) -> Response {
        let certificates = serde_json::to_value(self.proxy.certificates.dump());
        let config = serde_json::to_value(&self.proxy.config);
        let (Ok(certificates), Ok(config)) = (certificates, config) else {
            return text(500, "the configuration cannot be written\n");
        };
        let extras = DumpExtras {
            version: version(),
            config,
            certificates,
            workload_state: self.served.dump(),
            static_config: self.static_config.clone(),
        };
        match config_dump(&self.proxy.state, &extras) {
            Ok(body) => respond(200, "application/json", body),
            Err(error) => text(500, format!("the state cannot be written: {error}\n")),
        }
    }
}

/// Answers a request to the metrics port.
pub fn respond_metrics(registry: &Registry, request: &Request) -> Response {
    ambit_rt::metrics::serve_metrics(registry, request)
}

/// Answers a request to the readiness port.
pub fn respond_readiness(readiness: &Readiness, request: &Request) -> Response {
    readiness.respond(request)
}

/// What this build is.
pub fn version() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "gitRevision": option_env!("AMBIT_GIT_REVISION").unwrap_or("unknown"),
        "rustVersion": env!("CARGO_PKG_RUST_VERSION"),
        "buildProfile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "buildStatus": "Clean",
        "istioVersion": "unknown",
        "cryptoProvider": "aws-lc-rs",
    })
}
