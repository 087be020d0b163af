//! `ambit check`: what would hinder the mesh in a cluster or on this node, and what to do about it.

use std::process::ExitCode;

use ambit_install::{apply, cluster::Cluster, inventory::Inventory, platform, remove};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::{
    CliError,
    cluster::{Target, wait},
    enrol,
    install::failed,
    membership::Rules,
    output::{self, Format, table},
    reach,
};

mod meshes;
mod network_policies;
mod on_node;
mod platforms;
mod rules;

/// See the module.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// Namespaces to look at as if they were in the mesh, besides those that are
    namespaces: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Look at this machine as a node, instead of at the cluster
    #[arg(long, conflicts_with = "namespaces")]
    on_node: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
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

/// Something found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What it is about: an object, or the cluster.
    pub(crate) about: String,
    /// What was found.
    pub(crate) finding: String,
    /// What to do.
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
    asked_for: Vec<String>,
    nodes: Vec<Value>,
    namespaces: Vec<Value>,
    deployments: Vec<Value>,
    daemon_sets: Vec<Value>,
    /// In the mesh's own namespace.
    mesh_pods: Vec<Value>,
    crds: Vec<Value>,
    network_policies: Vec<Value>,
    quotas: Vec<Value>,
    cilium_config: Option<Value>,
    inventory: Option<Inventory>,
    rules: Rules,
}

/// Looks, and answers with an exit code of 1 if there are errors.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, CliError> {
    let mut findings = if args.on_node {
        on_node::findings()
    } else {
        let snapshot = wait(async {
            let cluster = args.target.cluster().await?;
            take(&cluster, &args.target.mesh_namespace, &args.namespaces).await
        })?;
        findings(&snapshot)
    };
    findings.sort_by(|a, b| (a.level, &a.about).cmp(&(b.level, &b.about)));
    output::print(args.output, &findings, || words(&findings))?;
    let bad = findings.iter().any(|finding| finding.level == Level::Error);
    Ok(ExitCode::from(u8::from(bad)))
}

/// What is found in a cluster, for people.
pub(crate) async fn report(cluster: &Cluster, mesh_namespace: &str) -> Result<String, CliError> {
    Ok(words(&findings(&take(cluster, mesh_namespace, &[]).await?)))
}

/// Everything that the rules find.
fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = rules::findings(snapshot);
    findings.extend(platforms::findings(snapshot));
    findings.extend(meshes::findings(snapshot));
    findings.extend(network_policies::findings(snapshot));
    findings
}

async fn take(
    cluster: &Cluster,
    mesh_namespace: &str,
    asked_for: &[String],
) -> Result<Snapshot, CliError> {
    let list = async |api_version: &str, kind: &str| {
        let list = cluster.list(api_version, kind, None, None).await;
        list.map_err(|error| failed(error.into()))
    };
    let (_, minor) = cluster
        .version()
        .await
        .map_err(|error| failed(error.into()))?;
    let nodes = list("v1", "Node").await?;
    let config = cluster
        .list("v1", "ConfigMap", Some("kube-system"), None)
        .await;
    let config = config.map_err(|error| failed(error.into()))?;
    let inventory = apply::installed(cluster, mesh_namespace)
        .await
        .map_err(failed)?;
    Ok(Snapshot {
        minor,
        platform: platform::detect(&nodes),
        mesh_namespace: mesh_namespace.to_owned(),
        asked_for: asked_for.to_vec(),
        nodes,
        namespaces: list("v1", "Namespace").await?,
        deployments: list("apps/v1", "Deployment").await?,
        daemon_sets: list("apps/v1", "DaemonSet").await?,
        mesh_pods: reach::pods(cluster, mesh_namespace, "").await?,
        crds: list("apiextensions.k8s.io/v1", "CustomResourceDefinition").await?,
        network_policies: list("networking.k8s.io/v1", "NetworkPolicy").await?,
        quotas: list("v1", "ResourceQuota").await?,
        cilium_config: config.into_iter().find(|map| name(map) == "cilium-config"),
        inventory,
        rules: enrol::rules(cluster, mesh_namespace).await?,
    })
}

impl Snapshot {
    /// Namespaces that are in the mesh, or asked about.
    fn mesh_namespaces(&self) -> Vec<&str> {
        let names = self.namespaces.iter().filter(|namespace| {
            let labelled = label(namespace, remove::DATAPLANE_MODE) == Some(remove::AMBIENT);
            labelled || self.asked_for.iter().any(|asked| asked == name(namespace))
        });
        names.map(name).collect()
    }
}

fn name(object: &Value) -> &str {
    crate::membership::text(object, "/metadata/name")
}

fn namespace_of(object: &Value) -> &str {
    crate::membership::text(object, "/metadata/namespace")
}

fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

/// Whether an object is part of an installation of ours.
fn is_ours(object: &Value) -> bool {
    label(object, "app.kubernetes.io/part-of") == Some("ambit")
}

fn words(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing found that would hinder the mesh".to_owned();
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
