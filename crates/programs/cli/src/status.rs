//! `ambit status`: health of every node and of the control plane.

use std::time::Duration;

use ambit_install::{
    cluster::Cluster,
    object::{name, namespace_of},
};
use ambit_k8s_api::{Node, Pod};
use clap::Args;
use futures_util::{StreamExt as _, stream};
use hyper::Method;
use serde::de::DeserializeOwned;

use crate::{
    CliError,
    cluster::{Target, wait},
    install::failed,
    output::{self, Format},
    problems::{self, Page},
    reach::{self, AGENT, CONTROL, PROXY, best, phase},
    waypoint,
};

mod in_lab;
mod page;
mod report;

pub(crate) use in_lab::answer_of;
use report::{PodResponse, Report, Responses, WaypointResponses, report, words};

/// Maximum number of pods that are queried concurrently.
const MAX_CONCURRENT_QUERIES: usize = 8;
/// Timeout for the response of one pod.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Flags of `ambit status`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    /// Of this lab; otherwise of the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    lab: Option<String>,
    #[command(flatten)]
    target: Target,
    /// Only this node
    #[arg(long)]
    node: Option<String>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Queries all components, and shows the status of the mesh.
pub(crate) fn run(args: &StatusArgs) -> Result<(), CliError> {
    let node = args.node.as_deref();
    let gathered = match args.target.lab(args.lab.as_deref()) {
        Some(lab) => in_lab::gather(&lab, node)?,
        None => wait(async {
            let cluster = args.target.cluster().await?;
            gather(&cluster, &args.target.mesh_namespace, node).await
        })?,
    };
    let report = report(&gathered);
    output::print(args.output, &report, || words(&report))
}

/// Returns the status of a cluster's mesh, as data and as text for display.
pub(crate) async fn gather_report(
    cluster: &Cluster,
    namespace: &str,
) -> Result<(Report, String), CliError> {
    let report = report(&gather(cluster, namespace, None).await?);
    let words = words(&report);
    Ok((report, words))
}

/// Queries all components of a cluster's mesh.
async fn gather(
    cluster: &Cluster,
    namespace: &str,
    node: Option<&str>,
) -> Result<Responses, CliError> {
    let nodes = cluster.all::<Node>(None, None).await;
    let mut nodes: Vec<_> = nodes
        .map_err(|error| failed(error.into()))?
        .iter()
        .map(|node| name(node).to_owned())
        .filter(|name| node.is_none_or(|node| node == name))
        .collect();
    nodes.sort();
    let agents = reach::pods(cluster, namespace, AGENT.0).await?;
    let proxies = reach::pods(cluster, namespace, PROXY.0).await?;
    let control_pods = reach::pods(cluster, namespace, CONTROL.0).await?;
    let controls = control_pods.clone();
    let on_nodes = |pods: &[Pod]| -> Vec<Pod> {
        nodes
            .iter()
            .filter_map(|node| best(pods, Some(node)))
            .cloned()
            .collect()
    };
    let (agents, proxies) = (on_nodes(&agents), on_nodes(&proxies));
    let (agents, proxies, controls) = tokio::join!(
        ask_all(cluster, agents, AGENT.1, "/v1/status"),
        ask_all(cluster, proxies, PROXY.1, "/config_dump"),
        ask_all(cluster, controls, CONTROL.1, "/debug/syncz"),
    );
    let objects = match best(&control_pods, None) {
        Some(pod) => {
            let page = ask::<Page>(cluster, pod.clone(), CONTROL.1, problems::PAGE).await;
            page.answer.map(Page::into_problems).unwrap_or_default()
        }
        None => Vec::new(),
    };
    let waypoints = match node {
        // Waypoints belong to no node.
        Some(_) => Vec::new(),
        None => waypoints(cluster).await,
    };
    Ok(Responses {
        objects,
        nodes,
        agents,
        proxies,
        controls,
        waypoints,
    })
}

/// Queries the pods of the cluster's waypoints; none if the Gateways cannot be listed.
async fn waypoints(cluster: &Cluster) -> Vec<WaypointResponses> {
    let mut gathered = Vec::new();
    for gateway in waypoint::of_cluster(cluster).await.unwrap_or_default() {
        let pods = waypoint::pods(cluster, &gateway).await;
        gathered.push(WaypointResponses {
            name: format!("{}/{}", gateway.namespace(), gateway.name()),
            is_programmed: gateway.is_programmed(),
            pods: ask_all(cluster, pods, PROXY.1, "/config_dump").await,
        });
    }
    gathered
}

async fn ask_all<T: DeserializeOwned>(
    cluster: &Cluster,
    pods: Vec<Pod>,
    port: u16,
    path: &str,
) -> Vec<PodResponse<T>> {
    stream::iter(pods)
        .map(|pod| ask(cluster, pod, port, path))
        .buffered(MAX_CONCURRENT_QUERIES)
        .collect()
        .await
}

/// Fetches JSON from a pod of the mesh.
pub(crate) async fn ask<T: DeserializeOwned>(
    cluster: &Cluster,
    pod: Pod,
    port: u16,
    path: &str,
) -> PodResponse<T> {
    if phase(&pod) != "Running" {
        let answer = Err(format!("it is {}", phase(&pod)));
        return PodResponse { pod, answer };
    }
    let answer = reach::ask_pod(
        cluster,
        namespace_of(&pod),
        name(&pod),
        port,
        Method::GET,
        path,
    );
    let answer = match tokio::time::timeout(TIMEOUT, answer).await {
        Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        Ok(answer) => page::parse(path, answer),
    };
    PodResponse { pod, answer }
}
