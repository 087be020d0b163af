//! `ambit check`: diagnoses a cluster, or this node, before an installation, and suggests remedies. With `--from istio`
//! it is about the objects of an Istio mesh alone.

use std::process::ExitCode;

use ambit_install::{
    apply,
    cluster::{ClusterApi, ClusterError},
    platform,
};
use ambit_k8s_api::{Node, revisions};

use crate::{
    CliError,
    cluster::block_on,
    enrol,
    install::install_error,
    istio,
    output::{self, format_table},
    pod_access,
};

mod args;
mod finding;
mod from_istio;
mod ineffective_settings;
mod meshes;
mod network_policies;
mod on_node;
mod platforms;
mod rules;
mod snapshot;

pub(crate) use args::CheckArgs;
use args::OtherMesh;
use finding::{Finding, FindingLevel};
use snapshot::Snapshot;

/// Runs the checks and prints their findings; the exit code is 1 if a finding is an error.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, CliError> {
    if args.from == Some(OtherMesh::Istio) {
        return from_istio::run(args);
    }
    let mut findings = if args.on_node {
        on_node::findings()
    } else {
        let snapshot = block_on(async {
            let cluster = args.target.connect().await?;
            take_snapshot(&cluster, &args.target.mesh_namespace, &args.subjects).await
        })?;
        findings(&snapshot)
    };
    findings.sort_by(|a, b| (a.level, &a.about).cmp(&(b.level, &b.about)));
    output::print_formatted(args.output, &findings, || format_findings(&findings))?;
    let bad = findings
        .iter()
        .any(|finding| finding.level == FindingLevel::Error);
    Ok(ExitCode::from(u8::from(bad)))
}

/// Checks a cluster, and returns the findings as text.
pub(crate) async fn report(cluster: &ClusterApi, mesh_namespace: &str) -> Result<String, CliError> {
    Ok(format_findings(&findings(
        &take_snapshot(cluster, mesh_namespace, &[]).await?,
    )))
}

/// Applies all rules to the cluster's objects, and returns their findings.
fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = rules::findings(snapshot);
    findings.extend(platforms::findings(snapshot));
    findings.extend(meshes::findings(snapshot));
    findings.extend(network_policies::findings(snapshot));
    findings.extend(ineffective_settings::findings(&snapshot.mesh));
    findings
}

async fn take_snapshot(
    cluster: &ClusterApi,
    mesh_namespace: &str,
    selected_namespaces: &[String],
) -> Result<Snapshot, CliError> {
    let wrong = |error: ClusterError| install_error(error.into());
    let (_, minor) = cluster.version().await.map_err(wrong)?;
    let nodes: Vec<Node> = cluster.list_typed(None, None).await.map_err(wrong)?;
    let cilium = cluster
        .get_typed(Some("kube-system"), "cilium-config")
        .await;
    let inventory =
        apply::installed_inventory(cluster, mesh_namespace, revisions::DEFAULT_REVISION)
            .await
            .map_err(install_error)?;
    let mut mesh = istio::read_cluster(cluster, mesh_namespace).await?;
    mesh.config.root_namespace = mesh_namespace.into();
    Ok(Snapshot {
        minor,
        platform: platform::detect_platform(&nodes),
        mesh_namespace: mesh_namespace.to_owned(),
        selected_namespaces: selected_namespaces.to_vec(),
        nodes,
        namespaces: cluster.list_typed(None, None).await.map_err(wrong)?,
        deployments: cluster.list_typed(None, None).await.map_err(wrong)?,
        daemon_sets: cluster.list_typed(None, None).await.map_err(wrong)?,
        mesh_pods: pod_access::list_pods(cluster, mesh_namespace, "").await?,
        crds: cluster.list_typed(None, None).await.map_err(wrong)?,
        network_policies: cluster.list_typed(None, None).await.map_err(wrong)?,
        quotas: cluster.list_typed(None, None).await.map_err(wrong)?,
        cilium_config: cilium.map_err(wrong)?,
        inventory,
        rules: Some(enrol::load_membership_rules(cluster, mesh_namespace).await?),
        mesh,
    })
}

/// Formats the findings for display, followed by the number of findings at each level.
fn format_findings(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "no problems found".to_owned();
    }
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            FindingLevel::Error => "ERROR",
            FindingLevel::Warning => "WARNING",
            FindingLevel::Info => "INFO",
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
    let rows = [[
        FindingLevel::Error,
        FindingLevel::Warning,
        FindingLevel::Info,
    ]
    .map(|level| count(level).to_string())
    .to_vec()];
    text.push('\n');
    text.push_str(&format_table(&["ERRORS", "WARNINGS", "NOTES"], rows));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_shown_with_advice() {
        let findings = [
            Finding::new(
                FindingLevel::Error,
                "node n1",
                "its kernel is old",
                "use a newer one",
            ),
            Finding::new(FindingLevel::Info, "cluster", "fine", ""),
        ];
        insta::assert_snapshot!(format_findings(&findings));
    }
}
