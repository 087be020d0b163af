//! Report about one pod of a lab.

use ambit_install::object::name;
use ambit_k8s_api::{Gateway, Pod};
use ambit_lab::LabNetns;

use super::report::{PodResponses, Report, proxy_state};
use crate::{
    CliError, ErrorKind,
    dump::Dump,
    labs::{self, client_error, objects_of_kind},
    membership::{CaptureState, MembershipRules},
    pod_access::{AGENT_DEBUG, NODE_PROXY_ADMIN},
    source::CONFIG_DUMP_PATH,
    status::query_page,
};

/// Reports on a lab's pod, found by its full name or by its Deployment's name.
pub(super) fn report(
    lab: &str,
    mesh: &str,
    namespace: &str,
    pod_name: &str,
) -> Result<Report, CliError> {
    let client = labs::find_lab(lab)?;
    let objects = client.objects().map_err(client_error)?;
    let status = client.status().map_err(client_error)?;
    let namespace = labs::find_namespace(&objects, namespace)?;
    let here = status.pods.iter();
    let here = here.filter(|pod| pod.namespace == name(&namespace));
    let beginning = format!("{pod_name}-");
    let known = here
        .clone()
        .find(|pod| pod.name == pod_name)
        .or_else(|| here.clone().find(|pod| pod.name.starts_with(&beginning)));
    let in_namespace = name(&namespace);
    let not_found = || {
        let what = format!("there is no pod {pod_name} in the namespace {in_namespace}");
        CliError::new(ErrorKind::NotFound, what)
    };
    let known = known.ok_or_else(not_found)?;
    let pods: Vec<Pod> = objects_of_kind(&objects);
    let is_it = |pod: &Pod| {
        pod.metadata.namespace.as_deref() == Some(&known.namespace) && name(pod) == known.name
    };
    let mut pod = pods.into_iter().find(is_it).ok_or_else(not_found)?;
    pod.metadata.uid = Some(known.uid.clone());
    let full = format!("{}/{}", known.namespace, known.name);
    let node = || LabNetns::Node(known.node.clone());
    let proxy = query_page(&client, node(), NODE_PROXY_ADMIN.1, CONFIG_DUMP_PATH);
    Ok(Report::new(
        &pod,
        &namespace,
        &MembershipRules::from_agent_config(None, mesh),
        PodResponses {
            node: known.node.clone(),
            annotation: match known.captured {
                true => CaptureState::Yes,
                false => CaptureState::No,
            },
            agent: query_page(&client, node(), AGENT_DEBUG.1, &format!("/v1/pods/{full}")),
            proxy: proxy.map(|dump: Dump| proxy_state(&dump, &pod)),
            gateways: objects_of_kind::<Gateway>(&objects),
        },
    ))
}
