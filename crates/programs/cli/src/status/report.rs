//! What the answers of all parts mean together. Pure.

use ambit_install::diagnose::is_ready;
use serde::Serialize;
use serde_json::Value;

use crate::{membership::text, output::table};

/// A pod of the mesh and what it answered.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// The pod.
    pub(crate) pod: Value,
    /// Its answer, or why there is none.
    pub(crate) answer: Result<Value, String>,
}

/// All answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    /// Names of nodes.
    pub(crate) nodes: Vec<String>,
    /// `/v1/status` of the agents.
    pub(crate) agents: Vec<Answered>,
    /// `/config_dump` of the node proxies.
    pub(crate) proxies: Vec<Answered>,
    /// `/debug/syncz` of the control plane, as `clients`.
    pub(crate) controls: Vec<Answered>,
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
    let clients: Vec<&Value> = gathered
        .controls
        .iter()
        .filter_map(|control| control.answer.as_ref().ok()?.get("clients")?.as_array())
        .flatten()
        .collect();
    let nodes = gathered
        .nodes
        .iter()
        .map(|node| node_report(node, gathered, &clients, &mut problems))
        .collect();
    Report {
        control_plane,
        nodes,
        problems,
    }
}

fn node_report(
    node: &str,
    gathered: &Gathered,
    clients: &[&Value],
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
    let here = |parts: &'_ [Answered]| {
        let found = parts
            .iter()
            .find(|part| text(&part.pod, "/spec/nodeName") == node);
        found.cloned()
    };
    match here(&gathered.agents) {
        None => problems.push(format!("{node}: no agent runs")),
        Some(agent) => {
            let version = agent
                .answer
                .as_ref()
                .ok()
                .map(|answer| text(answer, "/version").to_owned());
            report.agent = Some(part(&agent, version, problems));
            if let Ok(answer) = &agent.answer {
                agent_answer(node, answer, &mut report, problems);
            }
        }
    }
    match here(&gathered.proxies) {
        None => problems.push(format!("{node}: no node proxy runs")),
        Some(proxy) => {
            let dump = proxy.answer.as_ref().ok();
            let version = dump.map(|dump| text(dump, "/version/version").to_owned());
            report.proxy = Some(part(&proxy, version, problems));
            report.certificates = dump.map(|dump| certificates(node, dump, problems));
            let name = format!(
                "{}.{}",
                text(&proxy.pod, "/metadata/name"),
                text(&proxy.pod, "/metadata/namespace")
            );
            if let Some(client) = clients.iter().find(|client| pod_of(client) == name) {
                report.xds = xds(client);
            }
            if known && report.xds != "SYNCED" {
                problems.push(format!("{node}: xDS of the node proxy is {}", report.xds));
            }
        }
    }
    report
}

fn agent_answer(node: &str, answer: &Value, report: &mut NodeReport, problems: &mut Vec<String>) {
    let number = |key: &str| answer.get(key).and_then(Value::as_i64);
    report.wanted = number("wanted");
    report.captured = number("captured");
    if let Some(trouble) = answer.get("sourceTrouble").and_then(Value::as_str) {
        problems.push(format!(
            "{node}: the agent cannot follow the API server: {trouble}"
        ));
    }
    if number("proxies") == Some(0) {
        problems.push(format!("{node}: no node proxy is connected to the agent"));
    }
    for pod in answer
        .get("pods")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let name = format!("{}/{}", text(pod, "/namespace"), text(pod, "/name"));
        let drifts = pod.get("drifts").and_then(Value::as_i64).unwrap_or(0);
        report.drifts += drifts;
        if drifts > 0 {
            problems.push(format!(
                "{node}: somebody changed the redirection of {name} {drifts} times; it was repaired"
            ));
        }
        let state = text(pod, "/state");
        if matches!(state, "failing" | "no-namespace") {
            let why = pod.get("error").and_then(Value::as_str);
            let why = why.unwrap_or_else(|| text(pod, "/why"));
            problems.push(format!("{node}: {name} is not captured ({state}): {why}"));
        }
        let (should, says) = (text(pod, "/annotation"), text(pod, "/annotationSeen"));
        if state != "ended" && should != says {
            problems.push(format!(
                "{node}: the annotation of {name} says {says:?} and should say {should:?}"
            ));
        }
    }
}

fn certificates(node: &str, dump: &Value, problems: &mut Vec<String>) -> Certificates {
    let mut certificates = Certificates::default();
    for entry in dump
        .get("certificates")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        certificates.total += 1;
        let state = text(entry, "/state");
        if state == "Available" {
            certificates.available += 1;
        } else {
            let identity = text(entry, "/identity");
            problems.push(format!("{node}: the certificate of {identity} is {state}"));
        }
        let expiry = text(entry, "/certChain/0/expirationTime");
        // RFC 3339 in UTC sorts as text.
        let first = certificates.first_expiry.as_deref();
        if !expiry.is_empty() && first.is_none_or(|first| expiry < first) {
            certificates.first_expiry = Some(expiry.to_owned());
        }
    }
    certificates
}

/// The pod in a client's node id, `type~address~pod.namespace~domain`.
fn pod_of(client: &Value) -> &str {
    text(client, "/proxy").split('~').nth(2).unwrap_or_default()
}

/// The worst state of a client's subscriptions.
fn xds(client: &Value) -> String {
    let subscriptions = client.get("subscriptions").and_then(Value::as_object);
    let states: Vec<_> = subscriptions
        .into_iter()
        .flatten()
        .map(|(_, subscription)| text(subscription, "/state"))
        .collect();
    let worst = ["ERROR", "STALE", "SYNCED"]
        .into_iter()
        .find(|state| states.contains(state));
    worst.unwrap_or("nothing asked for").to_owned()
}

fn part(answered: &Answered, version: Option<String>, problems: &mut Vec<String>) -> PartReport {
    let pod = &answered.pod;
    let name = text(pod, "/metadata/name").to_owned();
    let node = match text(pod, "/spec/nodeName") {
        "" => "no node yet",
        node => node,
    };
    let ready = is_ready(pod);
    if let Err(error) = &answered.answer {
        problems.push(format!("{node}: {name}: {error}"));
    } else if !ready {
        problems.push(format!("{node}: {name} is not ready"));
    }
    let statuses = pod
        .pointer("/status/containerStatuses")
        .and_then(Value::as_array);
    let restarts = statuses
        .into_iter()
        .flatten()
        .filter_map(|status| status.get("restartCount")?.as_i64())
        .sum();
    let labelled = text(pod, "/metadata/labels/app.kubernetes.io~1version");
    let labelled = Some(labelled.to_owned()).filter(|version| !version.is_empty());
    PartReport {
        pod: name,
        version: version.filter(|version| !version.is_empty()).or(labelled),
        ready,
        restarts,
    }
}

/// The report for people.
pub(crate) fn words(report: &Report) -> String {
    let parts = report.control_plane.iter().map(|control| {
        vec![
            control.pod.clone(),
            standing(Some(control)),
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
            standing(node.agent.as_ref()),
            standing(node.proxy.as_ref()),
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

fn standing(part: Option<&PartReport>) -> String {
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
