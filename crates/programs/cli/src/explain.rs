//! `ambit policy explain`: finds the policy that decides a connection, from live state or a dump; `ambit explain`
//! follows a request through all proxies (`walk`). A connection through a waypoint has two legs: node proxies evaluate
//! PeerAuthentication alone for the caller, and all policies for the waypoint as the caller of the pod.

mod delivery;
mod name;
mod policies;
mod policy_origin;
mod report;

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use ambit_authz::{Connection, Explanation};
use ambit_model::{Identity, Protocol, Workload};

use crate::{
    CliError, ErrorKind,
    dump::{Dump, EndpointWaypoint, ServiceEntry, Waypoint},
    output::{self, OutputFormat},
    source::Source,
};
use delivery::WaypointDelivery;
use policies::{policy_reports, reason_text};
pub(crate) use report::Report;
use report::format_report;

/// Flags of `ambit policy explain`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PolicyExplainArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// The client: a pod (`namespace/name`, or the beginning of a name), an address, or a SPIFFE id
    #[arg(long)]
    pub(crate) from: String,
    /// The server: a pod, an address, or a service (`namespace/name`, or a name by which the client calls it)
    #[arg(long)]
    pub(crate) to: String,
    /// The port: the application's for a pod or address, the service's for a service
    #[arg(long)]
    pub(crate) port: u16,
    /// As if the client were outside the mesh
    #[arg(long)]
    pub(crate) plaintext: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
}

/// Explains each connection; the exit code is 1 if one would be refused.
pub(crate) fn run(args: &PolicyExplainArgs) -> Result<ExitCode, CliError> {
    let dump = load_dump(args)?;
    let mut reports = explain(&dump, &args.from, &args.to, args.port, args.plaintext)?;
    policy_origin::name_peer_authentications(&args.source, &mut reports);
    output::print_formatted(args.output, &reports, || {
        reports
            .iter()
            .map(format_report)
            .collect::<Vec<_>>()
            .join("\n\n")
    })?;
    let is_allowed = reports.iter().all(|report| report.allowed);
    Ok(ExitCode::from(u8::from(!is_allowed)))
}

/// Fetches the dump of the server's node proxy, unless flags name another source.
fn load_dump(args: &PolicyExplainArgs) -> Result<Dump, CliError> {
    let dump = args.source.load_dump()?;
    if !args.source.is_unspecified() {
        return Ok(dump);
    }
    let workloads = dump.authz_workloads();
    let client = ClientWorkload::find(&workloads, &args.from)?;
    let to = name::resolve_service_name(&dump, client.namespace.as_deref(), &args.to, args.port);
    let servers = find_servers(&dump, &workloads, &to, args.port)?;
    let node = servers.first().and_then(|(server, ..)| {
        let mut entries = dump.workloads.parsed();
        let entry = entries.find(|entry| entry.uid == server.uid.as_str())?;
        Some(entry.node.clone()).filter(|node| !node.is_empty())
    });
    match node {
        Some(node) => args.source.at_node(&node).load_dump(),
        None => Ok(dump),
    }
}

/// Predicts the decision on a connection to each pod that `to` selects.
pub(crate) fn explain(
    dump: &Dump,
    from: &str,
    to: &str,
    port: u16,
    plaintext: bool,
) -> Result<Vec<Report>, CliError> {
    let workloads = dump.authz_workloads();
    let policies = dump.policy_set()?;
    let client = ClientWorkload::find(&workloads, from)?;
    let to = &*name::resolve_service_name(dump, client.namespace.as_deref(), to, port);
    let mut reports = Vec::new();
    for (server, ip, port) in find_servers(dump, &workloads, to, port)? {
        let source_ip = client.address_of_family(ip);
        let connection = Connection {
            source: client.identity.clone().filter(|_| !plaintext),
            source_ip,
            destination: SocketAddr::new(ip, port),
        };
        let through = find_waypoint(dump, to, server, connection.source.as_ref());
        let explanation = match &through {
            Some(_) => policies.explain_peer_authentication(server, &connection),
            None => policies.explain(server, &connection),
        };
        let report = build_report(&client, server, &connection, &explanation);
        let is_refused = report.allowed && is_plaintext_refused(dump, server, &connection);
        reports.push(match through {
            Some(waypoint) if is_refused => refused_report(report, &waypoint),
            Some(waypoint) if report.allowed && report.enforced => {
                let attached = attached_waypoint(dump, server);
                let leg = (server, &connection);
                let delivery = attached.and_then(|attached| {
                    WaypointDelivery::evaluate_delivery(attached, &workloads, &policies, leg)
                });
                Report {
                    waypoint: Some(waypoint),
                    allowed: delivery.as_ref().is_none_or(|delivery| delivery.allowed),
                    delivery,
                    ..report
                }
            }
            waypoint => Report { waypoint, ..report },
        });
    }
    Ok(reports)
}

/// Whether the server's node proxy rejects a plaintext connection: the waypoint that it enforces is another
/// controller's, to which the original peer cannot be passed.
fn is_plaintext_refused(dump: &Dump, server: &Workload, connection: &Connection) -> bool {
    let attached = attached_waypoint(dump, server);
    connection.source.is_none() && attached.is_some_and(|one| one.enforce && one.refuse)
}

/// Returns the waypoint that is attached to the server as an endpoint, by namespace or service account.
fn attached_waypoint<'a>(dump: &'a Dump, server: &Workload) -> Option<&'a EndpointWaypoint> {
    let mut entries = dump.workloads.parsed();
    let entry = entries.find(|entry| entry.uid == server.uid.as_str())?;
    entry.endpoint_waypoint.as_ref()
}

fn refused_report(report: Report, waypoint: &str) -> Report {
    Report {
        allowed: false,
        decided_by: None,
        why: format!(
            "the server is reached through the waypoint {waypoint} alone, which is another controller's and cannot \
             receive the original peer"
        ),
        ..report
    }
}

struct ClientWorkload {
    name: String,
    /// Namespace in which short service names are resolved; `None` for a bare IP address.
    namespace: Option<String>,
    identity: Option<Identity>,
    ips: Vec<IpAddr>,
}

impl ClientWorkload {
    fn find(workloads: &[Workload], from: &str) -> Result<Self, CliError> {
        if from.starts_with("spiffe://") {
            let identity: Identity = from.parse().map_err(|error| {
                CliError::new(ErrorKind::Usage, format!("--from {from}")).with_source(error)
            })?;
            let ips = workloads
                .iter()
                .filter(|workload| workload.identity() == identity)
                .flat_map(|workload| workload.workload_ips.clone())
                .collect();
            return Ok(Self {
                name: from.to_owned(),
                namespace: Some(identity.namespace.to_string()),
                identity: Some(identity),
                ips,
            });
        }
        if let Some(workload) = find_workload(workloads, from)? {
            // Only a captured pod proves who it is.
            let captured = workload.protocol == Protocol::Hbone;
            return Ok(Self {
                name: full_name(workload),
                namespace: Some(workload.namespace.to_string()),
                identity: captured.then(|| workload.identity()),
                ips: workload.workload_ips.clone(),
            });
        }
        if let Ok(ip) = from.parse() {
            return Ok(Self {
                name: from.to_owned(),
                namespace: None,
                identity: None,
                ips: vec![ip],
            });
        }
        Err(not_found_error("--from", from))
    }

    /// Returns the client's address of the same family as `other`; the unspecified address if it has none.
    fn address_of_family(&self, other: IpAddr) -> IpAddr {
        let same = self.ips.iter().find(|ip| ip.is_ipv4() == other.is_ipv4());
        same.copied().unwrap_or(match other {
            IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        })
    }
}

fn find_servers<'a>(
    dump: &Dump,
    workloads: &'a [Workload],
    to: &str,
    port: u16,
) -> Result<Vec<(&'a Workload, IpAddr, u16)>, CliError> {
    // A control plane's dump has no endpoints; then only pods and addresses can be explained.
    let endpoints = find_service(dump, to).and_then(|service| {
        let endpoints = service.endpoints.as_ref()?;
        Some((service, endpoints))
    });
    if let Some((service, endpoints)) = endpoints {
        let set = |target: Option<&u16>| target.copied().filter(|target| *target > 0);
        let of_service = set(service.ports.get(&port));
        let found: Vec<_> = endpoints
            .parsed()
            .filter_map(|endpoint| {
                let uid = endpoint.workload_uid.as_str();
                let workload = workloads.iter().find(|workload| workload.uid == uid)?;
                let target = set(endpoint.port.get(&port)).or(of_service)?;
                Some((workload, *workload.workload_ips.first()?, target))
            })
            .collect();
        if found.is_empty() {
            let what = format!("the service {to} has no endpoint for port {port}");
            return Err(CliError::new(ErrorKind::NotFound, what));
        }
        return Ok(found);
    }
    match find_workload(workloads, to)? {
        Some(workload) => {
            let requested = to.parse::<IpAddr>().ok();
            let ip = requested.or_else(|| workload.workload_ips.first().copied());
            let ip = ip.ok_or_else(|| not_found_error("the address of --to", to))?;
            Ok(vec![(workload, ip, port)])
        }
        None => Err(not_found_error("--to", to)),
    }
}

/// Returns the waypoint between `source` and the endpoint `server` on a connection to `to`: the one that the client's
/// node proxy uses, or else the one that the server enforces.
fn find_waypoint(
    dump: &Dump,
    to: &str,
    server: &Workload,
    source: Option<&Identity>,
) -> Option<String> {
    let mut entries = dump.workloads.parsed();
    let entry = entries.find(|entry| entry.uid == server.uid.as_str());
    let attached = entry.and_then(|entry| entry.endpoint_waypoint.as_ref());
    if let (Some(attached), Some(source)) = (attached, source)
        && attached.identities.contains(&source.to_string())
    {
        return None;
    }
    let bound = match find_service(dump, to) {
        Some(service) => service.waypoint.as_ref(),
        None => entry.and_then(|entry| entry.waypoint.as_ref()),
    };
    let by_client = bound
        .or_else(|| attached.map(|attached| &attached.waypoint))
        .filter(|_| source.is_some());
    let enforced = attached.filter(|attached| attached.enforce);
    by_client
        .or_else(|| enforced.map(|attached| &attached.waypoint))
        .map(Waypoint::destination)
}

fn find_service<'a>(dump: &'a Dump, to: &str) -> Option<&'a ServiceEntry> {
    let name = to.strip_prefix("svc/").unwrap_or(to);
    dump.services.parsed().find(|service| {
        format!("{}/{}", service.namespace, service.name) == name
            || service.hostname == name
            || (to.starts_with("svc/") && service.name == name)
    })
}

/// Finds a workload by address, full name, short name, or the prefix of a name (a Deployment's).
pub(crate) fn find_workload<'a>(
    workloads: &'a [Workload],
    query: &str,
) -> Result<Option<&'a Workload>, CliError> {
    if let Ok(ip) = query.parse::<IpAddr>() {
        return Ok(workloads
            .iter()
            .find(|workload| workload.workload_ips.contains(&ip)));
    }
    let (namespace, name) = match query.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, query),
    };
    let here: Vec<_> = workloads
        .iter()
        .filter(|workload| namespace.is_none_or(|namespace| workload.namespace == namespace))
        .collect();
    if let Some(exact) = here.iter().find(|workload| workload.name == name) {
        return Ok(Some(exact));
    }
    let begin: Vec<_> = here
        .iter()
        .filter(|workload| {
            workload
                .name
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('-'))
        })
        .collect();
    // Several pods with the same identity in one namespace are as good as one.
    match begin.as_slice() {
        [] => Ok(None),
        [first, rest @ ..]
            if rest
                .iter()
                .all(|other| other.identity() == first.identity()) =>
        {
            Ok(Some(first))
        }
        several => {
            let names: Vec<_> = several.iter().map(|workload| full_name(workload)).collect();
            let what = format!("{query:?} could be any of {}", names.join(", "));
            Err(CliError::new(ErrorKind::Usage, what))
        }
    }
}

fn full_name(workload: &Workload) -> String {
    format!("{}/{}", workload.namespace, workload.name)
}

pub(crate) fn not_found_error(kind: &str, name: &str) -> CliError {
    CliError::new(
        ErrorKind::NotFound,
        format!("{kind} {name}: not known there"),
    )
    .with_hint("`ambit workloads` and `ambit services` list the known ones")
}

fn build_report(
    client: &ClientWorkload,
    server: &Workload,
    connection: &Connection,
    explanation: &Explanation,
) -> Report {
    let enforced = server.protocol == Protocol::Hbone;
    let decision = &explanation.decision;
    Report {
        from: client.name.clone(),
        identity: connection.source.as_ref().map(ToString::to_string),
        to: full_name(server),
        destination: connection.destination,
        enforced,
        waypoint: None,
        delivery: None,
        allowed: decision.allowed || !enforced,
        decided_by: decision
            .decided_by
            .as_ref()
            .filter(|_| enforced)
            .map(ToString::to_string),
        why: match enforced {
            true => reason_text(&decision.reason).to_owned(),
            false => "the server is outside the mesh".to_owned(),
        },
        policies: policy_reports(explanation),
        missing: explanation
            .missing_policies
            .iter()
            .map(ToString::to_string)
            .collect(),
    }
}

#[cfg(test)]
mod tests;
