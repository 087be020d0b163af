//! `ambit check`: diagnoses a cluster, or this node, before an installation, and suggests remedies. With `--from istio` it
//! is about the objects of an Istio mesh alone.

use std::process::ExitCode;

use ambit_install::{
    apply,
    cluster::{Cluster, ClusterError},
    platform,
};
use ambit_k8s_api::{Node, revisions};

use crate::{
    CliError,
    cluster::wait,
    enrol,
    install::failed,
    istio,
    output::{self, table},
    reach,
};

mod args;
mod finding;
mod from_istio;
mod meshes;
mod network_policies;
mod on_node;
mod platforms;
mod rules;
mod snapshot;
mod unfollowed;

pub(crate) use args::CheckArgs;
use args::OtherMesh;
use finding::{Finding, Level};
use snapshot::Snapshot;

/// Runs the checks and prints their findings; the exit code is 1 if a finding is an error.
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

/// Checks a cluster, and returns the findings as text.
pub(crate) async fn report(cluster: &Cluster, mesh_namespace: &str) -> Result<String, CliError> {
    Ok(words(&findings(&take(cluster, mesh_namespace, &[]).await?)))
}

/// Applies all rules to the cluster's objects, and returns their findings.
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

/// Formats the findings for display, followed by the number of findings at each level.
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
    fn findings_are_shown_with_advice() {
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
