//! `ambit pod`: whether a pod is in the mesh, and why, by all sources: the labels, the node's
//! agent, the node's proxy.

mod in_lab;
mod waypoint;

use ambit_install::{
    object::{name, namespace_of},
    rollout::node_of,
};
use ambit_k8s_api::{Gateway, Namespace, Pod};
use clap::Args;
use serde::Serialize;

use crate::{
    CliError,
    answers::AgentPod,
    cluster::{Target, wait},
    dump::{Dump, PodEntry, or},
    enrol,
    install::failed,
    membership::{Captured, Rules, Wanted, captured},
    output::{self, Format},
    reach::{self, AGENT, PROXY, best},
    status,
};
use waypoint::Binding;

/// Flags of `ambit pod`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PodArgs {
    /// The pod: a name, the beginning of one, or namespace/name
    name: String,
    /// Namespace of the pod
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Pod of this lab; otherwise of the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    lab: Option<String>,
    #[command(flatten)]
    target: Target,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Reports of all parts on a pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Name of the pod, `namespace/name`.
    pod: String,
    node: String,
    verdict: Verdict,
    /// Membership by labels and settings.
    wanted: Wanted,
    /// Annotation that the agent wrote on the pod.
    annotation: Captured,
    /// Answer of the node's agent.
    agent: Result<AgentPod, String>,
    /// Answer of the node's proxy.
    proxy: Result<Proxy, String>,
    /// The waypoint of requests to the pod itself.
    waypoint: Binding,
}

/// The pod as its node's proxy has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Proxy {
    /// Whether the proxy listens in the pod.
    serves: bool,
    /// Connections it carries for the pod.
    connections: usize,
    /// State of the certificate of the pod's identity, if there is one.
    certificate: Option<String>,
    /// How others reach the pod, as the control plane has published it: `HBONE` or `TCP`; none if it
    /// has not.
    protocol: Option<String>,
    /// Its waypoint, as the control plane has published it.
    waypoint: Option<String>,
}

/// Mesh membership of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Verdict {
    /// In the mesh, by all sources.
    In,
    /// Pod that should be in the mesh, and is not.
    NotYet,
    /// In the mesh, but it should not be any longer.
    Leaving,
    /// Outside, as it should be.
    Out,
    /// Sources disagree, or one does not respond.
    Unclear,
}

/// Shows the report.
pub(crate) fn run(args: &PodArgs) -> Result<(), CliError> {
    let (namespace, wanted) = match args.name.split_once('/') {
        Some((namespace, wanted)) => (namespace, wanted),
        None => (args.namespace.as_str(), args.name.as_str()),
    };
    let report = match args.target.lab(args.lab.as_deref()) {
        Some(lab) => in_lab::report(&lab, &args.target.mesh_namespace, namespace, wanted)?,
        None => of_cluster(&args.target, namespace, wanted)?,
    };
    output::print(args.output, &report, || words(&report))
}

fn of_cluster(target: &Target, namespace: &str, wanted: &str) -> Result<Report, CliError> {
    wait(async {
        let cluster = target.cluster().await?;
        let mesh = &target.mesh_namespace;
        let rules = enrol::rules(&cluster, mesh).await?;
        let namespace = enrol::namespace(&cluster, namespace).await?;
        let pod = reach::pod(&cluster, name(&namespace), wanted).await?;
        let node = node_of(&pod).unwrap_or_default().to_owned();
        let full = format!("{}/{}", namespace_of(&pod), name(&pod));
        let agents = reach::pods(&cluster, mesh, AGENT.0).await?;
        let agent = match best(&agents, Some(&node)) {
            Some(agent) => {
                let path = format!("/v1/pods/{full}");
                status::ask(&cluster, agent.clone(), AGENT.1, &path)
                    .await
                    .answer
            }
            None => Err("no agent runs on its node".to_owned()),
        };
        let proxies = reach::pods(&cluster, mesh, PROXY.0).await?;
        let proxy = match best(&proxies, Some(&node)) {
            Some(proxy) => {
                let dump = status::ask(&cluster, proxy.clone(), PROXY.1, "/config_dump").await;
                dump.answer.map(|dump: Dump| proxy_of(&dump, &pod))
            }
            None => Err("no node proxy runs on its node".to_owned()),
        };
        let gateways = cluster.all::<Gateway>(None, None).await;
        let gateways = gateways.map_err(|error| failed(error.into()))?;
        Ok(Report::new(
            &pod,
            &namespace,
            &rules,
            Answers {
                node,
                annotation: captured(&pod),
                agent,
                proxy,
                gateways,
            },
        ))
    })
}

/// Answers of all parts on a pod.
struct Answers {
    node: String,
    annotation: Captured,
    agent: Result<AgentPod, String>,
    proxy: Result<Proxy, String>,
    gateways: Vec<Gateway>,
}

impl Report {
    fn new(pod: &Pod, namespace: &Namespace, rules: &Rules, answers: Answers) -> Self {
        let wanted = rules.wanted(pod, namespace);
        let Answers {
            node,
            annotation,
            agent,
            proxy,
            gateways,
        } = answers;
        Self {
            pod: format!("{}/{}", namespace_of(pod), name(pod)),
            node,
            verdict: verdict(&wanted, annotation, &agent, &proxy),
            waypoint: waypoint::binding(pod, namespace, &gateways),
            wanted,
            annotation,
            agent,
            proxy,
        }
    }
}

fn proxy_of(dump: &Dump, pod: &Pod) -> Proxy {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let state = dump.workload_state.get(uid);
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref());
    let account = or(account.unwrap_or_default(), "default");
    let identity = format!("/ns/{}/sa/{account}", namespace_of(pod));
    let mut certificates = dump.certificates.known();
    let certificate = certificates.find(|entry| entry.identity.ends_with(&identity));
    let workload = dump
        .workloads
        .known()
        .find(|workload| workload.namespace == namespace_of(pod) && workload.name == name(pod));
    Proxy {
        serves: state.is_some_and(|state| state.state != "Pending"),
        connections: state.map_or(0, PodEntry::open),
        certificate: certificate.map(|entry| entry.state.clone()),
        protocol: workload.map(|workload| or(&workload.protocol, "TCP").to_owned()),
        waypoint: workload.and_then(|workload| {
            let waypoint = workload.waypoint.as_ref();
            waypoint.map(|waypoint| waypoint.destination())
        }),
    }
}

fn verdict(
    wanted: &Wanted,
    annotation: Captured,
    agent: &Result<AgentPod, String>,
    proxy: &Result<Proxy, String>,
) -> Verdict {
    let (Ok(agent), Ok(proxy)) = (agent, proxy) else {
        return match wanted {
            Wanted::Out(_) if annotation == Captured::No => Verdict::Out,
            _ => Verdict::Unclear,
        };
    };
    let belongs = match wanted {
        Wanted::In(_) => true,
        Wanted::Out(_) => false,
        Wanted::Unknown => agent.wanted,
    };
    let is = agent.state == "captured";
    match (belongs, is) {
        (true, true) if proxy.serves && annotation == Captured::Yes => Verdict::In,
        (true, true) => Verdict::Unclear,
        (true, false) => Verdict::NotYet,
        (false, true) => Verdict::Leaving,
        (false, false) if proxy.serves || annotation != Captured::No => Verdict::Leaving,
        (false, false) => Verdict::Out,
    }
}

fn words(report: &Report) -> String {
    let verdict = match report.verdict {
        Verdict::In => "is in the mesh",
        Verdict::NotYet => "should be in the mesh and is NOT (yet)",
        Verdict::Leaving => "is leaving the mesh",
        Verdict::Out => "is outside the mesh",
        Verdict::Unclear => "is in doubt: agent, proxy and labels disagree",
    };
    let mut lines = vec![format!("{} on {} {verdict}", report.pod, report.node)];
    lines.push(match &report.wanted {
        Wanted::In(why) => format!("  by its labels: in, because {why}"),
        Wanted::Out(why) => format!("  by its labels: out, because {why}"),
        Wanted::Unknown => {
            "  by its labels: decided by cni.ambient.enablementSelectors, see the agent".to_owned()
        }
    });
    let annotation = match report.annotation {
        Captured::Yes => "enabled",
        Captured::Pending => "pending",
        Captured::No => "none",
    };
    lines.push(format!(
        "  annotation ambient.istio.io/redirection: {annotation}"
    ));
    let Binding { waypoint, why } = &report.waypoint;
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

    fn proxy(serves: bool) -> Result<Proxy, String> {
        Ok(Proxy {
            serves,
            connections: 0,
            certificate: None,
            protocol: None,
            waypoint: None,
        })
    }

    #[test]
    fn a_pod_is_in_the_mesh_only_if_all_agree() {
        let wanted = || Wanted::In(String::new());
        let out = || Wanted::Out(String::new());
        let agent = |state: &str| {
            Ok(AgentPod {
                state: state.to_owned(),
                wanted: true,
                ..AgentPod::default()
            })
        };
        for (wanted, annotation, agent, proxy, expected) in [
            (
                wanted(),
                Captured::Yes,
                agent("captured"),
                proxy(true),
                Verdict::In,
            ),
            (
                wanted(),
                Captured::No,
                agent("captured"),
                proxy(true),
                Verdict::Unclear,
            ),
            (
                wanted(),
                Captured::Yes,
                agent("captured"),
                proxy(false),
                Verdict::Unclear,
            ),
            (
                wanted(),
                Captured::Pending,
                agent("failing"),
                proxy(false),
                Verdict::NotYet,
            ),
            (
                wanted(),
                Captured::Yes,
                Err("away".into()),
                proxy(true),
                Verdict::Unclear,
            ),
            (
                out(),
                Captured::No,
                agent("outside"),
                proxy(false),
                Verdict::Out,
            ),
            (
                out(),
                Captured::Yes,
                agent("leaving"),
                proxy(true),
                Verdict::Leaving,
            ),
            (
                out(),
                Captured::No,
                Err("away".into()),
                proxy(false),
                Verdict::Out,
            ),
            (
                Wanted::Unknown,
                Captured::Yes,
                agent("captured"),
                proxy(true),
                Verdict::In,
            ),
        ] {
            assert_eq!(
                verdict(&wanted, annotation, &agent, &proxy),
                expected,
                "{wanted:?} {agent:?}"
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
        let expected = Proxy {
            serves: true,
            connections: 3,
            certificate: Some("Available".into()),
            protocol: Some("HBONE".into()),
            waypoint: None,
        };
        let dump = serde_json::from_value(dump).unwrap();
        assert_eq!(proxy_of(&dump, &pod), expected);
        assert!(!proxy_of(&Dump::default(), &pod).serves);
    }

    #[test]
    fn the_report_in_words() {
        let report = Report {
            pod: "a/b".into(),
            node: "n1".into(),
            verdict: Verdict::NotYet,
            wanted: Wanted::In("its namespace has istio.io/dataplane-mode=ambient".into()),
            annotation: Captured::Pending,
            agent: Ok(serde_json::from_value(
                json!({"state": "failing", "why": "a step failed", "error": "no nft",
                             "listeners": true, "redirected": false, "drifts": 1}),
            )
            .unwrap()),
            proxy: proxy(true),
            waypoint: Binding {
                waypoint: Some("a/waypoint".into()),
                why: "its Gateway is for the whole namespace".into(),
            },
        };
        insta::assert_snapshot!(words(&report));
    }
}
