//! `ambit rollout`: watches the rollout of node proxies. Kubernetes' own commands wait for the old pods
//! as well, which drain their connections for up to an hour.

use std::time::{Duration, Instant};

use ambit_install::{
    cluster::{ClusterApi, ClusterError},
    object::{name, namespace_of},
    rollout::{Rollout, Workload, node_of, terminating_pods},
};
use ambit_k8s_api::Pod;
use clap::Args;
use hyper::Method;
use k8s_openapi::api::apps::v1::DaemonSet;
use serde::Serialize;

use crate::{
    CliError, ErrorKind,
    cluster::{Target, block_on},
    dump::{Dump, PodEntry},
    install::{install_error, parse_duration},
    output::{self, OutputFormat, format_table, print_line},
    pod_access::{self, NODE_PROXY_ADMIN},
};

/// Interval at which the rollout is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Flags of `ambit rollout`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RolloutArgs {
    #[command(flatten)]
    target: Target,
    /// How long to wait until the proxy that serves each node is a new one, such as 90s or 5m
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Node proxy that was replaced, and still serves its open connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct DrainingProxy {
    node: String,
    pod: String,
    /// Time at which Kubernetes kills the pod, from its `deletionTimestamp`.
    until: String,
    /// Number of open connections; `None` if the proxy does not respond.
    connections: Option<usize>,
}

/// Waits until new proxies serve every node, and shows the old proxies that still drain.
pub(crate) fn run(args: &RolloutArgs) -> Result<(), CliError> {
    let left = block_on(watch(args))?;
    output::print_formatted(args.output, &left, || format_draining(&left))
}

async fn watch(args: &RolloutArgs) -> Result<Vec<DrainingProxy>, CliError> {
    let cluster = args.target.connect().await?;
    let mesh = args.target.mesh_namespace.as_str();
    let deadline = Instant::now() + args.timeout;
    let mut last = String::new();
    loop {
        let (set, pods, rollout) = read_rollout(&cluster, mesh).await?;
        match rollout {
            Rollout::Done => {
                return find_draining_proxies(&cluster, &terminating_pods(&set, &pods)).await;
            }
            Rollout::InProgress(what) if Instant::now() >= deadline => {
                let what = format!(
                    "the node proxies are not replaced after {} s: {what}",
                    args.timeout.as_secs()
                );
                return Err(CliError::new(ErrorKind::Failed, what)
                    .with_hint("`ambit status` and `ambit check` say more"));
            }
            Rollout::InProgress(what) if what != last => {
                if args.output == OutputFormat::default() {
                    print_line(&format!("waiting: {what}"))?;
                }
                last = what;
            }
            Rollout::InProgress(_) => {}
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// State of the rollout of node proxies at one moment, for the dashboard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RolloutView {
    /// Next step that the rollout waits for; `None` if new proxies serve every node.
    waits_for: Option<String>,
    draining: Vec<DrainingProxy>,
}

/// Reads the current state of the rollout.
pub(crate) async fn read_view(cluster: &ClusterApi, mesh: &str) -> Result<RolloutView, CliError> {
    let (set, pods, rollout) = read_rollout(cluster, mesh).await?;
    Ok(RolloutView {
        waits_for: match rollout {
            Rollout::Done => None,
            Rollout::InProgress(what) => Some(what),
        },
        draining: find_draining_proxies(cluster, &terminating_pods(&set, &pods)).await?,
    })
}

/// Reads the DaemonSet of node proxies, its pods, and the progress of its rollout.
async fn read_rollout(
    cluster: &ClusterApi,
    mesh: &str,
) -> Result<(DaemonSet, Vec<Pod>, Rollout), CliError> {
    let api = |error: ClusterError| install_error(error.into());
    let set: Option<DaemonSet> = cluster
        .get_typed(Some(mesh), "ztunnel")
        .await
        .map_err(api)?;
    let set = set.ok_or_else(|| {
        let what = format!("there is no DaemonSet {mesh}/ztunnel");
        CliError::new(ErrorKind::NotFound, what)
            .with_hint("--mesh-namespace names another namespace")
    })?;
    let workload = Workload::DaemonSet(Box::new(set.clone()));
    let pods = workload.pods(cluster).await.map_err(api)?;
    let rollout = workload.rollout(&pods);
    Ok((set, pods, rollout))
}

async fn find_draining_proxies(
    cluster: &ClusterApi,
    pods: &[&Pod],
) -> Result<Vec<DrainingProxy>, CliError> {
    let mut left = Vec::new();
    for pod in pods {
        let (namespace, name) = (namespace_of(*pod), name(*pod));
        let response = pod_access::query_pod(
            cluster,
            namespace,
            name,
            NODE_PROXY_ADMIN.1,
            Method::GET,
            "/config_dump",
        )
        .await;
        let dump = response
            .ok()
            .and_then(|answer| Dump::parse(&answer.body).ok());
        let until = pod.metadata.deletion_timestamp.as_ref();
        left.push(DrainingProxy {
            node: node_of(pod).unwrap_or_default().to_owned(),
            pod: name.to_owned(),
            until: until.map(|time| time.0.to_string()).unwrap_or_default(),
            connections: dump.as_ref().map(count_connections),
        });
    }
    left.sort_by(|a, b| (&a.node, &a.until).cmp(&(&b.node, &b.until)));
    Ok(left)
}

/// Counts the open connections of all pods in both directions.
fn count_connections(dump: &Dump) -> usize {
    dump.workload_state
        .values()
        .map(PodEntry::open_connections)
        .sum()
}

fn format_draining(draining: &[DrainingProxy]) -> String {
    let mut words = "new node proxies serve every node".to_owned();
    if !draining.is_empty() {
        let rows = draining.iter().map(|old| {
            let connections = old.connections.map(|count| count.to_string());
            vec![
                old.node.clone(),
                old.pod.clone(),
                connections.unwrap_or_else(|| "?".to_owned()),
                old.until.clone(),
            ]
        });
        words += "\n\ndraining:\n";
        words += &format_table(&["NODE", "POD", "CONNECTIONS", "UNTIL AT MOST"], rows);
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_proxies_are_shown_with_the_connections_they_have() {
        let dump = json!({"workloads": [], "workloadState": {
            "a": {"connections": {"inbound": [{}, {}], "outbound": [{}]}},
            "b": {"connections": {"inbound": [], "outbound": [{}]}},
        }});
        let dump = Dump::parse(dump.to_string().as_bytes()).unwrap();
        assert_eq!(count_connections(&dump), 4);
        let old = DrainingProxy {
            node: "n1".to_owned(),
            pod: "ztunnel-x".to_owned(),
            until: "2026-01-01T01:00:00Z".to_owned(),
            connections: Some(4),
        };
        let shown = format_draining(&[old]);
        assert!(
            shown.contains("ztunnel-x") && shown.contains('4'),
            "{shown}"
        );
        assert_eq!(format_draining(&[]), "new node proxies serve every node");
    }
}
