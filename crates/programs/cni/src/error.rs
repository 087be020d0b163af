//! Error for the runtime: CNI's JSON on stdout.

use serde::Serialize;

/// Error codes: 1 to 99 are CNI's own, from 100 on a plugin's.
pub mod code {
    /// The version of the configuration is not supported, or lacks this command.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A variable is missing or invalid.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading stdin failed.
    pub const IO_FAILURE: u32 = 5;
    /// Stdin cannot be decoded.
    pub const DECODING_FAILURE: u32 = 6;
    /// The configuration is invalid.
    pub const INVALID_CONFIG: u32 = 7;
    /// The agent is unavailable; a retry may succeed.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// The node has no network yet.
    pub const NOT_AVAILABLE: u32 = 50;
    /// A plugin failed without giving a reason.
    pub const PLUGIN_FAILURE: u32 = 100;
    /// The agent could not enrol the pod.
    pub const AGENT_FAILURE: u32 = 999;
}

/// Error for the runtime and its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {details}")]
pub struct CniError {
    /// Error code, one of [`code`].
    pub code: u32,
    /// Description of the failure, with the pod.
    pub message: String,
    /// Cause and remedy.
    pub details: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    cni_version: &'a str,
    code: u32,
    msg: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
}

impl CniError {
    /// Builds an error from its parts.
    pub fn new(code: u32, message: impl Into<String>, details: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: details.into(),
        }
    }

    /// Returns the JSON that the specification requires.
    pub(crate) fn to_json(&self, cni_version: &str) -> String {
        let wire = Wire {
            cni_version,
            code: self.code,
            msg: &self.message,
            details: &self.details,
        };
        // Strings and a number can always be serialized.
        serde_json::to_string(&wire).unwrap_or_default()
    }
}
