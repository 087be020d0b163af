//! Mesh membership of a namespace's pods, desired and actual with reasons, from the state of a lab or from objects of
//! the API server.

use ambit_install::{object::name, rollout::node_of};
use ambit_k8s_api::{Namespace, Pod};
use serde::Serialize;

use crate::{
    CliError,
    cluster::wait,
    enrol,
    install::failed,
    labs,
    membership::{Captured, Membership, Rules, captured},
    reach::phase,
    source::Source,
};

/// Pod and its mesh membership, as the page shows it.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodView {
    name: String,
    node: String,
    phase: String,
    #[serde(rename = "wanted")]
    membership: Membership,
    captured: Captured,
    /// Reason why the agent could not capture the pod, if known.
    message: Option<String>,
}

/// Returns the pods of a namespace with their mesh membership.
pub(super) fn of(source: &Source, namespace: &str) -> Result<Vec<PodView>, CliError> {
    match source.lab() {
        Some(lab) => of_lab(&lab, namespace, &source.target.mesh_namespace),
        None => wait(async {
            let cluster = source.target.cluster().await?;
            let rules = enrol::rules(&cluster, &source.target.mesh_namespace).await?;
            let object = enrol::namespace(&cluster, namespace).await?;
            let pods = cluster.all::<Pod>(Some(namespace), None).await;
            let pods = pods.map_err(|error| failed(error.into()))?;
            let view = |pod: &Pod| view(pod, &rules, &object, captured(pod));
            Ok(pods.iter().map(view).collect())
        }),
    }
}

fn of_lab(lab: &str, namespace: &str, mesh: &str) -> Result<Vec<PodView>, CliError> {
    let client = labs::find(lab)?;
    let objects = client.objects().map_err(labs::client_error)?;
    let status = client.status().map_err(labs::client_error)?;
    let object = labs::namespace(&objects, namespace)?;
    let rules = Rules::of(None, mesh);
    let pods: Vec<Pod> = labs::of_kind(&objects);
    let here = pods
        .iter()
        .filter(|pod| pod.metadata.namespace.as_deref() == Some(namespace));
    let view = |pod: &Pod| {
        let mut all = status.pods.iter();
        let known = all.find(|one| one.namespace == namespace && one.name == name(pod));
        let is_captured = known.map_or(Captured::No, |one| match one.captured {
            true => Captured::Yes,
            false => Captured::No,
        });
        PodView {
            message: known.and_then(|one| one.message.clone()),
            node: known.map(|one| one.node.clone()).unwrap_or_default(),
            phase: known.map(|one| one.phase.clone()).unwrap_or_default(),
            ..self::view(pod, &rules, &object, is_captured)
        }
    };
    Ok(here.map(view).collect())
}

fn view(pod: &Pod, rules: &Rules, namespace: &Namespace, captured: Captured) -> PodView {
    PodView {
        name: name(pod).to_owned(),
        node: node_of(pod).unwrap_or_default().to_owned(),
        phase: phase(pod).to_owned(),
        membership: rules.membership(pod, namespace),
        captured,
        message: None,
    }
}
