//! Subcommands and flags of `ambit`.

use std::{ffi::OsString, path::PathBuf};

#[cfg(target_os = "linux")]
use ambit_lab::Stage;
use ambit_lab::{IpFamily, MAX_NODES, PrimaryCni};
use clap::{Parser, Subcommand};

use crate::{
    bug_report::BugReportArgs,
    check::CheckArgs,
    convert::ConvertArgs,
    dashboard::DashboardArgs,
    enrol::EnrolArgs,
    explain::PolicyExplainArgs,
    flows::FlowsArgs,
    inspect::{InspectArgs, LogLevelArgs},
    install::{InstallArgs, UninstallArgs, UpgradeArgs},
    lint::LintArgs,
    output::OutputFormat,
    pod::PodArgs,
    policy_test::PolicyTestArgs,
    problems::ProblemsArgs,
    request_explain::RequestExplainArgs,
    rollout::RolloutArgs,
    status::StatusArgs,
    suggest::SuggestArgs,
    version::VersionArgs,
    waypoint::WaypointCommand,
};

/// Ambit, an ambient service mesh.
#[derive(Debug, Parser)]
#[command(name = "ambit", version, about)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install the mesh into a cluster, or change an installation to the given values
    Install(InstallArgs),
    /// Upgrade an installation to this version and keep its values
    Upgrade(UpgradeArgs),
    /// Watch the rollout of node proxies, and which old ones are still draining
    Rollout(RolloutArgs),
    /// Remove the mesh from a cluster
    Uninstall(UninstallArgs),
    /// Diagnose the cluster before an installation: versions, CNI, policies, other meshes
    Check(CheckArgs),
    /// Enrol namespaces in the mesh; their pods need no restart
    #[command(alias = "enrol")]
    Enroll(EnrolArgs),
    /// Unenrol namespaces from the mesh; open connections continue
    #[command(alias = "unenrol")]
    Unenroll(EnrolArgs),
    /// Show the health of every node and of the control plane
    Status(StatusArgs),
    /// List problems of objects: policies, routes, waypoints, labels and kinds without effect
    Problems(ProblemsArgs),
    /// Find what would be wrong with manifests, or have no effect, before they are applied
    Lint(LintArgs),
    /// Convert VirtualServices of Istio to HTTPRoutes, and name what cannot be converted
    Convert(ConvertArgs),
    /// Show the mesh on a local web page: live traffic, refusals, policies, waypoints, nodes
    Dashboard(DashboardArgs),
    /// Show whether a pod is in the mesh, and why
    Pod(PodArgs),
    /// List the workloads known to a node proxy or the control plane
    #[command(alias = "workload")]
    Workloads(InspectArgs),
    /// List services with their virtual addresses and endpoints
    #[command(alias = "service")]
    Services(InspectArgs),
    /// List authorization policies as sent to node proxies
    Policies(InspectArgs),
    /// List the certificates of a node proxy
    #[command(alias = "certificate")]
    Certificates(InspectArgs),
    /// List the open connections of a node proxy
    Connections(InspectArgs),
    /// Show or change the log level of a node proxy
    LogLevel(LogLevelArgs),
    /// Follow one request through all proxies without sending it, and explain what it would be answered
    Explain(RequestExplainArgs),
    /// Explain policy decisions
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Watch connections and requests live, with refusals and their reasons
    Flows(FlowsArgs),
    /// Make, list and delete waypoints
    #[command(subcommand)]
    Waypoint(WaypointCommand),
    /// Print the completion script of a shell, such as `source <(ambit completion bash)`
    Completion {
        /// Shell that the script is for
        shell: clap_complete::Shell,
    },
    /// Write the manual, one page for each command, to a directory such as ~/.local/share/man/man1
    Man {
        /// Directory of the pages
        directory: PathBuf,
    },
    /// Collect diagnostics of a mesh into an archive, without secrets
    BugReport(BugReportArgs),
    /// Show the versions of this command line and of the parts in a cluster
    Version(VersionArgs),
    /// Run the whole mesh on one machine: nodes and pods are network namespaces
    Lab {
        /// Which lab; several run side by side
        #[arg(long, global = true, default_value = "default", env = "AMBIT_LAB")]
        name: String,
        #[command(subcommand)]
        command: LabCommand,
    },
    /// Run ambit-lab-tool, the servers and clients for pods of a lab
    #[command(hide = true, disable_help_flag = true)]
    LabTool {
        /// Arguments of ambit-lab-tool
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Explain which policy decides a connection, and why
    Explain(PolicyExplainArgs),
    /// Suggest the narrowest policies that allow the observed traffic
    Suggest(SuggestArgs),
    /// Rehearse policies: which observed callers would be refused
    Test(PolicyTestArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Start a lab and wait until its pods are ready
    Up(UpArgs),
    /// Stop a lab and remove everything of it
    Down,
    /// Show nodes, pods, the processes of the mesh, and problems of manifests
    Status {
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Run a command in a pod
    Exec {
        /// The pod: `namespace/name`, a name, or a Deployment's name
        pod: String,
        /// The container, if the pod has several
        #[arg(short, long)]
        container: Option<String>,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Show the logs of a pod or of a part of the mesh
    Logs {
        /// A pod, or `agent`, `proxy`, `control`, `lab`
        source: String,
        /// The container, if the pod has several
        #[arg(short, long)]
        container: Option<String>,
        /// Only that node's agent or proxy
        #[arg(long)]
        node: Option<String>,
        /// Follow the log
        #[arg(short, long)]
        follow: bool,
    },
    /// List the labs that run
    List,
    /// Run the example and show identities, paths, policy decisions and a packet capture
    Demo {
        /// Directory of manifests other than the built-in ones, with pods of the same names
        #[arg(long)]
        manifests: Option<PathBuf>,
        /// ipv4, ipv6 or dual
        #[arg(long, default_value = "ipv4")]
        ip_family: IpFamily,
        /// Keep the lab running afterwards
        #[arg(long)]
        keep: bool,
        /// Wait with the waypoint's part for the end of the standard input: its program is being built
        #[arg(long, hide = true)]
        await_waypoint: bool,
    },
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Run {
        #[arg(long)]
        stage: Stage,
        #[arg(long)]
        state: PathBuf,
    },
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Shim { shim: String },
}

#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// Directory of Kubernetes manifests; followed while the lab is up
    pub(crate) manifests: PathBuf,
    /// How many nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_NODES)))]
    pub(crate) nodes: u8,
    /// ipv4, ipv6 or dual
    #[arg(long, default_value = "ipv4")]
    pub(crate) ip_family: IpFamily,
    /// Another ztunnel-compatible binary for a node, as NODE=PATH; may be given several times
    #[arg(long, value_name = "NODE=PATH", value_parser = parse_node_proxy)]
    pub(crate) node_proxy: Vec<(String, PathBuf)>,
    /// Where ambit-agent, ambit-node-proxy, ambit-control and ambit-cni are; by default beside ambit
    #[arg(long)]
    pub(crate) bin_dir: Option<PathBuf>,
    /// Pods only, without the mesh
    #[arg(long)]
    pub(crate) no_mesh: bool,
    /// Which plugin wires pods before ambit-cni: lab, bridge, ptp or macvlan
    #[arg(long, default_value = "lab")]
    pub(crate) primary_cni: PrimaryCni,
    /// Where CNI plugins other than ours are
    #[arg(long, default_value = "/usr/lib/cni")]
    pub(crate) cni_dir: PathBuf,
    /// Make a user namespace even if root would not need one
    #[arg(long)]
    pub(crate) user_namespace: bool,
    /// Environment for agents, proxies and control plane, as KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_key_value)]
    pub(crate) env: Vec<(String, String)>,
    /// Seconds to wait for the pods to be ready; 0 does not wait
    #[arg(long, default_value_t = 60)]
    pub(crate) wait: u64,
}

fn parse_node_proxy(text: &str) -> Result<(String, PathBuf), String> {
    parse_key_value(text).map(|(node, path)| (node, path.into()))
}

fn parse_key_value(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("{text:?} has no '='"))
}
