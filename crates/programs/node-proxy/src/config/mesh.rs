//! Parses `PROXY_CONFIG` and the mesh configuration file, of which a node proxy reads a few keys.

use std::{collections::BTreeMap, io, path::Path};

use ambit_rt::Env;
use serde::Deserialize;

/// Path of the mesh configuration file.
const MESH_CONFIG: &str = "./etc/istio/config/mesh";

/// Error of `PROXY_CONFIG` or the mesh configuration file.
#[derive(Debug, thiserror::Error)]
pub enum MeshConfigError {
    /// The mesh configuration file cannot be read.
    #[error("cannot read {MESH_CONFIG}")]
    Read(#[source] io::Error),
    /// The text is not valid YAML of a proxy configuration.
    #[error("{origin} is not a proxy configuration")]
    Parse {
        /// Origin of the text: `PROXY_CONFIG` or the file.
        origin: &'static str,
        /// Parse error, with the position in the text.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
}

/// Keys of ProxyConfig that the node proxy reads; others are ignored.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ProxyConfig {
    pub(super) discovery_address: Option<String>,
    pub(super) proxy_admin_port: Option<u16>,
    pub(super) stats_port: Option<u16>,
    pub(super) concurrency: Option<u16>,
    pub(super) proxy_metadata: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MeshConfig {
    default_config: ProxyConfig,
}

impl ProxyConfig {
    /// Overrides the settings in `base` by those that are set in `self`.
    fn merge_over(self, mut base: Self) -> Self {
        base.proxy_metadata.extend(self.proxy_metadata);
        Self {
            discovery_address: self.discovery_address.or(base.discovery_address),
            proxy_admin_port: self.proxy_admin_port.or(base.proxy_admin_port),
            stats_port: self.stats_port.or(base.stats_port),
            concurrency: self.concurrency.or(base.concurrency),
            proxy_metadata: base.proxy_metadata,
        }
    }
}

pub(super) fn load_proxy_config(env: &Env) -> Result<ProxyConfig, MeshConfigError> {
    let file = match std::fs::read_to_string(Path::new(MESH_CONFIG)) {
        Ok(text) => parse::<MeshConfig>(MESH_CONFIG, &text)?.default_config,
        Err(error) if error.kind() == io::ErrorKind::NotFound => ProxyConfig::default(),
        Err(error) => return Err(MeshConfigError::Read(error)),
    };
    let own = parse::<ProxyConfig>("PROXY_CONFIG", env.get("PROXY_CONFIG").unwrap_or_default())?;
    Ok(own.merge_over(file))
}

fn parse<T: Default + for<'de> Deserialize<'de>>(
    origin: &'static str,
    text: &str,
) -> Result<T, MeshConfigError> {
    if text.trim().is_empty() {
        return Ok(T::default());
    }
    serde_saphyr::from_str(text).map_err(|source| MeshConfigError::Parse {
        origin,
        source: Box::new(source),
    })
}
