//! `ambit enroll` and `unenroll`: set the label of namespaces, and wait until their pods are captured or released.

use std::time::{Duration, Instant};

use ambit_install::{
    cluster::ClusterApi,
    object, remove,
    rollout::{is_terminating, node_of},
};
use ambit_k8s_api::{Namespace, Pod};
use clap::{ArgAction, Args};

use crate::{
    CliError, ErrorKind,
    cluster::{Target, block_on},
    install::{install_error, parse_duration, print_progress},
    membership::{CaptureState, Membership, MembershipRules, capture_state, has_ended},
    output::print_line,
};

/// Interval at which the pods' states are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Flags of `ambit enrol`.
#[derive(Clone, Debug, Args)]
pub(crate) struct EnrolArgs {
    /// Names of the namespaces
    #[arg(required = true)]
    namespaces: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Wait until every pod has followed
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    wait: bool,
    /// How long to wait, such as 90s or 5m
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    timeout: Duration,
}

/// Adds the mesh label to namespaces (`enrol`) or removes it, and waits for their pods.
pub(crate) fn run(args: &EnrolArgs, enrol: bool) -> Result<(), CliError> {
    block_on(async {
        let cluster = args.target.connect().await?;
        let rules = load_membership_rules(&cluster, &args.target.mesh_namespace).await?;
        for name in &args.namespaces {
            if enrol && rules.excludes_namespace(name) {
                let what = format!(
                    "the namespace {name} is excluded from the mesh by the value cni.excludeNamespaces"
                );
                return Err(CliError::new(ErrorKind::Failed, what)
                    .with_hint("`ambit upgrade --set cni.excludeNamespaces={…}` changes it"));
            }
            get_namespace(&cluster, name).await?;
            remove::label_namespace(&cluster, name, enrol)
                .await
                .map_err(install_error)?;
        }
        for name in &args.namespaces {
            if args.wait {
                let result = wait_for(&cluster, &rules, name, enrol, args.timeout).await?;
                print_line(&result)?;
            } else {
                print_line(&format!(
                    "namespace {name}: label {}",
                    if enrol { "set" } else { "removed" }
                ))?;
            }
        }
        Ok(())
    })
}

/// Reads the rules of mesh membership from the agents' ConfigMap.
pub(crate) async fn load_membership_rules(
    cluster: &ClusterApi,
    mesh_namespace: &str,
) -> Result<MembershipRules, CliError> {
    let config = cluster
        .get_typed(Some(mesh_namespace), "ambit-agent-config")
        .await;
    let config = config.map_err(|error| install_error(error.into()))?;
    Ok(MembershipRules::from_agent_config(
        config.as_ref(),
        mesh_namespace,
    ))
}

/// Reads a namespace; an error if it does not exist.
pub(crate) async fn get_namespace(cluster: &ClusterApi, name: &str) -> Result<Namespace, CliError> {
    let found = cluster.get_typed(None, name).await;
    found
        .map_err(|error| install_error(error.into()))?
        .ok_or_else(|| CliError::new(ErrorKind::NotFound, format!("there is no namespace {name}")))
}

/// Progress of capturing, or of releasing, the pods of a namespace.
#[derive(Debug, Default, PartialEq, Eq)]
struct EnrolProgress {
    /// Number of pods that are captured, or released, as desired.
    done_count: usize,
    /// Pods that are not yet captured, or released, as desired, each with its node.
    pending: Vec<(String, String)>,
    /// Pods whose membership differs from the namespace's label, with the reason.
    exceptions: Vec<(String, String)>,
}

impl EnrolProgress {
    fn compute(rules: &MembershipRules, pods: &[Pod], namespace: &Namespace, enrol: bool) -> Self {
        let mut state = Self::default();
        for pod in pods {
            let name = object::name(pod).to_owned();
            let node = node_of(pod).unwrap_or_default().to_owned();
            // A pod that is not scheduled yet starts by the label.
            if has_ended(pod) || node.is_empty() {
                continue;
            }
            let is = capture_state(pod);
            match (rules.membership(pod, namespace), enrol) {
                (Membership::Out(why), true) | (Membership::In(why), false) => {
                    state.exceptions.push((name, why))
                }
                _ if is
                    == (if enrol {
                        CaptureState::Yes
                    } else {
                        CaptureState::No
                    }) =>
                {
                    state.done_count += 1
                }
                // Nothing is done to a pod that is ending.
                _ if is_terminating(pod) => {}
                _ => state.pending.push((name, node)),
            }
        }
        state
    }
}

/// Waits until the pods of a namespace are captured or unenrolled, and describes the result.
pub(crate) async fn wait_for(
    cluster: &ClusterApi,
    rules: &MembershipRules,
    name: &str,
    enrol: bool,
    timeout: Duration,
) -> Result<String, CliError> {
    let started = Instant::now();
    let done = if enrol { "captured" } else { "unenrolled" };
    let mut last = usize::MAX;
    loop {
        let namespace = get_namespace(cluster, name).await?;
        let pods = cluster.list_typed(Some(name), None).await;
        let pods: Vec<Pod> = pods.map_err(|error| install_error(error.into()))?;
        let state = EnrolProgress::compute(rules, &pods, &namespace, enrol);
        if state.pending.is_empty() {
            let mut text = format!("namespace {name}: {} pods {done}", state.done_count);
            for (pod, why) in &state.exceptions {
                let side = if enrol {
                    "stays outside"
                } else {
                    "stays in the mesh"
                };
                text.push_str(&format!("\n  {pod} {side}: {why}"));
            }
            return Ok(text);
        }
        if started.elapsed() >= timeout {
            let mut what = format!(
                "namespace {name}: after {} s these pods are not {done}:",
                timeout.as_secs()
            );
            for (pod, node) in &state.pending {
                what.push_str(&format!("\n  {pod} on {node}"));
            }
            return Err(CliError::new(ErrorKind::Failed, what).with_hint(format!(
                "`ambit pod NAME -n {name}` shows why, `ambit status` the state of the nodes"
            )));
        }
        if state.pending.len() != last {
            last = state.pending.len();
            print_progress(&format!(
                "namespace {name}: {} pods {done}, {last} pending",
                state.done_count
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, annotation: Option<&str>, more: &Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "labels": more.get("labels"), "annotations": {}},
            "spec": {"nodeName": "n1", "hostNetwork": more.get("hostNetwork")},
            "status": {"phase": more.get("phase")},
        });
        if let Some(annotation) = annotation {
            pod["metadata"]["annotations"]["ambient.istio.io/redirection"] = json!(annotation);
        }
        serde_json::from_value(pod).unwrap()
    }

    fn namespace(object: Value) -> Namespace {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn unenrolled_pods_are_distinguished_from_exceptions() {
        let namespace = namespace(
            json!({"metadata": {"name": "a", "labels": {"istio.io/dataplane-mode": "ambient"}}}),
        );
        let pods = [
            pod("in", Some("enabled"), &json!({})),
            pod("doubt", Some("pending"), &json!({})),
            pod("late", None, &json!({})),
            pod("host", None, &json!({"hostNetwork": true})),
            pod("ended", None, &json!({"phase": "Succeeded"})),
        ];
        let state = EnrolProgress::compute(
            &MembershipRules::from_agent_config(None, "istio-system"),
            &pods,
            &namespace,
            true,
        );
        assert_eq!(state.done_count, 1);
        let late: Vec<_> = state
            .pending
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(late, ["doubt", "late"]);
        let exceptions: Vec<_> = state
            .exceptions
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(exceptions, ["host"]);
    }

    #[test]
    fn a_pod_with_a_label_of_its_own_stays_when_the_namespace_goes() {
        let namespace = namespace(json!({"metadata": {"name": "a"}}));
        let own = json!({"labels": {"istio.io/dataplane-mode": "ambient"}});
        let pods = [
            pod("out", None, &json!({})),
            pod("late", Some("enabled"), &json!({})),
            pod("own", Some("enabled"), &own),
        ];
        let state = EnrolProgress::compute(
            &MembershipRules::from_agent_config(None, "istio-system"),
            &pods,
            &namespace,
            false,
        );
        assert_eq!(
            (
                state.done_count,
                state.pending.len(),
                state.exceptions.len()
            ),
            (1, 1, 1)
        );
    }
}
