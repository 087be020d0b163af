//! `ambit status`: how every node and the control plane are.

use std::time::Duration;

use ambit_install::cluster::Cluster;
use clap::Args;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::{
    CliError,
    cluster::{Target, wait},
    http::Answer,
    install::failed,
    membership::text,
    output::{self, Format},
    reach::{self, AGENT, CONTROL, PROXY, best},
};

mod report;

use report::{Answered, Gathered, Report, report, words};

/// Pods that are asked at the same time.
const AT_ONCE: usize = 8;
/// How long a pod may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: Target,
    /// Only this node
    #[arg(long)]
    node: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Shows it.
pub(crate) fn run(args: &StatusArgs) -> Result<(), CliError> {
    let report = wait(async {
        let cluster = args.target.cluster().await?;
        let namespace = &args.target.mesh_namespace;
        Ok(report(
            &gather(&cluster, namespace, args.node.as_deref()).await?,
        ))
    })?;
    output::print(args.output, &report, || words(&report))
}

/// The report, and the same for people.
pub(crate) async fn gather_report(
    cluster: &Cluster,
    namespace: &str,
) -> Result<(Report, String), CliError> {
    let report = report(&gather(cluster, namespace, None).await?);
    let words = words(&report);
    Ok((report, words))
}

/// Asks everybody.
async fn gather(
    cluster: &Cluster,
    namespace: &str,
    node: Option<&str>,
) -> Result<Gathered, CliError> {
    let nodes = cluster.list("v1", "Node", None, None).await;
    let mut nodes: Vec<_> = nodes
        .map_err(|error| failed(error.into()))?
        .iter()
        .map(|node| text(node, "/metadata/name").to_owned())
        .filter(|name| node.is_none_or(|node| node == name))
        .collect();
    nodes.sort();
    let agents = reach::pods(cluster, namespace, AGENT.0).await?;
    let proxies = reach::pods(cluster, namespace, PROXY.0).await?;
    let controls = reach::pods(cluster, namespace, CONTROL.0).await?;
    let on_nodes = |pods: &[Value]| -> Vec<Value> {
        nodes
            .iter()
            .filter_map(|node| best(pods, Some(node)))
            .cloned()
            .collect()
    };
    let (agents, proxies) = (on_nodes(&agents), on_nodes(&proxies));
    let ask = |pods: Vec<Value>, port: u16, path: &'static str| {
        stream::iter(pods)
            .map(move |pod| async move { ask(cluster, pod, port, path).await })
            .buffered(AT_ONCE)
            .collect::<Vec<_>>()
    };
    let (agents, mut proxies, mut controls) = tokio::join!(
        ask(agents, AGENT.1, "/v1/status"),
        ask(proxies, PROXY.1, "/config_dump"),
        ask(controls, CONTROL.1, "/debug/syncz"),
    );
    // The records of the whole mesh are no longer needed.
    for proxy in &mut proxies {
        if let Ok(Value::Object(dump)) = &mut proxy.answer {
            dump.retain(|key, _| {
                matches!(key.as_str(), "version" | "certificates" | "workloadState")
            });
        }
    }
    for control in &mut controls {
        if let Ok(clients) = &mut control.answer {
            *clients = json!({ "clients": clients.take() });
        }
    }
    Ok(Gathered {
        nodes,
        agents,
        proxies,
        controls,
    })
}

/// Asks a pod for JSON.
pub(crate) async fn ask(cluster: &Cluster, pod: Value, port: u16, path: &str) -> Answered {
    if text(&pod, "/status/phase") != "Running" {
        let answer = Err(format!("it is {}", text(&pod, "/status/phase")));
        return Answered { pod, answer };
    }
    let (namespace, name) = (
        text(&pod, "/metadata/namespace"),
        text(&pod, "/metadata/name"),
    );
    let asked = reach::ask_pod(cluster, namespace, name, port, "GET", path);
    let answer = match tokio::time::timeout(PATIENCE, asked).await {
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        Ok(Err(error)) => Err(error.text().trim_start_matches("error: ").to_owned()),
        Ok(Ok(Answer { status: 200, body })) => serde_json::from_slice(&body)
            .map_err(|error| format!("its answer to {path} is no JSON: {error}")),
        Ok(Ok(answer)) => Err(format!("{path} answers with status {}", answer.status)),
    };
    Answered { pod, answer }
}
