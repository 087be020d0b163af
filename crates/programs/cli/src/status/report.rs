//! What the answers of all parts mean together. Pure.

use ambit_install::{
    object::{label, name, namespace_of},
    rollout::{is_ready, node_of},
};
use ambit_k8s_api::Pod;
use serde::Serialize;

use crate::{
    answers::{AgentStatus, XdsClient},
    dump::{CertificateEntry, Entries, ProxyDump},
    output::table,
    problems::Problem,
};

/// A pod of the mesh and what it answered.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    /// The pod.
    pub(crate) pod: Pod,
    /// Its answer, or why there is none.
    pub(crate) answer: Result<T, String>,
}

/// All answers.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Names of nodes.
    pub(crate) nodes: Vec<String>,
    /// `/v1/status` of the agents.
    pub(crate) agents: Vec<Answered<AgentStatus>>,
    /// `/config_dump` of the node proxies.
    pub(crate) proxies: Vec<Answered<ProxyDump>>,
    /// `/debug/syncz` of the control plane.
    pub(crate) controls: Vec<Answered<Vec<XdsClient>>>,
    /// What the control plane finds wrong with objects.
    pub(crate) objects: Vec<Problem>,
}

/// How the mesh is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) control_plane: Vec<PartReport>,
    pub(crate) nodes: Vec<NodeReport>,
    /// What is not as it should be, over all nodes.
    pub(crate) problems: Vec<String>,
}

/// A pod of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartReport {
    pub(crate) pod: String,
    pub(crate) version: Option<String>,
    pub(crate) ready: bool,
    pub(crate) restarts: i64,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeReport {
    pub(crate) node: String,
    pub(crate) agent: Option<PartReport>,
    pub(crate) proxy: Option<PartReport>,
    /// Pods that belong to the mesh.
    pub(crate) wanted: Option<i64>,
    /// Those of them that are captured.
    pub(crate) captured: Option<i64>,
    pub(crate) certificates: Option<Certificates>,
    /// What the control plane says of the proxy's state: SYNCED, STALE, ERROR, not connected, or
    /// unknown.
    pub(crate) xds: String,
    /// How often redirection was found changed by others, and repaired.
    pub(crate) drifts: i64,
}

/// The certificates of a node proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Certificates {
    pub(crate) available: usize,
    pub(crate) total: usize,
    /// When the first of them ends.
    pub(crate) first_expiry: Option<String>,
}

const NOT_CONNECTED: &str = "not connected";
/// No replica of the control plane answers.
const UNKNOWN: &str = "unknown";

/// Puts the answers together.
pub(crate) fn report(gathered: &Gathered) -> Report {
    let mut problems = Vec::new();
    let control_plane: Vec<_> = gathered
        .controls
        .iter()
        .map(|control| part(control, None, &mut problems))
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
    if !gathered.objects.is_empty() {
        let count = gathered.objects.len();
        problems.push(format!(
            "problems with objects of the mesh: {count}; `ambit problems` lists them"
        ));
    }
    Report {
        control_plane,
        nodes,
        problems,
    }
}

fn node_report(
    node: &str,
    gathered: &Gathered,
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
    match here(&gathered.agents, node) {
        None => problems.push(format!("{node}: no agent runs")),
        Some(agent) => {
            let answer = agent.answer.as_ref().ok();
            let version = answer.map(|answer| answer.version.clone());
            report.agent = Some(part(agent, version, problems));
            if let Some(answer) = answer {
                agent_answer(node, answer, &mut report, problems);
            }
        }
    }
    match here(&gathered.proxies, node) {
        None => problems.push(format!("{node}: no node proxy runs")),
        Some(proxy) => {
            let dump = proxy.answer.as_ref().ok();
            let version = dump.map(|dump| dump.version.version.clone());
            report.proxy = Some(part(proxy, version, problems));
            report.certificates = dump.map(|dump| certificates(node, &dump.certificates, problems));
            let name = format!("{}.{}", name(&proxy.pod), namespace_of(&proxy.pod));
            if let Some(client) = clients.iter().find(|client| client.pod() == name) {
                client.state().clone_into(&mut report.xds);
            }
            if known && report.xds != "SYNCED" {
                problems.push(format!("{node}: xDS of the node proxy is {}", report.xds));
            }
        }
    }
    report
}

fn here<'a, T>(parts: &'a [Answered<T>], node: &str) -> Option<&'a Answered<T>> {
    parts.iter().find(|part| node_of(&part.pod) == Some(node))
}

fn agent_answer(
    node: &str,
    answer: &AgentStatus,
    report: &mut NodeReport,
    problems: &mut Vec<String>,
) {
    report.wanted = answer.wanted;
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
        if pod.drifts > 0 {
            problems.push(format!(
                "{node}: somebody changed the redirection of {name} {} times; it was repaired",
                pod.drifts
            ));
        }
        let state = pod.state.as_str();
        if matches!(state, "failing" | "no-namespace") {
            let why = pod.error.as_ref().unwrap_or(&pod.why);
            problems.push(format!("{node}: {name} is not captured ({state}): {why}"));
        }
        let (should, says) = (&pod.annotation, &pod.annotation_seen);
        if state != "ended" && should != says {
            problems.push(format!(
                "{node}: the annotation of {name} says {says:?} and should say {should:?}"
            ));
        }
    }
}

fn certificates(
    node: &str,
    entries: &Entries<CertificateEntry>,
    problems: &mut Vec<String>,
) -> Certificates {
    let mut certificates = Certificates::default();
    for entry in entries.known() {
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

fn part<T>(
    answered: &Answered<T>,
    version: Option<String>,
    problems: &mut Vec<String>,
) -> PartReport {
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
    PartReport {
        pod: name(pod).to_owned(),
        version: version.filter(|version| !version.is_empty()).or(labelled),
        ready,
        restarts: restarts.map(|status| i64::from(status.restart_count)).sum(),
    }
}

/// The report for people.
pub(crate) fn words(report: &Report) -> String {
    let parts = report.control_plane.iter().map(|control| {
        vec![
            control.pod.clone(),
            version_and_state(Some(control)),
            control.restarts.to_string(),
        ]
    });
    let mut text = table(&["CONTROL PLANE", "VERSION", "RESTARTS"], parts);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let rows = report.nodes.iter().map(|node| {
        let pods = node.captured.zip(node.wanted);
        let certificates = node.certificates.as_ref();
        vec![
            node.node.clone(),
            version_and_state(node.agent.as_ref()),
            version_and_state(node.proxy.as_ref()),
            or_dash(pods.map(|(captured, wanted)| format!("{captured}/{wanted}"))),
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
    text.push_str(&table(&header, rows));
    for problem in &report.problems {
        text.push_str(&format!("\n! {problem}"));
    }
    text
}

fn version_and_state(part: Option<&PartReport>) -> String {
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
