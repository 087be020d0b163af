//! Queries all components of a lab's mesh for their status. The lab's processes are represented as pods, like a
//! cluster's.

use std::net::SocketAddr;

use ambit_k8s_api::{ObjectMeta, Pod};
use ambit_lab::{Client, DaemonStatus, LabNetns, PodStatus};
use hyper::Method;
use k8s_openapi::api::core::v1::{
    ContainerStatus, PodCondition, PodSpec, PodStatus as KubernetesPodStatus,
};
use serde::de::DeserializeOwned;

use super::{
    page,
    report::{PodResponse, Responses, WaypointResponses},
};
use crate::{
    CliError,
    labs::{self, client_error},
    pod_access::{AGENT_DEBUG, CONTROL_PLANE_DEBUG, NODE_PROXY_ADMIN},
    problems::{self, ProblemsPage},
    source::{self, CONFIG_DUMP_PATH},
    waypoint::GatewayObject,
};

/// Namespace of the mesh in a lab.
const MESH_NAMESPACE: &str = "istio-system";

/// Queries all components of a lab's mesh, or those of one node.
pub(super) fn gather(lab: &str, node: Option<&str>) -> Result<Responses, CliError> {
    let client = labs::find_lab(lab)?;
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
    let on_node = |daemon: &DaemonStatus| LabNetns::Node(daemon.node.clone().unwrap_or_default());
    let agents = daemons("agent").map(|daemon| {
        let pod = daemon_pod(daemon, "ambit-agent");
        query_pod(&client, pod, on_node(daemon), AGENT_DEBUG.1, "/v1/status")
    });
    let proxies = daemons("proxy").map(|daemon| {
        let pod = daemon_pod(daemon, "ztunnel");
        query_pod(
            &client,
            pod,
            on_node(daemon),
            NODE_PROXY_ADMIN.1,
            CONFIG_DUMP_PATH,
        )
    });
    let controls = daemons("control").map(|daemon| {
        let pod = daemon_pod(daemon, "ambit-control");
        query_pod(
            &client,
            pod,
            LabNetns::Control,
            CONTROL_PLANE_DEBUG.1,
            "/debug/syncz",
        )
    });
    let objects = daemons("control").map(|daemon| {
        let pod = daemon_pod(daemon, "ambit-control");
        let page = query_pod::<ProblemsPage>(
            &client,
            pod,
            LabNetns::Control,
            CONTROL_PLANE_DEBUG.1,
            problems::PROBLEMS_PATH,
        );
        page.answer
            .map(ProblemsPage::into_problems)
            .unwrap_or_default()
    });
    let gateways = status.gateways.iter().cloned().map(GatewayObject::new);
    // Waypoints belong to no node.
    let gateways = gateways.filter(|gateway| gateway.is_waypoint() && node.is_none());
    let waypoints = gateways.map(|gateway| query_waypoint(&client, &gateway, &status.pods));
    Ok(Responses {
        agents: agents.collect(),
        proxies: proxies.collect(),
        controls: controls.collect(),
        objects: objects.flatten().collect(),
        waypoints: waypoints.collect(),
        nodes: nodes.clone(),
        unlisted: Vec::new(),
    })
}

fn query_waypoint(
    client: &Client,
    gateway: &GatewayObject,
    pods: &[PodStatus],
) -> WaypointResponses {
    let pods = pods.iter().filter(|pod| gateway.has_pod(pod)).map(|pod| {
        let place = LabNetns::Pod(format!("{}/{}", pod.namespace, pod.name));
        query_pod(
            client,
            lab_pod(pod),
            place,
            NODE_PROXY_ADMIN.1,
            CONFIG_DUMP_PATH,
        )
    });
    WaypointResponses {
        name: format!("{}/{}", gateway.namespace(), gateway.name()),
        is_programmed: gateway.is_programmed(),
        pods: pods.collect(),
    }
}

/// Fetches JSON from the component that `pod` represents.
fn query_pod<T: DeserializeOwned>(
    client: &Client,
    pod: Pod,
    place: LabNetns,
    port: u16,
    path: &str,
) -> PodResponse<T> {
    PodResponse {
        pod,
        answer: query_page(client, place, port, path),
    }
}

/// Fetches JSON from a component of a lab, or returns the reason why there is none.
pub(crate) fn query_page<T: DeserializeOwned>(
    client: &Client,
    place: LabNetns,
    port: u16,
    path: &str,
) -> Result<T, String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let stream = client.dial(place, address).map_err(client_error);
    let answer =
        stream.and_then(|stream| source::request_blocking(stream, &Method::GET, "localhost", path));
    page::parse(path, answer)
}

/// Represents one of the lab's agents, node proxies or control planes as a pod.
fn daemon_pod(daemon: &DaemonStatus, name: &str) -> Pod {
    let name = match &daemon.node {
        Some(node) => format!("{name}-{node}"),
        None => name.to_owned(),
    };
    let node = daemon.node.as_deref();
    pod(
        (MESH_NAMESPACE, &name),
        node,
        daemon.pid.is_some(),
        daemon.restarts,
    )
}

fn lab_pod(status: &PodStatus) -> Pod {
    let restarts = status.containers.iter().map(|one| one.restarts).sum();
    let place = (status.namespace.as_str(), status.name.as_str());
    pod(place, Some(&status.node), status.ready, restarts)
}

fn pod((namespace, name): (&str, &str), node: Option<&str>, is_ready: bool, restarts: u32) -> Pod {
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: node.map(ToOwned::to_owned),
            ..PodSpec::default()
        }),
        status: Some(KubernetesPodStatus {
            phase: Some("Running".to_owned()),
            conditions: Some(vec![PodCondition {
                type_: "Ready".to_owned(),
                status: if is_ready { "True" } else { "False" }.to_owned(),
                ..PodCondition::default()
            }]),
            container_statuses: Some(vec![ContainerStatus {
                name: "main".to_owned(),
                ready: is_ready,
                restart_count: i32::try_from(restarts).unwrap_or(i32::MAX),
                ..ContainerStatus::default()
            }]),
            ..KubernetesPodStatus::default()
        }),
    }
}
