//! Components of the mesh in a cluster: their pods, and requests to them through the API server, since they listen on
//! their pods' loopback addresses only.

use ambit_install::{
    cluster::ClusterApi,
    object::name,
    rollout::{is_ready, is_terminating, node_of},
};
use ambit_k8s_api::Pod;
use ambit_kube_kit::forward;
use bytes::Bytes;
use hyper::Method;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};

use crate::{CliError, ErrorKind, http, install::install_error};

/// Component of the mesh to query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    /// Node proxy on the node of this name.
    NodeProxy(String),
    /// The node proxy that serves a pod: namespace, name.
    NodeProxyOfPod(String, String),
    /// A node proxy of any node.
    AnyNodeProxy,
    /// Any replica of the control plane.
    ControlPlane,
}

/// Label selector of the node proxies, and their admin port.
pub(crate) const NODE_PROXY_ADMIN: (&str, u16) = ("app=ztunnel", 15000);
/// Label selector of the agents, and their status port.
pub(crate) const AGENT_DEBUG: (&str, u16) = ("app=ambit-agent", 15014);
/// Label selector of the control plane's pods, and their debug port.
pub(crate) const CONTROL_PLANE_DEBUG: (&str, u16) = ("app=istiod", 15014);

/// Sends a request without a body to a port of a mesh pod, through the API server.
pub(crate) async fn query_pod(
    cluster: &ClusterApi,
    namespace: &str,
    pod: &str,
    port: u16,
    http_method: Method,
    path: &str,
) -> Result<http::HttpResponse, CliError> {
    send_to_pod(
        cluster,
        (namespace, pod, port),
        (http_method, path),
        Bytes::new(),
    )
    .await
}

/// Sends a request with a body, like [`query_pod`].
pub(crate) async fn send_to_pod(
    cluster: &ClusterApi,
    (namespace, pod, port): (&str, &str, u16),
    (http_method, path): (Method, &str),
    body: Bytes,
) -> Result<http::HttpResponse, CliError> {
    let unanswered = |error: Box<dyn std::error::Error + Send + Sync>| {
        let what = format!("the pod {namespace}/{pod} does not answer {path}");
        CliError::new(ErrorKind::Unreachable, what).with_source(error)
    };
    let forwarded = forward::open_port_forward(&cluster.client(), namespace, pod, port).await;
    let (stream, refused) = forwarded.map_err(|error| unanswered(error.into()))?;
    match http::send(stream, http_method, ("localhost", path), body).await {
        Ok(answer) => Ok(answer),
        // Where the port is closed, only the kubelet reports it.
        Err(error) => Err(match refused.await {
            Some(message) => unanswered(message.into()),
            None => unanswered(error.into()),
        }),
    }
}

/// Whether the user has the right to forward ports of pods in the mesh's namespace, and thus to use their admin ports.
pub(crate) async fn can_forward_ports(cluster: &ClusterApi, mesh: &str) -> Result<bool, CliError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                resource: Some("pods".to_owned()),
                subresource: Some("portforward".to_owned()),
                verb: Some("create".to_owned()),
                namespace: Some(mesh.to_owned()),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client());
    let review = api.create(&PostParams::default(), &review).await;
    let review = review.map_err(|error| {
        let what = "cannot ask the API server which rights the user has";
        CliError::new(ErrorKind::Unreachable, what).with_source(error)
    })?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

/// Lists the pods of a component by its label selector.
pub(crate) async fn list_pods(
    cluster: &ClusterApi,
    namespace: &str,
    labels: &str,
) -> Result<Vec<Pod>, CliError> {
    let pods = cluster.list_typed(Some(namespace), Some(labels)).await;
    pods.map_err(|error| install_error(error.into()))
}

/// Finds a pod of a component to query, and returns its name and admin port.
pub(crate) async fn find_pod(
    cluster: &ClusterApi,
    mesh_namespace: &str,
    part: &Component,
) -> Result<(String, u16), CliError> {
    let ((labels, port), node) = match part {
        Component::NodeProxy(node) => (NODE_PROXY_ADMIN, Some(node.clone())),
        Component::AnyNodeProxy => (NODE_PROXY_ADMIN, None),
        Component::ControlPlane => (CONTROL_PLANE_DEBUG, None),
        Component::NodeProxyOfPod(namespace, name) => {
            let pod = get_pod(cluster, namespace, name).await?;
            (
                NODE_PROXY_ADMIN,
                Some(node_of(&pod).unwrap_or_default().to_owned()),
            )
        }
    };
    let pods = list_pods(cluster, mesh_namespace, labels).await?;
    let found = choose_pod(&pods, node.as_deref()).ok_or_else(|| {
        let on = node
            .map(|node| format!(" on the node {node}"))
            .unwrap_or_default();
        let what = format!("no pod with {labels} runs{on} in the namespace {mesh_namespace}");
        CliError::new(ErrorKind::NotFound, what)
            .with_hint("`ambit status` shows what runs; --mesh-namespace names another namespace")
    })?;
    Ok((name(found).to_owned(), port))
}

/// Returns the pod of this name, or else the first one whose name begins with `NAME-`, such as a Deployment's.
pub(crate) async fn get_pod(
    cluster: &ClusterApi,
    namespace: &str,
    pod_name: &str,
) -> Result<Pod, CliError> {
    let exact = cluster.get_typed(Some(namespace), pod_name).await;
    if let Some(pod) = exact.map_err(|error| install_error(error.into()))? {
        return Ok(pod);
    }
    let beginning = format!("{pod_name}-");
    let begins = |pod: &Pod| name(pod).starts_with(&beginning);
    let all: Vec<Pod> = cluster
        .list_typed(Some(namespace), None)
        .await
        .map_err(|error| install_error(error.into()))?;
    all.into_iter().find(begins).ok_or_else(|| {
        let what = format!("there is no pod {pod_name} in the namespace {namespace}");
        CliError::new(ErrorKind::NotFound, what)
    })
}

/// Picks the running pod to query on a node, which has two during a rollout: pods that are not terminating first, then
/// ready ones, then the newest.
pub(crate) fn choose_pod<'a>(pods: &'a [Pod], node: Option<&str>) -> Option<&'a Pod> {
    pods.iter()
        .filter(|pod| node.is_none_or(|node| node_of(pod) == Some(node)))
        .filter(|pod| pod_phase(pod) == "Running")
        .max_by_key(|pod| {
            let made = pod.metadata.creation_timestamp.clone();
            (!is_terminating(pod), is_ready(pod), made)
        })
}

/// Returns a pod's phase; empty if the pod has no status yet.
pub(crate) fn pod_phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    phase.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn new_ready_proxy_of_a_node_is_queried() {
        let pod = |name: &str, node: &str, ready: bool, leaving: bool, made: &str| {
            let mut pod = json!({
                "metadata": {"name": name, "creationTimestamp": made},
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "conditions": [
                    {"type": "Ready", "status": if ready { "True" } else { "False" }}]},
            });
            if leaving {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:09Z");
            }
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        let pods = [
            pod("leaving", "n1", true, true, "2026-01-01T00:00:00Z"),
            pod("old", "n1", true, false, "2026-01-01T00:00:01Z"),
            pod("new", "n1", true, false, "2026-01-01T00:00:02Z"),
            pod("newest", "n1", false, false, "2026-01-01T00:00:03Z"),
            pod("other", "n2", false, false, "2026-01-01T00:00:04Z"),
        ];
        let name = |node| choose_pod(&pods, node).map(name);
        assert_eq!(name(Some("n1")), Some("new"));
        assert_eq!(name(Some("n2")), Some("other"));
        assert_eq!(name(Some("n3")), None);
        assert_eq!(name(None), Some("new"));
    }
}
