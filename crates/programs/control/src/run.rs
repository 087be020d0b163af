//! Starts all parts of the control plane, and runs them until a signal.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use ambit_ca::{
    CertificateService, TrustPublisher,
    trust_domains::{self, PreviousPublication, PublishedTrustDomains},
    write_root,
};
use ambit_caller_auth::{
    CallerAccess, ServiceAccounts, WaypointRegistry, caller_pod::Pods, parse_accounts,
};
use ambit_derive::MeshConfig;
use ambit_egress::Guard;
use ambit_grpc_listener::ServeOptions;
use ambit_model::Identity;
use ambit_otlp_export::Exporter;
use ambit_rt::{Drain, DrainMode, DrainWatcher, Env, Readiness, Shutdown, drain, http as rt_http};

use ambit_waypoint_deployer::WaypointDeployer;
use ambit_waypoint_objects::Settings;
use ambit_xds_server::{
    DebugService, DeltaDiscovery, DiscoveryServer, SessionTable, StreamAdmission,
};
use anyhow::Context;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::{
    args::{Args, AttachmentMode, OutboundPolicy, WorkloadWaypoints},
    environment::{Cluster, Environment},
    flows::{FlowService, MeshProxies, OwnIdentity, UserAuthorizer},
    key_sets::KeySets,
    leadership::run_while_leader,
    mesh::{self, Mesh},
    metrics::Metrics,
    monitoring::Monitoring,
    restart_backoff,
    serving::ServingCertificate,
    startup_taint,
};

/// Time for open streams to end during the drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of the last export of metrics and logs when the process ends.
const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the control plane until SIGTERM or SIGINT.
pub fn main(args: Args) -> anyhow::Result<()> {
    let env = Env::from_process();
    let exporter = Exporter::from_env(&env, "ambit-control")?;
    let _log =
        ambit_rt::logging::init_with_sink(&env, exporter.record_sink()).context("logging")?;
    ambit_rt::panics::install_hook(ambit_rt::panics::PanicScope::Process);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals().context("cannot wait for signals")?;
        run(args, exporter, shutdown).await
    })
}

/// Runs the control plane until `shutdown`.
pub async fn run(args: Args, exporter: Exporter, mut shutdown: Shutdown) -> anyhow::Result<()> {
    ambit_rt::limits::raise_open_files();
    let running = start(&args).await?;
    running.metrics.register_exporter(&exporter);
    let metrics = Arc::clone(&running.metrics);
    let exporting = exporter.start(move || metrics.exposition());
    let cause = shutdown.wait().await;
    tracing::info!(cause, "stopping");
    running.stop().await;
    exporting.finish(LAST_EXPORT_TIMEOUT).await;
    Ok(())
}

/// Running control plane with the addresses of its ports.
#[derive(Debug)]
pub struct RunningControlPlane {
    /// Address of xDS and the CSR API.
    pub xds_address: SocketAddr,
    /// Address of metrics and debug pages.
    pub monitoring_address: SocketAddr,
    /// Address where users read flow events, if enabled.
    pub flows_address: Option<SocketAddr>,
    drain: Drain,
    metrics: Arc<Metrics>,
}

impl RunningControlPlane {
    /// Ends streams and connections, releases the Leases, and waits a few seconds for both.
    pub async fn stop(self) {
        self.drain.finish(DrainMode::graceful(DRAIN_TIMEOUT)).await;
    }
}

/// Starts all parts of the control plane.
pub async fn start(args: &Args) -> anyhow::Result<RunningControlPlane> {
    let (drain, watcher) = drain::channel();
    let metrics = Arc::new(Metrics::default());
    let Environment {
        source,
        publisher,
        authenticator,
        cluster,
    } = Environment::open(args, &metrics, &watcher).await?;
    let waypoints = Arc::<WaypointRegistry>::default();
    let access = CallerAccess::new(
        authenticator,
        parse_node_proxy_accounts(args)?,
        args.xds_any_account,
        args.own_namespace().into(),
        Arc::clone(&waypoints),
        metrics.callers.clone(),
    );
    let access = Arc::new(access);
    let serving =
        ServingCertificate::start(publisher.subscribe(), server_names(args), watcher.clone())?;
    let reports = cluster.as_ref().map(|cluster| {
        let (client, name) = (cluster.client.clone(), cluster.name.clone());
        ambit_status_writer::start(client, name, cluster.is_mesh_leader.clone(), &watcher)
    });
    let config = mesh_config(args)?;
    let key_sets = start_key_sets(args, &config, watcher.clone());
    let mesh = mesh::start(
        source,
        config,
        key_sets,
        reports,
        waypoints,
        Arc::clone(&metrics),
        watcher.clone(),
    );
    let domains = publish_trust_domains(args, cluster.as_ref(), &publisher, &mesh);
    if let Some(path) = &args.root_cert_out {
        write_root_on_change(path, &publisher, domains.clone())?;
    }
    if let Some(cluster) = &cluster {
        start_leader_tasks(cluster, &publisher, domains.clone(), &mesh, args, &watcher)?;
    }
    let own = OwnIdentity::new(own_identity(args), publisher.subscribe(), domains);
    let proxies = mesh_proxies(args, &mesh, &access, own);
    let flows = build_flow_service(args, cluster.as_ref(), proxies, &watcher);
    let flows = serve_flows(args.listen_flows, flows, &serving, &metrics).await?;
    let pods = Pods {
        directory: Arc::clone(&mesh.pods),
        version: mesh.followed_version.clone(),
    };
    let (discovery, sessions) = build_discovery(args, &mesh, &access, &pods, &metrics, &watcher);
    let monitoring = Monitoring {
        mesh: mesh.clone(),
        metrics: Arc::clone(&metrics),
        sessions,
        readiness: readiness(&mesh),
        cluster_id: args.cluster_id.as_str().into(),
        cluster: cluster.clone(),
    };
    let certificates = CertificateService {
        trust: publisher.subscribe(),
        access,
        pods,
        trust_domain: args.trust_domain.as_str().into(),
        max_ttl: args.max_workload_cert_ttl,
        metrics: metrics.ca.clone(),
    };
    let on_cluster = || SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080));
    if let Some(address) = args
        .listen_http
        .or_else(|| cluster.as_ref().map(|_| on_cluster()))
    {
        serve_monitoring(address, monitoring.clone(), watcher.clone()).await?;
    }
    let monitoring = serve_monitoring(args.listen_monitoring, monitoring, watcher.clone()).await?;
    let routes = Routes::new(discovery).add_service(certificates.into_server());
    let options = ServeOptions {
        routes: routes.prepare(),
        max_connection_age: Duration::from_secs(args.max_connection_seconds.max(1)),
    };
    let xds = serve_grpc(args.listen_xds, serving, options, &metrics, watcher).await?;
    Ok(RunningControlPlane {
        xds_address: xds,
        monitoring_address: monitoring,
        flows_address: flows,
        drain,
        metrics,
    })
}

/// Serves xDS and the CSR API over gRPC.
async fn serve_grpc(
    address: SocketAddr,
    serving: ServingCertificate,
    options: ServeOptions,
    metrics: &Metrics,
    drain: DrainWatcher,
) -> anyhow::Result<SocketAddr> {
    let listener = rt_http::bind(address, "xDS and certificates").await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "xDS and certificates");
    let closed = metrics.callers.clone();
    let incoming = ambit_grpc_listener::incoming_connections(
        listener,
        drain.clone(),
        move || serving.config(),
        move |why| closed.count_closed_connection(why.label()),
    );
    let closed = metrics.callers.clone();
    let served = ambit_grpc_listener::serve(incoming, options, drain, move |why| {
        closed.count_closed_connection(why.label());
    });
    ambit_rt::spawn("grpc", served);
    Ok(address)
}

/// Creates the xDS server, and the table of its open streams.
fn build_discovery(
    args: &Args,
    mesh: &Mesh,
    access: &Arc<CallerAccess>,
    pods: &Pods,
    metrics: &Arc<Metrics>,
    drain: &DrainWatcher,
) -> (DiscoveryServer, SessionTable) {
    let discovery = DeltaDiscovery::new(
        Arc::clone(&mesh.store),
        mesh.published_version.clone(),
        Arc::clone(access),
        pods.clone(),
        StreamAdmission::new(args.streams_per_second),
        metrics.xds.clone(),
        drain.clone(),
    );
    let sessions = discovery.sessions();
    let debug = DebugService::new(
        Arc::clone(&sessions),
        Arc::clone(access),
        args.name.as_deref().unwrap_or("ambit-control"),
        &args.cluster_id,
    );
    (DiscoveryServer::new(discovery, debug), sessions)
}

/// Parses the accounts of node proxies, by namespace and name.
fn parse_node_proxy_accounts(args: &Args) -> anyhow::Result<ServiceAccounts> {
    parse_accounts(&args.trusted_node_accounts)
        .map_err(anyhow::Error::msg)
        .context("--trusted-node-accounts")
}

/// Returns the proxies of the mesh whose flow events users may read.
fn mesh_proxies(
    args: &Args,
    mesh: &Mesh,
    access: &Arc<CallerAccess>,
    identity: OwnIdentity,
) -> MeshProxies {
    MeshProxies {
        pods: Arc::clone(&mesh.pods),
        access: Arc::clone(access),
        own_identity: Arc::new(identity),
        trust_domain: args.trust_domain.as_str().into(),
        visible_namespaces: None,
    }
}

/// Creates the server of flow events for users, if there is a cluster.
fn build_flow_service(
    args: &Args,
    cluster: Option<&Cluster>,
    proxies: MeshProxies,
    drain: &DrainWatcher,
) -> Option<FlowService> {
    let check_again = Duration::from_secs(args.flows_check_seconds.max(1));
    let users = UserAuthorizer::new(cluster?.client.clone());
    Some(FlowService::new(users, proxies, check_again, drain.clone()))
}

/// Serves flow events to users, if an address is configured.
async fn serve_flows(
    address: Option<SocketAddr>,
    flows: Option<FlowService>,
    serving: &ServingCertificate,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Option<SocketAddr>> {
    let (Some(address), Some(flows)) = (address, flows) else {
        return Ok(None);
    };
    let served = flows.serve(address, serving.clone(), metrics.callers.clone());
    Ok(Some(served.await?))
}

/// Returns the identity under which proxies let this control plane read flow events.
fn own_identity(args: &Args) -> Identity {
    Identity::new(
        args.trust_domain.as_str(),
        args.own_namespace(),
        args.service_account.as_str(),
    )
}

/// Starts the tasks that this replica runs while it is the leader.
fn start_leader_tasks(
    cluster: &Cluster,
    publisher: &TrustPublisher,
    trust_domains: watch::Receiver<PublishedTrustDomains>,
    mesh: &Mesh,
    args: &Args,
    drain: &DrainWatcher,
) -> anyhow::Result<()> {
    let (client, trust) = (cluster.client.clone(), publisher.subscribe());
    let distribute = run_while_leader(cluster.is_mesh_leader.clone(), drain.clone(), move || {
        ambit_ca::distribute_config_maps(client.clone(), trust.clone(), trust_domains.clone())
    });
    ambit_rt::spawn("root certificates", distribute);
    if let Some(settings) = &args.waypoints {
        let deployer = WaypointDeployer {
            client: cluster.client.clone(),
            settings: waypoint_settings(settings, args)?,
            revision: args.revision.clone(),
            system_namespace: args.root_namespace.clone(),
            is_mesh_leader: cluster.is_mesh_leader.clone(),
            discovery_selectors: mesh.discovery_selectors.clone(),
        };
        let deploy = run_while_leader(cluster.is_leader.clone(), drain.clone(), move || {
            deployer.clone().run()
        });
        ambit_rt::spawn("waypoints", deploy);
    }
    if args.reset_restart_backoff {
        let (client, namespace) = (cluster.client.clone(), args.own_namespace().to_owned());
        let replace = run_while_leader(cluster.is_leader.clone(), drain.clone(), move || {
            restart_backoff::run(client.clone(), namespace.clone())
        });
        ambit_rt::spawn("restart back-off", replace);
    }
    if !args.untaint_nodes {
        return Ok(());
    }
    let client = cluster.client.clone();
    let (namespace, taint) = (args.own_namespace().to_owned(), args.startup_taint.clone());
    let remove_taints = run_while_leader(cluster.is_leader.clone(), drain.clone(), move || {
        startup_taint::remove_taints(client.clone(), namespace.clone(), taint.clone())
    });
    ambit_rt::spawn("startup taint", remove_taints);
    Ok(())
}

/// Parses the settings of waypoints, and adds the values that this control plane determines.
fn waypoint_settings(text: &str, args: &Args) -> anyhow::Result<Settings> {
    let settings: Settings = serde_json::from_str(text).context("--waypoints")?;
    Ok(Settings {
        flow_reader: args.listen_flows.map(|_| own_identity(args).to_string()),
        control_address: format!(
            "https://{}.{}.svc:15012",
            args.service_name(),
            args.own_namespace()
        ),
        trust_domain: args.trust_domain.clone(),
        cluster_id: args.cluster_id.clone(),
        cluster_domain: args.cluster_domain.clone(),
        ..settings
    })
}

/// Writes the root certificates to a file for clients, at the start and whenever they change.
fn write_root_on_change(
    path: &Path,
    publisher: &TrustPublisher,
    mut trust_domains: watch::Receiver<PublishedTrustDomains>,
) -> anyhow::Result<()> {
    let mut trust = publisher.subscribe();
    write_root(path, &trust.borrow_and_update().authority.root_pem())?;
    let path = path.to_owned();
    ambit_rt::spawn("root file", async move {
        loop {
            let changed = tokio::select! {
                changed = trust.changed() => changed,
                changed = trust_domains.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
            let mut roots = trust.borrow_and_update().authority.root_pem();
            if let Some(known) = &*trust_domains.borrow_and_update() {
                roots.push_str(&known.additional_roots);
            }
            if let Err(error) = write_root(&path, &roots) {
                tracing::error!(%error, "the roots are not written for clients");
            }
        }
    });
    Ok(())
}

/// Publishes the trust domains that are accepted besides the mesh's own.
fn publish_trust_domains(
    args: &Args,
    cluster: Option<&Cluster>,
    publisher: &TrustPublisher,
    mesh: &Mesh,
) -> watch::Receiver<PublishedTrustDomains> {
    let last = match (cluster, &args.trust_domains_out) {
        (Some(cluster), _) => {
            PreviousPublication::ConfigMap(cluster.client.clone(), args.own_namespace().into())
        }
        (None, Some(path)) => PreviousPublication::File(path.clone()),
        (None, None) => PreviousPublication::NoSource,
    };
    let (sender, published) = watch::channel(None);
    let (own, trust) = (args.trust_domain.clone(), publisher.subscribe());
    let desired = mesh.trust_domains.clone();
    let publish = trust_domains::publish_trust_domains(own, desired, trust, last, sender);
    ambit_rt::spawn("trust domains", publish);
    if let Some(path) = args.trust_domains_out.clone() {
        let keep = trust_domains::write_on_change(path, published.clone());
        ambit_rt::spawn("trust domains file", keep);
    }
    published
}

/// Returns the readiness of the process: ready once the initial objects' records are published.
fn readiness(mesh: &Mesh) -> Readiness {
    let readiness = Readiness::new();
    let objects = readiness.add_pending_task("objects of the mesh");
    let mut published = mesh.published_version.clone();
    ambit_rt::spawn("ready", async move {
        if published.wait_for(|number| *number > 0).await.is_ok() {
            objects.ready();
        }
    });
    readiness
}

async fn serve_monitoring(
    address: SocketAddr,
    monitoring: Monitoring,
    drain: DrainWatcher,
) -> anyhow::Result<SocketAddr> {
    let listener = rt_http::bind(address, "monitoring").await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "monitoring");
    let options = rt_http::ServerOptions::default();
    let answer = move |request| {
        let monitoring = monitoring.clone();
        async move { monitoring.respond(&request).await }
    };
    let serve = rt_http::serve("monitoring", listener, options, drain, answer);
    ambit_rt::spawn("monitoring", serve);
    Ok(address)
}

fn start_key_sets(args: &Args, config: &MeshConfig, drain: DrainWatcher) -> KeySets {
    let refresh = Duration::from_secs(args.jwks_refresh_seconds.max(1));
    KeySets::start(refresh, Guard::new(config.allowed_addresses.clone()), drain)
}

fn mesh_config(args: &Args) -> anyhow::Result<MeshConfig> {
    let allowed = ambit_egress::parse_nets(&args.egress_allowed_addresses);
    // Gateways that attach pods by themselves are resolved by endpoint, which service-only scope
    // leaves out.
    anyhow::ensure!(
        args.workload_waypoints == WorkloadWaypoints::Enforced
            || args.waypoint_attachment == AttachmentMode::Labels,
        "--workload-waypoints istio needs --waypoint-attachment labels"
    );
    Ok(MeshConfig {
        cluster_id: args.cluster_id.as_str().into(),
        trust_domain: args.trust_domain.as_str().into(),
        cluster_domain: args.cluster_domain.as_str().into(),
        root_namespace: args.root_namespace.as_str().into(),
        dry_run_policies: args.dry_run_policies,
        waypoint_attachment: args.waypoint_attachment.into(),
        workload_waypoints: args.workload_waypoints.into(),
        waypoint_missing: args.waypoint_missing.into(),
        waypoint_binding: args.waypoint_binding.into(),
        registry_only: args.outbound_traffic_policy == OutboundPolicy::RegistryOnly,
        path_normalization: args.path_normalization.into(),
        trusted_proxies: args.trusted_proxies,
        reference_grants: args.reference_grants.into(),
        service_policy_scope: args.service_policy_scope.into(),
        image_pull_secrets: args.image_pull_secrets,
        allowed_addresses: allowed.context("--egress-allowed-addresses")?,
        revision: args.revision.as_str().into(),
        enablement: args.enablement().context("--enablement-selector")?,
    })
}

fn server_names(args: &Args) -> Vec<String> {
    let root = &args.root_namespace;
    let service = args.service_name();
    let mut names = vec![
        format!("{service}.{root}.svc"),
        format!("{service}.{root}.svc.{}", args.cluster_domain),
        "localhost".to_owned(),
        "istiod.istio-system.svc".to_owned(),
        format!("istiod.{root}.svc"),
        format!("istiod.{root}.svc.{}", args.cluster_domain),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    if !args.listen_xds.ip().is_unspecified() {
        names.push(args.listen_xds.ip().to_string());
    }
    names.extend(args.server_san.iter().cloned());
    names.sort();
    names.dedup();
    names
}
