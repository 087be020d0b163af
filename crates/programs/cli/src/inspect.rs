//! Lists of a proxy's records (`ambit workloads`, `services`, `policies`, `certificates`, `connections`), and `ambit
//! log-level`.

use std::collections::BTreeSet;

use hyper::Method;
use serde::Serialize;

use crate::{
    CliError, ErrorKind,
    dump::{
        Certificate, CertificateEntry, Connection, Dump, DumpEntries, DumpEntry, PolicyEntry,
        ServiceEntry, Waypoint, WorkloadEntry, non_empty_or,
    },
    output::{self, OutputFormat, format_table, print_line},
    source::Source,
};

/// Flags that most of these commands share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Only this namespace
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
}

impl InspectArgs {
    fn print_entries<T: NamespacedEntry>(
        &self,
        of: impl FnOnce(&Dump) -> &DumpEntries<T>,
        rows: impl FnOnce(&[&T]) -> String,
    ) -> Result<(), CliError> {
        let dump = self.source.load_dump()?;
        let entries = filter_by_namespace(of(&dump), self.namespace.as_deref());
        output::print_formatted(self.output, &entries, || rows(&parsed_entries(&entries)))
    }
}

/// Record of a dump that has a namespace and a name.
trait NamespacedEntry {
    /// Returns the namespace and the name.
    fn name(&self) -> (&str, &str);
}

impl NamespacedEntry for WorkloadEntry {
    fn name(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl NamespacedEntry for ServiceEntry {
    fn name(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl NamespacedEntry for PolicyEntry {
    fn name(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

/// Returns the entries of one namespace, or all, sorted by namespace and name.
fn filter_by_namespace<'a, T: NamespacedEntry>(
    entries: &'a DumpEntries<T>,
    namespace: Option<&str>,
) -> Vec<&'a DumpEntry<T>> {
    let is_selected =
        |entry: &&DumpEntry<T>| namespace.is_none_or(|name| entry.parsed.name().0 == name);
    let mut entries: Vec<_> = entries.iter().filter(is_selected).collect();
    entries.sort_by(|a, b| a.parsed.name().cmp(&b.parsed.name()));
    entries
}

fn parsed_entries<'a, T>(entries: &[&'a DumpEntry<T>]) -> Vec<&'a T> {
    entries.iter().map(|entry| &entry.parsed).collect()
}

pub(crate) fn print_workloads(args: &InspectArgs) -> Result<(), CliError> {
    args.print_entries(|dump| &dump.workloads, workload_rows)
}

fn workload_rows(workloads: &[&WorkloadEntry]) -> String {
    let header = [
        "NAMESPACE",
        "NAME",
        "ADDRESS",
        "NODE",
        "PROTOCOL",
        "STATUS",
        "SERVICE ACCOUNT",
        "WAYPOINT",
    ];
    let row = |workload: &&WorkloadEntry| {
        vec![
            workload.namespace.clone(),
            workload.name.clone(),
            workload.workload_ips.join(","),
            workload.node.clone(),
            non_empty_or(&workload.protocol, "TCP").to_owned(),
            non_empty_or(&workload.status, "Healthy").to_owned(),
            non_empty_or(&workload.service_account, "default").to_owned(),
            waypoint_text(workload.waypoint.as_ref()),
        ]
    };
    format_table(&header, workloads.iter().map(row))
}

fn waypoint_text(waypoint: Option<&Waypoint>) -> String {
    let destination = waypoint.map(Waypoint::destination).unwrap_or_default();
    non_empty_or(&destination, "None").to_owned()
}

pub(crate) fn print_services(args: &InspectArgs) -> Result<(), CliError> {
    args.print_entries(|dump| &dump.services, service_rows)
}

fn service_rows(services: &[&ServiceEntry]) -> String {
    let header = [
        "NAMESPACE",
        "NAME",
        "VIPS",
        "PORTS",
        "ENDPOINTS",
        "WAYPOINT",
    ];
    let row = |service: &&ServiceEntry| {
        let count = service.endpoints.as_ref().map(|endpoints| {
            let is_healthy = |status: &str| non_empty_or(status, "Healthy") == "Healthy";
            let healthy = endpoints.parsed().filter(|one| is_healthy(&one.status));
            format!("{}/{}", healthy.count(), endpoints.len())
        });
        let vips = service.vips.iter();
        let vips: Vec<_> = vips
            .map(|vip| vip.rsplit('/').next().unwrap_or(vip))
            .collect();
        let ports = service.ports.iter();
        let ports: Vec<_> = ports
            .map(|(port, target)| format!("{port}>{}", target_ports(service, *port, *target)))
            .collect();
        vec![
            service.namespace.clone(),
            service.name.clone(),
            vips.join(","),
            ports.join(","),
            count.unwrap_or_default(),
            waypoint_text(service.waypoint.as_ref()),
        ]
    };
    format_table(&header, services.iter().map(row))
}

/// Formats the target port of a service port: its number, or for a named port the numbers that it has at the endpoints.
fn target_ports(service: &ServiceEntry, port: u16, target: u16) -> String {
    if target > 0 {
        return target.to_string();
    }
    let endpoints = service.endpoints.iter().flat_map(DumpEntries::parsed);
    let named = endpoints.filter_map(|endpoint| endpoint.port.get(&port));
    let named: BTreeSet<_> = named.filter(|port| **port > 0).collect();
    let named: Vec<_> = named.into_iter().map(ToString::to_string).collect();
    match named.is_empty() {
        true => "named".to_owned(),
        false => named.join("|"),
    }
}

pub(crate) fn print_policies(args: &InspectArgs) -> Result<(), CliError> {
    args.print_entries(|dump| &dump.policies, policy_rows)
}

fn policy_rows(policies: &[&PolicyEntry]) -> String {
    let row = |policy: &&PolicyEntry| {
        let dry = if policy.dry_run { " (dry run)" } else { "" };
        vec![
            policy.namespace.clone(),
            policy.name.clone(),
            format!("{}{dry}", non_empty_or(&policy.action, "Allow")),
            non_empty_or(&policy.scope, "Global").to_owned(),
            policy.rules.len().to_string(),
        ]
    };
    let header = ["NAMESPACE", "NAME", "ACTION", "SCOPE", "RULES"];
    format_table(&header, policies.iter().map(row))
}

pub(crate) fn print_certificates(args: &InspectArgs) -> Result<(), CliError> {
    let dumps = load_dumps(&args.source)?;
    let entries = dumps.iter().flat_map(|dump| dump.certificates.iter());
    let entries: Vec<_> = entries.collect();
    output::print_formatted(args.output, &entries, || {
        certificate_rows(&parsed_entries(&entries))
    })
}

/// Fetches the dump of each selected node proxy.
fn load_dumps(source: &Source) -> Result<Vec<Dump>, CliError> {
    source
        .all_node_proxies()?
        .iter()
        .map(Source::load_dump)
        .collect()
}

fn certificate_rows(entries: &[&CertificateEntry]) -> String {
    let header = [
        "IDENTITY",
        "KIND",
        "STATE",
        "SERIAL",
        "VALID FROM",
        "EXPIRES",
    ];
    let mut rows = Vec::new();
    let row = |entry: &CertificateEntry, kind: &str, certificate: &Certificate| {
        vec![
            entry.identity.clone(),
            kind.to_owned(),
            entry.state.clone(),
            certificate.serial_number.clone(),
            certificate.valid_from.clone(),
            certificate.expiration_time.clone(),
        ]
    };
    for entry in entries {
        for (index, certificate) in entry.cert_chain.iter().enumerate() {
            let kind = if index == 0 { "Leaf" } else { "Intermediate" };
            rows.push(row(entry, kind, certificate));
        }
        let roots = entry.root_certs.iter();
        rows.extend(roots.map(|certificate| row(entry, "Root", certificate)));
        if entry.cert_chain.is_empty() {
            rows.push(row(entry, "-", &Certificate::default()));
        }
    }
    format_table(&header, rows)
}

pub(crate) fn print_connections(args: &InspectArgs) -> Result<(), CliError> {
    let dumps = load_dumps(&args.source)?;
    let namespace = args.namespace.as_deref();
    let open = dumps
        .iter()
        .flat_map(|dump| open_connections(dump, namespace));
    let open: Vec<_> = open.collect();
    output::print_formatted(args.output, &open, || connection_rows(&open))
}

/// Open connection with the pod that has it.
#[derive(Debug, Serialize)]
struct PodConnection {
    pod: String,
    direction: String,
    #[serde(flatten)]
    connection: Connection,
}

fn connection_rows(open: &[PodConnection]) -> String {
    let header = ["POD", "DIRECTION", "FROM", "TO", "VIA", "PROTOCOL"];
    let row = |one: &PodConnection| {
        let connection = &one.connection;
        vec![
            one.pod.clone(),
            one.direction.clone(),
            connection.src.clone(),
            connection.original_dst.clone(),
            connection.actual_dst.clone(),
            connection.protocol.clone(),
        ]
    };
    format_table(&header, open.iter().map(row))
}

fn open_connections(dump: &Dump, namespace: Option<&str>) -> Vec<PodConnection> {
    let mut all = Vec::new();
    for state in dump.workload_state.values() {
        if namespace.is_some_and(|namespace| state.info.namespace != namespace) {
            continue;
        }
        for (direction, list) in &state.connections {
            all.extend(list.iter().map(|connection| PodConnection {
                pod: format!("{}/{}", state.info.namespace, state.info.name),
                direction: direction.clone(),
                connection: connection.clone(),
            }));
        }
    }
    all
}

/// Flags of [`show_or_set_log_level`].
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogLevelArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// `level` or `level,scope=level`; shows the current one if left out
    pub(crate) level: Option<String>,
    /// Back to what the process was started with
    #[arg(long, conflicts_with = "level")]
    pub(crate) reset: bool,
}

pub(crate) fn show_or_set_log_level(args: &LogLevelArgs) -> Result<(), CliError> {
    let path = match &args.level {
        Some(level) => {
            let fine = |c: char| c.is_ascii_alphanumeric() || "_-:=,.".contains(c);
            if !level.chars().all(fine) {
                let what = format!("{level:?} is no log level: write info, or info,access=debug");
                return Err(CliError::new(ErrorKind::Usage, what));
            }
            format!("/logging?level={level}")
        }
        None if args.reset => "/logging?reset".to_owned(),
        None => "/logging".to_owned(),
    };
    for source in args.source.all_node_proxies()? {
        let answer = source.request_ok(Method::POST, &path)?;
        print_line(String::from_utf8_lossy(&answer).trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
