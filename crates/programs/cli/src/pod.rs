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
    cluster::{Target, block_on},
    dump::Dump,
    enrol,
    install::install_error,
    membership::capture_state,
    output::{self, OutputFormat},
    pod_access::{self, AGENT_DEBUG, NODE_PROXY_ADMIN, choose_pod},
    status,
};
use report::{PodResponses, Report, format_report, proxy_state};

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
    output: OutputFormat,
}

/// Shows whether a pod is in the mesh, and why.
pub(crate) fn run(args: &PodArgs) -> Result<(), CliError> {
    let (namespace, name) = match args.name.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (args.namespace.as_str(), args.name.as_str()),
    };
    let report = match args.target.lab_name(args.lab.as_deref()) {
        Some(lab) => in_lab::report(&lab, &args.target.mesh_namespace, namespace, name)?,
        None => cluster_report(&args.target, namespace, name)?,
    };
    output::print_formatted(args.output, &report, || format_report(&report))
}

fn cluster_report(target: &Target, namespace: &str, pod_name: &str) -> Result<Report, CliError> {
    block_on(async {
        let cluster = target.connect().await?;
        let mesh = &target.mesh_namespace;
        let rules = enrol::load_membership_rules(&cluster, mesh).await?;
        let namespace = enrol::get_namespace(&cluster, namespace).await?;
        let pod = pod_access::get_pod(&cluster, name(&namespace), pod_name).await?;
        let node = node_of(&pod).unwrap_or_default().to_owned();
        let full = format!("{}/{}", namespace_of(&pod), name(&pod));
        let agents = pod_access::list_pods(&cluster, mesh, AGENT_DEBUG.0).await?;
        let agent = match choose_pod(&agents, Some(&node)) {
            Some(agent) => {
                let path = format!("/v1/pods/{full}");
                status::query_pod(&cluster, agent.clone(), AGENT_DEBUG.1, &path)
                    .await
                    .answer
            }
            None => Err("no agent runs on its node".to_owned()),
        };
        let proxies = pod_access::list_pods(&cluster, mesh, NODE_PROXY_ADMIN.0).await?;
        let proxy = match choose_pod(&proxies, Some(&node)) {
            Some(proxy) => {
                let dump =
                    status::query_pod(&cluster, proxy.clone(), NODE_PROXY_ADMIN.1, "/config_dump")
                        .await;
                dump.answer.map(|dump: Dump| proxy_state(&dump, &pod))
            }
            None => Err("no node proxy runs on its node".to_owned()),
        };
        let gateways = cluster.list_typed::<Gateway>(None, None).await;
        let gateways = gateways.map_err(|error| install_error(error.into()))?;
        Ok(Report::new(
            &pod,
            &namespace,
            &rules,
            PodResponses {
                node,
                annotation: capture_state(&pod),
                agent,
                proxy,
                gateways,
            },
        ))
    })
}
