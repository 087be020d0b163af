//! Client of an xDS stream: parses the node's ID and metadata, and compares them with the caller's token.

use std::net::IpAddr;

use ambit_caller_auth::Caller;
use ambit_model::ArcStr;
use ambit_wire::discovery::Node;
use prost_types::value::Kind;

/// Node types of proxies that may connect.
const PROXY_TYPES: [&str; 5] = ["sidecar", "router", "waypoint", "ztunnel", "agentgateway"];
/// Maximum length of a node ID, in bytes.
const MAX_NODE_ID_BYTES: usize = 1024;

/// Node metadata of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Node ID as the client sent it.
    pub id: ArcStr,
    /// Name of the client's Kubernetes node; may be empty.
    pub node_name: ArcStr,
    /// Version that the client reports; may be empty.
    pub version: ArcStr,
}

impl NodeInfo {
    /// Returns the name that Istio's tools display and search pods by: `pod.namespace`, the third part of the node ID.
    pub fn display_name(&self) -> &str {
        self.id.split('~').nth(2).unwrap_or(&self.id)
    }
}

/// Reason why a client's node is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The first request of the stream has no node.
    #[error("the first request carries no node")]
    MissingNode,
    /// The node ID is not of the form `type~ip~pod.namespace~domain`.
    #[error("the node id is not <type>~<ip>~<pod>.<namespace>~<dns domain>: {0}")]
    InvalidNodeId(&'static str),
    /// The node's namespace differs from the token's.
    #[error("the token is of namespace {caller}, the node's metadata names {claimed:?}")]
    NamespaceMismatch {
        /// Namespace of the token.
        caller: String,
        /// Namespace in the node's metadata.
        claimed: String,
    },
    /// The node's service account differs from the token's.
    #[error("the token is of service account {caller}, the node's metadata names {claimed:?}")]
    ServiceAccountMismatch {
        /// Service account of the token.
        caller: String,
        /// Service account in the node's metadata.
        claimed: String,
    },
}

impl NodeInfo {
    /// Parses an xDS node and compares it with the authenticated caller.
    pub fn parse(node: Option<&Node>, caller: &Caller) -> Result<Self, NodeError> {
        let node = node.ok_or(NodeError::MissingNode)?;
        let shorten = |text: &str| text.chars().take(128).collect::<String>();
        if node.id.len() > MAX_NODE_ID_BYTES {
            return Err(NodeError::InvalidNodeId("it is too long"));
        }
        let parts: Vec<_> = node.id.split('~').collect();
        let [kind, ip, _pod, _domain] = parts.as_slice() else {
            return Err(NodeError::InvalidNodeId("it does not have four parts"));
        };
        if !PROXY_TYPES.contains(kind) {
            return Err(NodeError::InvalidNodeId("its type is not known"));
        }
        if ip.parse::<IpAddr>().is_err() {
            return Err(NodeError::InvalidNodeId("its address is not an IP address"));
        }
        let metadata = |name: &str| {
            let value = node
                .metadata
                .as_ref()
                .and_then(|metadata| metadata.fields.get(name));
            match value.and_then(|value| value.kind.as_ref()) {
                Some(Kind::StringValue(text)) => Some(text.as_str()),
                _ => None,
            }
        };
        let namespace = metadata("NAMESPACE").unwrap_or_default();
        if namespace != caller.namespace.as_str() {
            return Err(NodeError::NamespaceMismatch {
                caller: caller.namespace.to_string(),
                claimed: shorten(namespace),
            });
        }
        if let Some(account) = metadata("SERVICE_ACCOUNT")
            .filter(|account| *account != caller.service_account.as_str())
        {
            return Err(NodeError::ServiceAccountMismatch {
                caller: caller.service_account.to_string(),
                claimed: shorten(account),
            });
        }
        let text = |name: &str| {
            metadata(name)
                .map(|text| ArcStr::from(shorten(text)))
                .unwrap_or_default()
        };
        Ok(Self {
            id: node.id.as_str().into(),
            node_name: metadata("NODE_NAME").map(ArcStr::from).unwrap_or_default(),
            version: text("ISTIO_VERSION"),
        })
    }
}
