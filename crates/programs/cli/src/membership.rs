//! Whether a pod should be in the mesh, whether it is, and why: from the API server's objects alone.

use serde::Serialize;
use serde_json::Value;

/// Label of pods and namespaces.
const MODE: &str = "istio.io/dataplane-mode";
/// Annotation that a sidecar injector leaves.
const SIDECAR: &str = "sidecar.istio.io/status";
/// Annotation that the node agent writes.
const REDIRECTION: &str = "ambient.istio.io/redirection";

/// What the agents were told, as far as it decides who belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Namespaces kept out whatever their labels.
    pub(crate) excluded: Vec<String>,
    /// Selectors of the user's own: then only the agents know.
    pub(crate) custom: bool,
}

/// Whether a pod should be in the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Wanted {
    /// It should; why.
    In(String),
    /// It should not; why.
    Out(String),
    /// Only the agents know.
    Unknown,
}

/// Whether a pod is in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Captured {
    Yes,
    /// The agent has not finished, or is in doubt.
    Pending,
    No,
}

impl Rules {
    /// From the agents' settings.
    pub(crate) fn of(agent_config: Option<&Value>) -> Self {
        let text = |key: &str| {
            let value = agent_config
                .and_then(|map| map.get("data"))
                .and_then(|data| data.get(key));
            value.and_then(Value::as_str).unwrap_or_default()
        };
        let excluded = text("EXCLUDE_NAMESPACES").split(',').map(str::trim);
        Self {
            excluded: excluded
                .filter(|name| !name.is_empty())
                .map(ToOwned::to_owned)
                .collect(),
            custom: !text("AMBIENT_ENABLEMENT_SELECTOR").trim().is_empty(),
        }
    }

    /// Whether a pod should be in the mesh.
    pub(crate) fn wanted(&self, pod: &Value, namespace: &Value) -> Wanted {
        let out = |why: &str| Wanted::Out(why.to_owned());
        let name = text(namespace, "/metadata/name");
        if pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
            return out("it uses the node's network, which is not captured");
        }
        if has_ended(pod) {
            return out("it has ended");
        }
        if entry(pod, "annotations", SIDECAR).is_some() {
            return out("it has a sidecar of its own");
        }
        if self.excluded.iter().any(|excluded| excluded == name) {
            return Wanted::Out(format!(
                "the namespace {name} is kept out by the value cni.excludeNamespaces"
            ));
        }
        if self.custom {
            return Wanted::Unknown;
        }
        match (entry(pod, "labels", MODE), entry(namespace, "labels", MODE)) {
            (Some("ambient"), _) => Wanted::In(format!("its own label is {MODE}=ambient")),
            (Some("none"), _) => Wanted::Out(format!("its own label is {MODE}=none")),
            (_, Some("ambient")) => Wanted::In(format!("its namespace has {MODE}=ambient")),
            _ => Wanted::Out(format!("neither it nor its namespace has {MODE}=ambient")),
        }
    }
}

/// Whether a pod is in the mesh, as its node's agent has written.
pub(crate) fn captured(pod: &Value) -> Captured {
    match entry(pod, "annotations", REDIRECTION) {
        Some("enabled") => Captured::Yes,
        Some(_) => Captured::Pending,
        None => Captured::No,
    }
}

/// Whether all of the pod's containers have ended for good.
pub(crate) fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

fn entry<'a>(object: &'a Value, map: &str, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get(map)?.get(key)?.as_str()
}

/// A text at a path; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(label: Option<&str>, more: &Value) -> Value {
        let mut pod =
            json!({"metadata": {"labels": {}, "annotations": {}}, "spec": {}, "status": {}});
        if let Some(label) = label {
            pod["metadata"]["labels"][MODE] = json!(label);
        }
        for (key, value) in more.as_object().unwrap() {
            *pod.pointer_mut(key.rsplit_once('/').unwrap().0).unwrap() = value.clone();
        }
        pod
    }

    #[test]
    fn labels_decide_and_some_pods_never_belong() {
        let namespace = |label: Option<&str>| match label {
            Some(label) => json!({"metadata": {"name": "shop", "labels": {MODE: label}}}),
            None => json!({"metadata": {"name": "shop"}}),
        };
        let rules = Rules::default();
        let none = json!({});
        for (own, of_namespace, expected) in [
            (None, None, false),
            (None, Some("ambient"), true),
            (Some("none"), Some("ambient"), false),
            (Some("ambient"), None, true),
            (Some("ambient"), Some("none"), true),
            (None, Some("none"), false),
        ] {
            let wanted = rules.wanted(&pod(own, &none), &namespace(of_namespace));
            assert_eq!(
                matches!(wanted, Wanted::In(_)),
                expected,
                "{own:?} {of_namespace:?}"
            );
        }
        for never in [
            json!({"/spec/x": {"hostNetwork": true}}),
            json!({"/status/x": {"phase": "Succeeded"}}),
            json!({"/metadata/annotations/x": {SIDECAR: "{}"}}),
        ] {
            let wanted = rules.wanted(&pod(Some("ambient"), &never), &namespace(Some("ambient")));
            assert!(matches!(wanted, Wanted::Out(_)), "{never} {wanted:?}");
        }
    }

    #[test]
    fn the_agents_settings_may_say_otherwise() {
        let config = json!({"data": {"EXCLUDE_NAMESPACES": "kube-system, shop"}});
        let namespace = json!({"metadata": {"name": "shop", "labels": {MODE: "ambient"}}});
        let rules = Rules::of(Some(&config));
        let wanted = rules.wanted(&pod(None, &json!({})), &namespace);
        assert!(matches!(wanted, Wanted::Out(why) if why.contains("excludeNamespaces")));
        let config = json!({"data": {"AMBIENT_ENABLEMENT_SELECTOR": "[{}]"}});
        let wanted = Rules::of(Some(&config)).wanted(&pod(None, &json!({})), &namespace);
        assert_eq!(wanted, Wanted::Unknown);
    }

    #[test]
    fn the_agents_annotation_tells_whether_it_is_captured() {
        let of =
            |value: &str| captured(&json!({"metadata": {"annotations": {REDIRECTION: value}}}));
        assert_eq!(of("enabled"), Captured::Yes);
        assert_eq!(of("pending"), Captured::Pending);
        assert_eq!(captured(&json!({})), Captured::No);
    }
}
