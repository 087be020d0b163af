//! The plugin's configuration on stdin, and versions of the CNI specification.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{CniError, code};

/// Supported versions of the CNI specification, oldest first.
pub(crate) const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];

/// CNI version of a configuration without `cniVersion`.
pub(crate) const UNVERSIONED: &str = "0.1.0";

/// Supported CNI version, as an index in [`VERSIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CniVersion(usize);

impl CniVersion {
    /// First version with CHECK.
    pub(crate) const V0_4: Self = Self(4);
    /// First version whose results do not name an address' family.
    pub(crate) const V1_0: Self = Self(5);
    /// First version with STATUS and GC.
    pub(crate) const V1_1: Self = Self(6);
    /// First version whose results have a list of addresses.
    pub(crate) const V0_3: Self = Self(2);

    pub(crate) fn parse(text: &str) -> Result<Self, CniError> {
        VERSIONS
            .iter()
            .position(|known| *known == text)
            .map(Self)
            .ok_or_else(|| {
                CniError::new(
                    code::INCOMPATIBLE_VERSION,
                    format!("CNI version {text:?} is not supported"),
                    format!("this plugin speaks {}", VERSIONS.join(", ")),
                )
            })
    }

    pub(crate) fn as_str(self) -> &'static str {
        VERSIONS.get(self.0).copied().unwrap_or(UNVERSIONED)
    }
}

/// The plugin's entry in the network configuration, with the keys that Istio's agent writes; `agent_wait_seconds`,
/// `membership` and `delegate` are Ambit's. There is no kubeconfig among them: the plugin queries the agent over a
/// socket that only root may open, so there is no credential to leak, to expire or to renew.
#[derive(Debug, Deserialize)]
pub(crate) struct Config {
    #[serde(default, rename = "cniVersion")]
    pub(crate) cni_version: Option<String>,
    #[serde(default = "default_run_dir")]
    pub(crate) cni_agent_run_dir: PathBuf,
    /// Whether pods may be captured at all; true if the key is absent.
    #[serde(default = "enabled")]
    pub(crate) ambient_enabled: bool,
    #[serde(default)]
    pub(crate) exclude_namespaces: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) pod_namespace: String,
    #[serde(default = "default_wait")]
    pub(crate) agent_wait_seconds: u64,
    /// Path of the copy of the agent's membership file that survives a reboot.
    #[serde(default)]
    pub(crate) membership: Option<PathBuf>,
    #[serde(default)]
    pub(crate) plugin_log_level: LogLevel,
    /// Location of the primary CNI, whose plugins this one calls for the pod's network in owned mode; absent in chained
    /// mode.
    #[serde(default)]
    pub(crate) delegate: Option<Delegate>,
    #[serde(default, rename = "runtimeConfig")]
    pub(crate) runtime_config: Option<Box<RawValue>>,
    #[serde(default, rename = "prevResult")]
    pub(crate) prev_result: Option<Box<RawValue>>,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    pub(crate) valid_attachments: Option<Box<RawValue>>,
}

/// Location of the primary CNI's configuration, for owned mode.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Delegate {
    /// Directory of network configurations on the node.
    pub(crate) net_dir: PathBuf,
    /// Directory in which attachments are recorded.
    pub(crate) state_dir: PathBuf,
    /// Name of the primary configuration; `None`: the first usable one that is not Ambit's.
    #[serde(default)]
    pub(crate) primary: Option<String>,
}

/// Log level, ordered from the least severe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    #[serde(alias = "trace")]
    Debug,
    #[default]
    Info,
    #[serde(alias = "warning")]
    Warn,
    #[serde(alias = "fatal", alias = "none")]
    Error,
}

fn default_run_dir() -> PathBuf {
    "/var/run/istio-cni".into()
}

fn enabled() -> bool {
    true
}

/// Returns the default of `agent_wait_seconds`: far below the timeouts of container runtimes and kubelet for a sandbox
/// (minutes), and above kubelet's backoff for a crashing agent.
fn default_wait() -> u64 {
    90
}

impl Config {
    pub(crate) fn parse(stdin: &[u8]) -> Result<Self, CniError> {
        let error = |details: String| {
            let message = "the network configuration on stdin cannot be read";
            CniError::new(code::DECODING_FAILURE, message, details)
        };
        // serde would deserialize a list as the fields in their order.
        if stdin.trim_ascii_start().first() != Some(&b'{') {
            return Err(error("it is not a JSON object".to_owned()));
        }
        serde_json::from_slice(stdin).map_err(|source| error(source.to_string()))
    }

    pub(crate) fn version(&self) -> Result<CniVersion, CniError> {
        CniVersion::parse(match self.cni_version.as_deref() {
            None | Some("") => UNVERSIONED,
            Some(version) => version,
        })
    }

    /// Returns the time to wait for an unavailable agent, limited to a day so that adding it to the clock cannot
    /// overflow.
    pub(crate) fn agent_wait(&self) -> Duration {
        Duration::from_secs(self.agent_wait_seconds.min(86_400))
    }

    pub(crate) fn excludes(&self, namespace: &str) -> bool {
        self.exclude_namespaces
            .iter()
            .flatten()
            .any(|excluded| excluded == namespace)
    }
}

/// Reads `cniVersion` from a possibly invalid configuration, for error reports.
pub(crate) fn version_for_errors(stdin: &[u8]) -> &'static str {
    #[derive(Deserialize)]
    struct Versioned {
        #[serde(rename = "cniVersion")]
        cni_version: String,
    }
    serde_json::from_slice::<Versioned>(stdin)
        .ok()
        .and_then(|versioned| CniVersion::parse(&versioned.cni_version).ok())
        .unwrap_or(CniVersion::V1_1)
        .as_str()
}
