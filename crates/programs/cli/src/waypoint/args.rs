//! Flags of `ambit waypoint`.

use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::Value;

use super::gateway;
use crate::{cluster::Target, install::parse_duration, output::OutputFormat, source::Source};

/// Where waypoints are.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaypointScope {
    /// Namespace; `default` if left out, or all where waypoints are listed
    #[arg(short, long)]
    pub(super) namespace: Option<String>,
    /// Of this lab; otherwise of the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    pub(super) lab: Option<String>,
    #[command(flatten)]
    pub(super) target: Target,
}

impl WaypointScope {
    /// Creates the scope of all namespaces in a source's lab or cluster.
    pub(crate) fn of(source: &Source) -> Self {
        Self {
            namespace: None,
            lab: source.lab.clone(),
            target: source.target.clone(),
        }
    }

    pub(super) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// Returns the lab that the flags select, if any.
    pub(super) fn lab(&self) -> Option<String> {
        self.target.lab_name(self.lab.as_deref())
    }
}

/// Traffic that a waypoint serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServedTraffic {
    /// Requests to services
    Service,
    /// Requests to pods themselves
    Workload,
    /// Requests to services and to pods
    All,
    /// No requests at all
    None,
}

impl ServedTraffic {
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
pub(crate) struct WaypointSpec {
    /// Name of the waypoint
    #[arg(long, default_value = "waypoint", value_parser = parse_waypoint_name)]
    pub(super) name: String,
    /// Traffic that it serves
    #[arg(long = "for", value_enum)]
    pub(super) serves: Option<ServedTraffic>,
    /// The revision of the control plane that takes care of it
    #[arg(short, long)]
    pub(super) revision: Option<String>,
    #[command(flatten)]
    pub(super) place: WaypointScope,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(super) spec: WaypointSpec,
    /// Label the namespace, so that it uses this waypoint
    #[arg(long)]
    pub(super) enroll_namespace: bool,
    /// With --enroll-namespace: also if the namespace uses another one
    #[arg(long, requires = "enroll_namespace")]
    pub(super) overwrite: bool,
    #[command(flatten)]
    pub(super) consent: MigrationConsent,
    /// Wait until it is programmed
    #[arg(short, long)]
    pub(super) wait: bool,
    /// How long to wait, such as 90s or 5m
    #[arg(long, default_value = "90s", value_parser = parse_duration)]
    pub(super) waypoint_timeout: Duration,
}

/// Treatment of layer 4 policies that name callers: pods see the waypoint as the caller.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct MigrationConsent {
    /// Attach copies of such policies to the waypoint, and admit the waypoint to the pods
    #[arg(long, conflicts_with = "allow_moot_policies")]
    pub(super) migrate_policies: bool,
    /// Go on with such policies as they are
    #[arg(long)]
    pub(super) allow_moot_policies: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(super) place: WaypointScope,
    /// Of all namespaces, as without -n
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(super) all_namespaces: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: OutputFormat,
}

impl ListArgs {
    /// Whether waypoints of all namespaces are listed.
    pub(super) fn lists_all_namespaces(&self) -> bool {
        self.all_namespaces || self.place.namespace.is_none()
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    /// Only this one
    pub(super) name: Option<String>,
    #[command(flatten)]
    pub(super) list: ListArgs,
}

#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["names", "all"]))]
pub(crate) struct DeleteArgs {
    /// Names of the waypoints
    pub(super) names: Vec<String>,
    /// All of the namespace
    #[arg(long)]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) place: WaypointScope,
}

/// Validates the name of a waypoint: `none` is reserved for pods and services without one.
pub(super) fn parse_waypoint_name(name: &str) -> Result<String, String> {
    match name {
        "none" => Err("a waypoint cannot be called none: that means to use none".to_owned()),
        name => Ok(name.to_owned()),
    }
}

impl WaypointSpec {
    /// Builds the manifest of the waypoint's Gateway.
    pub(super) fn manifest(&self) -> Value {
        let serves = self.serves.map(ServedTraffic::as_str);
        gateway::manifest(
            self.place.namespace(),
            &self.name,
            serves,
            self.revision.as_deref(),
        )
    }
}
