//! Report about one pod of a lab.

use ambit_install::object::name;
use ambit_k8s_api::{Gateway, Pod};
use ambit_lab::LabNetns;

use super::report::{Answers, Report, proxy_of};
use crate::{
    CliError, ErrorKind,
    dump::Dump,
    labs::{self, client_error, of_kind},
    membership::{Captured, Rules},
    reach::{AGENT, PROXY},
    source::DUMP,
    status::answer_of,
};

/// Reports on a lab's pod, found by its full name or by its Deployment's name.
pub(super) fn report(
    lab: &str,
    mesh: &str,
    namespace: &str,
    pod_name: &str,
) -> Result<Report, CliError> {
    let client = labs::find(lab)?;
    let objects = client.objects().map_err(client_error)?;
    let status = client.status().map_err(client_error)?;
    let namespace = labs::namespace(&objects, namespace)?;
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
    let pods: Vec<Pod> = of_kind(&objects);
    let is_it = |pod: &Pod| {
        pod.metadata.namespace.as_deref() == Some(&known.namespace) && name(pod) == known.name
    };
    let mut pod = pods.into_iter().find(is_it).ok_or_else(not_found)?;
    pod.metadata.uid = Some(known.uid.clone());
    let full = format!("{}/{}", known.namespace, known.name);
    let node = || LabNetns::Node(known.node.clone());
    let proxy = answer_of(&client, node(), PROXY.1, DUMP);
    Ok(Report::new(
        &pod,
        &namespace,
        &Rules::of(None, mesh),
        Answers {
            node: known.node.clone(),
            annotation: match known.captured {
                true => Captured::Yes,
                false => Captured::No,
            },
            agent: answer_of(&client, node(), AGENT.1, &format!("/v1/pods/{full}")),
            proxy: proxy.map(|dump: Dump| proxy_of(&dump, &pod)),
            gateways: of_kind::<Gateway>(&objects),
        },
    ))
}
