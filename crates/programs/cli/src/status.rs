//! `ambit status`: health of every node and of the control plane.

use std::time::Duration;

use ambit_install::{
    cluster::ClusterApi,
    object::{name, namespace_of},
};
use ambit_k8s_api::{Node, Pod};
use clap::Args;
use futures_util::{StreamExt as _, stream};
use hyper::Method;
use serde::de::DeserializeOwned;

use crate::{
    CliError,
    cluster::{Target, block_on},
    install::install_error,
    output::{self, OutputFormat},
    pod_access::{self, AGENT_DEBUG, CONTROL_PLANE_DEBUG, NODE_PROXY_ADMIN, choose_pod, pod_phase},
    problems::{self, Problem, ProblemsPage},
    waypoint::{self, GatewayObject},
};

mod in_lab;
mod page;
mod report;

pub(crate) use in_lab::query_page;
use report::{PodResponse, Report, Responses, WaypointResponses, format_report, report};

/// Maximum number of pods of one component that are queried concurrently.
const MAX_CONCURRENT_QUERIES: usize = 8;
/// Maximum number of waypoints whose pods are queried concurrently.
const MAX_CONCURRENT_WAYPOINTS: usize = 2;
/// Timeout for the response of one pod.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);

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
    output: OutputFormat,
}

/// Queries all components, and shows the status of the mesh.
pub(crate) fn run(args: &StatusArgs) -> Result<(), CliError> {
    let node = args.node.as_deref();
    let gathered = match args.target.lab_name(args.lab.as_deref()) {
        Some(lab) => in_lab::gather(&lab, node)?,
        None => block_on(async {
            let cluster = args.target.connect().await?;
            gather_responses(&cluster, &args.target.mesh_namespace, node).await
        })?,
    };
    let report = report(&gathered);
    output::print_formatted(args.output, &report, || format_report(&report))
}

/// Queries a cluster's mesh, and returns its status as data and as text for display.
pub(crate) async fn gather_report(
    cluster: &ClusterApi,
    namespace: &str,
) -> Result<(Report, String), CliError> {
    let report = report(&gather_responses(cluster, namespace, None).await?);
    let words = format_report(&report);
    Ok((report, words))
}

/// Queries all components of a cluster's mesh.
async fn gather_responses(
    cluster: &ClusterApi,
    namespace: &str,
    node: Option<&str>,
) -> Result<Responses, CliError> {
    let nodes = cluster.list_typed::<Node>(None, None).await;
    let mut nodes: Vec<_> = nodes
        .map_err(|error| install_error(error.into()))?
        .iter()
        .map(|node| name(node).to_owned())
        .filter(|name| node.is_none_or(|node| node == name))
        .collect();
    nodes.sort();
    let agents = pod_access::list_pods(cluster, namespace, AGENT_DEBUG.0).await?;
    let proxies = pod_access::list_pods(cluster, namespace, NODE_PROXY_ADMIN.0).await?;
    let control_pods = pod_access::list_pods(cluster, namespace, CONTROL_PLANE_DEBUG.0).await?;
    let controls = control_pods.clone();
    let on_nodes = |pods: &[Pod]| -> Vec<Pod> {
        nodes
            .iter()
            .filter_map(|node| choose_pod(pods, Some(node)))
            .cloned()
            .collect()
    };
    let (agents, proxies) = (on_nodes(&agents), on_nodes(&proxies));
    // A component that does not answer delays the others no further than by its own timeout.
    let (agents, proxies, controls, objects, waypoints) = tokio::join!(
        query_pods(cluster, agents, AGENT_DEBUG.1, "/v1/status"),
        query_pods(cluster, proxies, NODE_PROXY_ADMIN.1, "/config_dump"),
        query_pods(cluster, controls, CONTROL_PLANE_DEBUG.1, "/debug/syncz"),
        query_problems(cluster, &control_pods),
        async {
            match node {
                // Waypoints belong to no node.
                Some(_) => Ok((Vec::new(), Vec::new())),
                None => query_waypoints(cluster).await,
            }
        },
    );
    let (waypoints, unlisted) = waypoints.unwrap_or_else(|error| {
        let error = error.message_with_sources();
        let problem = format!("the waypoints cannot be listed: {error}");
        (Vec::new(), vec![problem])
    });
    Ok(Responses {
        objects,
        nodes,
        agents,
        proxies,
        controls,
        waypoints,
        unlisted,
    })
}

/// Queries the problems of objects from one replica of the control plane; none if it does not answer, which its status
/// reports.
async fn query_problems(cluster: &ClusterApi, control_pods: &[Pod]) -> Vec<Problem> {
    let Some(pod) = choose_pod(control_pods, None) else {
        return Vec::new();
    };
    let (port, path) = (CONTROL_PLANE_DEBUG.1, problems::PROBLEMS_PATH);
    let page = query_pod::<ProblemsPage>(cluster, pod.clone(), port, path).await;
    page.answer
        .map(ProblemsPage::into_problems)
        .unwrap_or_default()
}

/// Queries the pods of the cluster's waypoints. Returns also the problems of waypoints whose pods cannot be listed.
async fn query_waypoints(
    cluster: &ClusterApi,
) -> Result<(Vec<WaypointResponses>, Vec<String>), CliError> {
    let query = async |gateway: GatewayObject| {
        let name = format!("{}/{}", gateway.namespace(), gateway.name());
        let pods = waypoint::waypoint_pods(cluster, &gateway).await;
        let problem = pods.as_ref().err().map(|error| {
            let error = error.message_with_sources();
            format!("{name}: the pods of the waypoint cannot be listed: {error}")
        });
        let pods = pods.unwrap_or_default();
        let responses = WaypointResponses {
            name,
            is_programmed: gateway.is_programmed(),
            pods: query_pods(cluster, pods, NODE_PROXY_ADMIN.1, "/config_dump").await,
        };
        (responses, problem)
    };
    let gateways = waypoint::list_in_cluster(cluster).await?;
    let queried: Vec<_> = stream::iter(gateways)
        .map(query)
        .buffered(MAX_CONCURRENT_WAYPOINTS)
        .collect()
        .await;
    let (responses, problems): (Vec<_>, Vec<_>) = queried.into_iter().unzip();
    Ok((responses, problems.into_iter().flatten().collect()))
}

async fn query_pods<T: DeserializeOwned>(
    cluster: &ClusterApi,
    pods: Vec<Pod>,
    port: u16,
    path: &str,
) -> Vec<PodResponse<T>> {
    stream::iter(pods)
        .map(|pod| query_pod(cluster, pod, port, path))
        .buffered(MAX_CONCURRENT_QUERIES)
        .collect()
        .await
}

/// Fetches JSON from a pod of the mesh.
pub(crate) async fn query_pod<T: DeserializeOwned>(
    cluster: &ClusterApi,
    pod: Pod,
    port: u16,
    path: &str,
) -> PodResponse<T> {
    if pod_phase(&pod) != "Running" {
        let answer = Err(format!("it is {}", pod_phase(&pod)));
        return PodResponse { pod, answer };
    }
    let answer = pod_access::query_pod(
        cluster,
        namespace_of(&pod),
        name(&pod),
        port,
        Method::GET,
        path,
    );
    let answer = match tokio::time::timeout(QUERY_TIMEOUT, answer).await {
        Err(_) => Err(format!("no answer within {} s", QUERY_TIMEOUT.as_secs())),
        Ok(answer) => page::parse(path, answer),
    };
    PodResponse { pod, answer }
}
