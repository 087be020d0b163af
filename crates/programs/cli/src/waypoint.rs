//! `ambit waypoint`: lists, creates and deletes waypoints (Gateways) of a cluster or of a running lab, and shows their
//! records.

mod args;
mod gateway;
mod in_cluster;
mod in_lab;
mod listing;
mod migration;
mod moot;
mod records;

use ambit_install::cluster::Cluster;
use ambit_k8s_api::Pod;
use clap::Subcommand;

use crate::{
    CliError,
    cluster::wait,
    output::{self, Format, print_line, table},
};
pub(crate) use args::Where;
use args::{ApplyArgs, DeleteArgs, ListArgs, StatusArgs, WaypointSpec};
pub(crate) use gateway::Seen;
use listing::{absent, sorted};
pub(crate) use records::sections;
use records::{RecordsArgs, Section};

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
            output::print(Format::Yaml, &manifest, String::new)
        }
        WaypointCommand::Apply(args) => match args.made.place.lab() {
            Some(lab) => in_lab::apply(&lab, args),
            None => wait(in_cluster::apply(args)),
        },
        WaypointCommand::List(args) => {
            let found = args.found()?;
            output::print(args.output, &found, || list(&found, args.everywhere()))
        }
        WaypointCommand::Status(args) => {
            let found = args.list.named(args.name.as_deref())?;
            let all = args.list.everywhere();
            output::print(args.list.output, &found, || conditions(&found, all))
        }
        WaypointCommand::Routes(args) => records::run(Section::Routes, args),
        WaypointCommand::Policies(args) => records::run(Section::Policies, args),
        WaypointCommand::Endpoints(args) => records::run(Section::Endpoints, args),
        WaypointCommand::Limits(args) => records::run(Section::Limits, args),
        WaypointCommand::Delete(args) => delete(args),
    }
}

/// Lists the cluster's waypoints that Ambit's control plane manages.
pub(crate) async fn of_cluster(cluster: &Cluster) -> Result<Vec<Seen>, CliError> {
    let all = in_cluster::of(cluster).await?;
    Ok(sorted(all, Seen::is_waypoint))
}

/// Lists the pods of a waypoint in a cluster; none if they cannot be listed.
pub(crate) async fn pods(cluster: &Cluster, gateway: &Seen) -> Vec<Pod> {
    in_cluster::pods(cluster, gateway).await.unwrap_or_default()
}

fn list(found: &[Seen], everywhere: bool) -> String {
    // The class is a column only where there are others than ours.
    let has_foreign = found.iter().any(|gateway| !gateway.is_waypoint());
    let rows = found.iter().map(|gateway| {
        let row = [
            gateway.name(),
            gateway.revision(),
            gateway.traffic_type(),
            gateway.programmed(),
            gateway.class(),
        ];
        let shown = row.len() - usize::from(!has_foreign);
        row_of(gateway, everywhere, row.get(..shown).unwrap_or_default())
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
    table(header_of(header, everywhere), rows)
}

fn conditions(found: &[Seen], everywhere: bool) -> String {
    let rows = found.iter().flat_map(|gateway| {
        gateway
            .conditions()
            .map(move |[kind, status, reason, message]| {
                row_of(
                    gateway,
                    everywhere,
                    &[gateway.name(), status, kind, reason, message],
                )
            })
    });
    let header = ["NAMESPACE", "NAME", "STATUS", "TYPE", "REASON", "MESSAGE"];
    table(header_of(&header, everywhere), rows)
}

/// Returns the table's header, without the namespace column unless all namespaces are listed.
fn header_of<'a>(header: &'a [&'a str], everywhere: bool) -> &'a [&'a str] {
    header.get(usize::from(!everywhere)..).unwrap_or_default()
}

fn row_of(gateway: &Seen, everywhere: bool, row: &[&str]) -> Vec<String> {
    let namespace = everywhere.then(|| gateway.namespace());
    let all = namespace.into_iter().chain(row.iter().copied());
    all.map(ToOwned::to_owned).collect()
}

fn delete(args: &DeleteArgs) -> Result<(), CliError> {
    let mut found = args.place.found(false)?;
    // Those of other controllers are not ours to delete.
    found.retain(Seen::is_waypoint);
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
            return Err(absent(name, &args.place));
        }
    }
    let lab = args.place.lab();
    for name in &names {
        match &lab {
            Some(lab) => in_lab::delete(lab, args.place.namespace(), name)?,
            None => wait(in_cluster::delete(&args.place, name))?,
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
