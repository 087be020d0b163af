//! Scenarios: objects that waypoints evaluate for each request.

use std::path::Path;

use anyhow::Result;

use super::{authorizer, hashing, plugin, side::Side, tokens, tracing};

/// Number of rules of each further service.
pub(super) const RULES_OF_SERVICE: usize = 1000;

/// Configuration of the waypoints for a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scenario {
    /// Policies that refuse other requests than those of the load.
    pub(super) policies: usize,
    /// Rules of routes; the load is for the last of them.
    pub(super) rules: usize,
    /// Further services with [`RULES_OF_SERVICE`] rules each.
    pub(super) services: usize,
    /// Further step for each request.
    pub(super) step: Option<Step>,
}

/// Processing of each request by a further object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Tracing of this percentage of requests.
    Trace(u32),
    /// Verification of a token with this signature algorithm.
    Token(tokens::Algorithm),
    /// Check of each request by an external authorizer.
    Authorize,
    /// Changes of headers by a plugin.
    Plugin,
    /// Choice of one of many endpoints by the hash of a header.
    Hash,
}

impl Step {
    /// The pod that the waypoints call or send to, its namespace first.
    pub(super) fn callee(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Trace(_) => Some(tracing::NAMESPACED_NAME),
            Self::Authorize => Some(authorizer::NAMESPACED_NAME),
            Self::Hash => Some(hashing::NAMESPACED_NAME),
            Self::Token(_) | Self::Plugin => None,
        }
    }

    /// Returns the manifests of the server's pod and objects.
    pub(super) fn manifests(self, scratch: &Path) -> Result<String> {
        match self {
            Self::Trace(percentage) => tracing::manifests(percentage),
            Self::Token(_) => tokens::manifests(),
            Self::Authorize => authorizer::manifests(),
            Self::Plugin => plugin::manifests(scratch),
            Self::Hash => hashing::manifests(scratch),
        }
    }

    /// Arguments of `wrk` besides the address.
    pub(super) fn arguments(self, side: Side, scratch: &Path) -> Result<Vec<String>> {
        match self {
            Self::Token(algorithm) => tokens::arguments(algorithm),
            Self::Hash => hashing::arguments(side, scratch),
            Self::Trace(_) | Self::Authorize | Self::Plugin => Ok(Vec::new()),
        }
    }
}
