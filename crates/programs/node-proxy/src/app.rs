//! Process of the node proxy: builds its parts, runs them, and stops them in order.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use ambit_authz::MissingPolicies;
use ambit_certificates::{CertificateMetrics, Certificates};
use ambit_handover::{
    AcceptCommand, Gate, Handover, Supervisor, rollout::AcceptControl, supervisor,
};
use ambit_model::{ArcStr, Identity};
use ambit_otlp_export::Exporter;
use ambit_proxy::{
    SharedState, Workers,
    admin::{self, Admin, AdminPorts},
    control_plane::{self, MeshStateFollower, XdsSettings},
    identities::{self, CertificateSettings, SpiffeAgent},
    local_xds,
    policy_metrics::PolicyCollector,
    state::{AddressDemand, InvalidPolicyMode, StateConfig},
    warm_start::{self, MeshCache, WarmCertificates},
};
use ambit_rt::{
    DrainMode, Env, Readiness, ReadyTask, Shutdown, drain,
    logging::{self, LogHandle},
    panics::PanicScope,
};
use ambit_sys::{
    netns::Netns,
    privileges::{self, Capability},
};
use ambit_telemetry::{Metrics, ProxyIdentity};
use ambit_xds::{NodeInfo, Role};
use anyhow::Context as _;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::{
    config::{Config, LocalXds},
    enrolment_record, explain,
    pod::{Pod, Proxy},
    pod_handover::RestoredPod,
    pods::{EnrolmentClient, ServedPods},
    termination::Termination,
};

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
        supervisor::die_with_supervisor(c"ambit-node-prox")
            .context("cannot follow the supervisor's end")?;
    }
    let exporter = Exporter::from_env(env, "ambit-node-proxy")?;
    let logs = logging::init_with_sink(env, exporter.record_sink());
    let logs = logs.context("cannot set up logging")?;
    ambit_rt::panics::install_hook(PanicScope::Task);
    ambit_rt::limits::raise_open_files();
    let config = Config::from_env(env)?;
    check_privileges(&config)?;
    drop_privileges();
    let runtime = ambit_rt::current_thread_runtime().context("cannot make the main runtime")?;
    let result = runtime.block_on(run_with(env, config, (logs, exporter), started_by));
    // A blocking task, for instance a DNS lookup, must not delay the end of the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    logging::flush(Duration::from_secs(1));
    result
}

/// Checks that the process has the privileges that it needs, so that it fails at the start rather than at the first
/// pod.
fn check_privileges(config: &Config) -> anyhow::Result<()> {
    let here = Netns::current().context("cannot see the own network namespace")?;
    here.run(|| ())
        .context("cannot enter network namespaces: is CAP_SYS_ADMIN granted?")?;
    let spec = ambit_sys::socket::OutboundSpec {
        mark: config.packet_mark,
        ..Default::default()
    };
    ambit_sys::socket::outbound(None, ([127, 0, 0, 1], 1).into(), &spec)
        .context("cannot mark sockets: is CAP_NET_ADMIN granted?")?;
    Ok(())
}

/// Drops all capabilities except those for entering pods and opening their sockets. Called before threads start, since
/// each thread has its own set.
fn drop_privileges() {
    if let Err(error) = privileges::keep_only(&[Capability::SysAdmin, Capability::NetAdmin]) {
        tracing::warn!(%error, "cannot drop the capabilities that are not needed");
    }
}

/// Registers the metrics of build and traffic, and sets the origin of flow events.
fn register_metrics(env: &Env, config: &Config, registry: &mut Registry) -> Arc<Metrics> {
    let version = env.get("ISTIO_META_ISTIO_VERSION");
    let version = version.unwrap_or(env!("CARGO_PKG_VERSION"));
    ambit_rt::metrics::register_build(registry, "ztunnel", version);
    let metrics = Arc::new(Metrics::register(registry));
    metrics.flows().set_proxy_identity(ProxyIdentity {
        pod: config.own_pod.name.to_string(),
        namespace: config.own_pod.namespace.to_string(),
        node: config.local_node.to_string(),
        is_waypoint: false,
    });
    if !config.metrics_principals {
        metrics.hide_principals();
    }
    metrics
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
    let state_ready = readiness.add_pending_task("state manager");
    let proxy_ready = readiness.add_pending_task("proxy");
    let pods_ready = readiness.add_pending_task("workload proxy manager");
    let taking_over = readiness.add_pending_task("taking over");
    let mut registry = Registry::default();
    let metrics = register_metrics(env, &config, &mut registry);

    // On demand, each worker requests the records that its own connections need.
    let cached = (!config.xds_on_demand).then_some(Role::NodeProxy);
    let mesh = start_mesh_client(
        env,
        &config,
        &metrics,
        &mut registry,
        warm_start::take_over_caches(&mut held, &supervisor, cached),
        state_ready,
    )?;
    let workers = Arc::new(Workers::start(config.num_worker_threads).context("no workers")?);
    ambit_rt::metrics::register_process(&mut registry);
    ambit_rt::metrics::register_runtimes(&mut registry, workers.runtimes());
    registry.register_collector(Box::new(CertificateMetrics(mesh.certificates.clone())));
    let (gate_control, gate) = Gate::closed();
    let flows = metrics.flows().clone();
    let proxy = Proxy {
        config: config.clone(),
        state: mesh.state.clone(),
        certificates: mesh.certificates.clone(),
        metrics,
        gate,
    };
    let mut enrolment = EnrolmentClient::new(
        proxy.clone(),
        workers.clone(),
        supervisor.clone(),
        pods_ready,
    );
    let served = enrolment.served();
    restore_pods(held, &mut enrolment, &supervisor, &config);
    let own = serve_own_pod(&proxy, &workers);
    let turn = AcceptControl {
        supervisor: supervisor.clone(),
        gate: gate_control,
        ready: taking_over,
    };
    let prepared = {
        let (served, mesh) = (served.clone(), mesh.clone());
        // Certificates were requested when the pods were restored.
        move || mesh.clone().prefetch_certificates(identities_of(&served))
    };
    ambit_rt::spawn_essential("taking turns", turn.follow_commands(prepared));
    let (servers, watcher) = drain::channel();
    let dumped = served.clone();
    let explain = explain::handler(served.clone(), mesh.state.clone(), config.clone());
    let admin = Admin {
        title: "Ambit node proxy",
        state: mesh.state,
        certificates: mesh.certificates,
        config: serde_json::to_value(&*config).context("the configuration cannot be dumped")?,
        workload_state: Box::new(move || dumped.dump()),
        explain_handler: explain,
        log_handle: Some(logs),
        shutdown_trigger: shutdown.trigger(),
        static_config: mesh.static_config,
        flow_access: config.flow_access(),
        extra_pages: None,
        flows,
    };
    let (registry, exporting) = exporter.start_with(registry);
    let ports = AdminPorts {
        admin: config.admin_port,
        metrics: config.stats_port,
        readiness: config.readiness_port,
        ipv6: config.ipv6_enabled,
        wait_for_ports: *supervisor.accept_commands().borrow() == AcceptCommand::OnceReady,
    };
    admin::serve(admin, registry, readiness, ports, &watcher).await?;
    supervisor.report_started();
    let enrolling = ambit_rt::end_process_on_panic("enrolment", enrolment.run());
    let enrolment = ambit_rt::spawn_abortable("enrolment", enrolling);
    proxy_ready.ready();
    tracing::info!(workers = workers.count(), node = %config.local_node, "serving");

    let cause = shutdown.wait().await;
    let termination = Termination {
        config,
        served,
        supervisor,
        own_pod: own,
        enrolment_task: enrolment,
    };
    termination.run(cause).await;
    servers.start(DrainMode::graceful(Duration::from_secs(1)));
    exporting.finish(LAST_EXPORT_TIMEOUT).await;
    Ok(())
}

/// State of the mesh as this proxy knows it, updated continuously.
#[derive(Clone, Debug)]
struct MeshClient {
    state: SharedState,
    certificates: Certificates,
    /// Path or variable (`LOCAL_XDS`) from which the mesh state was loaded, for dumps; null with a control plane.
    static_config: Value,
    /// Channel that turns true when the control plane's first complete state was received.
    is_synced: watch::Receiver<bool>,
}

/// Starts receiving the mesh state and certificates, beginning with the warm-start cache if there is one.
fn start_mesh_client(
    env: &Env,
    config: &Config,
    metrics: &Arc<Metrics>,
    registry: &mut Registry,
    (cache, keys): (Option<Arc<MeshCache>>, Option<Arc<WarmCertificates>>),
    ready: ReadyTask,
) -> anyhow::Result<MeshClient> {
    let (state, demands) = shared_state(config, registry);
    let static_config = load_local(config, &state)?;
    let certificates = identities::start(env, &certificate_settings(config), keys.clone())?;
    let following = identities::prefetch_certificates(state.clone(), certificates.clone(), keys);
    ambit_rt::spawn_essential("identities", following);
    let (sender, known) = watch::channel(false);
    let synced = move || {
        ready.ready();
        sender.send_replace(true);
    };
    if config.local_xds.is_some() || config.xds.address.is_none() {
        state.mark_addresses_known();
        state.mark_policies_known();
        synced();
    } else {
        let follower = MeshStateFollower {
            state: state.clone(),
            metrics: metrics.clone(),
            on_synced: synced,
            cache,
        };
        control_plane::start_xds_client(env, &xds_settings(config), follower, demands)?;
    }
    Ok(MeshClient {
        state,
        certificates,
        static_config,
        is_synced: known,
    })
}

impl MeshClient {
    /// Waits until connections to pods with these identities can be served: the mesh state and their certificates are
    /// available.
    async fn prefetch_certificates(mut self, identities: Vec<Identity>) {
        if self.is_synced.wait_for(|known| *known).await.is_err() {
            // The state of the mesh is from a local file, and known.
        }
        identities::wait_for_certificates(&self.certificates, &identities).await;
    }
}

fn identities_of(served: &ServedPods) -> Vec<Identity> {
    let pods = served.pods();
    pods.iter().map(|pod| pod.identity().clone()).collect()
}

/// Restores the pods that the previous process served; without a hand-over, those of the agent's enrolment record,
/// until the agent itself connects.
fn restore_pods(
    held: Handover<OwnedFd>,
    enrolment: &mut EnrolmentClient,
    supervisor: &Supervisor,
    config: &Config,
) {
    for (key, item) in held.into_items() {
        match RestoredPod::from_handover_item(&key, item) {
            Ok(pod) => enrolment.restore(pod),
            Err(error) => {
                tracing::warn!(uid = %key, %error, "a pod was not handed over");
                supervisor.release_item(&key);
            }
        }
    }
    if supervisor.is_supervised() && enrolment.served().is_empty() {
        let record = enrolment_record::record_path(&config.inpod_uds);
        for pod in enrolment_record::restore_pods(&record, &config.netns_dir) {
            enrolment.restore(pod);
        }
    }
}

/// Serves the proxy's own pod, if the environment names it. A failure does not affect other pods.
fn serve_own_pod(proxy: &Proxy, workers: &Workers) -> Option<Arc<Pod>> {
    let own = &proxy.config.own_pod;
    if [&own.name, &own.namespace, &own.service_account].contains(&&ArcStr::default()) {
        return None;
    }
    let opened = Netns::current()
        .map_err(anyhow::Error::from)
        .and_then(|netns| Ok(Pod::open_own(proxy, netns, workers.count())?));
    match opened {
        Ok((pod, listeners)) => {
            pod.serve(workers, listeners);
            Some(pod)
        }
        Err(error) => {
            tracing::warn!(
                error = format!("{error:#}"),
                "the proxy's own metrics are not served through tunnels"
            );
            None
        }
    }
}

fn shared_state(
    config: &Config,
    registry: &mut Registry,
) -> (SharedState, Option<mpsc::Receiver<AddressDemand>>) {
    let state = StateConfig {
        node: config.local_node.clone(),
        network: config.network.clone(),
        cluster_id: config.cluster_id.clone(),
        trust_domain: config.trust_domain.clone(),
        preferred_service_namespace: config.preferred_service_namespace.clone(),
        missing_policies: if config.missing_policy_allow {
            MissingPolicies::Ignore
        } else {
            MissingPolicies::Deny
        },
        invalid_policies: if config.keep_last_good_policy {
            InvalidPolicyMode::KeepLastGood
        } else {
            InvalidPolicyMode::Deny
        },
    };
    let (state, demands) = if config.xds_on_demand {
        let (state, demands) = SharedState::on_demand(state);
        (state, Some(demands))
    } else {
        (SharedState::new(state), None)
    };
    registry.register_collector(Box::new(PolicyCollector(state.clone())));
    (state, demands)
}

/// Loads the mesh state from a local file or variable, if configured, and returns its origin for dumps.
fn load_local(config: &Config, state: &SharedState) -> anyhow::Result<Value> {
    match &config.local_xds {
        None => Ok(Value::Null),
        Some(LocalXds::Text(text)) => {
            let mesh = local_xds::parse(text).context("LOCAL_XDS")?;
            mesh.apply_to(state);
            Ok(Value::String("LOCAL_XDS".to_owned()))
        }
        Some(LocalXds::Path(path)) => {
            let mesh = local_xds::read(path).context("LOCAL_XDS_PATH")?;
            mesh.apply_to(state);
            ambit_rt::spawn_essential(
                "local xds",
                local_xds::watch_mesh_file(path.clone(), mesh, state.clone()),
            );
            Ok(Value::String(path.display().to_string()))
        }
    }
}

fn certificate_settings(config: &Config) -> CertificateSettings {
    let socket = config.spire_admin_socket.clone();
    CertificateSettings {
        spiffe: socket.map(SpiffeAgent::DelegatedIdentity),
        ca: config.ca.clone(),
        auth_token: config.auth_token.clone(),
        cluster_id: config.cluster_id.clone(),
        proxy_identity: None,
        ttl: config.secret_ttl,
        crl_path: config.crl_path.clone(),
        trust_domains_path: config.trust_domains_path.clone(),
    }
}

fn xds_settings(config: &Config) -> XdsSettings {
    XdsSettings {
        upstream: config.xds.clone(),
        auth_token: config.auth_token.clone(),
        cluster_id: config.cluster_id.clone(),
        node: NodeInfo {
            role: Role::NodeProxy,
            name: config.own_pod.name.to_string(),
            namespace: config.own_pod.namespace.to_string(),
            ip: config.local_ip,
            node_name: config.local_node.to_string(),
            proxy_metadata: config.proxy_metadata.clone(),
        },
        on_demand: config.xds_on_demand,
    }
}
