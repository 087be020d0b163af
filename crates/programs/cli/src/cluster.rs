//! Flags that select a command's cluster, and the connection to its API server.

use std::{future::Future, path::PathBuf};

use ambit_install::cluster::ClusterApi;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

use crate::{CliError, ErrorKind, labs};

/// User agent of requests to the API server.
const USER_AGENT: &str = concat!("ambit/", env!("CARGO_PKG_VERSION"));

/// Cluster of a command, and the mesh's namespace in it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// The kubeconfig file; otherwise $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long)]
    pub(crate) context: Option<String>,
    /// The namespace of the mesh
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = "istio-system",
        env = "AMBIT_NAMESPACE"
    )]
    pub(crate) mesh_namespace: String,
}

impl Default for Target {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            mesh_namespace: "istio-system".to_owned(),
        }
    }
}

impl Target {
    /// Connects to the cluster that the flags select.
    pub(crate) async fn connect(&self) -> Result<ClusterApi, CliError> {
        connect(self.load_config().await?)
    }

    /// Reads the cluster's address and the user's credentials from the kubeconfig.
    pub(crate) async fn load_config(&self) -> Result<Config, CliError> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        match &self.kubeconfig {
            Some(path) => {
                let file =
                    Kubeconfig::read_from(path).map_err(|error| kubeconfig_error(error.into()))?;
                Config::from_custom_kubeconfig(file, &options)
                    .await
                    .map_err(|error| kubeconfig_error(error.into()))
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options)
                .await
                .map_err(|error| kubeconfig_error(error.into())),
            None => Config::infer()
                .await
                .map_err(|error| kubeconfig_error(error.into())),
        }
    }
}

/// Creates a client for the API server of a client configuration.
pub(crate) fn connect(config: Config) -> Result<ClusterApi, CliError> {
    let client = ambit_kube_kit::client::from_config(config, USER_AGENT);
    let client = client.map_err(|error| kubeconfig_error(error.into()))?;
    Ok(ClusterApi::new(client))
}

fn kubeconfig_error(error: Box<dyn std::error::Error + Send + Sync>) -> CliError {
    let error = CliError::new(ErrorKind::Unreachable, "no cluster can be reached")
        .with_source(error)
        .with_hint("--kubeconfig FILE or $KUBECONFIG names one");
    match labs::running_labs_hint() {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

impl Target {
    /// Returns the lab that `--lab` names; `None` if other flags select a cluster.
    pub(crate) fn lab_name(&self, lab_flag: Option<&str>) -> Option<String> {
        let names_cluster = self.kubeconfig.is_some() || self.context.is_some();
        lab_flag.filter(|_| !names_cluster).map(ToOwned::to_owned)
    }

    /// Describes the cluster for messages, by the context of the kubeconfig.
    pub(crate) fn describe(&self) -> String {
        let file = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path).ok(),
            None => Kubeconfig::read().ok(),
        };
        let current = file.and_then(|file| file.current_context);
        match self.context.clone().or(current) {
            Some(context) => format!("cluster {context}"),
            None => "the cluster of this pod".to_owned(),
        }
    }
}

/// Runs an asynchronous command to its end on a runtime of its own.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(ErrorKind::Failed, "cannot begin").with_source(error))?;
    runtime.block_on(work)
}
