//! `ambit check`: diagnoses a cluster, or this node, before an installation, and suggests remedies. With `--from istio` it
//! is about the objects of an Istio mesh alone.

use std::process::ExitCode;

use ambit_install::{
    apply,
    cluster::{Cluster, ClusterError},
    inventory::Inventory,
    object::{is_ours, label, name, namespace_of},
    platform, remove,
};
use ambit_k8s_api::{Deployment, Namespace, Node, Pod, revisions};
use clap::{Args, ValueEnum};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{ConfigMap, ResourceQuota},
        networking::v1::NetworkPolicy,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde::Serialize;

use crate::{
    CliError,
    cluster::{Target, wait},
    enrol,
    install::failed,
    istio,
    membership::Rules,
    output::{self, Format, table},
    reach,
};

mod from_istio;
mod meshes;
mod network_policies;
mod on_node;
mod platforms;
mod rules;
mod unfollowed;

/// Exit codes in the help.
const EXIT_CODES: &str = "Exit codes: 0 without errors, 1 with errors. With --from istio:
  0  every object works as it is
  1  a file or kind could not be read, which is named; the rest is checked
  5  an object changes or lapses
Any failure of the command itself: 2 for its arguments, 3 for what does not exist, 4 for a cluster that cannot be reached.";

/// Flags of `ambit check`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CheckArgs {
    /// Namespaces to check as if they were in the mesh, besides those that are; with --from, manifests to check in place
    /// of the cluster: files, directories, or - for standard input
    #[arg(value_name = "NAMESPACE|FILE")]
    subjects: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Check which objects of another mesh work with Ambit, which change, and which lapse
    #[arg(long, value_enum, value_name = "MESH")]
    from: Option<OtherMesh>,
    /// Check this machine as a node instead of the cluster
    #[arg(long, conflicts_with_all = ["subjects", "from"])]
    on_node: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Mesh whose objects are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OtherMesh {
    /// Istio, with sidecars or in ambient mode
    Istio,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Level {
    /// The mesh does not work like this, or traffic is lost.
    Error,
    /// Something may not work.
    Warning,
    /// Good to know.
    Info,
}

/// Finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// Subject of the finding: an object, or the cluster.
    pub(crate) about: String,
    /// Text of the finding.
    pub(crate) finding: String,
    /// Advice on it.
    pub(crate) advice: String,
}

impl Finding {
    fn new(
        level: Level,
        about: impl Into<String>,
        finding: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            level,
            about: about.into(),
            finding: finding.into(),
            advice: advice.into(),
        }
    }
}

/// The objects that the rules look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The API server's minor version.
    minor: String,
    /// Of the nodes.
    platform: &'static str,
    mesh_namespace: String,
    /// Besides those with the label.
    selected_namespaces: Vec<String>,
    nodes: Vec<Node>,
    namespaces: Vec<Namespace>,
    deployments: Vec<Deployment>,
    daemon_sets: Vec<DaemonSet>,
    /// In the mesh's own namespace.
    mesh_pods: Vec<Pod>,
    crds: Vec<CustomResourceDefinition>,
    network_policies: Vec<NetworkPolicy>,
    quotas: Vec<ResourceQuota>,
    cilium_config: Option<ConfigMap>,
    inventory: Option<Inventory>,
    rules: Option<Rules>,
    /// Objects of the mesh's kinds, and those that decide what they mean.
    mesh: istio::Mesh,
}

/// Looks, and answers with an exit code of 1 if there are errors.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, CliError> {
    if args.from == Some(OtherMesh::Istio) {
        return from_istio::run(args);
    }
    let mut findings = if args.on_node {
        on_node::findings()
    } else {
        let snapshot = wait(async {
            let cluster = args.target.cluster().await?;
            take(&cluster, &args.target.mesh_namespace, &args.subjects).await
        })?;
        findings(&snapshot)
    };
    findings.sort_by(|a, b| (a.level, &a.about).cmp(&(b.level, &b.about)));
    output::print(args.output, &findings, || words(&findings))?;
    let bad = findings.iter().any(|finding| finding.level == Level::Error);
    Ok(ExitCode::from(u8::from(bad)))
}

/// Findings in a cluster, as text.
pub(crate) async fn report(cluster: &Cluster, mesh_namespace: &str) -> Result<String, CliError> {
    Ok(words(&findings(&take(cluster, mesh_namespace, &[]).await?)))
}

/// Everything that the rules find.
fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = rules::findings(snapshot);
    findings.extend(platforms::findings(snapshot));
    findings.extend(meshes::findings(snapshot));
    findings.extend(network_policies::findings(snapshot));
    findings.extend(unfollowed::findings(&snapshot.mesh));
    findings
}

async fn take(
    cluster: &Cluster,
    mesh_namespace: &str,
    selected_namespaces: &[String],
) -> Result<Snapshot, CliError> {
    let wrong = |error: ClusterError| failed(error.into());
    let (_, minor) = cluster.version().await.map_err(wrong)?;
    let nodes: Vec<Node> = cluster.all(None, None).await.map_err(wrong)?;
    let cilium = cluster.read(Some("kube-system"), "cilium-config").await;
    let inventory = apply::installed(cluster, mesh_namespace, revisions::DEFAULT)
        .await
        .map_err(failed)?;
    let mut mesh = istio::of_cluster(cluster, mesh_namespace).await?;
    mesh.config.root_namespace = mesh_namespace.into();
    Ok(Snapshot {
        minor,
        platform: platform::detect(&nodes),
        mesh_namespace: mesh_namespace.to_owned(),
        selected_namespaces: selected_namespaces.to_vec(),
        nodes,
        namespaces: cluster.all(None, None).await.map_err(wrong)?,
        deployments: cluster.all(None, None).await.map_err(wrong)?,
        daemon_sets: cluster.all(None, None).await.map_err(wrong)?,
        mesh_pods: reach::pods(cluster, mesh_namespace, "").await?,
        crds: cluster.all(None, None).await.map_err(wrong)?,
        network_policies: cluster.all(None, None).await.map_err(wrong)?,
        quotas: cluster.all(None, None).await.map_err(wrong)?,
        cilium_config: cilium.map_err(wrong)?,
        inventory,
        rules: Some(enrol::rules(cluster, mesh_namespace).await?),
        mesh,
    })
}

impl Snapshot {
    /// Namespaces that are in the mesh, or named by a flag.
    fn mesh_namespaces(&self) -> Vec<&str> {
        let names = self.namespaces.iter().filter(|namespace| {
            let labelled = label(*namespace, remove::DATAPLANE_MODE) == Some(remove::AMBIENT);
            labelled
                || self
                    .selected_namespaces
                    .iter()
                    .any(|requested| requested == name(*namespace))
        });
        names.map(name).collect()
    }
}

/// Whether an object is part of an installation of ours.
fn words(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "no problems found".to_owned();
    }
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            Level::Error => "ERROR",
            Level::Warning => "WARNING",
            Level::Info => "INFO",
        };
        text.push_str(&format!(
            "{level:<8} {}: {}\n",
            finding.about, finding.finding
        ));
        if !finding.advice.is_empty() {
            text.push_str(&format!("         -> {}\n", finding.advice));
        }
    }
    let count = |level| {
        findings
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    };
    let rows = [[Level::Error, Level::Warning, Level::Info]
        .map(|level| count(level).to_string())
        .to_vec()];
    text.push('\n');
    text.push_str(&table(&["ERRORS", "WARNINGS", "NOTES"], rows));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_tell_what_to_do() {
        let findings = [
            Finding::new(
                Level::Error,
                "node n1",
                "its kernel is old",
                "use a newer one",
            ),
            Finding::new(Level::Info, "cluster", "fine", ""),
        ];
        insta::assert_snapshot!(words(&findings));
    }
}
