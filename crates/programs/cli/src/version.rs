//! `ambit version`: versions of this command line and of the components in the cluster.

use std::collections::BTreeMap;

use ambit_install::{apply, object::label};
use ambit_k8s_api::revisions;
use clap::Args;
use serde::Serialize;

use crate::{
    CliError,
    cluster::{Target, block_on},
    install::install_error,
    output::{self, OutputFormat},
    pod_access::{self, AGENT_DEBUG, CONTROL_PLANE_DEBUG, NODE_PROXY_ADMIN},
};

/// Flags of `ambit version`.
#[derive(Clone, Debug, Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    target: Target,
    /// Only of this command line
    #[arg(long)]
    client: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

#[derive(Debug, Serialize)]
struct Versions {
    client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<ServerVersions>,
    /// Reason why the cluster's versions are unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

#[derive(Debug, Serialize)]
struct ServerVersions {
    kubernetes: String,
    /// Version of the mesh that is installed in the cluster.
    installed: Option<String>,
    /// Number of pods by component, and by the version that the pods run.
    parts: BTreeMap<&'static str, BTreeMap<String, usize>>,
}

/// Prints the versions. An unreachable cluster is no failure: the version of this command line is known anyway.
pub(crate) fn run(args: &VersionArgs) -> Result<(), CliError> {
    let response = (!args.client).then(|| block_on(query_server(&args.target)));
    let (server, trouble) = match response {
        None => (None, None),
        Some(Ok(server)) => (Some(server), None),
        Some(Err(error)) => (None, Some(error.message_with_sources())),
    };
    let versions = Versions {
        client: env!("CARGO_PKG_VERSION"),
        server,
        trouble,
    };
    output::print_formatted(args.output, &versions, || format_versions(&versions))
}

async fn query_server(target: &Target) -> Result<ServerVersions, CliError> {
    let cluster = target.connect().await?;
    let (kubernetes, _) = cluster
        .version()
        .await
        .map_err(|error| install_error(error.into()))?;
    let namespace = &target.mesh_namespace;
    let installed = apply::installed_inventory(&cluster, namespace, revisions::DEFAULT_REVISION)
        .await
        .map_err(install_error)?;
    let mut parts = BTreeMap::new();
    for (part, labels) in [
        ("agent", AGENT_DEBUG.0),
        ("node-proxy", NODE_PROXY_ADMIN.0),
        ("control", CONTROL_PLANE_DEBUG.0),
    ] {
        let mut versions = BTreeMap::new();
        for pod in pod_access::list_pods(&cluster, namespace, labels).await? {
            let version = label(&pod, "app.kubernetes.io/version").unwrap_or("unknown");
            *versions.entry(version.to_owned()).or_insert(0) += 1;
        }
        parts.insert(part, versions);
    }
    Ok(ServerVersions {
        kubernetes,
        installed: installed.map(|inventory| inventory.version),
        parts,
    })
}

fn format_versions(versions: &Versions) -> String {
    let mut lines = vec![format!("ambit {}", versions.client)];
    if let Some(server) = &versions.server {
        lines.push(format!("Kubernetes {}", server.kubernetes));
        let installed = server.installed.as_deref().unwrap_or("nothing");
        lines.push(format!("installed: {installed}"));
        for (part, versions) in &server.parts {
            let pods: Vec<_> = versions
                .iter()
                .map(|(version, pods)| format!("{version} ({pods} pods)"))
                .collect();
            let pods = if pods.is_empty() {
                "none runs".to_owned()
            } else {
                pods.join(", ")
            };
            lines.push(format!("{part}: {pods}"));
        }
    }
    if let Some(trouble) = &versions.trouble {
        lines.push(trouble.clone());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_cluster_that_is_half_upgraded() {
        let pods = |pairs: &[(&str, usize)]| {
            pairs
                .iter()
                .map(|(version, pods)| ((*version).to_owned(), *pods))
                .collect()
        };
        let versions = Versions {
            client: "0.2.0",
            server: Some(ServerVersions {
                kubernetes: "v1.34.4".into(),
                installed: Some("0.2.0".into()),
                parts: BTreeMap::from([
                    ("agent", pods(&[("0.1.0", 1), ("0.2.0", 2)])),
                    ("control", pods(&[])),
                ]),
            }),
            trouble: None,
        };
        insta::assert_snapshot!(format_versions(&versions));
    }
}
