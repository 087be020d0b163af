//! Test fixture: a waypoint on a loopback address, its records of the mesh, and clients with HBONE tunnels to it.

use std::{
    io::Write,
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use ambit_certificates::{Certificates, CertificatesOptions};
use ambit_handover::Gate;
use ambit_hbone::{ClientConnection, Settings, TunnelError, TunnelIo, client, tls};
use ambit_model::{
    AppProtocol, ArcStr, Identity, NamespacedHostname, WaypointGateway, WaypointRecord,
    WaypointRecordType, WaypointService,
};
use ambit_proxy::{
    SharedState, Workers,
    state::{MeshUpdate, StateConfig},
};
use ambit_rt::{
    Env,
    logging::{self, LogFormat},
};
use ambit_telemetry::{Metrics, http::HttpMetrics};
use ambit_testkit::{FakeCa, Pki, build};
use ambit_tls::WorkloadCert;
use ambit_waypoint_engine::{
    config::Config,
    envoy_admin::EnvoyAdmin,
    explain::Explainer,
    published::PublishedConfig,
    server, telemetry_export,
    waypoint::{Waypoint, WaypointInputs},
};
use ambit_xds::WaypointUpdate;
use http::{HeaderMap, Uri};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Timeout of every operation in these tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Port on which every test service declares HTTP/1.1. The constants below are ports of other protocols.
pub(crate) const HTTP1: u16 = 80;
pub(crate) const HTTP2: u16 = 81;
pub(crate) const UNDECLARED: u16 = 82;
pub(crate) const TCP: u16 = 83;

/// Captured log output of all waypoints of this process.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    logging::init_with(LogFormat::Text, "info", log.clone()).unwrap();
    log
});

#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the captured log lines that contain an address.
pub(crate) fn log_lines_about(address: SocketAddr) -> Vec<String> {
    logging::flush(TIMEOUT);
    let log = LOG.0.lock();
    let text = String::from_utf8_lossy(&log);
    let name = address.to_string();
    let lines = text.lines().filter(|line| line.contains(&name));
    lines.map(str::to_owned).collect()
}

/// Waypoint under test, with the mesh that it knows.
pub(crate) struct World {
    pub(crate) pki: Arc<Pki>,
    pub(crate) state: SharedState,
    pub(crate) published: PublishedConfig,
    registry: Registry,
    waypoint: Arc<Waypoint>,
    certificates: Certificates,
    own: Identity,
    address: SocketAddr,
    _workers: Workers,
}

impl World {
    /// Creates a waypoint with a complete configuration that has no services.
    pub(crate) async fn new() -> Self {
        Self::with_env(&[]).await
    }

    /// Creates a waypoint like [`Self::new`], with additional environment variables in its configuration.
    pub(crate) async fn with_env(more: &[(&'static str, &'static str)]) -> Self {
        Self::with_pki(more, Pki::new()).await
    }

    /// Creates a waypoint like [`Self::with_env`], in a mesh whose certificates come from this PKI.
    pub(crate) async fn with_pki(more: &[(&'static str, &'static str)], pki: Pki) -> Self {
        LazyLock::force(&LOG);
        let mut variables = vec![
            ("POD_NAME", "waypoint"),
            ("POD_NAMESPACE", "ns"),
            ("SERVICE_ACCOUNT", "waypoint"),
            ("GATEWAY_NAME", "waypoint"),
            // Addresses of the applications.
            ("AMBIT_WILDCARD_ADDRESSES", "127.0.0.0/8"),
            // Clients of these tests half-close their connection after the request.
            ("AMBIT_CANCEL_ON_HALF_CLOSE", "false"),
        ];
        variables.retain(|(name, _)| !more.iter().any(|(other, _)| name == other));
        variables.extend_from_slice(more);
        let env = Env::from_pairs(variables);
        let config = Arc::new(Config::from_env(&env).unwrap());
        let pki = Arc::new(pki);
        let ca = FakeCa::new(pki.clone(), Duration::from_secs(3600));
        let certificates = Certificates::start(Arc::new(ca), CertificatesOptions::default());
        let state = SharedState::new(StateConfig {
            trust_domain: config.trust_domain.clone(),
            ..StateConfig::default()
        });
        state.mark_addresses_known();
        state.mark_policies_known();
        let published = PublishedConfig::default();
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::register(&mut registry));
        let http_metrics = Arc::new(HttpMetrics::register(&mut registry));
        let inputs = WaypointInputs {
            state: state.clone(),
            published: published.clone(),
            certificates: certificates.clone(),
            metrics,
            http_metrics,
        };
        let waypoint = Arc::new(Waypoint::new(config.clone(), inputs));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = ambit_sys::socket::adopt_listener(listener, &config.tuning).unwrap();
        let listener = listener.listener;
        let address = listener.local_addr().unwrap();
        let workers = Workers::start(1).unwrap();
        server::serve(&waypoint, &workers, vec![listener], &Gate::default());
        ambit_rt::spawn("telemetry", telemetry_export::run(waypoint.clone()));
        let world = Self {
            pki,
            state,
            published,
            registry,
            waypoint,
            certificates,
            own: config.identity(),
            address,
            _workers: workers,
        };
        world.publish_workload(build::workload("waypoint", &["127.0.0.1"]));
        world.publish(WaypointUpdate::Upserted(
            "gw".into(),
            WaypointGateway::default().into(),
        ));
        for of in WaypointRecordType::ALL {
            world.published.mark_complete(*of);
        }
        world
    }

    /// Returns Envoy's admin interface of the waypoint.
    pub(crate) fn envoy_admin(&self) -> EnvoyAdmin {
        let id = "waypoint~10.0.0.9~waypoint.ns~ns.svc.cluster.local";
        EnvoyAdmin::new(self.waypoint.clone(), id.to_owned(), "0".to_owned())
    }

    /// Waits until the waypoint has its own certificate.
    pub(crate) async fn wait_for_certificate(&self) {
        self.certificates.prefetch(&self.own);
        timeout(TIMEOUT, self.certificates.wait_until_obtained(&self.own))
            .await
            .unwrap();
    }

    /// Publishes the workload record of a pod or endpoint, as the control plane does.
    pub(crate) fn publish_workload(&self, workload: ambit_model::Workload) {
        let update = MeshUpdate::Workload(Box::new(workload));
        self.state.apply(&mut vec![update]);
    }

    /// Publishes an update of the waypoint's records, as the control plane does.
    pub(crate) fn publish(&self, update: WaypointUpdate) {
        self.published.apply([update]);
    }

    /// Publishes a service at the virtual IP `vip`, with one endpoint per application. Each application must have an IP
    /// address of its own.
    pub(crate) fn serve(&self, name: &str, vip: &str, applications: &[SocketAddr]) {
        let ports = [HTTP1, HTTP2, UNDECLARED, TCP];
        let mut service = build::service(name, &[vip], &ports.map(|port| (port, port)));
        service.app_protocols = [
            (HTTP1, AppProtocol::Http11),
            (HTTP2, AppProtocol::Http2),
            (TCP, AppProtocol::Tcp),
        ]
        .into();
        let hostname = NamespacedHostname::new("ns", service.hostname.clone());
        self.state
            .apply(&mut vec![MeshUpdate::Service(Box::new(service))]);
        for (index, application) in applications.iter().enumerate() {
            let ip = application.ip().to_string();
            let record = build::workload_outside_mesh(&format!("{name}-{index}"), &[&ip]);
            let targets = ports.map(|port| (port, application.port()));
            self.publish_workload(build::make_endpoint(
                record,
                &hostname.to_string(),
                &targets,
            ));
        }
        self.publish(WaypointUpdate::Upserted(
            arcstr::format!("gw/{name}"),
            WaypointRecord::from(WaypointService {
                service: hostname,
                ..WaypointService::default()
            }),
        ));
    }

    /// Publishes a service at `vip` whose endpoint at `ip` is reached through an HBONE tunnel.
    pub(crate) fn serve_by_tunnel(&self, name: &str, vip: &str, ip: &str) {
        let targets = [(TCP, TCP), (HTTP1, HTTP1)];
        let mut service = build::service(name, &[vip], &targets);
        service.app_protocols = [(TCP, AppProtocol::Tcp), (HTTP1, AppProtocol::Http11)].into();
        let hostname = NamespacedHostname::new("ns", service.hostname.clone());
        self.state
            .apply(&mut vec![MeshUpdate::Service(Box::new(service))]);
        let record = build::workload(name, &[ip]);
        self.publish_workload(build::make_endpoint(
            record,
            &hostname.to_string(),
            &targets,
        ));
        self.publish(WaypointUpdate::Upserted(
            arcstr::format!("gw/{name}"),
            WaypointRecord::from(WaypointService {
                service: hostname,
                ..WaypointService::default()
            }),
        ));
    }

    /// Publishes a dual-stack service: two addresses, an endpoint with two addresses, and one HTTP port.
    pub(crate) fn serve_dual_stack(&self, name: &str, vips: [&str; 2], ips: [&str; 2], port: u16) {
        let mut service = build::service(name, &vips, &[(HTTP1, port)]);
        service.app_protocols = [(HTTP1, AppProtocol::Http11)].into();
        let hostname = NamespacedHostname::new("ns", service.hostname.clone());
        self.state
            .apply(&mut vec![MeshUpdate::Service(Box::new(service))]);
        let record = build::workload_outside_mesh(&format!("{name}-0"), &ips);
        let targets = [(HTTP1, port)];
        self.publish_workload(build::make_endpoint(
            record,
            &hostname.to_string(),
            &targets,
        ));
        self.publish(WaypointUpdate::Upserted(
            arcstr::format!("gw/{name}"),
            WaypointRecord::from(WaypointService {
                service: hostname,
                ..WaypointService::default()
            }),
        ));
    }

    /// Publishes a headless Service that selects the endpoint of `of`, a Service published by [`Self::serve`].
    pub(crate) fn serve_headless(&self, name: &str, of: &str, application: SocketAddr) {
        let mut service = build::service(name, &[], &[(HTTP1, HTTP1)]);
        service.app_protocols = [(HTTP1, AppProtocol::Http11)].into();
        let hostname = NamespacedHostname::new("ns", service.hostname.clone());
        self.state
            .apply(&mut vec![MeshUpdate::Service(Box::new(service))]);
        let ip = application.ip().to_string();
        let mut record = build::workload_outside_mesh(&format!("{of}-0"), &[&ip]);
        let of = build::service(of, &[], &[]).hostname;
        for hostname in [&hostname.hostname, &of] {
            let targets = [HTTP1, HTTP2, UNDECLARED, TCP].map(|port| (port, application.port()));
            record = build::make_endpoint(record, &format!("ns/{hostname}"), &targets);
        }
        self.publish_workload(record);
        self.publish(WaypointUpdate::Upserted(
            arcstr::format!("gw/{name}"),
            WaypointRecord::from(WaypointService {
                service: hostname,
                ..WaypointService::default()
            }),
        ));
    }

    /// Connects an HBONE client to the waypoint, from a source address of its own.
    pub(crate) async fn client(&self) -> Client {
        Self::open_client(self.open_tls().await).await.unwrap()
    }

    /// Connects a client like [`Self::client`], with these HTTP/2 settings.
    pub(crate) async fn client_with_settings(&self, settings: &Settings) -> Client {
        Self::open_within(self.open_tls().await, settings)
            .await
            .unwrap()
    }

    /// Connects a client like [`Self::client`], under another service account.
    pub(crate) async fn client_as(&self, account: &str) -> Client {
        Self::open_client(self.open_tls_as(account).await)
            .await
            .unwrap()
    }

    /// Connects a client to the waypoint by HBONE, with this certificate.
    pub(crate) async fn client_with_certificate(&self, certificate: &WorkloadCert) -> Client {
        self.try_client(certificate).await.unwrap()
    }

    /// Connects a client with this certificate by HBONE; `None` if the waypoint rejects it.
    pub(crate) async fn try_client(&self, certificate: &WorkloadCert) -> Option<Client> {
        Self::open_client(self.tls_with(certificate).await).await
    }

    /// Connects a client with another service account than [`Self::client`]; `None` if the waypoint rejects it.
    pub(crate) async fn attacker(&self) -> Option<Client> {
        // The attacker buffers little of what it does not read.
        let settings = Settings {
            max_streams: 200,
            stream_window: 64 << 10,
            connection_window: 64 << 10,
            min_stream_window: 16 << 10,
            ..Settings::default()
        };
        Self::open_within(self.open_tls_as("attacker").await, &settings).await
    }

    async fn open_client((stream, address): (tls::TlsStream, SocketAddr)) -> Option<Client> {
        let settings = Settings {
            max_streams: 200,
            ..Settings::default()
        };
        Self::open_within((stream, address), &settings).await
    }

    async fn open_within(
        (stream, address): (tls::TlsStream, SocketAddr),
        settings: &Settings,
    ) -> Option<Client> {
        let (connection, driver) = client::handshake(stream, settings).await.ok()?;
        ambit_rt::spawn("driver", driver.run(|| {}));
        Some(Client {
            connection,
            address,
        })
    }

    /// Opens a client's TLS connection to the waypoint, without HTTP/2 on it.
    pub(crate) async fn open_tls(&self) -> (tls::TlsStream, SocketAddr) {
        self.open_tls_as("client").await
    }

    /// Opens the TLS connection of a client with this service account, without HTTP/2 on it.
    pub(crate) async fn open_tls_as(&self, account: &str) -> (tls::TlsStream, SocketAddr) {
        self.tls_with(&self.pki.cert(&build::identity("ns", account)))
            .await
    }

    async fn tls_with(&self, certificate: &WorkloadCert) -> (tls::TlsStream, SocketAddr) {
        let expected = [build::identity("ns", "waypoint")];
        let config = certificate.client_config(&expected).unwrap();
        let stream = TcpStream::connect(self.address).await.unwrap();
        // As node proxies do: small frames do not wait for acknowledgements.
        stream.set_nodelay(true).unwrap();
        let address = stream.local_addr().unwrap();
        let stream = tls::connect(stream, config, TIMEOUT).await.unwrap();
        (stream, address)
    }

    /// Returns the bytes that are charged to all callers, and their limit.
    pub(crate) fn memory_budget(&self) -> (usize, usize) {
        self.waypoint.memory_budget()
    }

    /// Returns the address at which the waypoint accepts tunnels.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the waypoint's handler of `POST /explain`.
    pub(crate) fn explainer(&self) -> Explainer {
        Explainer::new(self.waypoint.clone())
    }

    /// Returns the number of requests in the waypoint's metrics.
    pub(crate) fn request_count(&self) -> u64 {
        self.metric_sum("istio_requests_total", &[])
    }

    /// Returns the waypoint's metrics as text.
    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// Returns the sum of a metric family's samples whose labels contain all of `labels`.
    pub(crate) fn metric_sum(&self, family: &str, labels: &[&str]) -> u64 {
        let text = self.metrics();
        let of_family = |line: &&str| {
            line.strip_prefix(family)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        let samples = text.lines().filter(of_family);
        let samples = samples.filter(|line| labels.iter().all(|label| line.contains(label)));
        let values = samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        values.sum()
    }

    /// Returns the number of charges that the memory budgets of this scope had no room for, by metrics.
    pub(crate) fn refused_charges(&self, scope: &str) -> u64 {
        let label = format!("scope=\"{scope}\"");
        self.metric_sum("ambit_memory_budget_refused_total", &[&label])
    }

    /// Returns the number of connections that metrics count as rejected for this reason.
    pub(crate) fn rejected_count(&self, reason: &str) -> u64 {
        let label = format!("reason=\"{reason}\"");
        self.metric_sum("ambit_requests_refused_total", &[&label])
    }

    /// Returns the number of requests that metrics count with this response status and these response flags.
    pub(crate) fn request_count_with(&self, code: u16, flags: &str) -> u64 {
        let (code, flags) = (
            format!("response_code=\"{code}\""),
            format!("response_flags=\"{flags}\""),
        );
        self.metric_sum("istio_requests_total", &[&code, &flags])
    }
}

/// HBONE connection of a client to the waypoint.
pub(crate) struct Client {
    connection: ClientConnection,
    pub(crate) address: SocketAddr,
}

impl Client {
    /// Opens a tunnel to an address and port.
    pub(crate) async fn tunnel(&self, to: &str, port: u16) -> TunnelIo {
        self.try_tunnel(to, port).await.unwrap()
    }

    /// Opens a tunnel to an address and port; the error is the waypoint's rejection.
    pub(crate) async fn try_tunnel(&self, to: &str, port: u16) -> Result<TunnelIo, TunnelError> {
        let authority = Uri::try_from(format!("{to}:{port}")).unwrap();
        let tunnel = self.connection.open_tunnel(authority, HeaderMap::new());
        let (tunnel, _) = timeout(TIMEOUT, tunnel).await.unwrap()?;
        Ok(tunnel.into_io())
    }

    /// Sends bytes in a new tunnel, and returns the response up to the end of the stream or a reset.
    pub(crate) async fn send_bytes(&self, to: &str, port: u16, bytes: &[u8]) -> RawResponse {
        let mut tunnel = self.tunnel(to, port).await;
        // A rejected sender still reads the reason.
        let _cut = tunnel.write_all(bytes).await;
        let _cut = tunnel.shutdown().await;
        read_response(tunnel).await
    }

    /// Sends `GET /` over HTTP/1.1 in a new tunnel, and returns the status; 0 without a response.
    pub(crate) async fn get(&self, to: &str, port: u16) -> u16 {
        let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        let response = self.send_bytes(to, port, request).await;
        response.statuses().first().copied().unwrap_or_default()
    }
}

/// Reads a response from a tunnel up to the end of the stream.
pub(crate) async fn read_response(mut tunnel: TunnelIo) -> RawResponse {
    let mut bytes = Vec::new();
    let reading = tunnel.read_to_end(&mut bytes);
    let ended = timeout(TIMEOUT, reading)
        .await
        .expect("no end came")
        .is_ok();
    RawResponse {
        bytes,
        ended_with_fin: ended,
    }
}

/// Bytes that the waypoint has sent in response.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) bytes: Vec<u8>,
    /// Whether the stream ended with FIN, rather than with a reset.
    pub(crate) ended_with_fin: bool,
}

impl RawResponse {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Returns the statuses of all HTTP/1.1 responses in the bytes.
    pub(crate) fn statuses(&self) -> Vec<u16> {
        let text = self.text();
        let lines = text.split("HTTP/1.1 ").skip(1);
        lines.map(|line| line[..3].parse().unwrap()).collect()
    }
}

/// Binds a listener for an application, at a loopback address that no other application has.
pub(crate) async fn bind_listener() -> (TcpListener, SocketAddr) {
    static NEXT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(2);
    let last = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 7, last], 0)))
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns the xDS resource name of a test's record.
pub(crate) fn record_name(name: &str) -> ArcStr {
    arcstr::format!("gw/policy/{name}")
}
