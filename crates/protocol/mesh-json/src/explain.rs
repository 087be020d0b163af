//! JSON of `POST /explain`: queries to the admin servers of node proxies and waypoints about a connection or request,
//! and the steps by which the proxies predict its result.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

/// HTTP path of `explain` queries on the admin servers of proxies.
pub const EXPLAIN_PATH: &str = "/explain";

/// Query to a node proxy about a connection that a pod opens or receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum NodeProxyQuery {
    /// Connection that a pod opens.
    Outbound(OutboundQuery),
    /// Connection that a pod receives.
    Inbound(InboundQuery),
}

/// Query about a connection that a pod opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutboundQuery {
    /// Pod that opens the connection, `namespace/name`.
    pub pod: String,
    /// Address or host name that the pod connects to, the host name as in the pod's DNS query.
    pub host: String,
    /// Port that the pod connects to.
    pub port: u16,
}

/// Query about a connection that a pod receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboundQuery {
    /// Pod that receives the connection, `namespace/name`.
    pub pod: String,
    /// Peer that opens the connection.
    pub peer: Peer,
    /// Address of the pod that the peer connects to.
    pub address: IpAddr,
    /// Authority of the tunnel's CONNECT request; for plaintext, the destination's address and port.
    pub authority: String,
    /// Whether the connection is plaintext, without a tunnel.
    pub plaintext: bool,
}

/// Query to a waypoint about a request inside a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaypointQuery {
    /// Authority of the CONNECT request.
    pub authority: String,
    /// Peer that opens the tunnel.
    pub peer: Peer,
    /// Original client of a connection that bypassed the waypoint, and that the destination pod's node proxy redirects
    /// to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Peer>,
    /// HTTP request inside the tunnel.
    pub request: HttpQuery,
}

/// Peer of a connection: identity and address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peer {
    /// SPIFFE ID that mTLS proves; `None` for plaintext.
    pub identity: Option<String>,
    /// Address of the peer.
    pub address: IpAddr,
}

/// HTTP request to explain, without a body.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpQuery {
    /// Method of the request.
    pub method: String,
    /// Path of the request, including the query string.
    pub path: String,
    /// Value of the `Host` header.
    pub host: String,
    /// Names and values of all other headers. They may contain tokens.
    pub headers: Vec<(String, String)>,
}

/// Formats the query without headers, which may contain tokens, and without the path's query.
impl fmt::Debug for HttpQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpQuery")
            .field("method", &self.method)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Prediction of how one proxy would handle a connection or request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Decisions of the proxy in order of evaluation.
    pub steps: Vec<Step>,
    /// Final result at this proxy, such as the next hop.
    pub end: ExplainedResult,
}

/// One decision of a proxy about a connection or request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Aspect of the handling that the proxy decides.
    pub step: StepKind,
    /// Result of the decision.
    pub result: StepResult,
    /// Object that determines the decision, as `Kind namespace/name`; `None` if no object does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Explanation of the decision for users.
    pub why: String,
    /// Objects and rules that were evaluated for the decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub considered: Vec<EvaluatedObject>,
}

impl Step {
    /// Creates a step whose decision no object determines.
    pub fn new(step: StepKind, result: StepResult, why: impl Into<String>) -> Self {
        Self {
            step,
            result,
            object: None,
            why: why.into(),
            considered: Vec::new(),
        }
    }

    /// Sets the object that determines the decision.
    #[must_use]
    pub fn with_object(self, object: impl Into<String>) -> Self {
        Self {
            object: Some(object.into()),
            ..self
        }
    }

    /// Sets the objects and rules that were evaluated for the decision.
    #[must_use]
    pub fn with_evaluated_objects(self, considered: Vec<EvaluatedObject>) -> Self {
        Self { considered, ..self }
    }
}

/// Aspect of the handling that a [`Step`] decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepKind {
    /// Whether the pod's connections are captured by the node proxy.
    Capture,
    /// Resolution of the destination's host name.
    #[serde(rename = "name")]
    NameResolution,
    /// Waypoint that the connection must use.
    Waypoint,
    /// Choice of a service's endpoint.
    Endpoint,
    /// Peer and destination of the tunnel.
    Tunnel,
    /// Validity of the request: host, path, headers.
    #[serde(rename = "form")]
    RequestValidity,
    /// Wasm plugins that run for the request.
    Plugins,
    /// Authorization provider of CUSTOM policies.
    #[serde(rename = "provider")]
    ExternalAuthorization,
    /// JWT authentication of the request.
    Authentication,
    /// Authorization policies for the connection or request.
    Authorization,
    /// Route rule that matches the request.
    Route,
    /// Rate limits that apply to the request.
    #[serde(rename = "limits")]
    RateLimits,
    /// Filters of the route rule.
    Filters,
    /// Authorization policies of the service that a route forwards to.
    BackendAuthorization,
    /// Traffic policy of the destination service (`DestinationRule`).
    #[serde(rename = "destination")]
    TrafficPolicy,
}

/// Outcome of the decision in a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepResult {
    /// The connection or request continues.
    Passed,
    /// The connection or request is refused.
    Refused,
    /// The proxy responds without an upstream, with a redirect or an injected fault.
    #[serde(rename = "answered")]
    Responded,
    /// The proxy does not evaluate the decision, which may change the result.
    #[serde(rename = "open")]
    NotEvaluated,
}

/// Object or rule that was evaluated for a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvaluatedObject {
    /// Object as `namespace/name`, or the name of a route rule.
    pub object: String,
    /// Effect of the object if it matches: the action of a policy, with `dry run` if the policy is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// Result of the evaluation: whether the object matches, by which rule, or why it does not match.
    pub result: String,
}

/// Final result of a connection or request at one proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "kind"
)]
pub enum ExplainedResult {
    /// The proxy forwards the connection or request to the next hop.
    Forwarded(Hop),
    /// The proxy delivers the connection to the pod's application.
    Delivered {
        /// Address of the application.
        address: String,
    },
    /// The proxy responds with an HTTP status.
    #[serde(rename = "answered")]
    Responded {
        /// Status of the response.
        status: u16,
        /// Reason of the response, for users.
        why: String,
    },
    /// The proxy does not open the connection, or resets it.
    Refused {
        /// Reason of the refusal, for users.
        why: String,
    },
}

/// Next hop of a connection or request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// Kind of the hop.
    pub to: HopKind,
    /// Namespace and name of the workload; empty if the destination is no workload of the mesh.
    pub workload: String,
    /// Node of the workload; empty if unknown.
    pub node: String,
    /// Address that the proxy connects to.
    pub address: SocketAddr,
    /// Authority of the CONNECT request; for plaintext, the destination address.
    pub authority: String,
    /// Client that the next hop sees as the connection's peer.
    pub peer: Peer,
    /// Original client of a connection that bypassed a waypoint, and that a pod's node proxy redirects to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Peer>,
}

/// Kind of the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HopKind {
    /// Waypoint, reached by a tunnel.
    Waypoint,
    /// Node proxy of the destination pod, reached by a tunnel.
    Tunnel,
    /// Workload that is reached without a tunnel; its node proxy, if any, receives plaintext.
    Plaintext,
    /// Destination outside of the mesh.
    #[serde(rename = "outside")]
    OutsideMesh,
}
