//! Mesh membership of a namespace's pods, desired and actual with reasons, from the state of a lab or from objects of
//! the API server.

use ambit_install::{object::name, rollout::node_of};
use ambit_k8s_api::{Namespace, Pod};
use serde::Serialize;

use crate::{
    CliError,
    cluster::block_on,
    enrol,
    install::install_error,
    labs,
    membership::{CaptureState, Membership, MembershipRules, capture_state},
    pod_access::pod_phase,
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
    captured: CaptureState,
    /// Reason why the agent could not capture the pod, if known.
    message: Option<String>,
}

/// Returns the pods of a namespace with their mesh membership.
pub(super) fn list_pods(source: &Source, namespace: &str) -> Result<Vec<PodView>, CliError> {
    match source.lab_name() {
        Some(lab) => list_lab_pods(&lab, namespace, &source.target.mesh_namespace),
        None => block_on(async {
            let cluster = source.target.connect().await?;
            let rules =
                enrol::load_membership_rules(&cluster, &source.target.mesh_namespace).await?;
            let object = enrol::get_namespace(&cluster, namespace).await?;
            let pods = cluster.list_typed::<Pod>(Some(namespace), None).await;
            let pods = pods.map_err(|error| install_error(error.into()))?;
            let view = |pod: &Pod| pod_view(pod, &rules, &object, capture_state(pod));
            Ok(pods.iter().map(view).collect())
        }),
    }
}

fn list_lab_pods(lab: &str, namespace: &str, mesh: &str) -> Result<Vec<PodView>, CliError> {
    let client = labs::find_lab(lab)?;
    let objects = client.objects().map_err(labs::client_error)?;
    let status = client.status().map_err(labs::client_error)?;
    let object = labs::find_namespace(&objects, namespace)?;
    let rules = MembershipRules::from_agent_config(None, mesh);
    let pods: Vec<Pod> = labs::objects_of_kind(&objects);
    let here = pods
        .iter()
        .filter(|pod| pod.metadata.namespace.as_deref() == Some(namespace));
    let view = |pod: &Pod| {
        let mut all = status.pods.iter();
        let known = all.find(|one| one.namespace == namespace && one.name == name(pod));
        let is_captured = known.map_or(CaptureState::No, |one| match one.captured {
            true => CaptureState::Yes,
            false => CaptureState::No,
        });
        PodView {
            message: known.and_then(|one| one.message.clone()),
            node: known.map(|one| one.node.clone()).unwrap_or_default(),
            phase: known.map(|one| one.phase.clone()).unwrap_or_default(),
            ..self::pod_view(pod, &rules, &object, is_captured)
        }
    };
    Ok(here.map(view).collect())
}

fn pod_view(
    pod: &Pod,
    rules: &MembershipRules,
    namespace: &Namespace,
    captured: CaptureState,
) -> PodView {
    PodView {
        name: name(pod).to_owned(),
        node: node_of(pod).unwrap_or_default().to_owned(),
        phase: pod_phase(pod).to_owned(),
        membership: rules.membership(pod, namespace),
        captured,
        message: None,
    }
}
