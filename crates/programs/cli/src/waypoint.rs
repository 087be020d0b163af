//! `ambit waypoint`: lists, creates and deletes waypoints (Gateways) of a cluster or of a running lab, and shows their
//! records.

mod args;
mod gateway;
mod in_cluster;
mod in_lab;
mod ineffective_policies;
mod listing;
mod migration;
mod records;

use ambit_install::cluster::ClusterApi;
use ambit_k8s_api::Pod;
use clap::Subcommand;

use crate::{
    CliError,
    cluster::block_on,
    output::{self, OutputFormat, format_table, print_line},
};
pub(crate) use args::WaypointScope;
use args::{ApplyArgs, DeleteArgs, ListArgs, StatusArgs, WaypointSpec};
pub(crate) use gateway::GatewayObject;
use listing::{not_found_error, sorted_waypoints};
pub(crate) use records::sections;
use records::{RecordSection, RecordsArgs};

/// Commands about waypoints.
#[derive(Debug, Subcommand)]
pub(crate) enum WaypointCommand {
    /// Print the manifest of a waypoint
    Generate(WaypointSpec),
    /// Make a waypoint, or change one
    Apply(ApplyArgs),
    /// List the waypoints
    List(ListArgs),
    /// Show the conditions of waypoints
    Status(StatusArgs),
    /// Show the routes of waypoints: matches, backends with their weights
    Routes(RecordsArgs),
    /// Show the policies that waypoints enforce
    Policies(RecordsArgs),
    /// Show the endpoints that waypoints send requests to, with health and ejections
    Endpoints(RecordsArgs),
    /// Show the rate limits of waypoints
    Limits(RecordsArgs),
    /// Delete waypoints; connections to objects bound by label are refused until the label is removed
    Delete(DeleteArgs),
}

/// Runs a subcommand of `ambit waypoint`.
pub(crate) fn run(command: &WaypointCommand) -> Result<(), CliError> {
    match command {
        WaypointCommand::Generate(made) => {
            let manifest = made.manifest();
            output::print_formatted(OutputFormat::Yaml, &manifest, String::new)
        }
        WaypointCommand::Apply(args) => match args.spec.place.lab() {
            Some(lab) => in_lab::apply(&lab, args),
            None => block_on(in_cluster::apply(args)),
        },
        WaypointCommand::List(args) => {
            let found = args.list_waypoints()?;
            output::print_formatted(args.output, &found, || {
                format_list(&found, args.lists_all_namespaces())
            })
        }
        WaypointCommand::Status(args) => {
            let found = args.list.list_named(args.name.as_deref())?;
            let all = args.list.lists_all_namespaces();
            output::print_formatted(args.list.output, &found, || format_conditions(&found, all))
        }
        WaypointCommand::Routes(args) => records::run(RecordSection::Routes, args),
        WaypointCommand::Policies(args) => records::run(RecordSection::Policies, args),
        WaypointCommand::Endpoints(args) => records::run(RecordSection::Endpoints, args),
        WaypointCommand::Limits(args) => records::run(RecordSection::Limits, args),
        WaypointCommand::Delete(args) => delete(args),
    }
}

/// Lists the cluster's waypoints that Ambit's control plane manages.
pub(crate) async fn list_in_cluster(cluster: &ClusterApi) -> Result<Vec<GatewayObject>, CliError> {
    let all = in_cluster::list_gateways_in(cluster).await?;
    Ok(sorted_waypoints(all, GatewayObject::is_waypoint))
}

/// Lists the pods of a waypoint in a cluster.
pub(crate) async fn waypoint_pods(
    cluster: &ClusterApi,
    gateway: &GatewayObject,
) -> Result<Vec<Pod>, CliError> {
    in_cluster::list_pods(cluster, gateway).await
}

fn format_list(waypoints: &[GatewayObject], all_namespaces: bool) -> String {
    // The class is a column only where there are others than ours.
    let has_foreign = waypoints.iter().any(|gateway| !gateway.is_waypoint());
    let rows = waypoints.iter().map(|gateway| {
        let row = [
            gateway.name(),
            gateway.revision(),
            gateway.traffic_type(),
            gateway.programmed(),
            gateway.class(),
        ];
        let shown = row.len() - usize::from(!has_foreign);
        table_row(
            gateway,
            all_namespaces,
            row.get(..shown).unwrap_or_default(),
        )
    });
    let header = [
        "NAMESPACE",
        "NAME",
        "REVISION",
        "TRAFFIC TYPE",
        "PROGRAMMED",
        "CLASS",
    ];
    let shown = header.len() - usize::from(!has_foreign);
    let header = header.get(..shown).unwrap_or_default();
    format_table(table_header(header, all_namespaces), rows)
}

fn format_conditions(waypoints: &[GatewayObject], all_namespaces: bool) -> String {
    let rows = waypoints.iter().flat_map(|gateway| {
        gateway
            .conditions()
            .map(move |[kind, status, reason, message]| {
                table_row(
                    gateway,
                    all_namespaces,
                    &[gateway.name(), status, kind, reason, message],
                )
            })
    });
    let header = ["NAMESPACE", "NAME", "STATUS", "TYPE", "REASON", "MESSAGE"];
    format_table(table_header(&header, all_namespaces), rows)
}

/// Returns the table's header, without the namespace column unless all namespaces are listed.
fn table_header<'a>(header: &'a [&'a str], all_namespaces: bool) -> &'a [&'a str] {
    header
        .get(usize::from(!all_namespaces)..)
        .unwrap_or_default()
}

fn table_row(gateway: &GatewayObject, all_namespaces: bool, row: &[&str]) -> Vec<String> {
    let namespace = all_namespaces.then(|| gateway.namespace());
    let all = namespace.into_iter().chain(row.iter().copied());
    all.map(ToOwned::to_owned).collect()
}

fn delete(args: &DeleteArgs) -> Result<(), CliError> {
    let mut found = args.place.list_waypoints(false)?;
    // Those of other controllers are not ours to delete.
    found.retain(GatewayObject::is_waypoint);
    let names: Vec<_> = match args.all {
        true => found
            .iter()
            .map(|gateway| gateway.name().to_owned())
            .collect(),
        false => args.names.clone(),
    };
    // All of them are there, or nothing is deleted.
    for name in &names {
        if !found.iter().any(|gateway| gateway.name() == name) {
            return Err(not_found_error(name, &args.place));
        }
    }
    let lab = args.place.lab();
    for name in &names {
        match &lab {
            Some(lab) => in_lab::delete(lab, args.place.namespace(), name)?,
            None => block_on(in_cluster::delete(&args.place, name))?,
        }
        print_line(&format!(
            "waypoint {}/{name} deleted",
            args.place.namespace()
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
