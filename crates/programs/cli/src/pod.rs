//! `ambit pod`: reports from labels, the node's agent and the node's proxy whether a pod is in the mesh, and why.

mod in_lab;
mod report;
mod waypoint;

use ambit_install::{
    object::{name, namespace_of},
    rollout::node_of,
};
use ambit_k8s_api::Gateway;
use clap::Args;

use crate::{
    CliError,
    cluster::{Target, wait},
    dump::Dump,
    enrol,
    install::failed,
    membership::captured,
    output::{self, Format},
    reach::{self, AGENT, PROXY, best},
    status,
};
use report::{Answers, Report, proxy_of, words};

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

/// Shows whether a pod is in the mesh, and why.
pub(crate) fn run(args: &PodArgs) -> Result<(), CliError> {
    let (namespace, name) = match args.name.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (args.namespace.as_str(), args.name.as_str()),
    };
    let report = match args.target.lab(args.lab.as_deref()) {
        Some(lab) => in_lab::report(&lab, &args.target.mesh_namespace, namespace, name)?,
        None => of_cluster(&args.target, namespace, name)?,
    };
    output::print(args.output, &report, || words(&report))
}

fn of_cluster(target: &Target, namespace: &str, pod_name: &str) -> Result<Report, CliError> {
    wait(async {
        let cluster = target.cluster().await?;
        let mesh = &target.mesh_namespace;
        let rules = enrol::rules(&cluster, mesh).await?;
        let namespace = enrol::namespace(&cluster, namespace).await?;
        let pod = reach::pod(&cluster, name(&namespace), pod_name).await?;
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
