//! Mesh membership of a pod, desired and actual with reasons, derived from objects of the API server alone.

use ambit_k8s_api::{
    Namespace, Pod,
    enablement::{Enablement, EnablementSelector, Labels, MembershipDecision, SelectorError},
    labels::{REDIRECTION, REDIRECTION_ENABLED},
};
use k8s_openapi::api::core::v1::ConfigMap;
use serde::Serialize;

/// Settings of the agents that decide which pods belong to the mesh.
#[derive(Clone, Debug)]
pub(crate) struct MembershipRules {
    enablement: Enablement,
    /// Whether the settings' label selectors cannot be parsed, so that only the agents know which pods belong to the
    /// mesh.
    is_config_unreadable: bool,
}

/// Desired membership: whether a pod should be in the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Membership {
    /// The pod belongs to the mesh, for this reason.
    In(String),
    /// The pod does not belong to the mesh, for this reason.
    Out(String),
    /// Only the agents know whether the pod belongs to the mesh: their label selectors cannot be parsed here.
    Unknown,
}

/// Actual membership: whether the agent has captured a pod's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CaptureState {
    Yes,
    /// The agent has not finished capturing the pod, or does not know the pod's state.
    Pending,
    No,
}

impl MembershipRules {
    /// Reads the rules from the agents' ConfigMap; `mesh` is the namespace of the agents.
    pub(crate) fn from_agent_config(agent_config: Option<&ConfigMap>, mesh: &str) -> Self {
        let data = agent_config.and_then(|map| map.data.as_ref());
        let setting = |key: &str| {
            data.and_then(|data| data.get(key))
                .map_or("", String::as_str)
        };
        let excluded = || setting("EXCLUDE_NAMESPACES").split(',').map(str::to_owned);
        let of = |selectors| Enablement::new(selectors, excluded(), mesh);
        match EnablementSelector::parse_list(setting("AMBIENT_ENABLEMENT_SELECTOR")).and_then(of) {
            Ok(enablement) => Self {
                enablement,
                is_config_unreadable: false,
            },
            Err(SelectorError::InvalidSyntax(_) | SelectorError::UnknownOperator { .. }) => Self {
                enablement: Enablement::with_default_selectors(excluded(), mesh),
                is_config_unreadable: true,
            },
        }
    }

    /// Whether the settings exclude the namespace regardless of its labels.
    pub(crate) fn excludes_namespace(&self, namespace: &str) -> bool {
        self.enablement.excludes_namespace(namespace)
    }

    /// Decides whether a pod should be in the mesh.
    pub(crate) fn membership(&self, pod: &Pod, namespace: &Namespace) -> Membership {
        if has_ended(pod) {
            return Membership::Out("it has ended".to_owned());
        }
        let none = Labels::new();
        let labels = namespace.metadata.labels.as_ref().unwrap_or(&none);
        let decision = self.enablement.decide_membership(pod, labels);
        let by_selector = match decision {
            MembershipDecision::IncludedByPodLabel
            | MembershipDecision::IncludedByNamespaceLabel
            | MembershipDecision::IncludedBySelector
            | MembershipDecision::ExcludedByPodLabel
            | MembershipDecision::NotLabelled
            | MembershipDecision::NotSelected => true,
            MembershipDecision::HostNetwork
            | MembershipDecision::Sidecar
            | MembershipDecision::ExcludedNamespace
            | MembershipDecision::NodeProxy => false,
        };
        if self.is_config_unreadable && by_selector {
            Membership::Unknown
        } else if decision.is_included() {
            Membership::In(decision.to_string())
        } else {
            Membership::Out(decision.to_string())
        }
    }
}

/// Reads from the agent's status annotation whether a pod is captured.
pub(crate) fn capture_state(pod: &Pod) -> CaptureState {
    let annotations = pod.metadata.annotations.as_ref();
    match annotations.and_then(|all| all.get(REDIRECTION)) {
        Some(value) if value == REDIRECTION_ENABLED => CaptureState::Yes,
        Some(_) => CaptureState::Pending,
        None => CaptureState::No,
    }
}

/// Whether all of the pod's containers have ended for good.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DATAPLANE_MODE_LABEL: &str = "istio.io/dataplane-mode";

    fn pod(label: Option<&str>, more: &Value) -> Pod {
        let mut pod = json!({"metadata": {"labels": {}, "annotations": {}, "namespace": "shop"}, "spec": {"containers": []}, "status": {}});
        if let Some(label) = label {
            pod["metadata"]["labels"][DATAPLANE_MODE_LABEL] = json!(label);
        }
        for (path, value) in more.as_object().unwrap() {
            let (parent, key) = path.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn namespace(label: Option<&str>) -> Namespace {
        let labels = label.map(|label| json!({DATAPLANE_MODE_LABEL: label}));
        serde_json::from_value(json!({"metadata": {"name": "shop", "labels": labels}})).unwrap()
    }

    fn rules(data: Value) -> MembershipRules {
        let config = serde_json::from_value(json!({"data": data})).unwrap();
        MembershipRules::from_agent_config(Some(&config), "istio-system")
    }

    #[test]
    fn labels_decide_and_some_pods_never_belong() {
        let rules = MembershipRules::from_agent_config(None, "istio-system");
        let none = json!({});
        for (own, of_namespace, expected) in [
            (None, None, false),
            (None, Some("ambient"), true),
            (Some("none"), Some("ambient"), false),
            (Some("ambient"), None, true),
            (Some("ambient"), Some("none"), true),
            (None, Some("none"), false),
        ] {
            let membership = rules.membership(&pod(own, &none), &namespace(of_namespace));
            assert_eq!(
                matches!(membership, Membership::In(_)),
                expected,
                "{own:?} {of_namespace:?}"
            );
        }
        for never in [
            json!({"/spec/hostNetwork": true}),
            json!({"/status/phase": "Succeeded"}),
            json!({"/metadata/annotations": {"sidecar.istio.io/status": "{}"}}),
            json!({"/metadata/namespace": "istio-system", "/metadata/labels/app": "ztunnel"}),
        ] {
            let never = pod(Some("ambient"), &never);
            let membership = rules.membership(&never, &namespace(Some("ambient")));
            assert!(
                matches!(membership, Membership::Out(_)),
                "{never:?} {membership:?}"
            );
        }
    }

    #[test]
    fn the_agents_settings_may_say_otherwise() {
        let excluding = rules(json!({"EXCLUDE_NAMESPACES": "kube-system, shop"}));
        let pod = pod(None, &json!({}));
        let ambient = namespace(Some("ambient"));
        let membership = excluding.membership(&pod, &ambient);
        assert!(matches!(membership, Membership::Out(why) if why.contains("excludeNamespaces")));
        let everybody = rules(json!({"AMBIENT_ENABLEMENT_SELECTOR": "[{}]"}));
        let membership = everybody.membership(&pod, &namespace(None));
        assert!(matches!(membership, Membership::In(why) if why.contains("enablementSelectors")));
    }

    #[test]
    fn of_selectors_that_cannot_be_read_only_the_agents_know() {
        for selectors in [
            "[{",
            "[{\"podSelector\":{\"matchExpressions\":[{\"key\":\"a\",\"operator\":\"Gt\"}]}}]",
        ] {
            let newer = rules(json!({
                "AMBIENT_ENABLEMENT_SELECTOR": selectors, "EXCLUDE_NAMESPACES": "kept"}));
            let ambient = namespace(Some("ambient"));
            assert_eq!(
                newer.membership(&pod(None, &json!({})), &ambient),
                Membership::Unknown
            );
            assert!(newer.excludes_namespace("kept"));
            let host = pod(None, &json!({"/spec/hostNetwork": true}));
            assert!(matches!(
                newer.membership(&host, &ambient),
                Membership::Out(_)
            ));
        }
    }

    #[test]
    fn capture_is_read_from_the_agents_annotation() {
        let of = |value: &str| {
            capture_state(&pod(
                None,
                &json!({"/metadata/annotations": {REDIRECTION: value}}),
            ))
        };
        assert_eq!(of("enabled"), CaptureState::Yes);
        assert_eq!(of("pending"), CaptureState::Pending);
        assert_eq!(capture_state(&pod(None, &json!({}))), CaptureState::No);
    }
}
