//! Envoy as a waypoint: a program in place of Ambit's waypoint in a pod, which fetches the pod's certificate and runs
//! Envoy.

mod configuration;

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use ambit_certificates::CertificateRequest;
use ambit_control_channel::{CallMetadata, ChannelConfig, RootCa, TokenSource, create_channel};
use ambit_model::Identity;
use ambit_rt::Env;
use ambit_tls::TlsSettings;
use ambit_wire::citadel::{
    IstioCertificateRequest, istio_certificate_service_client::IstioCertificateServiceClient,
};
use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
    signal::unix::{SignalKind, signal},
};
use tonic::Request;

use super::scenario::Scenario;

/// Name of the file with Envoy's routes.
const ROUTES_FILE: &str = "routes.json";

/// Number of Envoy's worker threads, equal to that of Ambit's waypoint.
const WORKER_THREADS: &str = "2";
/// Admin port of Envoy in the pod.
const ADMIN_PORT: u16 = 15000;
/// Drain time of Envoy, the default of Istio's agent.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Paths of the configuration files of one Envoy.
#[derive(Clone, Debug)]
pub(crate) struct EnvoyFiles {
    directory: PathBuf,
}

impl EnvoyFiles {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes Envoy's configuration, for which the program in the pod waits.
    pub(crate) fn configure(
        &self,
        scenario: Scenario,
        backend: &str,
        callee: Option<&str>,
    ) -> Result<()> {
        self.write_routes(scenario, None)?;
        let configuration = self.configuration(scenario, backend, callee)?;
        self.replace("envoy.json", &configuration.to_string())
    }

    /// Replaces Envoy's routes; `mark` is added to all responses as a header.
    pub(super) fn write_routes(&self, scenario: Scenario, mark: Option<usize>) -> Result<()> {
        self.replace(ROUTES_FILE, &Self::routes(scenario, mark).to_string())
    }

    fn replace(&self, name: &str, text: &str) -> Result<()> {
        let beside = self.path("replacement");
        fs::write(&beside, text)?;
        Ok(fs::rename(beside, self.path(name))?)
    }
}

/// Runs in place of Ambit's waypoint in a pod: fetches the pod's certificate, waits for the configuration, and runs
/// `envoy` until it or the pod ends.
pub(crate) fn run_as_waypoint(envoy: &Path, directory: &Path) -> Result<()> {
    let files = EnvoyFiles::new(directory);
    ambit_rt::current_thread_runtime()?.block_on(async {
        // From the beginning, so that none is missed.
        let mut end = signal(SignalKind::terminate())?;
        fetch_certificate(&Env::from_process(), &files).await?;
        let configuration = files.path("envoy.json");
        while !configuration.exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut envoy = Command::new(envoy)
            .args(["--concurrency", WORKER_THREADS, "--disable-hot-restart"])
            .args(["--log-level", "warning", "--config-path"])
            .arg(configuration)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", envoy.display()))?;
        tokio::select! {
            ended = envoy.wait() => bail!("Envoy has ended: {}", ended?),
            _ = end.recv() => {}
        }
        // As Istio's agent does it.
        let drained = drain().await;
        tokio::time::sleep(DRAIN_TIME).await;
        envoy.kill().await?;
        drained
    })
}

/// Makes Envoy drain its connections, by its admin API.
async fn drain() -> Result<()> {
    let mut admin = TcpStream::connect((Ipv4Addr::LOCALHOST, ADMIN_PORT)).await?;
    let request = "POST /drain_listeners?graceful HTTP/1.1\r\nhost: admin\r\ncontent-length: 0\r\n\
        connection: close\r\n\r\n";
    admin.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    admin.read_to_string(&mut answer).await?;
    ensure!(
        answer.starts_with("HTTP/1.1 200"),
        "Envoy does not drain: {answer}"
    );
    Ok(())
}

async fn fetch_certificate(env: &Env, files: &EnvoyFiles) -> Result<()> {
    let named = |name| env.get(name).with_context(|| format!("{name} is not set"));
    let identity = Identity::new(
        named("TRUST_DOMAIN")?,
        named("POD_NAMESPACE")?,
        named("SERVICE_ACCOUNT")?,
    );
    let ca = create_channel(&ChannelConfig {
        address: named("CA_ADDRESS")?.to_owned(),
        roots: RootCa::from_setting(named("CA_ROOT_CA")?),
        alternative_name: None,
        tls: TlsSettings::default(),
    })?;
    let token = TokenSource::from_setting(named("AUTH_TOKEN")?);
    let headers = CallMetadata::from_env(env, "CA_HEADER_", Some(token), "Kubernetes")?;
    // The control plane may not know of this pod yet.
    let chain = loop {
        let csr = CertificateRequest::new(&identity)?;
        let key = BASE64_STANDARD.encode(csr.key.secret_der());
        let mut request = Request::new(IstioCertificateRequest {
            csr: csr.pem,
            validity_duration: 24 * 3600,
            metadata: None,
        });
        headers.apply(request.metadata_mut()).await?;
        let mut client = IstioCertificateServiceClient::new(ca.clone());
        match client.create_certificate(request).await {
            Ok(answer) => {
                fs::write(
                    files.path("key.pem"),
                    format!("-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n"),
                )?;
                break answer.into_inner().cert_chain;
            }
            Err(status) => eprintln!("no certificate yet: {status}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    fs::copy(named("CA_ROOT_CA")?, files.path("root.pem"))?;
    fs::write(files.path("chain.pem"), chain.concat())?;
    Ok(())
}
