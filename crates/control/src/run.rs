//! Puts the parts together and runs them until a signal.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ambit_manifests::ManifestDirs;
use ambit_rt::{Drain, DrainMode, DrainWatcher, Env, Readiness, Shutdown, drain, http as rt_http};
use ambit_tls::grpc;
use ambit_wire::citadel::istio_certificate_service_server::IstioCertificateServiceServer;
use anyhow::Context;
use parking_lot::RwLock;
use tokio::task::JoinHandle;

use crate::{
    access::{Access, parse_accounts},
    args::Args,
    auth::{Authenticator, KeyFile, NoKeys},
    ca::{CertificateService, open_authority, write_root},
    derive::MeshConfig,
    mesh::{self, Mesh},
    metrics::Metrics,
    monitoring::Monitoring,
    serving::Serving,
    xds::{Discovery, DiscoveryServer},
};

/// How long open streams may take to end.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT.
pub fn main(args: Args) -> anyhow::Result<()> {
    let env = Env::from_process();
    let _log = ambit_rt::logging::init(&env).context("logging")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals().context("cannot wait for signals")?;
        run(args, shutdown).await
    })
}

/// Runs until `shutdown`.
pub async fn run(args: Args, mut shutdown: Shutdown) -> anyhow::Result<()> {
    ambit_rt::limits::raise_open_files();
    let running = start(&args).await?;
    let cause = shutdown.wait().await;
    tracing::info!(cause, "stopping");
    running.stop().await
}

/// A control plane at work.
#[derive(Debug)]
pub struct Running {
    /// Where xDS and the CSR API are served.
    pub xds: SocketAddr,
    /// Where metrics and debug pages are served.
    pub monitoring: SocketAddr,
    drain: Drain,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Running {
    /// Ends streams and connections, and waits for them a few seconds.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.drain.finish(DrainMode::graceful(DRAIN)).await;
        match tokio::time::timeout(DRAIN, self.server).await {
            Ok(Ok(result)) => result.context("the gRPC server failed"),
            Ok(Err(error)) => Err(error).context("the gRPC server died"),
            Err(_) => Ok(()),
        }
    }
}

/// Starts all parts.
pub async fn start(args: &Args) -> anyhow::Result<Running> {
    let (drain, watcher) = drain::channel();
    let metrics = Arc::new(Metrics::default());
    let authority = open_authority(args.ca_dir.as_deref(), &args.trust_domain)?;
    metrics.set_root_expiry(authority.not_after());
    if let Some(path) = &args.root_cert_out {
        write_root(path, &authority)?;
    }
    let authority = Arc::new(RwLock::new(Arc::new(authority)));
    let serving = Serving::start(Arc::clone(&authority), server_names(args), watcher.clone())?;
    let access = Arc::new(access(args)?);
    let source = ManifestDirs::open(args.manifests.clone())?;
    let mesh = mesh::start(
        source,
        mesh_config(args),
        Arc::clone(&metrics),
        watcher.clone(),
    );
    let discovery = Discovery::new(
        Arc::clone(&mesh.store),
        mesh.published.clone(),
        Arc::clone(&access),
        Arc::clone(&metrics),
        watcher.clone(),
    );
    let monitoring = Monitoring {
        mesh: mesh.clone(),
        metrics: Arc::clone(&metrics),
        sessions: discovery.sessions(),
        readiness: readiness(&mesh),
    };
    let certificates = CertificateService {
        authority,
        access,
        pods: Arc::clone(&mesh.pods),
        followed: mesh.followed.clone(),
        trust_domain: args.trust_domain.as_str().into(),
        metrics,
    };
    let monitoring = serve_monitoring(args.listen_monitoring, monitoring, watcher.clone()).await?;
    let listener = rt_http::bind(args.listen_xds, "xDS and certificates").await?;
    let xds = listener.local_addr()?;
    tracing::info!(address = %xds, "xDS and certificates");
    let incoming = grpc::incoming(listener, watcher.clone(), move || serving.config());
    let mut stopping = watcher;
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .max_concurrent_streams(Some(128))
        .initial_stream_window_size(Some(1 << 20))
        .initial_connection_window_size(Some(4 << 20))
        .add_service(DiscoveryServer::new(discovery))
        .add_service(IstioCertificateServiceServer::new(certificates))
        .serve_with_incoming_shutdown(incoming, async move {
            stopping.started().await;
        });
    let server = ambit_rt::spawn("grpc", server);
    Ok(Running {
        xds,
        monitoring,
        drain,
        server,
    })
}

/// Ready once the objects that exist at the start are published.
fn readiness(mesh: &Mesh) -> Readiness {
    let readiness = Readiness::new();
    let objects = readiness.pending("objects of the mesh");
    let mut published = mesh.published.clone();
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
        let response = monitoring.respond(&request);
        async move { response }
    };
    let serve = rt_http::serve("monitoring", listener, options, drain, answer);
    ambit_rt::spawn("monitoring", serve);
    Ok(address)
}

fn access(args: &Args) -> anyhow::Result<Access> {
    let authenticator: Arc<dyn Authenticator> = match &args.token_keys {
        Some(path) => Arc::new(KeyFile::open(path, &args.token_audience)?),
        None => {
            tracing::warn!("no --token-keys: every caller is refused");
            Arc::new(NoKeys)
        }
    };
    let trusted = parse_accounts(&args.trusted_node_accounts)
        .map_err(anyhow::Error::msg)
        .context("--trusted-node-accounts")?;
    Ok(Access::new(authenticator, trusted, args.xds_any_account))
}

fn mesh_config(args: &Args) -> MeshConfig {
    MeshConfig {
        cluster_id: args.cluster_id.as_str().into(),
        trust_domain: args.trust_domain.as_str().into(),
        cluster_domain: args.cluster_domain.as_str().into(),
        root_namespace: args.root_namespace.as_str().into(),
        dry_run_policies: args.dry_run_policies,
    }
}

fn server_names(args: &Args) -> Vec<String> {
    let root = &args.root_namespace;
    let mut names = vec![
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
