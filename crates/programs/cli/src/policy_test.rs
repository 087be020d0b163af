//! `ambit policy test`: rehearses policies that are not applied yet. Traffic recorded by node proxies and waypoints
//! (access logs, open connections, and metrics for calls that neither of them has) is evaluated twice by the proxies'
//! own code: with the current policies, and with those of the files added.

mod at_waypoint;
mod counted_calls;
mod decision;
mod evaluation;
mod inputs;
mod observed;
mod proxies;
mod readings;
mod report;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use ambit_derive::{Index, MeshConfig, PodDirectory};
use ambit_k8s_api::ObjectEvent;

use crate::{
    CliError, ErrorKind,
    cluster::Target,
    output::{self, OutputFormat},
};
use evaluation::PolicyTest;
use inputs::{InputSources, PolicyTestInputs};
pub(crate) use inputs::{list, load_settings, object_key, to_event, to_event_with_origin};
pub(crate) use report::Report;

/// Flags of `ambit policy test`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PolicyTestArgs {
    /// Manifests with the AuthorizationPolicies and PeerAuthentications to rehearse: files or directories. They go
    /// before what has their names
    #[arg(required_unless_present = "enforce_dry_run")]
    pub(crate) files: Vec<PathBuf>,
    /// Directory of manifests of the mesh as it is, with its pods and services and their addresses; instead of a
    /// lab's or a cluster's
    #[arg(long, value_name = "DIR", conflicts_with_all = ["lab", "kubeconfig", "context"])]
    pub(crate) objects: Vec<PathBuf>,
    /// Access logs of node proxies and waypoints, text or JSON; `-` is standard input. Instead of those that a lab's
    /// or a cluster's have written
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Vec<PathBuf>,
    /// Dumps of node proxies (`/config_dump`), for the connections that are open. Where files of logs, dumps or metrics
    /// are given, the mesh's own proxies are not queried
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Vec<PathBuf>,
    /// Metrics of node proxies and waypoints, as they are scraped
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Vec<PathBuf>,
    /// Policies that are marked as a dry run are rehearsed, too, as if they were not
    #[arg(long)]
    pub(crate) enforce_dry_run: bool,
    /// Fail, too, where nothing can be decided
    #[arg(long)]
    pub(crate) strict: bool,
    /// The trust domain; a cluster's is read there
    #[arg(long)]
    pub(crate) trust_domain: Option<String>,
    /// Lab to rehearse in; otherwise the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    pub(crate) lab: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
}

impl PolicyTestArgs {
    fn sources(&self) -> InputSources<'_> {
        InputSources {
            lab: self.lab.as_deref(),
            target: &self.target,
            objects: &self.objects,
            logs: &self.log,
            dumps: &self.dump,
            metrics: &self.metrics,
        }
    }
}

/// Builds the control plane's index from the objects of a lab or cluster.
pub(crate) fn load_index(lab: Option<&str>, target: &Target) -> Result<Index, CliError> {
    let world = PolicyTestInputs::load_objects(lab, target)?;
    Ok(build_index(world.config, &world.objects))
}

/// Builds the control plane's index of a mesh with these settings and objects.
pub(crate) fn build_index(config: MeshConfig, objects: &[ObjectEvent]) -> Index {
    let mut index = Index::new(config);
    let mut pods = PodDirectory::default();
    for event in objects {
        index.handle(event, &mut pods);
    }
    index
}

/// Reads the objects of a lab or cluster that decide which policies apply to which workloads.
pub(crate) fn load_objects(
    lab: Option<&str>,
    target: &Target,
) -> Result<Vec<ObjectEvent>, CliError> {
    Ok(PolicyTestInputs::load_objects(lab, target)?.objects)
}

/// Rehearses policies; the exit code is 1 if a call that is allowed now would be refused.
pub(crate) fn run(args: &PolicyTestArgs) -> Result<ExitCode, CliError> {
    let policies = inputs::read_policies(&args.files)?;
    let PolicyTestInputs {
        objects,
        observed_calls: lines,
        counted_calls: counted,
        notes,
        mut config,
    } = PolicyTestInputs::gather(&args.sources())?;
    if let Some(trust_domain) = &args.trust_domain {
        config.trust_domain = trust_domain.as_str().into();
    }
    if lines.is_empty() && counted.is_empty() {
        let error = CliError::new(
            ErrorKind::NotFound,
            "no traffic has been recorded that could be evaluated",
        );
        let error = notes.into_iter().fold(error, CliError::with_hint);
        return Err(error.with_hint("--log FILE gives access logs of node proxies and waypoints"));
    }
    let rehearsal = PolicyTest::new(config, objects, policies, args.enforce_dry_run);
    let mut report = rehearsal.report(&lines, &counted);
    report.notes.extend(notes);
    report.sort();
    output::print_formatted(args.output, &report, || report.format_report())?;
    let fails = !report.refused.is_empty() || (args.strict && !report.undecided.is_empty());
    Ok(ExitCode::from(u8::from(fails)))
}

/// Evaluates the recorded traffic of a lab or cluster with the policies in `text` added.
pub(crate) fn run_with_text(
    lab: Option<String>,
    target: Target,
    text: &str,
    enforce_dry_run: bool,
) -> Result<Report, CliError> {
    let policies = match text.trim() {
        "" if enforce_dry_run => Vec::new(),
        _ => inputs::parse_policies(Path::new("policies"), text)?,
    };
    let world = PolicyTestInputs::gather(&InputSources {
        lab: lab.as_deref(),
        target: &target,
        objects: &[],
        logs: &[],
        dumps: &[],
        metrics: &[],
    })?;
    let rehearsal = PolicyTest::new(world.config, world.objects, policies, enforce_dry_run);
    let mut report = rehearsal.report(&world.observed_calls, &world.counted_calls);
    report.notes.extend(world.notes);
    report.sort();
    Ok(report)
}

#[cfg(test)]
mod tests;
