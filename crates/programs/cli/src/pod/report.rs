//! Report about one pod, composed of the responses of the agent, the node proxy and the API server.

use ambit_install::object::{name, namespace_of};
use ambit_k8s_api::{Gateway, Namespace, Pod};
use serde::Serialize;

use super::waypoint::{self, WaypointBinding};
use crate::{
    debug_pages::AgentPod,
    dump::{Dump, PodEntry, non_empty_or},
    membership::{CaptureState, Membership, MembershipRules},
};

/// Mesh membership, node proxy state and waypoint of one pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Name of the pod, `namespace/name`.
    pod: String,
    node: String,
    /// Actual membership in the mesh, derived from labels, agent, annotation and node proxy.
    #[serde(rename = "verdict")]
    mesh_state: MeshState,
    /// Desired membership in the mesh, by labels and the agents' settings.
    #[serde(rename = "wanted")]
    membership: Membership,
    /// Capture state by the agent's status annotation on the pod.
    annotation: CaptureState,
    /// State of the pod in the node's agent, or the reason why it is unknown.
    agent: Result<AgentPod, String>,
    /// State of the pod in the node's proxy, or the reason why it is unknown.
    proxy: Result<ProxyState, String>,
    /// Waypoint for requests to the pod's own address.
    waypoint: WaypointBinding,
}

/// State of one pod in its node's proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProxyState {
    /// Whether the proxy listens in the pod's network namespace.
    serves: bool,
    /// Number of connections that the proxy carries for the pod.
    connections: usize,
    /// State of the certificate of the pod's identity; `None` if the proxy has none.
    certificate: Option<String>,
    /// Protocol by which the proxy reaches the pod, as published by the control plane: `HBONE` or `TCP`; `None` if it
    /// is not published.
    protocol: Option<String>,
    /// Waypoint for the pod's own address, as published by the control plane.
    waypoint: Option<String>,
}

/// Actual membership of a pod in the mesh, derived from labels, agent, annotation and node proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum MeshState {
    /// The pod is in the mesh, and agent, annotation and node proxy confirm it.
    In,
    /// The pod should be in the mesh, and is not captured yet.
    NotYet,
    /// The pod should not be in the mesh, and is still captured.
    Leaving,
    /// The pod is outside the mesh, as desired.
    Out,
    /// Agent, annotation and node proxy disagree, or one of them does not respond.
    Unclear,
}

/// Responses of all components about one pod.
pub(super) struct PodResponses {
    pub(super) node: String,
    pub(super) annotation: CaptureState,
    pub(super) agent: Result<AgentPod, String>,
    pub(super) proxy: Result<ProxyState, String>,
    pub(super) gateways: Vec<Gateway>,
}

impl Report {
    pub(super) fn new(
        pod: &Pod,
        namespace: &Namespace,
        rules: &MembershipRules,
        responses: PodResponses,
    ) -> Self {
        let membership = rules.membership(pod, namespace);
        let PodResponses {
            node,
            annotation,
            agent,
            proxy,
            gateways,
        } = responses;
        Self {
            pod: format!("{}/{}", namespace_of(pod), name(pod)),
            node,
            mesh_state: mesh_state(&membership, annotation, &agent, &proxy),
            waypoint: waypoint::find_binding(pod, namespace, &gateways),
            membership,
            annotation,
            agent,
            proxy,
        }
    }
}

pub(super) fn proxy_state(dump: &Dump, pod: &Pod) -> ProxyState {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let state = dump.workload_state.get(uid);
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref());
    let account = non_empty_or(account.unwrap_or_default(), "default");
    let identity = format!("/ns/{}/sa/{account}", namespace_of(pod));
    let mut certificates = dump.certificates.parsed();
    let certificate = certificates.find(|entry| entry.identity.ends_with(&identity));
    let workload = dump
        .workloads
        .parsed()
        .find(|workload| workload.namespace == namespace_of(pod) && workload.name == name(pod));
    ProxyState {
        serves: state.is_some_and(|state| state.state != "Pending"),
        connections: state.map_or(0, PodEntry::open_connections),
        certificate: certificate.map(|entry| entry.state.clone()),
        protocol: workload.map(|workload| non_empty_or(&workload.protocol, "TCP").to_owned()),
        waypoint: workload.and_then(|workload| {
            let waypoint = workload.waypoint.as_ref();
            waypoint.map(|waypoint| waypoint.destination())
        }),
    }
}

/// Derives a pod's mesh membership from its desired membership and the states in annotation, agent and node proxy.
fn mesh_state(
    membership: &Membership,
    annotation: CaptureState,
    agent: &Result<AgentPod, String>,
    proxy: &Result<ProxyState, String>,
) -> MeshState {
    let (Ok(agent), Ok(proxy)) = (agent, proxy) else {
        return match membership {
            Membership::Out(_) if annotation == CaptureState::No => MeshState::Out,
            _ => MeshState::Unclear,
        };
    };
    let belongs = match membership {
        Membership::In(_) => true,
        Membership::Out(_) => false,
        Membership::Unknown => agent.belongs,
    };
    let is = agent.state == "captured";
    match (belongs, is) {
        (true, true) if proxy.serves && annotation == CaptureState::Yes => MeshState::In,
        (true, true) => MeshState::Unclear,
        (true, false) => MeshState::NotYet,
        (false, true) => MeshState::Leaving,
        (false, false) if proxy.serves || annotation != CaptureState::No => MeshState::Leaving,
        (false, false) => MeshState::Out,
    }
}

/// Formats the report for display.
pub(super) fn format_report(report: &Report) -> String {
    let mesh_state = match report.mesh_state {
        MeshState::In => "is in the mesh",
        MeshState::NotYet => "should be in the mesh and is NOT (yet)",
        MeshState::Leaving => "is leaving the mesh",
        MeshState::Out => "is outside the mesh",
        MeshState::Unclear => "is in doubt: agent, proxy and labels disagree",
    };
    let mut lines = vec![format!("{} on {} {mesh_state}", report.pod, report.node)];
    lines.push(match &report.membership {
        Membership::In(why) => format!("  by its labels: in, because {why}"),
        Membership::Out(why) => format!("  by its labels: out, because {why}"),
        Membership::Unknown => {
            "  by its labels: decided by cni.ambient.enablementSelectors, see the agent".to_owned()
        }
    });
    let annotation = match report.annotation {
        CaptureState::Yes => "enabled",
        CaptureState::Pending => "pending",
        CaptureState::No => "none",
    };
    lines.push(format!(
        "  annotation ambient.istio.io/redirection: {annotation}"
    ));
    let WaypointBinding { waypoint, why } = &report.waypoint;
    let waypoint = waypoint.as_deref().unwrap_or("none");
    lines.push(format!("  waypoint: {waypoint}, because: {why}"));
    match &report.agent {
        Err(error) => lines.push(format!("  agent: {error}")),
        Ok(agent) => {
            lines.push(format!("  agent: {}: {}", agent.state, agent.why));
            if let Some(error) = &agent.error {
                lines.push(format!("    the last step failed: {error}"));
            }
            let yes = |is: bool| if is { "yes" } else { "no" };
            lines.push(format!(
                "    listeners acknowledged: {}, redirection seen in the kernel: {}, repaired {} times",
                yes(agent.listeners),
                yes(agent.redirected),
                agent.drifts
            ));
            match (&agent.not_by_bpf, agent.captured_by.as_str()) {
                (Some(reason), _) => lines.push(format!(
                    "    captured by rules instead of BPF programs: {reason}"
                )),
                (None, "bpf") => lines.push("    captured by BPF programs".to_owned()),
                _ => {}
            }
        }
    }
    match &report.proxy {
        Err(error) => lines.push(format!("  node proxy: {error}")),
        Ok(proxy) if !proxy.serves => lines.push("  node proxy: does not serve it".to_owned()),
        Ok(proxy) => {
            lines.push(format!(
                "  node proxy: serves it, {} connections",
                proxy.connections
            ));
            lines.push(format!(
                "    certificate: {}; others reach it by: {}",
                proxy.certificate.as_deref().unwrap_or("none requested yet"),
                proxy
                    .protocol
                    .as_deref()
                    .unwrap_or("not published by the control plane")
            ));
            if let Some(waypoint) = &proxy.waypoint {
                lines.push(format!("    through the waypoint: {waypoint}"));
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn proxy(serves: bool) -> Result<ProxyState, String> {
        Ok(ProxyState {
            serves,
            connections: 0,
            certificate: None,
            protocol: None,
            waypoint: None,
        })
    }

    #[test]
    fn a_pod_is_in_the_mesh_only_if_all_agree() {
        let membership = || Membership::In(String::new());
        let out = || Membership::Out(String::new());
        let agent = |state: &str| {
            Ok(AgentPod {
                state: state.to_owned(),
                belongs: true,
                ..AgentPod::default()
            })
        };
        for (membership, annotation, agent, proxy, expected) in [
            (
                membership(),
                CaptureState::Yes,
                agent("captured"),
                proxy(true),
                MeshState::In,
            ),
            (
                membership(),
                CaptureState::No,
                agent("captured"),
                proxy(true),
                MeshState::Unclear,
            ),
            (
                membership(),
                CaptureState::Yes,
                agent("captured"),
                proxy(false),
                MeshState::Unclear,
            ),
            (
                membership(),
                CaptureState::Pending,
                agent("failing"),
                proxy(false),
                MeshState::NotYet,
            ),
            (
                membership(),
                CaptureState::Yes,
                Err("away".into()),
                proxy(true),
                MeshState::Unclear,
            ),
            (
                out(),
                CaptureState::No,
                agent("outside"),
                proxy(false),
                MeshState::Out,
            ),
            (
                out(),
                CaptureState::Yes,
                agent("leaving"),
                proxy(true),
                MeshState::Leaving,
            ),
            (
                out(),
                CaptureState::No,
                Err("away".into()),
                proxy(false),
                MeshState::Out,
            ),
            (
                Membership::Unknown,
                CaptureState::Yes,
                agent("captured"),
                proxy(true),
                MeshState::In,
            ),
        ] {
            assert_eq!(
                mesh_state(&membership, annotation, &agent, &proxy),
                expected,
                "{membership:?} {agent:?}"
            );
        }
    }

    #[test]
    fn the_proxys_dump_is_read_for_the_pod() {
        let pod = json!({"metadata": {"namespace": "a", "name": "b", "uid": "u"},
                         "spec": {"serviceAccountName": "s"}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let dump = json!({
            "workloadState": {"u": {"state": "Up", "connections": {"inbound": [{}, {}], "outbound": [{}]}}},
            "certificates": [{"identity": "spiffe://td/ns/a/sa/s", "state": "Available"}],
            "workloads": [{"namespace": "a", "name": "b", "protocol": "HBONE"}],
        });
        let expected = ProxyState {
            serves: true,
            connections: 3,
            certificate: Some("Available".into()),
            protocol: Some("HBONE".into()),
            waypoint: None,
        };
        let dump = serde_json::from_value(dump).unwrap();
        assert_eq!(proxy_state(&dump, &pod), expected);
        assert!(!proxy_state(&Dump::default(), &pod).serves);
    }

    #[test]
    fn the_report_in_words() {
        let report = Report {
            pod: "a/b".into(),
            node: "n1".into(),
            mesh_state: MeshState::NotYet,
            membership: Membership::In("its namespace has istio.io/dataplane-mode=ambient".into()),
            annotation: CaptureState::Pending,
            agent: Ok(serde_json::from_value(
                json!({"state": "failing", "why": "a step failed", "error": "no nft",
                             "listeners": true, "redirected": false, "drifts": 1}),
            )
            .unwrap()),
            proxy: proxy(true),
            waypoint: WaypointBinding {
                waypoint: Some("a/waypoint".into()),
                why: "its Gateway is for the whole namespace".into(),
            },
        };
        insta::assert_snapshot!(format_report(&report));
    }
}
