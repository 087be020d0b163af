//! Subscription to the control plane: the xDS client, which applies updates to the state.

use std::sync::Arc;

use ambit_control_channel::{CallMetadata, ChannelConfig, RootCa, TokenSource, create_channel};
use ambit_model::{ArcStr, PolicyKey};
use ambit_rt::Env;
use ambit_telemetry::{Metrics, XdsTermination};
use ambit_tls::TlsSettings;
use ambit_xds::{
    CachedResource, Client, ClientOptions, InvalidPolicyMode, MeshUpdate, NodeInfo, StreamEnding,
    UpdateHandler,
};
use anyhow::Context as _;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::{
    state::{AddressDemand, SharedState},
    warm_start::MeshCache,
};

/// Address, trust anchors and expected server name of a control plane service (xDS or CA).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneService {
    /// URL of the service, `https://host:port`; `None` turns the client off.
    pub address: Option<String>,
    /// Root certificates that the server's certificate must chain to: a path, PEM text or `SYSTEM`.
    pub root: String,
    /// SAN that the server's certificate must have, in place of the address's host name.
    pub alternative_name: Option<String>,
}

impl ControlPlaneService {
    pub(crate) fn channel(&self, tls: TlsSettings) -> Option<ChannelConfig> {
        Some(ChannelConfig {
            address: self.address.clone()?,
            roots: RootCa::from_setting(&self.root),
            alternative_name: self.alternative_name.clone(),
            tls,
        })
    }
}

pub(crate) fn token_source(setting: Option<&str>) -> Option<TokenSource> {
    setting.map(TokenSource::from_setting)
}

/// Settings of the xDS client: the control plane, and the credentials of the client.
#[derive(Clone, Debug)]
pub struct XdsSettings {
    /// Address of the xDS server.
    pub upstream: ControlPlaneService,
    /// Path of the service account token that authenticates the client, or the token itself.
    pub auth_token: Option<String>,
    /// Cluster that issued the token.
    pub cluster_id: ArcStr,
    /// Node metadata of this proxy.
    pub node: NodeInfo,
    /// Whether workloads and services are requested on demand, instead of by a wildcard subscription.
    pub on_demand: bool,
}

/// Handler of the xDS client, which applies received updates to the mesh state.
pub struct MeshStateFollower<S> {
    /// Mesh state that receives the updates.
    pub state: SharedState,
    /// Metrics of the proxy.
    pub metrics: Arc<Metrics>,
    /// Callback that is called when the first complete state has been applied.
    pub on_synced: S,
    /// Warm-start cache, from which the next process restores the mesh.
    pub cache: Option<Arc<MeshCache>>,
}

impl<S> std::fmt::Debug for MeshStateFollower<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeshStateFollower")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<S: Fn() + Send + Sync + 'static> UpdateHandler for MeshStateFollower<S> {
    fn apply(&self, batch: &mut Vec<MeshUpdate>) {
        for update in &*batch {
            if let MeshUpdate::PolicyRemoved(name) = update {
                self.metrics
                    .remove_policy(&PolicyKey::from_resource_name(name));
            }
        }
        self.state.apply(batch);
    }

    fn on_addresses_synced(&self) {
        self.state.mark_addresses_known();
    }

    fn on_policies_synced(&self) {
        self.state.mark_policies_known();
    }

    fn on_ready(&self) {
        (self.on_synced)();
    }

    fn on_resource_accepted(&self, type_url: &str, name: &str, cached: &CachedResource) {
        if let Some(cache) = &self.cache {
            cache.record_resource(type_url, name, cached);
        }
    }

    fn on_push_cached(&self, type_url: &str, complete: bool) {
        if let Some(cache) = &self.cache {
            cache.record_push_end(type_url, complete);
        }
    }

    fn on_message_received(&self, type_url: &str, bytes: usize) {
        self.metrics
            .count_xds_message(type_url, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    fn on_unknown_fields(&self, type_url: &str, count: u64) {
        self.metrics.count_unknown_fields(type_url, count);
    }

    fn on_stream_ended(&self, ending: StreamEnding) {
        self.metrics.count_xds_termination(xds_termination(ending));
    }
}

/// Returns the metric label for the way in which an xDS stream ended.
pub fn xds_termination(ending: StreamEnding) -> XdsTermination {
    match ending {
        StreamEnding::ConnectFailed => XdsTermination::ConnectionError,
        StreamEnding::Transient => XdsTermination::Reconnect,
        StreamEnding::Refused => XdsTermination::Error,
        StreamEnding::Closed => XdsTermination::Complete,
    }
}

/// Restores the cached mesh state and starts the xDS client. Its headers and TLS parameters come from the
/// environment.
///
/// # Errors
///
/// When the settings, or the cache, cannot be used.
pub fn start_xds_client<S: Fn() + Send + Sync + 'static>(
    env: &Env,
    settings: &XdsSettings,
    follower: MeshStateFollower<S>,
    demands: Option<mpsc::Receiver<AddressDemand>>,
) -> anyhow::Result<()> {
    let not_understood = follower.state.config().invalid_policies;
    let options = client_options(env, settings, not_understood)?;
    let cache = follower.cache.clone();
    let mut client = Client::new(options, follower, demands);
    if let Some(cache) = cache {
        cache
            .restore(&mut client)
            .context("cannot read the warm-start cache of the mesh")?;
    }
    ambit_rt::spawn_essential("xds", client.run());
    Ok(())
}

/// Builds the xDS client options; headers and TLS parameters come from the environment.
///
/// # Errors
/// When the settings cannot be used.
pub fn client_options(
    env: &Env,
    settings: &XdsSettings,
    not_understood: InvalidPolicyMode,
) -> anyhow::Result<ClientOptions> {
    let upstream = settings
        .upstream
        .channel(TlsSettings::from_env(env)?)
        .context("XDS_ADDRESS is empty")?;
    let token = token_source(settings.auth_token.as_deref());
    Ok(ClientOptions {
        channel: create_channel(&upstream).context("XDS_ADDRESS")?,
        address: upstream.address.clone(),
        headers: CallMetadata::from_env(env, "XDS_HEADER_", token, &settings.cluster_id)?,
        node: settings.node.to_wire(env)?,
        role: settings.node.role,
        on_demand: settings.on_demand,
        invalid_policies: not_understood,
    })
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text, registry::Registry};

    use super::*;
    use crate::state::StateConfig;

    #[test]
    fn a_policy_that_is_gone_is_not_counted_for_any_more() {
        let mut registry = Registry::default();
        let follower = MeshStateFollower {
            state: SharedState::new(StateConfig::default()),
            metrics: Arc::new(Metrics::register(&mut registry)),
            on_synced: || {},
            cache: None,
        };
        for name in ["ns/gone", "ns/stays"] {
            let policy = PolicyKey::from_resource_name(name);
            follower.metrics.count_dry_run_denial(&policy);
        }
        follower.apply(&mut vec![MeshUpdate::PolicyRemoved("ns/gone".into())]);
        let mut scraped = String::new();
        text::encode(&mut scraped, &registry).unwrap();
        assert!(!scraped.contains("ns/gone"), "{scraped}");
        assert!(scraped.contains("ns/stays"), "{scraped}");
    }
}
