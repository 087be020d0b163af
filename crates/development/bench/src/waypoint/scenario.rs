//! Scenarios of waypoint benchmarks: the objects that waypoints evaluate for each request.

use std::path::Path;

use anyhow::Result;

use super::{authorizer, compared_proxy::ComparedProxy, hashing, plugin, tokens, tracing};

/// Number of rules of each additional service.
pub(super) const RULES_PER_SERVICE: usize = 1000;

/// Objects with which the waypoints are configured for a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scenario {
    /// Number of DENY policies, none of which matches the requests of the load.
    pub(super) policies: usize,
    /// Number of route rules; the load matches the last of them.
    pub(super) rules: usize,
    /// Number of additional services with [`RULES_PER_SERVICE`] rules each.
    pub(super) services: usize,
    /// Additional processing step for each request.
    pub(super) step: Option<ScenarioStep>,
    /// Node of the servers.
    pub(super) server_node: ServerNode,
    /// Whether the lab also has a client and a server outside of the mesh.
    pub(super) has_baseline: bool,
}

/// Node on which the servers run, with respect to that of the clients and the waypoints.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum ServerNode {
    #[default]
    Same,
    Other,
}

/// Name of the node on which clients and waypoints run.
pub(super) const CLIENT_NODE: &str = "node-1";

impl ServerNode {
    /// Returns the number of nodes of the lab.
    pub(super) fn node_count(self) -> u8 {
        match self {
            Self::Same => 1,
            Self::Other => 2,
        }
    }

    /// Returns the name of the node.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Same => CLIENT_NODE,
            Self::Other => "node-2",
        }
    }
}

/// Additional processing step for each request, with the objects that configure it.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScenarioStep {
    /// Traces this percentage of requests.
    Trace(u32),
    /// Verifies a JWT with this signature algorithm.
    Token(tokens::Algorithm),
    /// Calls an external authorizer (ext_authz) for each request.
    Authorize,
    /// Runs a Wasm plugin that changes headers.
    Plugin,
    /// Selects one of many endpoints by the hash of a header.
    Hash,
}

impl ScenarioStep {
    /// Returns namespace and name of the pod that the waypoints call in this step, if any.
    pub(super) fn callee(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Trace(_) => Some(tracing::NAMESPACED_NAME),
            Self::Authorize => Some(authorizer::NAMESPACED_NAME),
            Self::Hash => Some(hashing::NAMESPACED_NAME),
            Self::Token(_) | Self::Plugin => None,
        }
    }

    /// Returns the manifests of the pod that the waypoints call in this step, and of the objects that configure the
    /// step.
    pub(super) fn manifests(self, scratch: &Path) -> Result<String> {
        match self {
            Self::Trace(percentage) => tracing::manifests(percentage),
            Self::Token(_) => tokens::manifests(),
            Self::Authorize => authorizer::manifests(),
            Self::Plugin => plugin::manifests(scratch),
            Self::Hash => hashing::manifests(scratch),
        }
    }

    /// Returns the arguments that the load tool `wrk` needs in this step, such as a header with a token.
    pub(super) fn arguments(self, side: ComparedProxy, scratch: &Path) -> Result<Vec<String>> {
        match self {
            Self::Token(algorithm) => tokens::arguments(algorithm),
            Self::Hash => hashing::arguments(side, scratch),
            Self::Trace(_) | Self::Authorize | Self::Plugin => Ok(Vec::new()),
        }
    }
}
