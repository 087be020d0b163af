//! The JSON of `POST /explain`: queries about a connection or request to the admin servers of node proxies and
//! waypoints, and the steps with which they predict its result.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

/// Path of predictions on the admin servers.
pub const EXPLAIN_PATH: &str = "/explain";

/// Query to a node proxy about a connection from or to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum NodeProxyQuery {
    /// A connection that a pod opens.
    Outbound(OutboundQuery),
    /// Inbound connection to a pod.
    Inbound(InboundQuery),
}

/// A connection that a pod opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutboundQuery {
    /// Namespace and name of the pod, with a slash between them.
    pub pod: String,
    /// Address, or name as in the pod's DNS query.
    pub host: String,
    /// Port that is called.
    pub port: u16,
}

/// Inbound connection to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboundQuery {
    /// Namespace and name of the pod, with a slash between them.
    pub pod: String,
    /// Opener of the connection.
    pub peer: Peer,
    /// Address of the pod that is connected.
    pub address: IpAddr,
    /// Authority of the CONNECT; of plaintext, the called address and port.
    pub authority: String,
    /// Whether the connection is plaintext, without a tunnel.
    pub plaintext: bool,
}

/// Query to a waypoint about a request in a tunnel to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaypointQuery {
    /// Authority of the CONNECT.
    pub authority: String,
    /// Opener of the tunnel.
    pub peer: Peer,
    /// Client, if the node proxy of the called pod opens the tunnel on its behalf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Peer>,
    /// Request in the tunnel.
    pub request: HttpQuery,
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peer {
    /// SPIFFE id that it proves; none for plaintext.
    pub identity: Option<String>,
    /// Address of that end.
    pub address: IpAddr,
}

/// HTTP request without a body.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpQuery {
    /// Method of the request.
    pub method: String,
    /// Path with the query.
    pub path: String,
    /// Value of the `Host` header.
    pub host: String,
    /// Further headers. They may hold tokens.
    pub headers: Vec<(String, String)>,
}

/// Omits headers, which may contain tokens, and the path's query.
impl fmt::Debug for HttpQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpQuery")
            .field("method", &self.method)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Predicted handling of a connection by one proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Decisions in order of evaluation.
    pub steps: Vec<Step>,
    /// End of the connection or request at this proxy.
    pub end: End,
}

/// Decision on the path of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Subject of the decision.
    pub step: StepKind,
    /// Result of the decision.
    pub result: StepResult,
    /// Object that decides, as `Kind namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Reason in words.
    pub why: String,
    /// Objects and rules that were evaluated for the decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub considered: Vec<Considered>,
}

impl Step {
    /// Creates a step without an object.
    pub fn new(step: StepKind, result: StepResult, why: impl Into<String>) -> Self {
        Self {
            step,
            result,
            object: None,
            why: why.into(),
            considered: Vec::new(),
        }
    }

    /// Sets the object that decided.
    #[must_use]
    pub fn by(self, object: impl Into<String>) -> Self {
        Self {
            object: Some(object.into()),
            ..self
        }
    }

    /// Sets the objects that were evaluated.
    #[must_use]
    pub fn considering(self, considered: Vec<Considered>) -> Self {
        Self { considered, ..self }
    }
}

/// Subject of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepKind {
    /// Whether the client's or server's connections are captured.
    Capture,
    /// Resolution of a name.
    Name,
    /// Waypoint that a connection has to go through.
    Waypoint,
    /// Choice of an endpoint.
    Endpoint,
    /// Caller and target of a tunnel.
    Tunnel,
    /// Form of the request: host, path, headers.
    Form,
    /// Plugins that see the request.
    Plugins,
    /// Authorization provider of CUSTOM policies.
    Provider,
    /// Tokens of the request.
    Authentication,
    /// Policies on the connection or request.
    Authorization,
    /// Rule of the routes.
    Route,
    /// Rate limits that count the request.
    Limits,
    /// Filters of the rule.
    Filters,
    /// Policies of the service that a route forwards to.
    BackendAuthorization,
    /// Rule of the destination.
    Destination,
}

/// Decision of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepResult {
    /// The connection or request continues.
    Passed,
    /// The connection or request ends here.
    Refused,
    /// The proxy responds itself: a redirect or a fault.
    Answered,
    /// Not evaluated; the result may differ.
    Open,
}

/// Object or rule that was evaluated for a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Considered {
    /// The object, as `namespace/name`, or the rule of a route.
    pub object: String,
    /// Effect of a match: the action of a policy, and `dry run` if it is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// Whether the object matches, and by which rule or why not.
    pub result: String,
}

/// End of a connection or request at one proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "kind"
)]
pub enum End {
    /// The next hop gets it.
    Forwarded(Hop),
    /// The application of the pod gets it.
    Delivered {
        /// Address of the application.
        address: String,
    },
    /// The proxy responds with an HTTP status.
    Answered {
        /// Status of the response.
        status: u16,
        /// Reason in words.
        why: String,
    },
    /// The connection is not opened, or reset.
    Refused {
        /// Reason in words.
        why: String,
    },
}

/// Next hop of a connection or request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// Kind of the hop.
    pub to: HopKind,
    /// Namespace and name of its workload; empty if the mesh knows none.
    pub workload: String,
    /// Node of the workload; empty if unknown.
    pub node: String,
    /// Address that is connected.
    pub address: SocketAddr,
    /// Authority of the CONNECT; of plaintext, the called address.
    pub authority: String,
    /// Sender, as the next hop sees it.
    pub peer: Peer,
    /// Client, if the node proxy of a pod redirects its connection to a waypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Peer>,
}

/// Kind of the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HopKind {
    /// A waypoint, in a tunnel.
    Waypoint,
    /// A pod's node proxy, in a tunnel.
    Tunnel,
    /// A workload without a tunnel; its node proxy sees plaintext, if it has one.
    Plaintext,
    /// Destination outside of the mesh.
    Outside,
}
