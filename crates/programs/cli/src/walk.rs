//! `ambit explain`: follows one request from proxy to proxy without sending it. Each proxy on the path predicts its
//! decision from its current state, by the code that serves requests (`POST /explain`); this command queries them in
//! order, and prints the response that the client would get.

mod args;
mod mesh;
mod query;
mod report;
mod words;

use std::process::ExitCode;

use ambit_mesh_json::explain::{
    End, Explanation, Hop, HopKind, HttpQuery, InboundQuery, NodeProxyQuery, OutboundQuery,
    WaypointQuery,
};

use crate::{CliError, output};
pub(crate) use args::WalkArgs;
use mesh::Mesh;
pub(crate) use report::{Answer, AnswerKind, Part, Report};

/// Maximum number of proxies through which a request is followed.
const MAX_PARTS: usize = 8;

/// Prints the prediction; the exit code is 1 if the request would be refused.
pub(crate) fn run(args: &WalkArgs) -> Result<ExitCode, CliError> {
    let report = explain(args)?;
    output::print(args.output, &report, || words::of(&report))?;
    Ok(ExitCode::from(u8::from(!report.allowed)))
}

/// Follows a request from proxy to proxy, and returns the prediction.
pub(crate) fn explain(args: &WalkArgs) -> Result<Report, CliError> {
    let (host, port) = query::target(&args.to)?;
    let request = query::request(args, &host, port)?;
    let mesh = Mesh::new(args.lab.as_deref(), &args.target);
    let client = mesh.client(&args.from)?;
    let outbound = NodeProxyQuery::Outbound(OutboundQuery {
        pod: client.name.clone(),
        host,
        port,
    });
    let first = mesh.ask_node(&client.node, &outbound)?;
    let mut walk = Walk {
        mesh,
        request,
        parts: Vec::new(),
    };
    let answer = walk.follow(format!("node proxy of {}", client.node), first)?;
    Ok(Report::new(
        client.name,
        &args.to,
        &walk.request,
        answer,
        walk.parts,
    ))
}

/// Prediction in progress: the request, and the proxies that have been queried so far.
struct Walk {
    mesh: Mesh,
    request: HttpQuery,
    parts: Vec<Part>,
}

impl Walk {
    fn follow(&mut self, by: String, first: Explanation) -> Result<Answer, CliError> {
        let mut next = (by, false, first);
        loop {
            let (by, is_waypoint, Explanation { steps, end }) = next;
            self.parts.push(Part {
                by: by.clone(),
                is_waypoint,
                steps,
            });
            let hop = match end {
                End::Forwarded(hop) => hop,
                End::Delivered { address } => return Ok(Answer::application(&address)),
                End::Answered { status, why } => return Ok(Answer::status(status, by, why)),
                End::Refused { why } => return Ok(self.refused(by, why)),
            };
            if self.parts.len() >= MAX_PARTS {
                let why = format!("not followed beyond {MAX_PARTS} proxies");
                return Ok(Answer::open(hop.workload, why));
            }
            next = match self.step(&hop, is_waypoint)? {
                Ok((by, explanation)) => (by, hop.to == HopKind::Waypoint, explanation),
                Err(answer) => return Ok(answer),
            };
        }
    }

    /// Queries the proxy at `hop` for its prediction, or returns the final response if no further proxy can be queried.
    fn step(
        &self,
        hop: &Hop,
        is_from_waypoint: bool,
    ) -> Result<Result<(String, Explanation), Answer>, CliError> {
        Ok(match hop.to {
            HopKind::Outside => Err(Answer::application(&hop.address.to_string())),
            HopKind::Waypoint if is_from_waypoint => {
                let why = "a route forwards it through another waypoint, which sees the changed request: not followed";
                Err(Answer::open(hop.workload.clone(), why.to_owned()))
            }
            HopKind::Waypoint => {
                let query = WaypointQuery {
                    authority: hop.authority.clone(),
                    peer: hop.peer.clone(),
                    original: hop.original.clone(),
                    request: self.request.clone(),
                };
                let explanation = self.mesh.ask_waypoint(&hop.workload, &query)?;
                Ok((format!("waypoint {}", hop.workload), explanation))
            }
            // Endpoints that are no pods have no node proxy.
            HopKind::Tunnel | HopKind::Plaintext if hop.node.is_empty() => {
                Err(Answer::application(&hop.address.to_string()))
            }
            HopKind::Tunnel | HopKind::Plaintext => {
                let query = NodeProxyQuery::Inbound(InboundQuery {
                    pod: hop.workload.clone(),
                    peer: hop.peer.clone(),
                    address: hop.address.ip(),
                    authority: hop.authority.clone(),
                    plaintext: hop.to == HopKind::Plaintext,
                });
                let explanation = self.mesh.ask_node(&hop.node, &query)?;
                Ok((format!("node proxy of {}", hop.node), explanation))
            }
        })
    }

    /// Returns the client's response when the last proxy rejects the connection: a 503 of the first of the waypoints
    /// directly before that proxy, or else a reset.
    fn refused(&self, by: String, why: String) -> Answer {
        let before = self.parts.iter().rev().skip(1);
        let waypoint = before.take_while(|part| part.is_waypoint).last();
        match waypoint {
            Some(waypoint) => {
                let why = format!("the endpoint's {by} refuses the waypoint: {why}");
                Answer::status(503, waypoint.by.clone(), why)
            }
            None => Answer::reset(by, why),
        }
    }
}
