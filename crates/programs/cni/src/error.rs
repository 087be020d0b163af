//! Error for the runtime, as the JSON on stdout that the CNI specification requires.

use serde::Serialize;

/// Error codes of the CNI specification (1 to 99), and Ambit's own (from 100 on).
pub mod code {
    /// The configuration's CNI version is not supported, or does not have the command.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A required environment variable is missing or invalid.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// The standard input or a file cannot be read.
    pub const IO_FAILURE: u32 = 5;
    /// The standard input is not a JSON configuration.
    pub const DECODING_FAILURE: u32 = 6;
    /// The network configuration is invalid.
    pub const INVALID_CONFIG: u32 = 7;
    /// The agent is unavailable; the runtime should retry later.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// The plugin is not available, since the node has no usable primary network configuration yet.
    pub const NOT_AVAILABLE: u32 = 50;
    /// A plugin of the primary CNI is missing, or failed without an error of its own.
    pub const PLUGIN_FAILURE: u32 = 100;
    /// The agent failed to enrol the pod.
    pub const AGENT_FAILURE: u32 = 999;
}

/// Error that the plugin reports to the runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {details}")]
pub struct CniError {
    /// Error code, one of [`code`].
    pub code: u32,
    /// Short description of the failure that names the pod (`msg`).
    pub message: String,
    /// Cause of the failure and remedy (`details`).
    pub details: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireError<'a> {
    cni_version: &'a str,
    code: u32,
    msg: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
}

impl CniError {
    /// Creates an error from its code and texts.
    pub fn new(code: u32, message: impl Into<String>, details: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: details.into(),
        }
    }

    /// Formats the error as the JSON that the CNI specification requires.
    pub(crate) fn to_json(&self, cni_version: &str) -> String {
        let wire = WireError {
            cni_version,
            code: self.code,
            msg: &self.message,
            details: &self.details,
        };
        // Strings and a number can always be serialized.
        serde_json::to_string(&wire).unwrap_or_default()
    }
}
