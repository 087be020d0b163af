//! The process: puts the parts together, runs them, and ends them in order.

use std::{net::SocketAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use ambit_certificates::{Certificates, CertificatesOptions, CsrClient, CsrClientOptions};
use ambit_control_channel::{CallHeaders, ChannelConfig, RootCa, TokenSource};
use ambit_handover::{Accept, Held, Keeper, keeper};
use ambit_model::ArcStr;
use ambit_rt::{
    DrainMode, Env, Readiness, Shutdown, drain,
    http::{self, ServerOptions},
    logging::{self, LogHandle},
    panics::Ends,
};
use ambit_sys::{
    netns::Netns,
    privileges::{self, Capability},
};
use ambit_telemetry::{Metrics, XdsTermination};
use ambit_tls::{Crls, TlsSettings};
use ambit_xds::{Ending, Handler, NodeInfo};
use anyhow::Context as _;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::{
    admin::{Admin, respond_metrics, respond_readiness},
    config::{Config, LocalXds, Upstream},
    enrolled,
    gate::Gate,
    held::HeldPod,
    kept::{self, KeptCertificates, KeptMesh},
    local_xds,
    pod::{Pod, Proxy},
    pods::Enrolment,
    policy_metrics::PolicyCollector,
    rollout::Turn,
    state::{
        AddressDemand, IdentityEvent, NotUnderstoodPolicies, SharedState, StateConfig,
        follow_identities,
    },
    termination::Termination,
    workers::Workers,
};

/// How often a port that is still the old proxy's is tried.
const PORT_RETRY: Duration = Duration::from_millis(50);

/// Who started the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// A user, or a test.
    Anyone,
    /// A supervisor: standard input is the line to it.
    Supervisor,
}

/// Reads the environment and runs until a signal, or `/quitquitquit`, ends it.
///
/// # Errors
/// When the process cannot start; what fails later is retried and logged.
pub fn run(env: &Env, by: StartedBy) -> anyhow::Result<()> {
    if by == StartedBy::Supervisor {
        keeper::end_with_supervisor(c"ambit-node-prox")
            .context("cannot follow the supervisor's end")?;
    }
    let logs = logging::init(env).context("cannot set up logging")?;
    ambit_rt::panics::follow(Ends::Task);
    ambit_rt::limits::raise_open_files();
    let config = Config::from_env(env)?;
    check_privileges(&config)?;
    drop_privileges();
    let runtime = ambit_rt::current_thread().context("cannot make the main runtime")?;
    let result = runtime.block_on(run_with(env, config, logs, by));
    // A blocking task, a DNS lookup for instance, must not hold the process.
    runtime.shutdown_timeout(Duration::from_millis(200));
    logging::flush(Duration::from_secs(1));
    result
}

/// Fails now, with the reason, rather than at the first pod.
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

/// Keeps what entering pods and opening their sockets takes. Before any thread is made: each has its
/// own.
fn drop_privileges() {
    if let Err(error) = privileges::keep(&[Capability::SysAdmin, Capability::NetAdmin]) {
        tracing::warn!(%error, "cannot drop the capabilities that are not needed");
    }
}

async fn run_with(env: &Env, config: Config, logs: LogHandle, by: StartedBy) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::on_signals().context("cannot follow signals")?;
    let (keeper, mut held) = match by {
        StartedBy::Supervisor => Keeper::connect().await?,
        StartedBy::Anyone => (Keeper::none(), Held::default()),
    };
    let readiness = Readiness::new();
    let state_ready = readiness.pending("state manager");
    let proxy_ready = readiness.pending("proxy");
    let pods_ready = readiness.pending("workload proxy manager");
    let taking_over = readiness.pending("taking over");
    let mut registry = Registry::default();
    let version = env.get("ISTIO_META_ISTIO_VERSION");
    let metrics = Arc::new(Metrics::register(&mut registry, version));

    let (state, demands) = shared_state(&config, &mut registry);
    let static_config = load_local(&config, &state)?;
    let (mesh, cache) = kept::take_over(&mut held, &keeper, !config.xds_on_demand);
    let certificates = certificates(env, &config, cache.clone())?;
    let prefetching = prefetch(state.clone(), certificates.clone(), cache);
    ambit_rt::spawn_essential("identities", prefetching);
    let (known, mesh_known) = watch::channel(false);
    let synced = move || {
        state_ready.ready();
        known.send_replace(true);
    };
    if config.local_xds.is_some() || config.xds.address.is_none() {
        state.mark_addresses_known();
        state.mark_policies_known();
        synced();
    } else {
        let follower = Follower {
            state: state.clone(),
            metrics: metrics.clone(),
            synced,
            kept: mesh,
        };
        follow_control_plane(env, &config, follower, demands)?;
    }

    let workers = Arc::new(Workers::start(config.num_worker_threads).context("no workers")?);
    ambit_rt::metrics::register_process(&mut registry);
    ambit_rt::metrics::register_runtimes(&mut registry, workers.runtimes());
    let (gate_keeper, gate) = Gate::closed();
    let proxy = Arc::new(Proxy {
        config,
        state,
        certificates,
        metrics,
        gate,
    });
    let mut enrolment = Enrolment::new(proxy.clone(), workers.clone(), keeper.clone(), pods_ready);
    let served = enrolment.served();
    restore(held, &mut enrolment, &keeper, &proxy.config);
    let own = serve_own(&proxy, &workers);
    let turn = Turn {
        proxy: proxy.clone(),
        served: served.clone(),
        keeper: keeper.clone(),
        gate: gate_keeper,
        ready: taking_over,
    };
    ambit_rt::spawn_essential("taking turns", turn.follow(mesh_known));
    let admin = Admin {
        proxy: proxy.clone(),
        served: served.clone(),
        logs: Some(logs),
        quit: shutdown.trigger(),
        static_config,
    };
    let (servers, watcher) = drain::channel();
    let following = *keeper.accept().borrow() == Accept::WhenReady;
    serve_http(admin, registry, readiness, &watcher, following).await?;
    keeper.started();
    let enrolling = ambit_rt::essential("enrolment", enrolment.run());
    let enrolment = ambit_rt::spawn_abortable("enrolment", enrolling);
    proxy_ready.ready();
    tracing::info!(workers = workers.count(), node = %proxy.config.local_node, "serving");

    let cause = shutdown.wait().await;
    let termination = Termination {
        proxy,
        served,
        keeper,
        own,
        enrolment,
    };
    termination.run(cause).await;
    servers.start(DrainMode::graceful(Duration::from_secs(1)));
    Ok(())
}

/// Serves the pods of the process before this one; where nobody held anything, those of the agent's record,
/// until the agent itself is heard.
fn restore(held: Held<OwnedFd>, enrolment: &mut Enrolment, keeper: &Keeper, config: &Config) {
    for (key, item) in held.into_items() {
        match HeldPod::read(&key, item) {
            Ok(pod) => enrolment.restore(pod),
            Err(error) => {
                tracing::warn!(uid = %key, %error, "a pod was not handed over");
                keeper.release(&key);
            }
        }
    }
    if keeper.is_supervised() && enrolment.served().is_empty() {
        let record = enrolled::path(&config.inpod_uds);
        for pod in enrolled::regain(&record, &config.netns_dir) {
            enrolment.restore(pod);
        }
    }
}

/// Serves the proxy's own pod, if the environment says which that is. Nobody else's connections depend on
/// it.
fn serve_own(proxy: &Arc<Proxy>, workers: &Workers) -> Option<Arc<Pod>> {
    let own = &proxy.config.own;
    if [&own.name, &own.namespace, &own.service_account].contains(&&ArcStr::default()) {
        return None;
    }
    let opened = Netns::current()
        .map_err(anyhow::Error::from)
        .and_then(|netns| Ok(Pod::open_own(proxy.clone(), netns, workers.count())?));
    match opened {
        Ok((pod, listeners)) => {
            workers.serve(&pod, listeners);
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
            ambit_authz::MissingPolicies::Ignore
        } else {
            ambit_authz::MissingPolicies::Refuse
        },
        not_understood: if config.keep_last_good_policy {
            NotUnderstoodPolicies::KeepLastGood
        } else {
            NotUnderstoodPolicies::Deny
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

/// The mesh from a file or variable, if it comes from one.
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
                local_xds::follow(path.clone(), mesh, state.clone()),
            );
            Ok(Value::String(path.display().to_string()))
        }
    }
}

fn channel_config(upstream: &Upstream, tls: TlsSettings) -> Option<ChannelConfig> {
    Some(ChannelConfig {
        address: upstream.address.clone()?,
        roots: RootCa::from_setting(&upstream.root),
        alternative_name: upstream.alternative_name.clone(),
        tls,
    })
}

fn token(config: &Config) -> Option<TokenSource> {
    config.auth_token.as_deref().map(TokenSource::from_setting)
}

fn certificates(
    env: &Env,
    config: &Config,
    cache: Option<Arc<KeptCertificates>>,
) -> anyhow::Result<Certificates> {
    let mut settings = TlsSettings::from_env(env)?;
    if let Some(path) = &config.crl_path {
        let lists = Crls::new();
        if let Err(error) = lists.load(path) {
            tracing::warn!(%error, "no certificate revocation lists yet");
        }
        ambit_rt::spawn_essential("revocation lists", lists.clone().follow(path.clone()));
        settings = settings.with_crls(lists);
    }
    let upstream = channel_config(&config.ca, settings.clone())
        .context("CA_ADDRESS is empty: without a certificate authority no tunnel can be made")?;
    let headers = CallHeaders::from_env(env, "CA_HEADER_", token(config), &config.cluster_id)?;
    let client = CsrClient::new(
        ambit_control_channel::channel(&upstream).context("CA_ADDRESS")?,
        headers,
        settings,
        CsrClientOptions {
            ttl: config.secret_ttl,
            ..CsrClientOptions::default()
        },
    );
    let client = match cache {
        Some(cache) => client.with_cache(cache),
        None => client,
    };
    Ok(Certificates::start(
        Arc::new(client),
        CertificatesOptions::default(),
    ))
}

/// Fetches certificates ahead of use, and forgets those of identities that left the node.
async fn prefetch(
    state: SharedState,
    certificates: Certificates,
    cache: Option<Arc<KeptCertificates>>,
) {
    follow_identities(state, |event| match event {
        IdentityEvent::Appeared(identity) => certificates.prefetch(&identity),
        IdentityEvent::Gone(identity) => {
            certificates.forget(&identity);
            if let Some(cache) = &cache {
                cache.forget(&identity);
            }
        }
    })
    .await;
}

/// Keeps the state as the control plane tells it.
struct Follower<F> {
    state: SharedState,
    metrics: Arc<Metrics>,
    synced: F,
    kept: Option<Arc<KeptMesh>>,
}

impl<F: Fn() + Send + Sync + 'static> Handler for Follower<F> {
    fn apply(&self, batch: &mut Vec<ambit_xds::Update>) {
        self.state.apply(batch);
    }

    fn addresses_known(&self) {
        self.state.mark_addresses_known();
    }

    fn policies_known(&self) {
        self.state.mark_policies_known();
    }

    fn ready(&self) {
        (self.synced)();
    }

    fn keep(&self, type_url: &str, name: &str, kept: &ambit_xds::Kept) {
        if let Some(mesh) = &self.kept {
            mesh.keep(type_url, name, kept);
        }
    }

    fn kept(&self, type_url: &str, complete: bool) {
        if let Some(mesh) = &self.kept {
            mesh.kept(type_url, complete);
        }
    }

    fn received(&self, type_url: &str, bytes: usize) {
        self.metrics
            .xds_message(type_url, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    fn unknown_fields(&self, type_url: &str, count: u64) {
        self.metrics.unknown_fields(type_url, count);
    }

    fn ended(&self, ending: Ending) {
        self.metrics.xds_terminated(match ending {
            Ending::ConnectFailed => XdsTermination::ConnectionError,
            Ending::Transient => XdsTermination::Reconnect,
            Ending::Refused => XdsTermination::Error,
            Ending::Closed => XdsTermination::Complete,
        });
    }
}

fn follow_control_plane<F: Fn() + Send + Sync + 'static>(
    env: &Env,
    config: &Config,
    follower: Follower<F>,
    demands: Option<mpsc::Receiver<AddressDemand>>,
) -> anyhow::Result<()> {
    let upstream =
        channel_config(&config.xds, TlsSettings::from_env(env)?).context("XDS_ADDRESS is empty")?;
    let node = NodeInfo {
        name: config.own.name.to_string(),
        namespace: config.own.namespace.to_string(),
        ip: config.local_ip,
        node_name: config.local_node.to_string(),
        proxy_metadata: config.proxy_metadata.clone(),
    };
    let options = ambit_xds::ClientOptions {
        channel: ambit_control_channel::channel(&upstream).context("XDS_ADDRESS")?,
        address: upstream.address.clone(),
        headers: CallHeaders::from_env(env, "XDS_HEADER_", token(config), &config.cluster_id)?,
        node: node.to_wire(env)?,
        on_demand: config.xds_on_demand,
        not_understood: follower.state.config().not_understood,
    };
    let kept = follower.kept.clone();
    let mut client = ambit_xds::Client::new(options, follower, demands);
    if let Some(kept) = kept {
        kept.restore(&mut client)
            .context("cannot read what was kept of the mesh")?;
    }
    ambit_rt::spawn_essential("xds", client.run());
    Ok(())
}

async fn serve_http(
    admin: Admin,
    registry: Registry,
    readiness: Readiness,
    drain: &ambit_rt::DrainWatcher,
    following: bool,
) -> anyhow::Result<()> {
    let config = &admin.proxy.config;
    let any = |port| -> SocketAddr {
        let ip = if config.ipv6_enabled && std::path::Path::new("/proc/net/if_inet6").exists() {
            std::net::IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)
        } else {
            std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)
        };
        (ip, port).into()
    };
    let admin_port = ([127, 0, 0, 1], config.admin_port).into();
    let (stats_port, readiness_port) = (any(config.stats_port), any(config.readiness_port));
    let server = |purpose, address, options| Server {
        purpose,
        address,
        options,
        drain: drain.clone(),
        wait_for_port: following,
    };
    let admin = Arc::new(admin);
    let registry = Arc::new(registry);
    server("admin", admin_port, ServerOptions::loopback())
        .serve(move |r| {
            let admin = admin.clone();
            async move { admin.respond(&r) }
        })
        .await?;
    let options = ServerOptions::default();
    server("metrics", stats_port, options)
        .serve(move |r| {
            let registry = registry.clone();
            async move { respond_metrics(&registry, &r) }
        })
        .await?;
    server("readiness", readiness_port, options)
        .serve(move |r| {
            let readiness = readiness.clone();
            async move { respond_readiness(&readiness, &r) }
        })
        .await?;
    Ok(())
}

/// An HTTP server to be.
struct Server {
    purpose: &'static str,
    address: SocketAddr,
    options: ServerOptions,
    drain: ambit_rt::DrainWatcher,
    /// The port may be the old proxy's for a while, when both have one network.
    wait_for_port: bool,
}

impl Server {
    async fn serve<H, F>(self, handler: H) -> anyhow::Result<()>
    where
        H: Fn(http::Request) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = http::Response> + Send + 'static,
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
            Err(error) if wait_for_port && error.source.kind() == std::io::ErrorKind::AddrInUse => {
                None
            }
            Err(error) => return Err(error.into()),
        };
        ambit_rt::spawn_essential("http server", async move {
            let listener = match listener {
                Some(listener) => listener,
                None => loop {
                    tokio::time::sleep(PORT_RETRY).await;
                    if let Ok(listener) = http::bind(address, purpose).await {
                        break listener;
                    }
                },
            };
            http::serve(purpose, listener, options, drain, handler).await;
        });
        Ok(())
    }
}
