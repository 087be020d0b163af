//! Process of a waypoint: builds its parts, runs them, and stops them in order.

use std::{sync::Arc, time::Duration};

use ambit_certificates::CertificateMetrics;
use ambit_fetch::Client as FetchClient;
use ambit_handover::{Gate, GateControl, Handover, Supervisor, supervisor};
use ambit_model::ArcStr;
use ambit_otlp_export::Exporter;
use ambit_proxy::{
    SharedState, Workers,
    admin::{self, Admin, AdminPorts},
    control_plane::{XdsSettings, client_options},
    identities::{self, CertificateSettings, SpiffeAgent},
    state::{InvalidPolicyMode, StateConfig},
    warm_start::{self, MeshCache, WarmCertificates},
};
use ambit_rt::{
    DrainMode, Env, Readiness, ReadyTask, Shutdown, ShutdownTrigger, drain,
    logging::{self, LogHandle},
    panics::PanicScope,
};
use ambit_telemetry::{Metrics, ProxyIdentity, http::HttpMetrics};
use ambit_wasm::Limits;
use ambit_wasm_modules::ModuleFetcher;
use ambit_xds::{Client, NodeInfo, Role};
use anyhow::Context as _;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::time::Instant;

use ambit_waypoint_engine::{
    calls,
    config::Config,
    envoy_admin::EnvoyAdmin,
    explain::Explainer,
    listeners,
    memory_gauge::MemoryGauge,
    plugins::{self, PluginMetrics},
    published::PublishedConfig,
    records::{RecordHandler, subscribe_needed_services},
    server, telemetry_export,
    waypoint::{Waypoint, WaypointInputs},
};

/// Time for which connections wait in the accept queues during [`prepare`]. After that they are accepted, and rejected
/// with the missing prerequisite as the reason.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(5);

/// Grace period at shutdown, from the last accepted connection on, in which requests may still finish if no other pod
/// of the waypoint serves requests.
const LAST_REQUEST_GRACE: Duration = Duration::from_secs(5);

/// Multiple of [`Config::linger`] for which a terminating pod continues to serve while the waypoint has no other
/// serving pod, even without callers.
const STAND_IN_LINGER_FACTOR: u32 = 15;

/// Timeout of the last export of metrics and logs before the process ends.
const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Parent that started the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// Started by a user or a test, without a supervisor.
    Unsupervised,
    /// Started by the supervisor, whose link is standard input.
    Supervisor,
}

/// Reads the environment and runs until a signal, or `/quitquitquit`, ends the process.
///
/// # Errors
///
/// When the process cannot start; later errors are retried and logged.
pub fn run(env: &Env, started_by: StartedBy) -> anyhow::Result<()> {
    if started_by == StartedBy::Supervisor {
        supervisor::die_with_supervisor(c"ambit-waypoint")
            .context("cannot follow the supervisor's end")?;
    }
    let exporter = Exporter::from_env(env, "ambit-waypoint")?;
    let logs = logging::init_with_sink(env, exporter.record_sink());
    let logs = logs.context("cannot set up logging")?;
    ambit_rt::panics::install_hook(PanicScope::Task);
    ambit_rt::limits::raise_open_files();
    let config = Config::from_env(env)?;
    let runtime = ambit_rt::current_thread_runtime().context("cannot make the main runtime")?;
    let result = runtime.block_on(run_with(env, config, (logs, exporter), started_by));
    // A blocking task, for instance a DNS lookup, must not delay the end of the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    logging::flush(Duration::from_secs(1));
    result
}

/// Returns the version that the waypoint reports to the control plane and in dumps.
fn version(env: &Env) -> &str {
    let version = env.get("ISTIO_META_ISTIO_VERSION");
    version.unwrap_or(env!("CARGO_PKG_VERSION"))
}

/// Registers the metrics of build and traffic, and sets the origin of flow events.
fn register_metrics(
    env: &Env,
    config: &Config,
    registry: &mut Registry,
) -> (Arc<Metrics>, Arc<HttpMetrics>) {
    ambit_rt::metrics::register_build(registry, "proxy", version(env));
    let metrics = Arc::new(Metrics::register(registry));
    let http_metrics = Arc::new(HttpMetrics::register(registry));
    metrics.flows().set_proxy_identity(ProxyIdentity {
        pod: config.own.name.to_string(),
        namespace: config.own.namespace.to_string(),
        node: config.node.to_string(),
        is_waypoint: true,
    });
    if !config.metrics_principals {
        metrics.hide_principals();
        http_metrics.hide_principals();
    }
    (metrics, http_metrics)
}

async fn run_with(
    env: &Env,
    config: Config,
    (logs, exporter): (LogHandle, Exporter),
    by: StartedBy,
) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::on_signals().context("cannot follow signals")?;
    let (supervisor, mut held) = match by {
        StartedBy::Supervisor => Supervisor::connect().await?,
        StartedBy::Unsupervised => (Supervisor::unsupervised(), Handover::default()),
    };
    let config = Arc::new(config);
    let readiness = Readiness::new();
    let known = readiness.add_pending_task("control plane");
    let own = readiness.add_pending_task("own workload and certificate");
    let mut registry = Registry::default();
    let metrics = register_metrics(env, &config, &mut registry);
    let left = warm_start::take_over_caches(&mut held, &supervisor, Some(Role::Waypoint));
    let keys = left.1.clone();
    let parts = build_waypoint(env, &config, metrics, known, left)?;
    let waypoint = Arc::new(Waypoint::new(config.clone(), parts));
    let identities = calls::maintain_certificates(
        waypoint.published.clone(),
        config.trust_domain.clone(),
        waypoint.dialer.certificates.clone(),
        keys,
    );
    ambit_rt::spawn_essential("identities of calls", identities);
    let workers = Workers::start(config.workers).context("no workers")?;
    ambit_rt::metrics::register_process(&mut registry);
    ambit_rt::metrics::register_runtimes(&mut registry, workers.runtimes());
    let certificates = waypoint.dialer.certificates.clone();
    registry.register_collector(Box::new(CertificateMetrics(certificates)));
    let needed = subscribe_needed_services(waypoint.state.clone(), waypoint.published.clone());
    ambit_rt::spawn_essential("needed services", needed);
    registry.register_collector(Box::new(PluginMetrics(waypoint.published.clone())));
    registry.register_collector(Box::new(MemoryGauge(waypoint.clone())));
    let fetcher = ModuleFetcher::new(
        config.modules.clone(),
        FetchClient::new(waypoint.published.guard().clone(), "ambit-waypoint"),
        config.insecure_registries.clone(),
        config.plugins.fetch,
    );
    let loading = plugins::load_modules(waypoint.clone(), Arc::new(fetcher));
    ambit_rt::spawn_essential("plugin modules", loading);
    let sockets = listeners::open(&config, &supervisor, held);
    let sockets = sockets.context("cannot listen for tunnels")?;
    let (gate_control, gate) = Gate::closed();
    server::serve(&waypoint, &workers, sockets, &gate);
    ambit_rt::spawn("telemetry", telemetry_export::run(waypoint.clone()));
    ambit_rt::spawn("own workload", prepare(waypoint.clone(), own, gate_control));
    let (servers, watcher) = drain::channel();
    let admin = admin_pages(env, &waypoint, logs, shutdown.trigger())?;
    let (registry, exporting) = exporter.start_with(registry);
    let ports = AdminPorts {
        admin: config.admin_port,
        metrics: config.stats_port,
        readiness: config.readiness_port,
        ipv6: config.ipv6,
        wait_for_ports: false,
    };
    admin::serve(admin, registry, readiness.clone(), ports, &watcher).await?;
    supervisor.report_started();
    tracing::info!(gateway = %config.gateway, workers = workers.count(), "serving");

    let cause = shutdown.wait().await;
    tracing::info!(
        cause,
        "ending: connections are taken until clients have turned to other pods"
    );
    let left = serve_until_idle(&waypoint, || drop(readiness.add_pending_task("ending"))).await;
    listeners::release(&supervisor);
    waypoint.lifecycle.drain_connections(Some(left)).await;
    servers.start(DrainMode::graceful(Duration::from_secs(1)));
    exporting.finish(LAST_EXPORT_TIMEOUT).await;
    Ok(())
}

/// Creates the pages of a waypoint's admin server.
fn admin_pages(
    env: &Env,
    waypoint: &Arc<Waypoint>,
    logs: LogHandle,
    quit: ShutdownTrigger,
) -> anyhow::Result<Admin> {
    let config = &waypoint.config;
    Ok(Admin {
        title: "Ambit waypoint",
        state: waypoint.state.clone(),
        certificates: waypoint.dialer.certificates.clone(),
        config: serde_json::to_value(&**config).context("the configuration cannot be dumped")?,
        workload_state: Box::new({
            let published = waypoint.published.clone();
            move || published.dump()
        }),
        explain_handler: {
            let explainer = Arc::new(Explainer::new(waypoint.clone()));
            Box::new(move |body| {
                let explainer = explainer.clone();
                Box::pin(async move { explainer.respond(&body).await })
            })
        },
        log_handle: Some(logs),
        shutdown_trigger: quit,
        static_config: Value::Null,
        flow_access: config.flow_access(),
        flows: waypoint.metrics.flows().clone(),
        extra_pages: Some({
            let id = xds_settings(config).node.id();
            let envoy_admin = EnvoyAdmin::new(waypoint.clone(), id, version(env).to_owned());
            Box::new(move |request| envoy_admin.respond(request))
        }),
    })
}

/// Accepts further connections during termination, until none arrive any more: clients choose this pod until they learn
/// of its termination, or while no other pod serves. Calls `ending` when clients should switch to other pods and
/// readiness fails. Returns the remaining time.
async fn serve_until_idle(waypoint: &Waypoint, ending: impl FnOnce()) -> Duration {
    let linger = waypoint.config.linger;
    let end = Instant::now() + linger + waypoint.config.termination_deadline;
    let last = end - LAST_REQUEST_GRACE.min(waypoint.config.termination_deadline / 2);
    let until = last.min(Instant::now() + linger * STAND_IN_LINGER_FACTOR);
    tokio::time::sleep(linger).await;
    // As long as the control plane has clients choose this pod, no other one is ready.
    let _over = tokio::time::timeout_at(until, waypoint.wait_for_load_balancer_removal()).await;
    ending();
    loop {
        let next = waypoint.last_tunnel() + linger;
        let now = Instant::now();
        if now >= next.min(last) {
            return end - now;
        }
        tokio::time::sleep_until(next.min(last)).await;
    }
}

fn build_waypoint(
    env: &Env,
    config: &Arc<Config>,
    (metrics, http_metrics): (Arc<Metrics>, Arc<HttpMetrics>),
    known: ReadyTask,
    (cache, keys): (Option<Arc<MeshCache>>, Option<Arc<WarmCertificates>>),
) -> anyhow::Result<WaypointInputs> {
    let (state, demands) = SharedState::on_demand(StateConfig {
        // No workload is local to a waypoint, except its own.
        node: config.node.clone(),
        network: config.network.clone(),
        cluster_id: config.cluster_id.clone(),
        trust_domain: config.trust_domain.clone(),
        ..StateConfig::default()
    });
    // Layer 4 policies are not for waypoints.
    state.mark_policies_known();
    let certificates = identities::start(
        env,
        &CertificateSettings {
            spiffe: config.spiffe_socket.clone().map(SpiffeAgent::WorkloadApi),
            ca: config.ca.clone(),
            auth_token: config.auth_token.clone(),
            cluster_id: config.cluster_id.clone(),
            proxy_identity: Some(config.identity()),
            ttl: config.secret_ttl,
            crl_path: config.crl_path.clone(),
            trust_domains_path: config.trust_domains_path.clone(),
        },
        keys,
    )?;
    let published = PublishedConfig::default();
    published.set_span_environment(span_environment(config));
    published.set_plugin_limits(Limits {
        start_timeout: config.plugins.start,
        callback_timeout: config.plugins.callback,
        ..Limits::default()
    });
    let handler = RecordHandler {
        state: state.clone(),
        published: published.clone(),
        metrics: metrics.clone(),
        http_metrics: http_metrics.clone(),
        readiness: known,
        cache: cache.clone(),
    };
    let options = client_options(env, &xds_settings(config), InvalidPolicyMode::Deny)?;
    let mut client = Client::new(options, handler, Some(demands));
    if let Some(cache) = cache {
        cache
            .restore(&mut client)
            .context("cannot read the warm-start cache of the mesh")?;
    }
    ambit_rt::spawn_essential("xds", client.run());
    Ok(WaypointInputs {
        state,
        published,
        certificates,
        metrics,
        http_metrics,
    })
}

/// Returns the environment variables that span tags may read; no others are exposed.
fn span_environment(config: &Config) -> Vec<(ArcStr, ArcStr)> {
    [
        ("POD_NAME", &config.own.name),
        ("HOSTNAME", &config.own.name),
        ("POD_NAMESPACE", &config.own.namespace),
        ("SERVICE_ACCOUNT", &config.own.service_account),
        ("GATEWAY_NAME", &config.gateway.name),
        ("NODE_NAME", &config.node),
        ("CLUSTER_ID", &config.cluster_id),
        ("ISTIO_META_CLUSTER_ID", &config.cluster_id),
        ("TRUST_DOMAIN", &config.trust_domain),
        ("NETWORK", &config.network),
    ]
    .map(|(name, value)| (name.into(), value.clone()))
    .into()
}

fn xds_settings(config: &Config) -> XdsSettings {
    let metadata = [
        ("SERVICE_ACCOUNT", config.own.service_account.to_string()),
        ("GATEWAY_NAME", config.gateway.name.to_string()),
    ];
    XdsSettings {
        upstream: config.xds.clone(),
        auth_token: config.auth_token.clone(),
        cluster_id: config.cluster_id.clone(),
        node: NodeInfo {
            role: Role::Waypoint,
            name: config.own.name.to_string(),
            namespace: config.own.namespace.to_string(),
            ip: config.ip,
            node_name: config.node.to_string(),
            proxy_metadata: metadata
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        },
        on_demand: true,
    }
}

/// Waits until the waypoint can serve tunnels (mesh state, its own record, its certificate), then opens the gate of the
/// accept loops, and reports readiness.
async fn prepare(waypoint: Arc<Waypoint>, ready: ReadyTask, gate: GateControl) {
    let dialer = &waypoint.dialer;
    dialer.certificates.prefetch(&dialer.identity);
    let all = async {
        waypoint.published.wait_until_complete().await;
        while waypoint.local.wait_until_published().await.is_none() {
            tracing::info!("waiting for the control plane to publish the waypoint's own pod");
        }
        dialer
            .certificates
            .wait_until_obtained(&dialer.identity)
            .await;
    };
    let mut all = std::pin::pin!(all);
    let in_time = tokio::time::timeout(MAX_QUEUE_TIME, &mut all).await.is_ok();
    gate.set_open(true);
    if !in_time {
        all.await;
    }
    ready.ready();
}
