//! `ambit explain`: follows one request from proxy to proxy without sending it. Each proxy on the path predicts its
//! decision from its current state, by the code that serves requests (`POST /explain`); this command queries them in
//! order, and prints the response that the client would get.

mod args;
mod mesh;
mod query;
mod report;
mod text;

use std::process::ExitCode;

use ambit_mesh_json::explain::{
    ExplainedResult, Explanation, Hop, HopKind, HttpQuery, InboundQuery, NodeProxyQuery,
    OutboundQuery, WaypointQuery,
};

use crate::{CliError, output};
pub(crate) use args::RequestExplainArgs;
use mesh::MeshClient;
pub(crate) use report::{FinalResponse, FinalResponseKind, ProxySteps, Report};

/// Maximum number of proxies through which a request is followed.
const MAX_PROXIES: usize = 8;

/// Prints the prediction; the exit code is 1 if the request would be refused.
pub(crate) fn run(args: &RequestExplainArgs) -> Result<ExitCode, CliError> {
    let report = explain(args)?;
    output::print_formatted(args.output, &report, || text::format_report(&report))?;
    Ok(ExitCode::from(u8::from(!report.allowed)))
}

/// Follows a request from proxy to proxy, and returns the prediction.
pub(crate) fn explain(args: &RequestExplainArgs) -> Result<Report, CliError> {
    let (host, port) = query::parse_target(&args.to)?;
    let request = query::build_query(args, &host, port)?;
    let mesh = MeshClient::new(args.lab.as_deref(), &args.target);
    let client = mesh.client(&args.from)?;
    let outbound = NodeProxyQuery::Outbound(OutboundQuery {
        pod: client.name.clone(),
        host,
        port,
    });
    let first = mesh.query_node_proxy(&client.node, &outbound)?;
    let mut walk = RequestPrediction {
        mesh,
        request,
        proxies: Vec::new(),
    };
    let answer = walk.follow_hops(format!("node proxy of {}", client.node), first)?;
    Ok(Report::new(
        client.name,
        &args.to,
        &walk.request,
        answer,
        walk.proxies,
    ))
}

/// State of a prediction: the request, and the proxies that have been queried so far.
struct RequestPrediction {
    mesh: MeshClient,
    request: HttpQuery,
    proxies: Vec<ProxySteps>,
}

impl RequestPrediction {
    fn follow_hops(
        &mut self,
        proxy: String,
        first: Explanation,
    ) -> Result<FinalResponse, CliError> {
        let mut next = (proxy, false, first);
        loop {
            let (proxy, is_waypoint, Explanation { steps, end }) = next;
            self.proxies.push(ProxySteps {
                by: proxy.clone(),
                is_waypoint,
                steps,
            });
            let hop = match end {
                ExplainedResult::Forwarded(hop) => hop,
                ExplainedResult::Delivered { address } => {
                    return Ok(FinalResponse::application(&address));
                }
                ExplainedResult::Responded { status, why } => {
                    return Ok(FinalResponse::status(status, proxy, why));
                }
                ExplainedResult::Refused { why } => return Ok(self.refused_response(proxy, why)),
            };
            if self.proxies.len() >= MAX_PROXIES {
                let why = format!("not followed beyond {MAX_PROXIES} proxies");
                return Ok(FinalResponse::open(hop.workload, why));
            }
            next = match self.query_hop(&hop, is_waypoint)? {
                Ok((proxy, explanation)) => (proxy, hop.to == HopKind::Waypoint, explanation),
                Err(answer) => return Ok(answer),
            };
        }
    }

    /// Queries the proxy at `hop` for its prediction, or returns the final response if no further proxy can be queried.
    fn query_hop(
        &self,
        hop: &Hop,
        is_from_waypoint: bool,
    ) -> Result<Result<(String, Explanation), FinalResponse>, CliError> {
        Ok(match hop.to {
            HopKind::OutsideMesh => Err(FinalResponse::application(&hop.address.to_string())),
            HopKind::Waypoint if is_from_waypoint => {
                let why = "a route forwards it through another waypoint, which sees the changed request: not followed";
                Err(FinalResponse::open(hop.workload.clone(), why.to_owned()))
            }
            HopKind::Waypoint => {
                let query = WaypointQuery {
                    authority: hop.authority.clone(),
                    peer: hop.peer.clone(),
                    original: hop.original.clone(),
                    request: self.request.clone(),
                };
                let explanation = self.mesh.query_waypoint(&hop.workload, &query)?;
                Ok((format!("waypoint {}", hop.workload), explanation))
            }
            // Endpoints that are no pods have no node proxy.
            HopKind::Tunnel | HopKind::Plaintext if hop.node.is_empty() => {
                Err(FinalResponse::application(&hop.address.to_string()))
            }
            HopKind::Tunnel | HopKind::Plaintext => {
                let query = NodeProxyQuery::Inbound(InboundQuery {
                    pod: hop.workload.clone(),
                    peer: hop.peer.clone(),
                    address: hop.address.ip(),
                    authority: hop.authority.clone(),
                    plaintext: hop.to == HopKind::Plaintext,
                });
                let explanation = self.mesh.query_node_proxy(&hop.node, &query)?;
                Ok((format!("node proxy of {}", hop.node), explanation))
            }
        })
    }

    /// Returns the response that the client gets when the last proxy rejects the connection: a 503 of the first of the
    /// waypoints directly before that proxy, or else a reset.
    fn refused_response(&self, by: String, why: String) -> FinalResponse {
        let before = self.proxies.iter().rev().skip(1);
        let waypoint = before.take_while(|part| part.is_waypoint).last();
        match waypoint {
            Some(waypoint) => {
                let why = format!("the endpoint's {by} refuses the waypoint: {why}");
                FinalResponse::status(503, waypoint.by.clone(), why)
            }
            None => FinalResponse::reset(by, why),
        }
    }
}
