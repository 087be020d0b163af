//! Serves `POST /explain`, which predicts the handling of a connection of, or to, a pod. Names,
//! routes, waypoints and policies are looked up by the functions that serve connections, in the
//! current state; nothing is connected or counted.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ambit_authz::{Connection as Connecting, Explanation as Decided, PolicyOutcome};
use ambit_codec::Authority;
use ambit_dns::AddressFamily;
use ambit_mesh_json::explain::{
    ExplainedResult, Explanation, Hop, HopKind, InboundQuery, NodeProxyQuery, OutboundQuery, Peer,
    Step, StepKind, StepResult,
};
use ambit_model::Identity;
use ambit_proxy::{
    ConnectionPath, LocalPod, SharedState,
    explain::{self as shared, ExplainHandler},
    report::format_error_chain,
};
use ambit_route::{ConnectTarget, InboundRequest, Route};
use ambit_rt::http::{Response, text};

use crate::{
    admission::{self, DenialReason},
    config::Config,
    dns_capture, outbound,
    pod::Pod,
    pods::ServedPods,
    redirection,
};

/// Predicts how connections are handled, for `POST /explain`.
#[derive(Debug)]
struct Explainer {
    served: ServedPods,
    state: SharedState,
    config: Arc<Config>,
}

/// Creates the handler of `POST /explain` for connections of, and to, the served pods.
pub(crate) fn handler(
    served: ServedPods,
    state: SharedState,
    config: Arc<Config>,
) -> ExplainHandler {
    let explainer = Arc::new(Explainer {
        served,
        state,
        config,
    });
    Box::new(move |body| {
        let explainer = explainer.clone();
        Box::pin(async move { explainer.handle_query(&body).await })
    })
}

/// Error of an invalid `POST /explain` request.
#[derive(Debug, thiserror::Error)]
enum QueryError {
    #[error("{0:?} is no namespace/name of a pod")]
    InvalidPodName(String),
    #[error("the mesh knows no pod {0}")]
    UnknownPod(String),
    #[error("{0:?} is no address or host with a port")]
    InvalidAuthority(String),
    #[error("{0:?} is no SPIFFE id of a service account")]
    InvalidIdentity(String),
}

impl QueryError {
    fn status(&self) -> u16 {
        match self {
            Self::UnknownPod(_) => 404,
            Self::InvalidPodName(_) | Self::InvalidAuthority(_) | Self::InvalidIdentity(_) => 400,
        }
    }
}

/// Steps of the prediction so far.
#[derive(Default)]
struct ExplanationSteps(Vec<Step>);

impl ExplanationSteps {
    fn push(&mut self, step: StepKind, result: StepResult, why: impl Into<String>) {
        self.0.push(Step::new(step, result, why));
    }

    fn finish(self, end: ExplainedResult) -> Explanation {
        Explanation { steps: self.0, end }
    }

    /// Ends the prediction with a step in which the connection is rejected.
    fn refused(mut self, step: StepKind, why: &str) -> Explanation {
        self.push(step, StepResult::Refused, why);
        let why = why.to_owned();
        self.finish(ExplainedResult::Refused { why })
    }
}

impl Explainer {
    /// Responds to `POST /explain` with this body.
    async fn handle_query(&self, body: &[u8]) -> Response {
        let query = match shared::parse_query(body) {
            Ok(query) => query,
            Err(response) => return *response,
        };
        let explained = match &query {
            NodeProxyQuery::Outbound(query) => Box::pin(self.explain_outbound(query)).await,
            NodeProxyQuery::Inbound(query) => Box::pin(self.explain_inbound(query)).await,
        };
        match explained {
            Ok(explanation) => shared::explanation_response(&explanation),
            Err(error) => text(error.status(), format!("{error}\n")),
        }
    }

    async fn explain_outbound(&self, query: &OutboundQuery) -> Result<Explanation, QueryError> {
        let (namespace, name) = split_pod_name(&query.pod)?;
        let mut walk = ExplanationSteps::default();
        let pod = self.served.find(namespace, name);
        let ip = self.address_of(namespace, name);
        let Some(ip) = ip.or_else(|| {
            pod.as_ref()?
                .local_workload
                .current_pod(None)
                .workload
                .workload_ips
                .first()
                .copied()
        }) else {
            return Err(QueryError::UnknownPod(query.pod.clone()));
        };
        match &pod {
            Some(pod) => {
                let why = format!("connections of the pod are captured, as {}", pod.identity());
                walk.push(StepKind::Capture, StepResult::Passed, why);
            }
            None => {
                let why = "the pod is not captured: its connections are plaintext, to whichever endpoint its node chooses";
                walk.push(StepKind::Capture, StepResult::Passed, why);
            }
        }
        let Some(called) = self.resolve(namespace, query, &mut walk) else {
            let host = &query.host;
            let why = format!(
                "the mesh knows no name {host:?}: the pod's DNS resolver decides what it resolves to"
            );
            return Ok(walk.refused(StepKind::NameResolution, &why));
        };
        let dst = SocketAddr::new(called, query.port);
        Ok(match pod {
            Some(pod) => explain_captured(walk, &pod, ip, dst).await,
            None => self.explain_uncaptured(walk, namespace, ip, dst),
        })
    }

    /// Returns the first address of a workload by namespace and name.
    fn address_of(&self, namespace: &str, name: &str) -> Option<IpAddr> {
        let table = self.state.table();
        let mut all = table.workloads();
        let found = all.find(|one| one.namespace() == namespace && one.name() == name)?;
        found.ips().first().copied()
    }

    /// Returns the address that a host name, or an address as text, resolves to for pods of a namespace.
    fn resolve(
        &self,
        namespace: &str,
        query: &OutboundQuery,
        walk: &mut ExplanationSteps,
    ) -> Option<IpAddr> {
        if let Ok(ip) = query.host.parse() {
            return Some(ip);
        }
        let name = query.host.trim_end_matches('.').to_ascii_lowercase();
        let find = |family| {
            dns_capture::resolve_mesh_name(&self.config, &self.state, namespace, (&name, family))
        };
        let (found, ip) = [AddressFamily::V4, AddressFamily::V6]
            .into_iter()
            .find_map(|family| {
                let found = find(family)?;
                let ip = found.addresses.first().copied()?;
                Some((found, ip))
            })?;
        let why = format!("{name} is {}, at {ip}", found.host);
        walk.push(StepKind::NameResolution, StepResult::Passed, why);
        Some(ip)
    }

    /// Predicts a connection of a pod that is not captured: to the first eligible endpoint of a service.
    fn explain_uncaptured(
        &self,
        mut walk: ExplanationSteps,
        namespace: &str,
        ip: IpAddr,
        dst: SocketAddr,
    ) -> Explanation {
        let table = self.state.table();
        let network = &self.config.network;
        let peer = Peer {
            identity: None,
            address: ip,
        };
        let (workload, to) = match table.service_by_vip(network, dst.ip(), namespace) {
            Some(service) => {
                let name = service.namespaced_hostname();
                let endpoints = table.endpoints(service);
                let mut reachable = endpoints.iter().filter_map(|endpoint| {
                    let own = endpoint.ports.get(&dst.port());
                    let target = own.or_else(|| service.ports.get(&dst.port()))?;
                    let workload = table.workload(&endpoint.uid)?;
                    let mut ips = workload.ips().iter();
                    let ip = ips.find(|ip| ip.is_ipv4() == dst.ip().is_ipv4())?;
                    Some((workload, SocketAddr::new(*ip, *target)))
                });
                let Some((workload, to)) = reachable.next() else {
                    let why = format!("{name} has no endpoint for the port {}", dst.port());
                    return walk.refused(StepKind::Endpoint, &why);
                };
                let why = format!(
                    "{} at {to}, one of {} of {name}",
                    shared::full_name(workload),
                    1 + reachable.count()
                );
                walk.push(StepKind::Endpoint, StepResult::Passed, why);
                (Some(workload), to)
            }
            None => (table.workload_by_ip(network, dst.ip()), dst),
        };
        let hop = Hop {
            to: match workload {
                Some(_) => HopKind::Plaintext,
                None => HopKind::OutsideMesh,
            },
            workload: workload.map(shared::full_name).unwrap_or_default(),
            node: workload.map_or_else(String::new, |one| one.node().to_string()),
            address: to,
            authority: to.to_string(),
            peer,
            original: None,
        };
        walk.finish(ExplainedResult::Forwarded(hop))
    }

    async fn explain_inbound(&self, query: &InboundQuery) -> Result<Explanation, QueryError> {
        let (namespace, name) = split_pod_name(&query.pod)?;
        let authority = || QueryError::InvalidAuthority(query.authority.clone());
        let target = Authority::parse(query.authority.as_bytes()).map_err(|_| authority())?;
        let identity = query.peer.identity.as_ref();
        let identity: Option<Identity> = identity
            .map(|text| {
                text.parse()
                    .map_err(|_| QueryError::InvalidIdentity(text.clone()))
            })
            .transpose()?;
        let mut walk = ExplanationSteps::default();
        let Some(pod) = self.served.find(namespace, name) else {
            let why = "the pod is not captured: no policy is enforced for it";
            walk.push(StepKind::Capture, StepResult::Passed, why);
            return Ok(walk.finish(ExplainedResult::Delivered {
                address: query.authority.clone(),
            }));
        };
        let Some(local) = pod.local_workload.wait_until_published().await else {
            let why = "the control plane has not published the pod";
            return Ok(walk.refused(StepKind::Tunnel, why));
        };
        let (authorize, app) = match (query.plaintext, &target) {
            (true, Authority::Ip(address)) => (*address, *address),
            (true, Authority::Host { .. }) => return Err(authority()),
            (false, _) => match resolve_inbound_route(&pod, &local, query.address, target).await {
                Ok(found) => found,
                Err(why) => return Ok(walk.refused(StepKind::Tunnel, &why)),
            },
        };
        let peer = Connecting {
            source: identity,
            source_ip: query.peer.address,
            destination: authorize,
        };
        let who = match &peer.source {
            Some(identity) => identity.to_string(),
            None => "no identity (plaintext)".to_owned(),
        };
        let why = format!(
            "called by {who} at {}, port {}",
            peer.source_ip,
            authorize.port()
        );
        walk.push(StepKind::Tunnel, StepResult::Passed, why);
        Ok(explain_policies(walk, &pod, &peer, app).await)
    }
}

fn split_pod_name(pod: &str) -> Result<(&str, &str), QueryError> {
    pod.split_once('/')
        .ok_or_else(|| QueryError::InvalidPodName(pod.to_owned()))
}

/// Predicts an outbound connection of a captured pod.
async fn explain_captured(
    mut walk: ExplanationSteps,
    pod: &Pod,
    ip: IpAddr,
    dst: SocketAddr,
) -> Explanation {
    let local = pod.local_workload.current_pod(Some(ip));
    let route = match outbound::select_route(pod, &local, dst, &[]).await {
        Ok(route) => route,
        Err(error) => return walk.refused(StepKind::Endpoint, &format_error_chain(&error)),
    };
    if let Err(error) = redirection::check_redirected_address(&pod.redirect_guard, dst.ip(), &route)
    {
        return walk.refused(StepKind::Endpoint, &error.to_string());
    }
    walk.push(
        StepKind::Waypoint,
        StepResult::Passed,
        waypoint_text(&route),
    );
    let sender = Peer {
        identity: Some(pod.identity().to_string()),
        address: ip,
    };
    let Some(hop) = shared::next_hop(&route, sender) else {
        let why = "the endpoint is known by name only; its name is not looked up here";
        walk.push(StepKind::Endpoint, StepResult::NotEvaluated, why);
        return walk.finish(ExplainedResult::Delivered {
            address: "a host outside of the mesh".to_owned(),
        });
    };
    let why = match hop.to {
        HopKind::OutsideMesh => format!("{}, outside of the mesh", hop.address),
        HopKind::Plaintext => format!("{} at {}, in plaintext", hop.workload, hop.address),
        HopKind::Waypoint | HopKind::Tunnel => {
            format!("{} at {}, in a tunnel", hop.workload, hop.address)
        }
    };
    walk.push(StepKind::Endpoint, StepResult::Passed, why);
    walk.finish(ExplainedResult::Forwarded(hop))
}

/// Describes the waypoint of a route, and whether the service or the workload is bound to it.
fn waypoint_text(route: &Route) -> String {
    let of_service = route.service().and_then(|one| {
        let waypoint = shared::waypoint_of(one)?;
        Some((one.namespaced_hostname(), waypoint))
    });
    let through = match route {
        Route::Hbone(hbone) => hbone.waypoint.as_ref(),
        _ => None,
    };
    match (through, of_service, route.service()) {
        (Some(_), Some((service, waypoint)), _) => {
            format!("Service {service} is bound to the waypoint {waypoint}")
        }
        (Some(name), None, Some(service)) => format!(
            "the endpoints of {} are bound to the waypoint {name}",
            service.namespaced_hostname()
        ),
        (Some(name), None, None) => format!("the called pod is bound to the waypoint {name}"),
        (None, Some((service, waypoint)), _) => {
            format!("the pod is {waypoint} itself, the waypoint of {service}")
        }
        (None, None, _) => {
            "no waypoint: neither the destination nor its endpoint is bound to one".to_owned()
        }
    }
}

/// Returns the destination that policies match and the application's address, for the authority of a tunnel.
async fn resolve_inbound_route(
    pod: &Pod,
    local: &LocalPod,
    local_ip: IpAddr,
    target: Authority,
) -> Result<(SocketAddr, SocketAddr), String> {
    let target = match target {
        Authority::Ip(address) => ConnectTarget::Addr(address),
        Authority::Host { host, port } => ConnectTarget::Host {
            hostname: host,
            port,
        },
    };
    let request = InboundRequest {
        local_workload: &local.workload,
        local_ip,
        target: &target,
        localhost_app_tunnel: pod.config.localhost_app_tunnel,
    };
    let route = pod.state.inbound(&request).await;
    let route = route.map_err(|error| error.to_string())?;
    Ok((route.authorized_destination, route.addr))
}

/// Predicts the decision of a pod's policies about a connection, and whether it is direct or passes the waypoint.
async fn explain_policies(
    mut walk: ExplanationSteps,
    pod: &Pod,
    peer: &Connecting,
    app: SocketAddr,
) -> Explanation {
    let (local, course) = match admission::connection_path(pod, peer) {
        Ok(found) => found,
        Err(denied) => return walk.refused(StepKind::Authorization, &denied.to_string()),
    };
    let decided = match course {
        ConnectionPath::ThroughWaypoint => pod.state.explain_authentication(&local.workload, peer),
        ConnectionPath::Direct => pod.state.explain(&local.workload, peer),
    };
    let denied = DenialReason::from_decision(decided.decision.clone());
    walk.0
        .push(authorization_step(&decided, denied.as_ref(), course));
    if let Some(denied) = denied {
        let why = denied.to_string();
        return walk.finish(ExplainedResult::Refused { why });
    }
    if course == ConnectionPath::Direct {
        let address = app.to_string();
        return walk.finish(ExplainedResult::Delivered { address });
    }
    let route = pod.state.hairpin(&local.workload, peer.destination, &[]);
    let hop = match route.await {
        Ok(route) => shared::next_hop(
            &route,
            Peer {
                identity: Some(pod.identity().to_string()),
                address: peer.destination.ip(),
            },
        ),
        Err(error) => return walk.refused(StepKind::Waypoint, &error.to_string()),
    };
    let Some(hop) = hop else {
        let why = "the waypoint is known by name only";
        return walk.refused(StepKind::Waypoint, why);
    };
    let why = format!(
        "the connection bypasses the pod's waypoint: the node proxy redirects it to {} at {}",
        hop.workload, hop.address
    );
    walk.push(StepKind::Waypoint, StepResult::Passed, why);
    walk.finish(ExplainedResult::Forwarded(Hop {
        original: Some(Peer {
            identity: peer.source.as_ref().map(ToString::to_string),
            address: peer.source_ip,
        }),
        ..hop
    }))
}

fn authorization_step(
    decided: &Decided,
    denied: Option<&DenialReason>,
    path: ConnectionPath,
) -> Step {
    let considered = decided.policies.iter().map(|one| {
        let rule = match one.outcome {
            PolicyOutcome::Matches { rule } => Some(rule),
            PolicyOutcome::NoMatch => None,
        };
        shared::evaluated_policy(&one.policy, one.action, one.dry_run, rule)
    });
    let by = decided.decision.decided_by.as_ref();
    let (result, why) = match (denied, by, path) {
        (Some(denied), ..) => (StepResult::Refused, denied.to_string()),
        (None, Some(_), _) => (StepResult::Passed, "an ALLOW policy matches".to_owned()),
        (None, None, ConnectionPath::ThroughWaypoint) => (
            StepResult::Passed,
            "PeerAuthentication, the only policy that applies here, allows it".to_owned(),
        ),
        (None, None, ConnectionPath::Direct) => (
            StepResult::Passed,
            "no DENY policy matches, no ALLOW policy applies".to_owned(),
        ),
    };
    let step = Step::new(StepKind::Authorization, result, why);
    let step = step.with_evaluated_objects(considered.collect());
    match by {
        Some(policy) => step.with_object(format!("AuthorizationPolicy {policy}")),
        None => step,
    }
}
