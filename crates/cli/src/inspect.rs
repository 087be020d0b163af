//! `workloads`, `services`, `policies`, `certificates`, `connections`, `log-level`: what a running node
//! proxy knows and does.

use ambit_model::{Authorization, Destination, GatewayAddress, Protocol, WorkloadStatus};
use clap::Subcommand;
use serde_json::Value;

use crate::{
    admin::Admin,
    dump::{ConfigDump, Connection, PodState},
    error::CliError,
    output::{Output, structured, table},
};

/// A question to a node proxy.
#[derive(Clone, Debug, Subcommand)]
pub enum Inspect {
    /// The workloads it knows
    Workloads {
        /// Only those of this namespace
        #[arg(short, long)]
        namespace: Option<String>,
    },
    /// The services it knows
    Services {
        /// Only those of this namespace
        #[arg(short, long)]
        namespace: Option<String>,
    },
    /// The authorization policies it enforces
    Policies {
        /// Only those of this namespace
        #[arg(short, long)]
        namespace: Option<String>,
    },
    /// The certificates it holds, and until when
    Certificates,
    /// The connections it carries, and those of its pods still in clear
    Connections,
    /// Shows the log filter, or changes it: `debug`, `access=off`, `info,dns=debug`, `reset`
    LogLevel {
        /// The new filter
        level: Option<String>,
    },
}

/// Asks, and gives what is to be printed.
///
/// # Errors
/// When the proxy does not answer.
pub fn run(inspect: &Inspect, admin: &Admin, output: Output) -> Result<String, CliError> {
    if let Inspect::LogLevel { level } = inspect {
        return log_level(admin, level.as_deref());
    }
    let dump = ConfigDump::fetch(admin)?;
    if output != Output::Table {
        return structured(&raw(inspect, &dump), output);
    }
    Ok(match inspect {
        Inspect::Workloads { namespace } => workloads(&dump, namespace.as_deref()),
        Inspect::Services { namespace } => services(&dump, namespace.as_deref()),
        Inspect::Policies { namespace } => policies(&dump, namespace.as_deref()),
        Inspect::Certificates => certificates(&dump),
        Inspect::Connections => connections(&dump),
        Inspect::LogLevel { .. } => String::new(),
    })
}

fn log_level(admin: &Admin, level: Option<&str>) -> Result<String, CliError> {
    let path = match level {
        None => "/logging".to_owned(),
        Some("reset") => "/logging?reset".to_owned(),
        Some(level) => format!("/logging?level={level}"),
    };
    let answer = admin.post(&path)?;
    Ok(format!("{}\n", String::from_utf8_lossy(&answer).trim_end()))
}

/// The part of the dump a question is about, as it came.
fn raw(inspect: &Inspect, dump: &ConfigDump) -> Value {
    let (key, namespace) = match inspect {
        Inspect::Workloads { namespace } => ("workloads", namespace),
        Inspect::Services { namespace } => ("services", namespace),
        Inspect::Policies { namespace } => ("policies", namespace),
        Inspect::Certificates => ("certificates", &None),
        Inspect::Connections | Inspect::LogLevel { .. } => ("workloadState", &None),
    };
    let value = dump.raw.get(key).cloned().unwrap_or_default();
    match (value, namespace) {
        (Value::Array(list), Some(namespace)) => list
            .into_iter()
            .filter(|record| record["namespace"] == namespace.as_str())
            .collect(),
        (value, _) => value,
    }
}

fn selected(namespace: Option<&str>, of: &str) -> bool {
    namespace.is_none_or(|namespace| namespace == of)
}

fn workloads(dump: &ConfigDump, namespace: Option<&str>) -> String {
    let rows = dump
        .workloads
        .iter()
        .filter(|w| selected(namespace, &w.namespace))
        .map(|workload| {
            [
                workload.namespace.to_string(),
                workload.name.to_string(),
                join(workload.workload_ips.iter()),
                workload.node.to_string(),
                workload.service_account.to_string(),
                waypoint(workload.waypoint.as_ref()),
                match workload.protocol {
                    Protocol::Hbone => "HBONE",
                    Protocol::Tcp => "TCP",
                }
                .into(),
                match workload.status {
                    WorkloadStatus::Healthy => "healthy",
                    WorkloadStatus::Unhealthy => "unhealthy",
                }
                .into(),
            ]
        });
    table(
        [
            "NAMESPACE",
            "NAME",
            "ADDRESS",
            "NODE",
            "ACCOUNT",
            "WAYPOINT",
            "PROTOCOL",
            "STATUS",
        ],
        rows,
    )
}

fn services(dump: &ConfigDump, namespace: Option<&str>) -> String {
    let rows = dump
        .services
        .iter()
        .filter(|(service, _)| selected(namespace, &service.namespace))
        .map(|(service, endpoints)| {
            [
                service.namespace.to_string(),
                service.name.to_string(),
                service.hostname.to_string(),
                join(service.vips.iter().map(|vip| vip.address)),
                join(
                    service
                        .ports
                        .iter()
                        .map(|(port, target)| format!("{port}:{target}")),
                ),
                waypoint(service.waypoint.as_ref()),
                endpoints.to_string(),
            ]
        });
    table(
        [
            "NAMESPACE",
            "NAME",
            "HOSTNAME",
            "VIP",
            "PORTS",
            "WAYPOINT",
            "ENDPOINTS",
        ],
        rows,
    )
}

fn policies(dump: &ConfigDump, namespace: Option<&str>) -> String {
    let rows = dump
        .policies
        .iter()
        .filter(|policy| selected(namespace, &policy.namespace))
        .map(|policy: &Authorization| {
            let users = dump.workloads.iter().filter(|workload| {
                workload
                    .authorization_policies
                    .iter()
                    .any(|name| *name == policy.key().to_string())
            });
            [
                policy.namespace.to_string(),
                policy.name.to_string(),
                format!("{:?}", policy.action).to_uppercase(),
                format!("{:?}", policy.scope),
                policy.rules.len().to_string(),
                if policy.dry_run { "yes" } else { "no" }.into(),
                users.count().to_string(),
            ]
        });
    table(
        [
            "NAMESPACE",
            "NAME",
            "ACTION",
            "SCOPE",
            "RULES",
            "DRY RUN",
            "NAMED BY",
        ],
        rows,
    )
}

fn certificates(dump: &ConfigDump) -> String {
    let rows = dump.certificates.iter().flat_map(|entry| {
        let state = text(&entry.state);
        let kinds = entry
            .cert_chain
            .iter()
            .enumerate()
            .map(|(index, certificate)| {
                (
                    if index == 0 { "leaf" } else { "intermediate" },
                    certificate,
                )
            });
        let chain: Vec<_> = kinds
            .chain(entry.root_certs.iter().map(|root| ("root", root)))
            .collect();
        let row = |kind: &str, serial: &str, from: &str, until: &str| {
            [
                entry.identity.clone(),
                kind.into(),
                state.clone(),
                serial.into(),
                from.into(),
                until.into(),
            ]
        };
        if chain.is_empty() {
            return vec![row("-", "-", "-", "-")];
        }
        chain
            .into_iter()
            .map(|(kind, c)| row(kind, &c.serial_number, &c.valid_from, &c.expiration_time))
            .collect()
    });
    table(
        ["IDENTITY", "KIND", "STATE", "SERIAL", "VALID FROM", "UNTIL"],
        rows,
    )
}

fn connections(dump: &ConfigDump) -> String {
    let rows = dump.pods.values().flat_map(|pod| {
        let PodState {
            info, connections, ..
        } = pod;
        let row = move |direction: &str, connection: &Connection| {
            [
                format!("{}/{}", info.namespace, info.name),
                direction.into(),
                connection.protocol.clone(),
                connection.src.clone(),
                connection.original_dst.clone().unwrap_or_default(),
                connection.actual_dst.clone(),
            ]
        };
        let inbound = connections.inbound.iter().map(move |c| row("inbound", c));
        inbound.chain(connections.outbound.iter().map(move |c| row("outbound", c)))
    });
    table(
        ["POD", "DIRECTION", "PROTOCOL", "FROM", "DIALLED", "TO"],
        rows,
    )
}

fn waypoint(gateway: Option<&GatewayAddress>) -> String {
    gateway.map_or_else(
        || "-".to_owned(),
        |gateway| match &gateway.destination {
            Destination::Address(address) => address.to_string(),
            Destination::Hostname(name) => name.hostname.to_string(),
        },
    )
}

fn join<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() {
        "-".to_owned()
    } else {
        items.join(",")
    }
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
