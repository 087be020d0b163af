//! `ambit waypoint`: the Gateways that are waypoints, of a cluster or of a running lab.

mod gateway;
mod in_cluster;
mod in_lab;
mod moot;
mod records;

use std::time::Duration;

use ambit_install::cluster::Cluster;
use ambit_k8s_api::{Pod, Service};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::Value;

use crate::{
    CliError, ErrorKind,
    cluster::{Target, wait},
    install::{duration, progress},
    output::{self, Format, say, table},
    source::Source,
};
pub(crate) use gateway::Seen;
use moot::{Migration, Moot};
pub(crate) use records::sections;
use records::{RecordsArgs, Section};

/// Commands about waypoints.
#[derive(Debug, Subcommand)]
pub(crate) enum WaypointCommand {
    /// Print the manifest of a waypoint
    Generate(Made),
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

/// Where waypoints are.
#[derive(Clone, Debug, Args)]
pub(crate) struct Where {
    /// Namespace; `default` if left out, or all where waypoints are listed
    #[arg(short, long)]
    namespace: Option<String>,
    /// Of this lab; otherwise of the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    lab: Option<String>,
    #[command(flatten)]
    target: Target,
}

/// Traffic that a waypoint serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum For {
    /// Requests to services
    Service,
    /// Requests to pods themselves
    Workload,
    /// Requests to services and to pods
    All,
    /// No requests at all
    None,
}

impl For {
    fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Workload => "workload",
            Self::All => "all",
            Self::None => "none",
        }
    }
}

/// Waypoint to make.
#[derive(Clone, Debug, Args)]
pub(crate) struct Made {
    /// Name of the waypoint
    #[arg(long, default_value = "waypoint", value_parser = usable_name)]
    name: String,
    /// Traffic that it serves
    #[arg(long = "for", value_enum)]
    serves: Option<For>,
    /// The revision of the control plane that takes care of it
    #[arg(short, long)]
    revision: Option<String>,
    #[command(flatten)]
    place: Where,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    made: Made,
    /// Label the namespace, so that it uses this waypoint
    #[arg(long)]
    enroll_namespace: bool,
    /// With --enroll-namespace: also if the namespace uses another one
    #[arg(long, requires = "enroll_namespace")]
    overwrite: bool,
    #[command(flatten)]
    consent: Consent,
    /// Wait until it is programmed
    #[arg(short, long)]
    wait: bool,
    /// How long to wait, such as 90s or 5m
    #[arg(long, default_value = "90s", value_parser = duration)]
    waypoint_timeout: Duration,
}

/// Treatment of layer 4 policies that name callers: pods see the waypoint as the caller.
#[derive(Clone, Copy, Debug, Args)]
struct Consent {
    /// Attach copies of such policies to the waypoint, and admit the waypoint to the pods
    #[arg(long, conflicts_with = "allow_moot_policies")]
    migrate_policies: bool,
    /// Go on with such policies as they are
    #[arg(long)]
    allow_moot_policies: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    place: Where,
    /// Of all namespaces, as without -n
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    /// Only this one
    name: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["names", "all"]))]
pub(crate) struct DeleteArgs {
    /// Names of the waypoints
    names: Vec<String>,
    /// All of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    place: Where,
}

/// Validates a name; `none` is reserved for pods and services without a waypoint.
fn usable_name(name: &str) -> Result<String, String> {
    match name {
        "none" => Err("a waypoint cannot be called none: that means to use none".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// Runs a command.
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

/// Returns a cluster's waypoints that this mesh manages.
pub(crate) async fn of_cluster(cluster: &Cluster) -> Result<Vec<Seen>, CliError> {
    let all = in_cluster::of(cluster).await?;
    Ok(sorted(all, Seen::is_waypoint))
}

/// Pods of a waypoint of a cluster; none where they cannot be listed.
pub(crate) async fn pods(cluster: &Cluster, gateway: &Seen) -> Vec<Pod> {
    in_cluster::pods(cluster, gateway).await.unwrap_or_default()
}

/// Gateways to keep, by namespace and name.
fn sorted(all: Vec<Value>, is_listed: impl Fn(&Seen) -> bool) -> Vec<Seen> {
    let mut found: Vec<_> = all.into_iter().map(Seen::new).collect();
    found.retain(is_listed);
    found.sort_by_key(|gateway| (gateway.namespace().to_owned(), gateway.name().to_owned()));
    found
}

impl Where {
    /// Returns the scope of all namespaces of a source's lab or cluster.
    pub(crate) fn of(source: &Source) -> Self {
        Self {
            namespace: None,
            lab: source.lab.clone(),
            target: source.target.clone(),
        }
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// Returns the selected lab, if any.
    fn lab(&self) -> Option<String> {
        self.target.lab(self.lab.as_deref())
    }

    /// The waypoints of its namespace, or of all, whose ever they are.
    pub(crate) fn found(&self, everywhere: bool) -> Result<Vec<Seen>, CliError> {
        let all = match self.lab() {
            Some(lab) => in_lab::gateways(&lab)?,
            None => wait(in_cluster::gateways(&self.target))?,
        };
        let here = |gateway: &Seen| everywhere || gateway.namespace() == self.namespace();
        let is_one = |one: &Seen| one.is_waypoint() || one.is_foreign_waypoint();
        Ok(sorted(all, |gateway| is_one(gateway) && here(gateway)))
    }
}

impl ListArgs {
    /// The waypoints, or those of a name, of which there must be one.
    fn named(&self, name: Option<&str>) -> Result<Vec<Seen>, CliError> {
        let mut found = self.found()?;
        if let Some(name) = name {
            found.retain(|gateway| gateway.name() == name);
            if found.is_empty() {
                return Err(absent(name, &self.place));
            }
        }
        Ok(found)
    }

    fn found(&self) -> Result<Vec<Seen>, CliError> {
        self.place.found(self.everywhere())
    }

    fn everywhere(&self) -> bool {
        self.all_namespaces || self.place.namespace.is_none()
    }
}

impl Made {
    fn manifest(&self) -> Value {
        let serves = self.serves.map(For::as_str);
        gateway::manifest(
            self.place.namespace(),
            &self.name,
            serves,
            self.revision.as_deref(),
        )
    }
}

impl ApplyArgs {
    /// Returns the policies to migrate before the waypoint is created; an error if some become ineffective and no flag
    /// decides about them.
    fn migrations(
        &self,
        policies: &[Value],
        services: &[Service],
        trust_domain: &str,
    ) -> Result<Vec<(Moot, Migration)>, CliError> {
        if self.made.serves == Some(For::None) {
            return Ok(Vec::new());
        }
        let waypoint = moot::Waypoint {
            trust_domain,
            root_namespace: &self.made.place.target.mesh_namespace,
            namespace: self.made.place.namespace(),
            name: &self.made.name,
        };
        let found = moot::find(policies, services, &waypoint);
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let lines: Vec<_> = found.iter().map(Moot::line).collect();
        let what = format!(
            "pods of the namespace {} will see the waypoint as the caller, and layer 4 policies name callers:\n{}",
            waypoint.namespace,
            lines.join("\n")
        );
        if self.consent.allow_moot_policies {
            progress(&format!("warning: {what}"));
            return Ok(Vec::new());
        }
        if !self.consent.migrate_policies {
            return Err(CliError::new(ErrorKind::Failed, what)
                .hint("--migrate-policies attaches copies of them to the waypoint, and admits the waypoint to the pods")
                .hint("--allow-moot-policies goes on without"));
        }
        let migrated = found.into_iter().map(|moot| match moot.migration.clone() {
            Ok(migration) => Ok((moot, migration)),
            Err(why) => Err(unmigratable(&moot.policy, &why)),
        });
        migrated.collect()
    }
}

fn unmigratable(policy: &str, why: &str) -> CliError {
    let what = format!("the AuthorizationPolicy {policy} cannot be migrated: {why}");
    CliError::new(ErrorKind::Failed, what)
        .hint("nothing was changed; attach one to the waypoint by targetRefs, and name the waypoint's principal in this one")
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

/// Returns the header, whose namespace column appears only with several namespaces.
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
        say(&format!(
            "waypoint {}/{name} deleted",
            args.place.namespace()
        ))?;
    }
    Ok(())
}

/// Error for a waypoint of which no pod runs.
fn no_pod(gateway: &Seen) -> CliError {
    let (namespace, name) = (gateway.namespace(), gateway.name());
    let what = format!("no pod of the waypoint {namespace}/{name} runs");
    CliError::new(ErrorKind::NotFound, what).hint(format!(
        "`ambit waypoint status {name} -n {namespace}` shows why"
    ))
}

fn absent(name: &str, place: &Where) -> CliError {
    let what = match &place.namespace {
        Some(namespace) => format!("there is no waypoint {name} in the namespace {namespace}"),
        None => format!("there is no waypoint {name}"),
    };
    CliError::new(ErrorKind::NotFound, what).hint("`ambit waypoint list -A` lists all")
}

#[cfg(test)]
mod tests;
