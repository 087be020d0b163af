//! `ambit waypoint routes`, `policies`, `endpoints` and `limits`: records that waypoints currently use, from their
//! dumps.

use std::collections::{BTreeMap, HashMap};

use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    args::{ListArgs, WaypointScope},
    gateway::GatewayObject,
    in_cluster, in_lab,
};
use crate::{
    CliError, ErrorKind,
    cluster::block_on,
    dump::{DumpEntries, ServiceEntry, WorkloadEntry, non_empty_or},
    output::{self, format_table},
    source::{CONFIG_DUMP_PATH, require_ok},
};

#[cfg(test)]
mod tests;

/// Flags of the commands that show records.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecordsArgs {
    /// Only this waypoint
    #[arg(short, long)]
    waypoint: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

/// Kind of a waypoint's records that a command shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordSection {
    Routes,
    Policies,
    Endpoints,
    Limits,
}

/// Parsed `/config_dump` of a waypoint, limited to the records that the tables show.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WaypointDump {
    workloads: DumpEntries<WorkloadEntry>,
    services: DumpEntries<ServiceEntry>,
    /// Records that the control plane sends to waypoints only.
    workload_state: Records,
}

/// Records in a waypoint's `/config_dump` as raw JSON, for JSON output.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawDump {
    services: Option<Value>,
    workload_state: RawRecords,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRecords {
    services: Option<Value>,
    policies: Option<Value>,
    authentications: Option<Value>,
    destinations: Option<Value>,
    limits: Option<Value>,
    plugins: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Records {
    services: Vec<ServiceRoutes>,
    policies: Vec<Policy>,
    destinations: Vec<DestinationState>,
    limits: Vec<LimitState>,
}

/// Record of a service that the waypoint serves.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceRoutes {
    service: String,
    routes: Vec<Route>,
    tls_routes: Vec<StreamRoute>,
    tcp_routes: Vec<StreamRoute>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Route {
    name: String,
    ports: Vec<u16>,
    clients: Option<String>,
    rules: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    matches: Vec<RouteMatch>,
    filters: Vec<Value>,
    backends: Vec<Backend>,
    unsupported: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RouteMatch {
    path: Option<Map<String, Value>>,
    method: Option<String>,
    headers: Vec<(String, Map<String, Value>)>,
    query_params: Vec<(String, Map<String, Value>)>,
    without_headers: Vec<(String, Map<String, Value>)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamRoute {
    name: String,
    ports: Vec<u16>,
    clients: Option<String>,
    hostnames: Vec<String>,
    backends: Vec<Backend>,
    unsupported: Option<String>,
}

/// Backend of a route's rule: a service, or the reason why the reference is invalid.
#[derive(Debug, Deserialize)]
struct Backend {
    service: Result<String, String>,
    port: u16,
    weight: u32,
    subset: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Policy {
    key: String,
    for_gateway: bool,
    services: Vec<String>,
    action: String,
    dry_run: bool,
    rules: Vec<Value>,
    not_understood: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DestinationState {
    record: DestinationRecord,
    ports: Vec<DestinationPort>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DestinationRecord {
    service: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DestinationPort {
    endpoints: Vec<EndpointState>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EndpointState {
    uid: String,
    requests: u32,
    ejected_for: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LimitState {
    record: Limit,
    counted_keys: Vec<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Limit {
    key: String,
    for_gateway: bool,
    services: Vec<String>,
    local: Vec<LocalLimit>,
    global: Option<GlobalLimit>,
    dry_run: bool,
    not_understood: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LocalLimit {
    by: Vec<Value>,
    requests: u32,
    per: String,
}

#[derive(Debug, Deserialize)]
struct GlobalLimit {
    place: Result<(String, u16), String>,
    domain: String,
}

/// Shows one kind of records of the selected waypoints.
pub(super) fn run(section: RecordSection, args: &RecordsArgs) -> Result<(), CliError> {
    let place = &args.list.place;
    let mut found = args.list.list_named(args.waypoint.as_deref())?;
    found.retain(GatewayObject::is_waypoint);
    let (mut shown, mut rows) = (Vec::new(), Vec::new());
    for gateway in &found {
        let name = format!("{}/{}", gateway.namespace(), gateway.name());
        let (dump, whole) = fetch_dump(place, gateway)?;
        shown.push(section.select_raw(&name, &whole));
        rows.extend(section.rows(&name, &dump));
    }
    output::print_formatted(args.list.output, &shown, || {
        format_table(section.header(), rows)
    })
}

/// Returns all kinds of records of one waypoint as tables (`header` and `rows`, without the waypoint's name), and its
/// plugins as raw JSON.
pub(crate) fn sections(scope: &WaypointScope, gateway: &GatewayObject) -> Result<Value, CliError> {
    let name = format!("{}/{}", gateway.namespace(), gateway.name());
    let (dump, whole) = fetch_dump(scope, gateway)?;
    let table = |section: RecordSection| {
        let rows = section.rows(&name, &dump).into_iter();
        let rows: Vec<Vec<String>> = rows.map(|row| row.into_iter().skip(1).collect()).collect();
        json!({"header": section.header().get(1..), "rows": rows})
    };
    Ok(json!({
        "routes": table(RecordSection::Routes),
        "endpoints": table(RecordSection::Endpoints),
        "policies": table(RecordSection::Policies),
        "limits": table(RecordSection::Limits),
        "plugins": whole.workload_state.plugins,
    }))
}

fn unreadable_error(waypoint: &str) -> CliError {
    let what = format!("the dump of the waypoint {waypoint} is not understood");
    CliError::new(ErrorKind::Unreachable, what)
        .with_hint("is this program of the same version as the waypoint?")
}

/// Fetches the `/config_dump` of one of a waypoint's pods, parsed and as raw JSON.
fn fetch_dump(
    scope: &WaypointScope,
    gateway: &GatewayObject,
) -> Result<(WaypointDump, RawDump), CliError> {
    let answer = match scope.lab() {
        Some(lab) => in_lab::fetch_dump(&lab, gateway)?,
        None => block_on(in_cluster::fetch_dump(&scope.target, gateway))?,
    };
    let bytes = require_ok(answer, CONFIG_DUMP_PATH)?;
    let name = format!("{}/{}", gateway.namespace(), gateway.name());
    let unread = |error| unreadable_error(&name).with_source(error);
    Ok((
        serde_json::from_slice(&bytes).map_err(unread)?,
        serde_json::from_slice(&bytes).map_err(unread)?,
    ))
}

impl RecordSection {
    /// Returns the records of this kind as raw JSON, for JSON output.
    fn select_raw(self, waypoint: &str, dump: &RawDump) -> Value {
        let records = &dump.workload_state;
        match self {
            Self::Routes => json!({"waypoint": waypoint, "services": records.services}),
            Self::Policies => json!({
                "waypoint": waypoint,
                "policies": records.policies,
                "authentications": records.authentications,
            }),
            Self::Endpoints => json!({
                "waypoint": waypoint,
                "services": dump.services,
                "destinations": records.destinations,
            }),
            Self::Limits => json!({"waypoint": waypoint, "limits": records.limits}),
        }
    }

    fn header(self) -> &'static [&'static str] {
        match self {
            Self::Routes => &[
                "WAYPOINT", "SERVICE", "PORTS", "ROUTE", "MATCHES", "BACKENDS", "NOTES",
            ],
            Self::Policies => &[
                "WAYPOINT",
                "POLICY",
                "ACTION",
                "APPLIES TO",
                "RULES",
                "NOTES",
            ],
            Self::Endpoints => &[
                "WAYPOINT",
                "SERVICE",
                "ENDPOINT",
                "ADDRESS",
                "HEALTH",
                "REQUESTS",
                "EJECTED FOR",
            ],
            Self::Limits => &[
                "WAYPOINT",
                "LIMIT",
                "APPLIES TO",
                "REQUESTS",
                "KEYS",
                "NOTES",
            ],
        }
    }

    fn rows(self, waypoint: &str, dump: &WaypointDump) -> Vec<Vec<String>> {
        let records = &dump.workload_state;
        let rows: Vec<Vec<String>> = match self {
            Self::Routes => records.services.iter().flat_map(route_rows).collect(),
            Self::Policies => records.policies.iter().map(policy_row).collect(),
            Self::Endpoints => endpoint_rows(dump),
            Self::Limits => records.limits.iter().map(limit_row).collect(),
        };
        let with_waypoint = |row: Vec<String>| [vec![waypoint.to_owned()], row].concat();
        rows.into_iter().map(with_waypoint).collect()
    }
}

fn route_rows(served: &ServiceRoutes) -> Vec<Vec<String>> {
    let row = |ports: &[u16], route: &str, matches: String, backends: &[Backend], notes: String| {
        vec![
            served.service.clone(),
            format_ports(ports),
            route.to_owned(),
            matches,
            join_list(backends.iter().map(Backend::text)),
            notes,
        ]
    };
    let mut rows = Vec::new();
    for route in &served.routes {
        for rule in &route.rules {
            let matches = join_list(rule.matches.iter().map(RouteMatch::text));
            let filters = rule.filters.iter().filter_map(variant_name);
            let clients = route.clients.iter().map(|one| format!("from {one}"));
            let unsupported = rule.unsupported.iter().map(|why| format!("refused: {why}"));
            let notes = join_list(filters.chain(clients).chain(unsupported));
            rows.push(row(
                &route.ports,
                &route.name,
                matches,
                &rule.backends,
                notes,
            ));
        }
    }
    for route in served.tls_routes.iter().chain(&served.tcp_routes) {
        let clients = route.clients.iter().map(|one| format!("from {one}"));
        let unsupported = route
            .unsupported
            .iter()
            .map(|why| format!("refused: {why}"));
        let matches = join_list(route.hostnames.iter().cloned());
        let notes = join_list(clients.chain(unsupported));
        rows.push(row(
            &route.ports,
            &route.name,
            matches,
            &route.backends,
            notes,
        ));
    }
    if rows.is_empty() {
        rows.push(row(
            &[],
            "",
            String::new(),
            &[],
            "to its endpoints".to_owned(),
        ));
    }
    rows
}

impl RouteMatch {
    fn text(&self) -> String {
        let value = |of: &Map<String, Value>| match of.iter().next() {
            Some((kind, Value::String(text))) if kind == "exact" => text.clone(),
            Some((kind, Value::String(text))) if kind == "prefix" || kind == "textPrefix" => {
                format!("{text}*")
            }
            Some((_, Value::String(text))) => format!("~{text}"),
            _ => String::new(),
        };
        let named = |(name, of): &(String, Map<String, Value>)| format!("{name}={}", value(of));
        let mut parts: Vec<String> = self.method.iter().cloned().collect();
        parts.extend(self.path.as_ref().map(value));
        parts.extend(self.headers.iter().map(named));
        parts.extend(
            self.query_params
                .iter()
                .map(|one| format!("?{}", named(one))),
        );
        let without = self.without_headers.iter();
        parts.extend(without.map(|one| format!("!{}", named(one))));
        parts.join(" ")
    }
}

impl Backend {
    fn text(&self) -> String {
        let place = match &self.service {
            Ok(service) => format!("{service}:{}", self.port),
            Err(why) => format!("none ({why})"),
        };
        let subset = self.subset.as_ref();
        let subset = subset
            .map(|name| format!(" subset {name}"))
            .unwrap_or_default();
        format!("{place}{subset} x{}", self.weight)
    }
}

fn policy_row(policy: &Policy) -> Vec<String> {
    let dry_run = policy.dry_run.then(|| "dry run".to_owned());
    let broken = policy.not_understood.as_ref();
    let broken = broken.map(|why| format!("not understood, denies everything: {why}"));
    vec![
        policy.key.clone(),
        policy.action.to_uppercase(),
        scope_text(policy.for_gateway, &policy.services),
        policy.rules.len().to_string(),
        join_list(dry_run.into_iter().chain(broken)),
    ]
}

fn limit_row(limited: &LimitState) -> Vec<String> {
    let limit = &limited.record;
    let local = limit.local.iter().map(|local| {
        let by = local.by.iter().filter_map(variant_name);
        let by = join_list(by);
        let by = if by.is_empty() {
            by
        } else {
            format!(" by {by}")
        };
        format!("{} per {}{by}", local.requests, local.per)
    });
    let global = limit.global.iter().map(|global| match &global.place {
        Ok((service, port)) => format!("{} of {service}:{port}", global.domain),
        Err(why) => format!("{} without a service ({why})", global.domain),
    });
    let dry_run = limit.dry_run.then(|| "dry run".to_owned());
    let broken = limit.not_understood.as_ref();
    let broken = broken.map(|why| format!("not understood: {why}"));
    vec![
        limit.key.clone(),
        scope_text(limit.for_gateway, &limit.services),
        join_list(local.chain(global)),
        limited.counted_keys.iter().sum::<usize>().to_string(),
        join_list(dry_run.into_iter().chain(broken)),
    ]
}

/// Returns the table rows of the endpoints of all services that the waypoint serves or routes to, with their open
/// requests and ejections.
fn endpoint_rows(dump: &WaypointDump) -> Vec<Vec<String>> {
    let workloads = dump.workloads.parsed();
    let workloads: HashMap<_, _> = workloads.map(|one| (one.uid.as_str(), one)).collect();
    let mut states: BTreeMap<(&str, &str), (u32, Option<&str>)> = BTreeMap::new();
    for destination in &dump.workload_state.destinations {
        for endpoint in destination.ports.iter().flat_map(|port| &port.endpoints) {
            let state = states
                .entry((&destination.record.service, &endpoint.uid))
                .or_default();
            state.0 += endpoint.requests;
            state.1 = state.1.or(endpoint.ejected_for.as_deref());
        }
    }
    let mut rows = Vec::new();
    for service in dump.services.parsed() {
        let name = format!("{}/{}", service.namespace, service.hostname);
        for endpoint in service.endpoints.iter().flat_map(DumpEntries::parsed) {
            let uid = endpoint.workload_uid.as_str();
            let workload = workloads.get(uid);
            let state = states.get(&(name.as_str(), uid));
            rows.push(vec![
                name.clone(),
                workload.map_or(uid, |one| &one.name).to_owned(),
                workload
                    .map(|one| one.workload_ips.join(","))
                    .unwrap_or_default(),
                non_empty_or(&endpoint.status, "Healthy").to_owned(),
                state.map(|state| state.0.to_string()).unwrap_or_default(),
                state
                    .and_then(|state| state.1)
                    .unwrap_or_default()
                    .to_owned(),
            ]);
        }
    }
    rows.sort();
    rows
}

/// Returns the name of an enum's variant from serde's JSON: the string, or the only key of the object.
fn variant_name(value: &Value) -> Option<String> {
    match value {
        Value::String(name) => Some(name.clone()),
        Value::Object(map) => map.keys().next().cloned(),
        _ => None,
    }
}

fn scope_text(for_gateway: bool, services: &[String]) -> String {
    let gateway = for_gateway.then(|| "the whole waypoint".to_owned());
    join_list(gateway.into_iter().chain(services.iter().cloned()))
}

fn format_ports(ports: &[u16]) -> String {
    join_list(ports.iter().map(ToString::to_string))
}

fn join_list(items: impl Iterator<Item = String>) -> String {
    items
        .filter(|one| !one.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}
