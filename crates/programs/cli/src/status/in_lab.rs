//! Answers of all parts of a lab's mesh. Its processes are shown as the pods that they would be on a cluster.

use std::net::SocketAddr;

use ambit_k8s_api::Pod;
use ambit_lab::{Client, ContainerStatus, DaemonStatus, Place, PodStatus};
use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::report::{Answered, Gathered, GatheredWaypoint};
use crate::{
    CliError,
    http::Answer,
    labs::{self, client_error},
    problems::{self, Page},
    reach::{AGENT, CONTROL, PROXY},
    source::{self, DUMP},
    waypoint::Seen,
};

/// Namespace of the mesh in a lab.
const MESH: &str = "istio-system";

/// Asks all parts of the mesh.
pub(super) fn gather(lab: &str, node: Option<&str>) -> Result<Gathered, CliError> {
    let client = labs::find(lab)?;
    let status = client.status().map_err(client_error)?;
    let nodes = status.nodes.iter().map(|node| node.name.clone());
    let nodes: Vec<_> = nodes
        .filter(|name| node.is_none_or(|node| node == name))
        .collect();
    let is_here =
        |daemon: &DaemonStatus| daemon.node.as_ref().is_none_or(|node| nodes.contains(node));
    let daemons = |name: &'static str| {
        let all = status.daemons.iter();
        all.filter(move |daemon| daemon.name == name && is_here(daemon))
    };
    let on_node = |daemon: &DaemonStatus| Place::Node(daemon.node.clone().unwrap_or_default());
    let agents = daemons("agent").map(|daemon| {
        let pod = of_daemon(daemon, "ambit-agent");
        ask(&client, pod, on_node(daemon), AGENT.1, "/v1/status")
    });
    let proxies = daemons("proxy").map(|daemon| {
        let pod = of_daemon(daemon, "ztunnel");
        ask(&client, pod, on_node(daemon), PROXY.1, DUMP)
    });
    let controls = daemons("control").map(|daemon| {
        let pod = of_daemon(daemon, "ambit-control");
        ask(&client, pod, Place::Control, CONTROL.1, "/debug/syncz")
    });
    let objects = daemons("control").map(|daemon| {
        let pod = of_daemon(daemon, "ambit-control");
        let page = ask::<Page>(&client, pod, Place::Control, CONTROL.1, problems::PAGE);
        page.answer.map(Page::into_problems).unwrap_or_default()
    });
    let gateways = status.gateways.iter().cloned().map(Seen::new);
    // Waypoints belong to no node.
    let gateways = gateways.filter(|gateway| gateway.is_waypoint() && node.is_none());
    let waypoints = gateways.map(|gateway| waypoint(&client, &gateway, &status.pods));
    Ok(Gathered {
        agents: agents.collect(),
        proxies: proxies.collect(),
        controls: controls.collect(),
        objects: objects.flatten().collect(),
        waypoints: waypoints.collect(),
        nodes: nodes.clone(),
    })
}

/// A waypoint, whose pods have the Gateway's name as service account.
fn waypoint(client: &Client, gateway: &Seen, pods: &[PodStatus]) -> GatheredWaypoint {
    let is_of = |pod: &&PodStatus| {
        (pod.namespace.as_str(), pod.service_account.as_str())
            == (gateway.namespace(), gateway.name())
    };
    let pods = pods.iter().filter(is_of).map(|pod| {
        let place = Place::Pod(format!("{}/{}", pod.namespace, pod.name));
        ask(client, of_pod(pod), place, PROXY.1, DUMP)
    });
    GatheredWaypoint {
        name: format!("{}/{}", gateway.namespace(), gateway.name()),
        is_programmed: gateway.is_programmed(),
        pods: pods.collect(),
    }
}

/// Asks a part for JSON.
fn ask<T: DeserializeOwned>(
    client: &Client,
    pod: Result<Pod, String>,
    place: Place,
    port: u16,
    path: &str,
) -> Answered<T> {
    let pod = match pod {
        Ok(pod) => pod,
        Err(why) => {
            let pod = Pod::default();
            return Answered {
                pod,
                answer: Err(why),
            };
        }
    };
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let answer = client.dial(place, address).map_err(client_error);
    let answer = answer.and_then(|stream| source::request(stream, &Method::GET, "localhost", path));
    let answer = match answer {
        Ok(Answer { status: 200, body }) => serde_json::from_slice(&body)
            .map_err(|error| format!("its answer to {path} cannot be read: {error}")),
        Ok(answer) => Err(format!("{path} answers with status {}", answer.status)),
        Err(error) => Err(error.text().trim_start_matches("error: ").to_owned()),
    };
    Answered { pod, answer }
}

/// A process of the mesh as a pod.
fn of_daemon(daemon: &DaemonStatus, name: &str) -> Result<Pod, String> {
    let name = match &daemon.node {
        Some(node) => format!("{name}-{node}"),
        None => name.to_owned(),
    };
    pod(
        (MESH, &name),
        daemon.node.as_deref(),
        daemon.pid.is_some(),
        daemon.restarts,
    )
}

fn of_pod(status: &PodStatus) -> Result<Pod, String> {
    let restarts = status
        .containers
        .iter()
        .map(|one: &ContainerStatus| one.restarts);
    pod(
        (&status.namespace, &status.name),
        Some(&status.node),
        status.ready,
        restarts.sum(),
    )
}

fn pod(
    (namespace, name): (&str, &str),
    node: Option<&str>,
    is_ready: bool,
    restarts: u32,
) -> Result<Pod, String> {
    let ready = if is_ready { "True" } else { "False" };
    let pod: Value = json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"nodeName": node, "containers": []},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{
                "name": "main", "image": "", "imageID": "", "ready": is_ready, "restartCount": restarts,
            }],
        },
    });
    serde_json::from_value(pod).map_err(|error| error.to_string())
}
