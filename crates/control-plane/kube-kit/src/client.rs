//! Creates clients of the API server.

use std::{path::Path, time::Duration};

use kube::{Client, Config, config::KubeConfigOptions};

/// Error of creating a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor the pod's own credentials are usable.
    #[error(
        "no access to the Kubernetes API: {0}; set KUBECONFIG, or run in a pod with a service account"
    )]
    Configuration(String),
    /// The configuration exists but is invalid, for example a certificate that does not parse.
    #[error("the Kubernetes API client cannot be set up: {0}")]
    CreateClient(#[from] kube::Error),
}

/// Creates a client from `kubeconfig` if it is given, else from `KUBECONFIG` or `~/.kube/config`,
/// else from the pod's service account. `agent` is sent as the user agent, so that audit logs
/// distinguish Ambit's components.
pub async fn create_client(kubeconfig: Option<&Path>, agent: &str) -> Result<Client, ClientError> {
    let config = load_config(kubeconfig).await?;
    from_config(config, agent)
}

/// Creates a client from a configuration, with user agent, timeouts, and TLS by aws-lc.
pub fn from_config(mut config: Config, agent: &str) -> Result<Client, ClientError> {
    // Another part of the process may have installed the provider already: it is the same one.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    config.connect_timeout = Some(Duration::from_secs(10));
    // The server renews watches after some minutes; a shorter timeout would interrupt them.
    config.read_timeout = Some(Duration::from_secs(300));
    config.headers.push((
        http::header::USER_AGENT,
        agent
            .parse()
            .map_err(|_| ClientError::Configuration(format!("bad user agent {agent:?}")))?,
    ));
    Ok(Client::try_from(config)?)
}

async fn load_config(kubeconfig: Option<&Path>) -> Result<Config, ClientError> {
    let say = |error: &dyn std::fmt::Display| ClientError::Configuration(error.to_string());
    if let Some(path) = kubeconfig {
        let file = kube::config::Kubeconfig::read_from(path).map_err(|error| say(&error))?;
        return Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(|error| say(&error));
    }
    Config::infer().await.map_err(|error| say(&error))
}
