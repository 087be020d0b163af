//! The arguments.

use std::path::PathBuf;

use ambit_lab::{IpFamily, PrimaryCni, Stage};
use clap::{Parser, Subcommand};

use crate::{
    bug_report::BugReportArgs,
    check::CheckArgs,
    enrol::EnrolArgs,
    explain::ExplainArgs,
    inspect::{Inspect, LogLevel},
    install::{InstallArgs, UninstallArgs, UpgradeArgs},
    output::Format,
    pod::PodArgs,
    rollout::RolloutArgs,
    status::StatusArgs,
    tool::Tool,
    version::VersionArgs,
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
    /// Install the mesh into a cluster, or make it what is asked for
    Install(InstallArgs),
    /// Install this version over another one, with its values
    Upgrade(UpgradeArgs),
    /// Watch the node proxies being replaced, and which old ones still serve connections
    Rollout(RolloutArgs),
    /// Take the mesh out of a cluster
    Uninstall(UninstallArgs),
    /// What would hinder the mesh, and what to do about it
    Check(CheckArgs),
    /// Put namespaces into the mesh; their pods need no restart
    #[command(alias = "enrol")]
    Enroll(EnrolArgs),
    /// Take namespaces out of the mesh; open connections go on
    #[command(alias = "unenrol")]
    Unenroll(EnrolArgs),
    /// How every node and the control plane are
    Status(StatusArgs),
    /// Whether a pod is in the mesh, and why
    Pod(PodArgs),
    /// Workloads that a node proxy or control plane knows
    #[command(alias = "workload")]
    Workloads(Inspect),
    /// Services with their virtual addresses and endpoints
    #[command(alias = "service")]
    Services(Inspect),
    /// Authorization policies as node proxies get them
    Policies(Inspect),
    /// Certificates that a node proxy holds
    #[command(alias = "certificate")]
    Certificates(Inspect),
    /// Connections that a node proxy carries at this moment
    Connections(Inspect),
    /// Show or change what a node proxy logs
    LogLevel(LogLevel),
    /// Questions about policies
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// An archive of what somebody else needs to understand a mesh
    BugReport(BugReportArgs),
    /// Versions of this command line and of what runs in a cluster
    Version(VersionArgs),
    /// The whole mesh on one machine: nodes and pods as namespaces, from a directory of manifests
    Lab {
        /// Which lab; several run side by side
        #[arg(long, global = true, default_value = "default", env = "AMBIT_LAB")]
        name: String,
        #[command(subcommand)]
        command: LabCommand,
    },
    /// Small programs for pods of a lab
    #[command(hide = true, subcommand)]
    LabTool(Tool),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Which policy decides a connection, and why
    Explain(ExplainArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Bring a lab up and wait until its pods are ready
    Up(UpArgs),
    /// Take a lab down; nothing of it stays
    Down,
    /// Show nodes, pods and the processes of the mesh
    Status {
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
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
    /// Show what a pod or a part of the mesh wrote
    Logs {
        /// A pod, or `agent`, `proxy`, `control`, `lab`
        source: String,
        /// The container, if the pod has several
        #[arg(short, long)]
        container: Option<String>,
        /// Only that node's agent or proxy
        #[arg(long)]
        node: Option<String>,
        /// Go on as more is written
        #[arg(short, long)]
        follow: bool,
    },
    /// The labs that are up
    List,
    /// Bring the example up, make requests, and show who was who, what was allowed and what the wire saw
    Demo {
        /// Directory of manifests other than the built-in ones, with pods of the same names
        #[arg(long)]
        manifests: Option<PathBuf>,
        /// ipv4, ipv6 or dual
        #[arg(long, default_value = "ipv4")]
        ip_family: IpFamily,
        /// Leave the lab up afterwards
        #[arg(long)]
        keep: bool,
    },
    #[command(hide = true)]
    Run {
        #[arg(long)]
        stage: Stage,
        #[arg(long)]
        state: PathBuf,
    },
    #[command(hide = true)]
    Shim { shim: String },
}

#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// Directory of Kubernetes manifests; followed while the lab is up
    pub(crate) manifests: PathBuf,
    /// How many nodes
    #[arg(long, default_value_t = 2)]
    pub(crate) nodes: u8,
    /// ipv4, ipv6 or dual
    #[arg(long, default_value = "ipv4")]
    pub(crate) ip_family: IpFamily,
    /// Another ztunnel-compatible binary for a node, as NODE=PATH; may be given several times
    #[arg(long, value_name = "NODE=PATH", value_parser = node_proxy)]
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
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) env: Vec<(String, String)>,
    /// Seconds to wait for the pods to be ready; 0 does not wait
    #[arg(long, default_value_t = 60)]
    pub(crate) wait: u64,
}

fn node_proxy(text: &str) -> Result<(String, PathBuf), String> {
    key_value(text).map(|(node, path)| (node, path.into()))
}

fn key_value(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("{text:?} has no '='"))
}
