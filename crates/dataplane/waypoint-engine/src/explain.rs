//! Answers `POST /explain`: predicts the result of a request in a tunnel. Caller and target are resolved as the server
//! does, and the request is authorized and routed by the functions that serve requests, on the current records. Nothing
//! is sent, and neither metrics, limits nor ejections count it.

use std::{net::SocketAddr, sync::Arc};

use ambit_codec::{Authority, Forwarded, ORIGINAL_PEER_HEADER, OriginalPeer};
use ambit_mesh_json::explain::{
    ExplainedResult, Explanation, HttpQuery, Peer, Step, StepKind, StepResult, WaypointQuery,
};
use ambit_model::Identity;
use ambit_proxy::{explain as shared, report::format_error_chain};
use ambit_rt::http::{Response, text};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header::HOST, uri::PathAndQuery,
};

use crate::{
    caller::Caller,
    http as l7,
    server::{self, TunnelProtocol},
    session::Session,
    target::Target,
    waypoint::{Shard, Waypoint},
};

/// Source port of the predicted connection if the query names none.
const UNKNOWN_PORT: u16 = 1024;

/// Handler of `POST /explain`, which predicts how requests are handled.
#[derive(Debug)]
pub struct Explainer {
    /// Worker state that the functions of the data path need. It has no connections.
    shard: Arc<Shard>,
}

/// Invalid part of a query to `POST /explain`. The error contains no value of the query, since it may be a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Invalid authority (`host:port`) of the CONNECT.
    #[error("the authority of the tunnel is no host or address with a port")]
    Authority,
    /// Invalid identity of the caller or of the original peer.
    #[error("an identity is no SPIFFE id of a service account")]
    Identity,
    /// Invalid HTTP method of the request.
    #[error("the method is not valid in HTTP")]
    Method,
    /// Invalid path or query string of the request.
    #[error("the path is not valid in HTTP")]
    Path,
    /// Invalid `Host` or other header of the request.
    #[error("the name or value of a header is not valid in HTTP")]
    Header,
}

impl Explainer {
    /// Creates an explainer for requests to a waypoint.
    pub fn new(waypoint: Arc<Waypoint>) -> Self {
        Self {
            shard: Arc::new(Shard::new(waypoint)),
        }
    }

    /// Responds to `POST /explain` with a request body of this content.
    pub async fn respond(&self, body: &[u8]) -> Response {
        let query: WaypointQuery = match shared::parse_query(body) {
            Ok(query) => query,
            Err(response) => return *response,
        };
        match self.explain(&query).await {
            Ok(explanation) => shared::explanation_response(&explanation),
            Err(error) => text(400, format!("{error}\n")),
        }
    }

    /// Predicts how the waypoint handles the request that a query describes.
    ///
    /// # Errors
    /// When a part of the query is invalid; the error names the part.
    pub async fn explain(&self, query: &WaypointQuery) -> Result<Explanation, QueryError> {
        let authority = Authority::parse(query.authority.as_bytes());
        let authority = authority.map_err(|_| QueryError::Authority)?;
        let identity = parse_identity(&query.peer)?;
        let headers = build_tunnel_headers(query.original.as_ref())?;
        let request = build_request(&query.request)?;
        let waypoint = &self.shard.waypoint;
        let peer = SocketAddr::new(query.peer.address, UNKNOWN_PORT);
        let finding =
            server::resolve_tunnel_request(waypoint, identity.as_ref(), peer, &authority, &headers);
        let found = Box::pin(finding).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                return Ok(rejected_tunnel(
                    &format_error_chain(&error),
                    error.status().as_u16(),
                ));
            }
        };
        let tunnel = tunnel_step(&found.caller, &found.target);
        let open = waypoint.lifecycle.drain_watcher().open_work();
        let session = Session::new(self.shard.clone(), found, open);
        let explanation = match TunnelProtocol::for_session(&session) {
            TunnelProtocol::Http | TunnelProtocol::HttpRequired | TunnelProtocol::Unknown => {
                Box::pin(l7::explain(session, request)).await
            }
            TunnelProtocol::Tcp | TunnelProtocol::Tls => opaque_connection(&session),
        };
        Ok(Explanation {
            steps: [vec![tunnel], explanation.steps].concat(),
            ..explanation
        })
    }
}

fn parse_identity(peer: &Peer) -> Result<Option<Identity>, QueryError> {
    let identity = peer.identity.as_ref().map(|text| text.parse());
    identity.transpose().map_err(|_| QueryError::Identity)
}

/// Builds the headers of the CONNECT as a node proxy writes them for a redirected connection of this original peer.
fn build_tunnel_headers(original: Option<&Peer>) -> Result<HeaderMap, QueryError> {
    let mut headers = HeaderMap::new();
    let Some(original) = original else {
        return Ok(headers);
    };
    let peer = OriginalPeer(parse_identity(original)?).to_string();
    let peer = HeaderValue::try_from(peer).map_err(|_| QueryError::Identity)?;
    headers.insert(HeaderName::from_static(ORIGINAL_PEER_HEADER), peer);
    let forwarded = Forwarded {
        client: SocketAddr::new(original.address, UNKNOWN_PORT),
        host: None,
    };
    let forwarded = HeaderValue::try_from(forwarded.to_string());
    let forwarded = forwarded.map_err(|_| QueryError::Identity)?;
    headers.insert(http::header::FORWARDED, forwarded);
    Ok(headers)
}

fn build_request(query: &HttpQuery) -> Result<Request<()>, QueryError> {
    let mut request = Request::new(());
    let method = Method::from_bytes(query.method.as_bytes());
    *request.method_mut() = method.map_err(|_| QueryError::Method)?;
    let path = PathAndQuery::try_from(query.path.as_str());
    *request.uri_mut() = Uri::from(path.map_err(|_| QueryError::Path)?);
    let headers = request.headers_mut();
    let host = HeaderValue::from_str(&query.host);
    headers.insert(HOST, host.map_err(|_| QueryError::Header)?);
    for (name, value) in &query.headers {
        let name = HeaderName::try_from(name).map_err(|_| QueryError::Header)?;
        let value = HeaderValue::from_str(value).map_err(|_| QueryError::Header)?;
        headers.append(name, value);
    }
    Ok(request)
}

/// Builds the explanation of a rejected CONNECT, after which no HTTP request is evaluated.
fn rejected_tunnel(why: &str, status: u16) -> Explanation {
    let why = format!("the tunnel is refused with {status}: {why}");
    Explanation {
        steps: vec![Step::new(StepKind::Tunnel, StepResult::Refused, &*why)],
        end: ExplainedResult::Refused { why },
    }
}

fn tunnel_step(caller: &Caller, target: &Target) -> Step {
    let who = match &caller.identity {
        Some(identity) => identity.to_string(),
        None => "no identity (plaintext)".to_owned(),
    };
    let what = match target {
        Target::Service { served, .. } => format!("Service {}", served.name),
        Target::Pod { workload, .. } => format!("Pod {}", shared::full_name(workload)),
    };
    let why = format!("called by {who} at {}", caller.address.ip());
    Step::new(StepKind::Tunnel, StepResult::Passed, why).with_object(what)
}

/// Builds the explanation of a connection to a port whose declared protocol is not HTTP.
fn opaque_connection(session: &Session) -> Explanation {
    let attachments = session.attachments();
    let policies = session.shard.waypoint.published.policies();
    let decision =
        policies.evaluate_connection(attachments.scope(), &session.connection_attributes(None));
    let why = "the port is declared to be no HTTP: the connection is passed through";
    let form = Step::new(StepKind::RequestValidity, StepResult::Passed, why);
    let why = decision.to_string();
    let (result, end) = match decision.is_allowed() {
        true => {
            let address = session.target.address().to_string();
            (StepResult::Passed, ExplainedResult::Delivered { address })
        }
        false => (
            StepResult::Refused,
            ExplainedResult::Refused { why: why.clone() },
        ),
    };
    Explanation {
        steps: vec![form, Step::new(StepKind::Authorization, result, why)],
        end,
    }
}
