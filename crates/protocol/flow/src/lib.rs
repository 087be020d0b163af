//! Flow events: the events of connections and requests that node proxies and waypoints stream to readers, one JSON
//! object per line, and the filters that readers set. Only Ambit's own components use the format.
//!
//! Local readers use `GET /flows` on a proxy's admin port. Users read through the control plane, which authorizes them
//! ([`CONTROL_FLOWS_PORT`]) and reads from the proxies under mutual TLS ([`PROXY_FLOWS_PORT`]).

#![forbid(unsafe_code)]

mod confinement;
mod event;
mod filter;

pub use event::{
    Flow, FlowEventKind, Peer, ProxyState, Refusal, Reporter, ReporterKind, RequestSummary,
    ServiceName, StreamItem, Transport,
};
pub use filter::{Filter, FilterError, PeerFilter};

/// HTTP path of the stream of flow events; the query has the parameters of a [`Filter`].
pub const FLOWS_PATH: &str = "/flows";
/// Port of proxies' pods on which the control plane reads flow events, over mTLS.
pub const PROXY_FLOWS_PORT: u16 = 15022;
/// Port of the control plane's pods on which users read flow events through the API server's proxy, over TLS.
pub const CONTROL_FLOWS_PORT: u16 = 15016;
/// Header with a user's bearer token, since the API server removes `authorization` from the requests that it forwards.
pub const USER_TOKEN_HEADER: &str = "x-ambit-token";
/// Name of [`CONTROL_FLOWS_PORT`] in the control plane's Service.
pub const CONTROL_FLOWS_PORT_NAME: &str = "https-flows";
/// API group and resource of the permission to `get` the flow events of a namespace. No API serves the resource: the
/// control plane checks the permission by a SubjectAccessReview.
pub const FLOWS_RESOURCE: (&str, &str) = ("ambit.io", "flows");
