//! Admin, metrics and readiness servers of a proxy, and the server of flow events for the control plane.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use ::http::Method;
use ambit_certificates::Certificates;
use ambit_mesh_json::explain::EXPLAIN_PATH;
use ambit_rt::{
    DrainWatcher, Readiness, ShutdownTrigger,
    http::{
        self, Listen, Request, Response, ServerOptions, json_pretty, method_not_allowed, not_found,
        respond, text,
    },
    logging::LogHandle,
    metrics::serve_metrics,
};
use ambit_telemetry::{Flows, ReaderKind};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    config_dump::{DumpExtras, config_dump},
    explain::ExplainHandler,
    flow_listener::{self, FlowAccess},
    flow_stream,
    state::SharedState,
};

/// Interval at which binding a port is retried while the previous proxy process still holds it.
const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum concurrent connections on which the control plane reads flow events: each control plane replica opens
/// several for each of its readers.
const MAX_FLOW_CONNECTIONS: usize = 32;

/// Builds `workloadState` of `/config_dump`: the program's own view of its local workloads.
type WorkloadStateBuilder = Box<dyn Fn() -> Value + Send + Sync>;

/// Callback that serves additional admin pages of one program; `None` if it does not know the request's path.
pub type ExtraPages = Box<dyn Fn(&Request) -> Option<Response> + Send + Sync>;

/// Handler of the admin server, with the data that its pages show.
pub struct Admin {
    /// Name of the program, as the admin pages display it.
    pub title: &'static str,
    /// Mesh state for `/config_dump`.
    pub state: SharedState,
    /// Certificates of the proxy.
    pub certificates: Certificates,
    /// Configuration of the proxy, for `/config_dump`.
    pub config: Value,
    /// Builds `workloadState` of `/config_dump`.
    pub workload_state: WorkloadStateBuilder,
    /// Handler of `POST /explain`, which predicts the handling of a connection or request.
    pub explain_handler: ExplainHandler,
    /// Handle that reads and sets log levels; `None` when another program has set up logging.
    pub log_handle: Option<LogHandle>,
    /// Trigger that shuts the process down.
    pub shutdown_trigger: ShutdownTrigger,
    /// Content of the local xDS file (`LOCAL_XDS_PATH`), for `/config_dump`.
    pub static_config: Value,
    /// Hub of flow events and their readers.
    pub flows: Arc<Flows>,
    /// Identities of both sides of the flow event server for the control plane; `None` turns that server off.
    pub flow_access: Option<FlowAccess>,
    /// Additional pages of the program, which take precedence over the common ones.
    pub extra_pages: Option<ExtraPages>,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin")
            .field("title", &self.title)
            .finish_non_exhaustive()
    }
}

impl Admin {
    /// Responds to a request to the admin port.
    pub async fn respond(&self, request: &Request) -> Response {
        if let Some(response) = self.extra_pages.as_ref().and_then(|pages| pages(request)) {
            return response;
        }
        match (request.uri().path(), request.method()) {
            (EXPLAIN_PATH, &Method::POST) => (self.explain_handler)(request.body().clone()).await,
            (EXPLAIN_PATH, _) => method_not_allowed("POST"),
            ("/", &Method::GET) => respond(200, "text/html; charset=utf-8", self.home_page()),
            ("/config_dump", &Method::GET) => self.config_dump_response(),
            ("/flows", &Method::GET) => {
                flow_stream::respond(&self.flows, ReaderKind::Admin, request)
            }
            ("/config_dump" | "/" | "/flows", _) => method_not_allowed("GET"),
            ("/logging", _) => match &self.log_handle {
                Some(logs) => logs.respond(request),
                None => text(503, "logging is not under this server's control\n"),
            },
            ("/quitquitquit", &Method::POST) => {
                self.shutdown_trigger.shut_down("/quitquitquit");
                text(200, "shutdown now\n")
            }
            ("/quitquitquit", _) => method_not_allowed("POST"),
            ("/workload_state", &Method::GET) => json_pretty(200, &(self.workload_state)()),
            _ => not_found(),
        }
    }

    fn home_page(&self) -> String {
        let title = self.title;
        format!(
            "<!doctype html><title>{title}</title><h1>{title}</h1><ul>\
             <li><a href=/config_dump>/config_dump</a>: workloads, services, policies, certificates, connections\
             <li>/flows: connections and requests as they happen, a JSON object a line; ?refused, plaintext, from, to, namespace\
             <li>/explain: POST with a query as JSON, as `ambit explain` does\
             <li>/logging: POST with ?level=debug or ?level=info,name=debug or ?reset; without query shows it\
             <li>/quitquitquit: POST ends the process in order</ul>\n"
        )
    }

    fn config_dump_response(&self) -> Response {
        let Ok(certificates) = serde_json::to_value(self.certificates.dump()) else {
            return text(500, "the certificates cannot be written\n");
        };
        let extras = DumpExtras {
            version: version(),
            config: self.config.clone(),
            certificates,
            workload_state: (self.workload_state)(),
            static_config: self.static_config.clone(),
        };
        match config_dump(&self.state, &extras) {
            Ok(body) => respond(200, "application/json", body),
            Err(error) => text(500, format!("the state cannot be written: {error}\n")),
        }
    }
}

/// Ports of the admin, metrics and readiness servers.
#[derive(Clone, Copy, Debug)]
pub struct AdminPorts {
    /// Port of the admin server, on the loopback address.
    pub admin: u16,
    /// Port of the metrics server, on all addresses.
    pub metrics: u16,
    /// Port of the readiness server, on all addresses.
    pub readiness: u16,
    /// Whether the servers on all addresses also listen on IPv6, if the machine has it.
    pub ipv6: bool,
    /// Whether to wait for ports that the previous proxy process still holds in the same network namespace.
    pub wait_for_ports: bool,
}

/// Starts the admin, metrics and readiness servers, and the server of flow events if `flow_access` is set.
///
/// # Errors
///
/// When a port cannot be bound.
pub async fn serve(
    admin: Admin,
    registry: Arc<Registry>,
    readiness: Readiness,
    ports: AdminPorts,
    drain: &DrainWatcher,
) -> Result<(), http::ListenError> {
    let any = |port| -> SocketAddr {
        let ip = if ports.ipv6 && Path::new("/proc/net/if_inet6").exists() {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        } else {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        };
        (ip, port).into()
    };
    let server = |purpose, address, options| AdminServer {
        purpose,
        address,
        options,
        drain: drain.clone(),
        wait_for_port: ports.wait_for_ports,
    };
    if let Some(access) = admin.flow_access.clone() {
        let (flows, certificates) = (admin.flows.clone(), admin.certificates.clone());
        let options = ServerOptions {
            max_connections: MAX_FLOW_CONNECTIONS,
            ..ServerOptions::default()
        };
        let drain = drain.clone();
        server("flow events", any(ambit_flow::PROXY_FLOWS_PORT), options)
            .serve_on(
                |listener| flow_listener::start(listener, access, certificates, drain),
                move |request| {
                    let flows = flows.clone();
                    async move { flow_listener::respond(&flows, &request) }
                },
            )
            .await?;
    }
    let admin = Arc::new(admin);
    let admin_address = (Ipv4Addr::LOCALHOST, ports.admin).into();
    server("admin", admin_address, ServerOptions::loopback())
        .serve(move |request| {
            let admin = admin.clone();
            async move { admin.respond(&request).await }
        })
        .await?;
    let options = ServerOptions::default();
    server("metrics", any(ports.metrics), options)
        .serve(move |request| {
            let registry = registry.clone();
            async move { serve_metrics(&registry, &request) }
        })
        .await?;
    server("readiness", any(ports.readiness), options)
        .serve(move |request| {
            let readiness = readiness.clone();
            async move { readiness.respond(&request) }
        })
        .await
}

/// Configuration of an HTTP server before it starts.
struct AdminServer {
    purpose: &'static str,
    address: SocketAddr,
    options: ServerOptions,
    drain: DrainWatcher,
    wait_for_port: bool,
}

impl AdminServer {
    async fn serve<H, F>(self, handler: H) -> Result<(), http::ListenError>
    where
        H: Fn(Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        self.serve_on(|listener| listener, handler).await
    }

    /// Serves like [`Self::serve`], over listeners that `wrap` builds from the TCP listeners.
    async fn serve_on<L, H, F>(
        self,
        wrap: impl FnOnce(TcpListener) -> L + Send + 'static,
        handler: H,
    ) -> Result<(), http::ListenError>
    where
        L: Listen + Sync,
        H: Fn(Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        let Self {
            purpose,
            address,
            options,
            drain,
            wait_for_port,
        } = self;
        let listener = match http::bind(address, purpose).await {
            Ok(listener) => Some(listener),
            Err(error) if wait_for_port && error.source.kind() == io::ErrorKind::AddrInUse => None,
            Err(error) => return Err(error),
        };
        ambit_rt::spawn_essential("http server", async move {
            let listener = match listener {
                Some(listener) => listener,
                None => loop {
                    tokio::time::sleep(PORT_RETRY_INTERVAL).await;
                    if let Ok(listener) = http::bind(address, purpose).await {
                        break listener;
                    }
                },
            };
            http::serve(purpose, wrap(listener), options, drain, handler).await;
        });
        Ok(())
    }
}

/// Returns the version of this build, as JSON for `/config_dump`.
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
