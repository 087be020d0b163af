//! Status of the mesh, derived from the responses of all components. Pure.

use std::collections::BTreeMap;

use ambit_install::{
    object::{label, name, namespace_of},
    rollout::{is_ready, node_of},
};
use ambit_k8s_api::Pod;
use serde::Serialize;

use crate::{
    debug_pages::{AgentStatus, XdsClient},
    dump::{CertificateEntry, DumpEntries, ProxyDump},
    output::format_table,
    problems::Problem,
};

/// Pod of a mesh component, with its response to a query.
#[derive(Debug)]
pub(crate) struct PodResponse<T> {
    /// Pod of the component that was queried.
    pub(crate) pod: Pod,
    /// Parsed response of the pod, or the reason why there is none.
    pub(crate) answer: Result<T, String>,
}

/// Responses of all components of the mesh.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    /// Names of the nodes to report on.
    pub(crate) nodes: Vec<String>,
    /// Responses of the agents to `/v1/status`.
    pub(crate) agents: Vec<PodResponse<AgentStatus>>,
    /// Responses of the node proxies to `/config_dump`.
    pub(crate) proxies: Vec<PodResponse<ProxyDump>>,
    /// Responses of the control plane's replicas to `/debug/syncz`.
    pub(crate) controls: Vec<PodResponse<Vec<XdsClient>>>,
    /// Problems of objects that the control plane reports.
    pub(crate) objects: Vec<Problem>,
    pub(crate) waypoints: Vec<WaypointResponses>,
    /// Problems of lists that the API server did not return, in words.
    pub(crate) unlisted: Vec<String>,
}

/// Waypoint with its pods' responses to `/config_dump`.
#[derive(Debug)]
pub(crate) struct WaypointResponses {
    /// Gateway of the waypoint, `namespace/name`.
    pub(crate) name: String,
    /// Whether the Gateway has the condition `Programmed` for its current generation.
    pub(crate) is_programmed: bool,
    pub(crate) pods: Vec<PodResponse<ProxyDump>>,
}

/// Health of the control plane, the nodes and the waypoints.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) control_plane: Vec<ComponentReport>,
    pub(crate) nodes: Vec<NodeReport>,
    pub(crate) waypoints: Vec<WaypointReport>,
    /// Problems of all components, in words.
    pub(crate) problems: Vec<String>,
}

/// State of one pod of a mesh component.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ComponentReport {
    pub(crate) pod: String,
    pub(crate) version: Option<String>,
    pub(crate) ready: bool,
    pub(crate) restarts: i64,
}

/// State of the mesh on one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeReport {
    pub(crate) node: String,
    pub(crate) agent: Option<ComponentReport>,
    pub(crate) proxy: Option<ComponentReport>,
    /// Number of the node's pods that belong to the mesh.
    #[serde(rename = "wanted")]
    pub(crate) desired: Option<i64>,
    /// Number of the node's mesh pods whose traffic is captured.
    pub(crate) captured: Option<i64>,
    pub(crate) certificates: Option<Certificates>,
    /// State of the proxy's xDS stream at the control plane: SYNCED, STALE, ERROR, not connected, or unknown.
    pub(crate) xds: String,
    /// Number of times that another program changed redirection rules of the node's pods and the agent repaired them.
    pub(crate) drifts: i64,
    /// Number of pods that BPF programs capture.
    pub(crate) captured_by_bpf: usize,
    /// Numbers of pods that rules capture although the agent is set to BPF programs, by the reason.
    pub(crate) not_by_bpf: BTreeMap<String, usize>,
}

/// State of one waypoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaypointReport {
    /// Gateway of the waypoint, `namespace/name`.
    pub(crate) waypoint: String,
    pub(crate) programmed: bool,
    pub(crate) pods: Vec<WaypointPodReport>,
}

/// State of one pod of a waypoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaypointPodReport {
    #[serde(flatten)]
    pub(crate) part: ComponentReport,
    pub(crate) certificates: Option<Certificates>,
    /// State of the pod's xDS stream, as in [`NodeReport::xds`].
    pub(crate) xds: String,
}

/// Numbers and earliest expiry of the certificates of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Certificates {
    pub(crate) available: usize,
    pub(crate) total: usize,
    /// Earliest expiry of the certificates, in RFC 3339.
    pub(crate) first_expiry: Option<String>,
}

const NOT_CONNECTED: &str = "not connected";
/// State of an xDS stream if no replica of the control plane responds.
const UNKNOWN: &str = "unknown";

/// Builds the status of the mesh from the components' responses.
pub(crate) fn report(gathered: &Responses) -> Report {
    let mut problems = Vec::new();
    let control_plane: Vec<_> = gathered
        .controls
        .iter()
        .map(|control| component_report(control, None, &mut problems))
        .collect();
    if !control_plane.iter().any(|control| control.ready) {
        problems.push("no replica of the control plane is ready".to_owned());
    }
    let clients: Vec<&XdsClient> = gathered
        .controls
        .iter()
        .filter_map(|control| control.answer.as_ref().ok())
        .flatten()
        .collect();
    let nodes = gathered
        .nodes
        .iter()
        .map(|node| node_report(node, gathered, &clients, &mut problems))
        .collect();
    let waypoints = gathered.waypoints.iter();
    let waypoints = waypoints.map(|one| waypoint_report(one, gathered, &clients, &mut problems));
    let waypoints = waypoints.collect();
    problems.extend(gathered.unlisted.iter().cloned());
    if !gathered.objects.is_empty() {
        let count = gathered.objects.len();
        problems.push(format!(
            "problems with objects of the mesh: {count}; `ambit problems` lists them"
        ));
    }
    Report {
        control_plane,
        nodes,
        waypoints,
        problems,
    }
}

fn waypoint_report(
    gathered: &WaypointResponses,
    all: &Responses,
    clients: &[&XdsClient],
    problems: &mut Vec<String>,
) -> WaypointReport {
    let name = &gathered.name;
    let is_known = all.controls.iter().any(|control| control.answer.is_ok());
    let pod = |answered: &PodResponse<ProxyDump>, problems: &mut Vec<String>| {
        let dump = answered.answer.as_ref().ok();
        let version = dump.map(|dump| dump.version.version.clone());
        let part = component_report(answered, version, problems);
        let certificates =
            dump.map(|dump| summarize_certificates(&part.pod, &dump.certificates, problems));
        let xds = xds_state(answered, clients, is_known);
        if is_known && xds != "SYNCED" {
            problems.push(format!("{}: xDS of the waypoint is {xds}", part.pod));
        }
        WaypointPodReport {
            part,
            certificates,
            xds,
        }
    };
    let pods: Vec<_> = gathered.pods.iter().map(|one| pod(one, problems)).collect();
    if !pods.iter().any(|pod| pod.part.ready) {
        problems.push(format!("{name}: no pod of the waypoint is ready"));
    }
    if !gathered.is_programmed {
        problems.push(format!(
            "{name}: the waypoint is not programmed; `ambit waypoint status` shows why"
        ));
    }
    WaypointReport {
        waypoint: name.clone(),
        programmed: gathered.is_programmed,
        pods,
    }
}

/// Returns the state of a proxy's xDS stream; `is_known` is whether a replica of the control plane responds.
fn xds_state<T>(proxy: &PodResponse<T>, clients: &[&XdsClient], is_known: bool) -> String {
    let name = format!("{}.{}", name(&proxy.pod), namespace_of(&proxy.pod));
    let client = clients.iter().find(|client| client.pod() == name);
    let state = client.map(|client| client.state());
    let unconnected = if is_known { NOT_CONNECTED } else { UNKNOWN };
    state.unwrap_or(unconnected).to_owned()
}

fn node_report(
    node: &str,
    gathered: &Responses,
    clients: &[&XdsClient],
    problems: &mut Vec<String>,
) -> NodeReport {
    let known = gathered
        .controls
        .iter()
        .any(|control| control.answer.is_ok());
    let mut report = NodeReport {
        node: node.to_owned(),
        xds: if known { NOT_CONNECTED } else { UNKNOWN }.to_owned(),
        ..NodeReport::default()
    };
    match find_on_node(&gathered.agents, node) {
        None => problems.push(format!("{node}: no agent runs")),
        Some(agent) => {
            let answer = agent.answer.as_ref().ok();
            let version = answer.map(|answer| answer.version.clone());
            report.agent = Some(component_report(agent, version, problems));
            if let Some(answer) = answer {
                add_agent_status(node, answer, &mut report, problems);
            }
        }
    }
    match find_on_node(&gathered.proxies, node) {
        None => problems.push(format!("{node}: no node proxy runs")),
        Some(proxy) => {
            let dump = proxy.answer.as_ref().ok();
            let version = dump.map(|dump| dump.version.version.clone());
            report.proxy = Some(component_report(proxy, version, problems));
            report.certificates =
                dump.map(|dump| summarize_certificates(node, &dump.certificates, problems));
            report.xds = xds_state(proxy, clients, known);
            if known && report.xds != "SYNCED" {
                problems.push(format!("{node}: xDS of the node proxy is {}", report.xds));
            }
        }
    }
    report
}

fn find_on_node<'a, T>(responses: &'a [PodResponse<T>], node: &str) -> Option<&'a PodResponse<T>> {
    responses
        .iter()
        .find(|part| node_of(&part.pod) == Some(node))
}

fn add_agent_status(
    node: &str,
    answer: &AgentStatus,
    report: &mut NodeReport,
    problems: &mut Vec<String>,
) {
    report.desired = answer.desired;
    report.captured = answer.captured;
    if let Some(trouble) = &answer.source_trouble {
        problems.push(format!(
            "{node}: the agent cannot follow the API server: {trouble}"
        ));
    }
    if answer.proxies == Some(0) {
        problems.push(format!("{node}: no node proxy is connected to the agent"));
    }
    for pod in &answer.pods {
        let name = format!("{}/{}", pod.namespace, pod.name);
        report.drifts += pod.drifts;
        report.captured_by_bpf += usize::from(pod.captured_by == "bpf");
        if let Some(reason) = &pod.not_by_bpf {
            *report.not_by_bpf.entry(reason.clone()).or_default() += 1;
        }
        if pod.drifts > 0 {
            problems.push(format!(
                "{node}: another process changed the redirection of {name} {} times; it was repaired",
                pod.drifts
            ));
        }
        let state = pod.state.as_str();
        if matches!(state, "failing" | "no-namespace") {
            let why = pod.error.as_ref().unwrap_or(&pod.why);
            problems.push(format!("{node}: {name} is not captured ({state}): {why}"));
        }
        let (should, published) = (&pod.annotation, &pod.annotation_seen);
        if state != "ended" && should != published {
            problems.push(format!(
                "{node}: the annotation of {name} is {published:?} and should be {should:?}"
            ));
        }
    }
}

fn summarize_certificates(
    node: &str,
    entries: &DumpEntries<CertificateEntry>,
    problems: &mut Vec<String>,
) -> Certificates {
    let mut certificates = Certificates::default();
    for entry in entries.parsed() {
        certificates.total += 1;
        if entry.state == "Available" {
            certificates.available += 1;
        } else {
            let CertificateEntry {
                identity, state, ..
            } = entry;
            problems.push(format!("{node}: the certificate of {identity} is {state}"));
        }
        let leaf = entry.cert_chain.first();
        let expiry = leaf.map_or("", |leaf| &leaf.expiration_time);
        // RFC 3339 in UTC sorts as text.
        let first = certificates.first_expiry.as_deref();
        if !expiry.is_empty() && first.is_none_or(|first| expiry < first) {
            certificates.first_expiry = Some(expiry.to_owned());
        }
    }
    certificates
}

fn component_report<T>(
    answered: &PodResponse<T>,
    version: Option<String>,
    problems: &mut Vec<String>,
) -> ComponentReport {
    let pod = &answered.pod;
    let node = node_of(pod).unwrap_or("no node yet");
    let ready = is_ready(pod);
    if let Err(error) = &answered.answer {
        problems.push(format!("{node}: {}: {error}", name(pod)));
    } else if !ready {
        problems.push(format!("{node}: {} is not ready", name(pod)));
    }
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    let restarts = statuses.into_iter().flatten();
    let labelled = label(pod, "app.kubernetes.io/version").map(ToOwned::to_owned);
    ComponentReport {
        pod: name(pod).to_owned(),
        version: version.filter(|version| !version.is_empty()).or(labelled),
        ready,
        restarts: restarts.map(|status| i64::from(status.restart_count)).sum(),
    }
}

/// Formats the report for display.
pub(crate) fn format_report(report: &Report) -> String {
    let parts = report.control_plane.iter().map(|control| {
        vec![
            control.pod.clone(),
            version_and_state(Some(control)),
            control.restarts.to_string(),
        ]
    });
    let mut text = format_table(&["CONTROL PLANE", "VERSION", "RESTARTS"], parts);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let rows = report.nodes.iter().map(|node| {
        let pods = node.captured.zip(node.desired);
        let certificates = node.certificates.as_ref();
        vec![
            node.node.clone(),
            version_and_state(node.agent.as_ref()),
            version_and_state(node.proxy.as_ref()),
            or_dash(pods.map(|(captured, desired)| format!("{captured}/{desired}"))),
            or_dash(certificates.map(|c| format!("{}/{}", c.available, c.total))),
            or_dash(certificates.and_then(|c| c.first_expiry.clone())),
            node.xds.clone(),
            node.drifts.to_string(),
        ]
    });
    let header = [
        "NODE",
        "AGENT",
        "PROXY",
        "CAPTURED",
        "CERTIFICATES",
        "FIRST EXPIRES",
        "XDS",
        "DRIFTS",
    ];
    text.push_str("\n\n");
    text.push_str(&format_table(&header, rows));
    if !report.waypoints.is_empty() {
        text.push_str("\n\n");
        text.push_str(&waypoint_table(&report.waypoints));
    }
    for node in &report.nodes {
        let name = &node.node;
        if node.captured_by_bpf > 0 {
            let count = node.captured_by_bpf;
            text.push_str(&format!("\n{name}: pods captured by BPF programs: {count}"));
        }
        for (reason, count) in &node.not_by_bpf {
            text.push_str(&format!(
                "\n{name}: pods captured by rules instead of BPF programs: {count}: {reason}"
            ));
        }
    }
    for problem in &report.problems {
        text.push_str(&format!("\n! {problem}"));
    }
    text
}

fn waypoint_table(waypoints: &[WaypointReport]) -> String {
    let rows = waypoints.iter().flat_map(|waypoint| {
        let name = &waypoint.waypoint;
        let row = move |pod: Option<&WaypointPodReport>| {
            let certificates = pod.and_then(|pod| pod.certificates.as_ref());
            let certificates = certificates.map(|c| format!("{}/{}", c.available, c.total));
            vec![
                name.clone(),
                pod.map_or("-", |pod| &pod.part.pod).to_owned(),
                version_and_state(pod.map(|pod| &pod.part)),
                pod.map_or_else(|| "-".to_owned(), |pod| pod.part.restarts.to_string()),
                certificates.unwrap_or_else(|| "-".to_owned()),
                pod.map_or("-", |pod| &pod.xds).to_owned(),
            ]
        };
        let missing = waypoint.pods.is_empty().then(|| row(None));
        let pods = waypoint.pods.iter().map(move |pod| row(Some(pod)));
        missing.into_iter().chain(pods)
    });
    let header = [
        "WAYPOINT",
        "POD",
        "VERSION",
        "RESTARTS",
        "CERTIFICATES",
        "XDS",
    ];
    format_table(&header, rows)
}

fn version_and_state(part: Option<&ComponentReport>) -> String {
    match part {
        None => "missing".to_owned(),
        Some(part) => {
            let ready = if part.ready { "ready" } else { "NOT READY" };
            match &part.version {
                Some(version) => format!("{version} {ready}"),
                None => ready.to_owned(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
