//! Which pods belong to the mesh, by labels and annotations. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use ambit_k8s_api::labels::{DATAPLANE_MODE, DATAPLANE_MODE_AMBIENT, DATAPLANE_MODE_NONE};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::Deserialize;

use crate::source::{Labels, PodView};

/// Annotation that a sidecar injector leaves on a pod it has changed.
const SIDECAR_STATUS: &str = "sidecar.istio.io/status";

/// One way to belong: both selectors match. An empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnablementSelector {
    /// Of the pod's labels.
    #[serde(default)]
    pub pod_selector: LabelSelector,
    /// Of its namespace's labels.
    #[serde(default)]
    pub namespace_selector: LabelSelector,
}

/// Who belongs to the mesh.
#[derive(Clone, Debug)]
pub struct Enablement {
    selectors: Vec<EnablementSelector>,
    excluded: BTreeSet<String>,
    /// Where node proxies run; they are never captured themselves.
    system_namespace: String,
}

/// Whether a pod belongs to the mesh, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It belongs.
    Included,
    /// It shares the node's network namespace.
    HostNetwork,
    /// A sidecar serves it.
    Sidecar,
    /// Its namespace is kept out.
    ExcludedNamespace,
    /// It is a node proxy itself.
    NodeProxy,
    /// Its own label keeps it out.
    OptedOut,
    /// No selector matches it and its namespace.
    NotSelected,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Included => "its labels, or those of its namespace, bring it into the mesh",
            Self::HostNetwork => "it uses the node's network, which is never captured",
            Self::Sidecar => "it has a sidecar (annotation sidecar.istio.io/status)",
            Self::ExcludedNamespace => "its namespace is excluded in the agent's settings",
            Self::NodeProxy => "it is a node proxy",
            Self::OptedOut => "its label istio.io/dataplane-mode=none keeps it out",
            Self::NotSelected => {
                "neither it nor its namespace has the label istio.io/dataplane-mode=ambient"
            }
        })
    }
}

/// A selector that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operator {operator:?} of label {key:?} is not In, NotIn, Exists or DoesNotExist")]
pub struct SelectorError {
    key: String,
    operator: String,
}

impl Enablement {
    /// `selectors` empty: those of Istio, a pod labelled `istio.io/dataplane-mode=ambient`, or any
    /// but one labelled `none` in a namespace labelled `ambient`.
    ///
    /// # Errors
    /// When a selector has an unknown operator: it would match nobody, silently.
    pub fn new(
        selectors: Vec<EnablementSelector>,
        excluded: impl IntoIterator<Item = String>,
        system_namespace: impl Into<String>,
    ) -> Result<Self, SelectorError> {
        let selectors = if selectors.is_empty() {
            defaults()
        } else {
            selectors
        };
        for selector in &selectors {
            validate(&selector.pod_selector)?;
            validate(&selector.namespace_selector)?;
        }
        let excluded = excluded.into_iter().collect();
        Ok(Self {
            selectors,
            excluded,
            system_namespace: system_namespace.into(),
        })
    }

    /// Whether the pod belongs to the mesh, its namespace having these labels.
    pub fn includes(&self, pod: &PodView, namespace: &Labels) -> bool {
        self.verdict(pod, namespace) == Verdict::Included
    }

    /// Whether the pod belongs to the mesh and if not, why.
    pub fn verdict(&self, pod: &PodView, namespace: &Labels) -> Verdict {
        if pod.host_network {
            Verdict::HostNetwork
        } else if pod.annotations.contains_key(SIDECAR_STATUS) {
            Verdict::Sidecar
        } else if self.excludes(&pod.name.namespace) {
            Verdict::ExcludedNamespace
        } else if self.is_node_proxy(pod) {
            Verdict::NodeProxy
        } else if self.selects(&pod.labels, namespace) {
            Verdict::Included
        } else if pod
            .labels
            .get(DATAPLANE_MODE)
            .is_some_and(|mode| mode == DATAPLANE_MODE_NONE)
        {
            Verdict::OptedOut
        } else {
            Verdict::NotSelected
        }
    }

    /// The label keys that decide about a namespace.
    pub fn namespace_keys(&self) -> BTreeSet<String> {
        let selectors = self.selectors.iter().map(|of| &of.namespace_selector);
        let keys = selectors.flat_map(|selector| {
            let equal = selector.match_labels.iter().flat_map(BTreeMap::keys);
            let others = selector.match_expressions.iter().flatten();
            equal.chain(others.map(|requirement| &requirement.key))
        });
        keys.cloned().collect()
    }

    /// Whether the namespace is kept out whatever its labels.
    pub fn excludes(&self, namespace: &str) -> bool {
        self.excluded.contains(namespace)
    }

    /// Whether a pod without labels of its own would belong, in a namespace with these labels.
    pub fn includes_namespace(&self, name: &str, labels: &Labels) -> bool {
        !self.excludes(name) && self.selects(&Labels::new(), labels)
    }

    fn selects(&self, pod: &Labels, namespace: &Labels) -> bool {
        self.selectors.iter().any(|selector| {
            matches(&selector.pod_selector, pod) && matches(&selector.namespace_selector, namespace)
        })
    }

    fn is_node_proxy(&self, pod: &PodView) -> bool {
        *pod.name.namespace == *self.system_namespace
            && pod.labels.get("app").is_some_and(|app| app == "ztunnel")
    }
}

fn defaults() -> Vec<EnablementSelector> {
    let ambient = || LabelSelector {
        match_labels: Some(Labels::from([(
            DATAPLANE_MODE.into(),
            DATAPLANE_MODE_AMBIENT.into(),
        )])),
        match_expressions: None,
    };
    let not_none = LabelSelectorRequirement {
        key: DATAPLANE_MODE.into(),
        operator: "NotIn".into(),
        values: Some(vec![DATAPLANE_MODE_NONE.into()]),
    };
    vec![
        EnablementSelector {
            pod_selector: ambient(),
            namespace_selector: LabelSelector::default(),
        },
        EnablementSelector {
            pod_selector: LabelSelector {
                match_labels: None,
                match_expressions: Some(vec![not_none]),
            },
            namespace_selector: ambient(),
        },
    ]
}

fn validate(selector: &LabelSelector) -> Result<(), SelectorError> {
    let known = ["In", "NotIn", "Exists", "DoesNotExist"];
    selector
        .match_expressions
        .iter()
        .flatten()
        .find(|requirement| !known.contains(&requirement.operator.as_str()))
        .map_or(Ok(()), |requirement| {
            let LabelSelectorRequirement { key, operator, .. } = requirement.clone();
            Err(SelectorError { key, operator })
        })
}

fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    selector.match_labels.iter().flatten().all(equal)
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| {
                let value = labels.get(&requirement.key);
                let listed = value.is_some_and(|value| {
                    requirement.values.iter().flatten().any(|one| one == value)
                });
                match requirement.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Labels {
        text.split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn pod(namespace: &str, pod_labels: &str) -> PodView {
        let mut view = PodView {
            labels: labels(pod_labels),
            ..PodView::default()
        };
        view.name.namespace = namespace.into();
        view
    }

    fn usual() -> Enablement {
        Enablement::new(vec![], ["kube-system".to_owned()], "istio-system").unwrap()
    }

    const AMBIENT: &str = "istio.io/dataplane-mode=ambient";
    const NONE: &str = "istio.io/dataplane-mode=none";

    #[test]
    fn the_pods_label_beats_that_of_its_namespace() {
        for (namespace, pod_labels, expected) in [
            ("", "", false),
            (AMBIENT, "", true),
            ("", AMBIENT, true),
            (AMBIENT, NONE, false),
            (AMBIENT, AMBIENT, true),
            (NONE, AMBIENT, true),
            (NONE, "", false),
            (AMBIENT, "istio.io/dataplane-mode=else", true),
        ] {
            let included = usual().includes(&pod("a", pod_labels), &labels(namespace));
            assert_eq!(
                included, expected,
                "namespace {namespace:?}, pod {pod_labels:?}"
            );
        }
    }

    #[test]
    fn some_pods_never_belong() {
        let ambient = labels(AMBIENT);
        let mut host = pod("a", AMBIENT);
        host.host_network = true;
        let mut sidecar = pod("a", AMBIENT);
        sidecar.annotations = labels("sidecar.istio.io/status={}");
        for never in [
            host,
            sidecar,
            pod("kube-system", AMBIENT),
            pod("istio-system", "app=ztunnel"),
        ] {
            assert!(!usual().includes(&never, &ambient), "{never:?}");
        }
        assert!(usual().includes(&pod("a", "app=ztunnel"), &ambient));
        let mut generic = pod("a", "");
        generic.annotations = labels("sidecar.istio.io/inject=true");
        assert!(
            usual().includes(&generic, &ambient),
            "only the status opts out"
        );
    }

    #[test]
    fn namespaces_are_judged_by_a_pod_without_labels() {
        assert!(usual().includes_namespace("a", &labels(AMBIENT)));
        assert!(!usual().includes_namespace("a", &labels("")));
        assert!(!usual().includes_namespace("kube-system", &labels(AMBIENT)));
    }

    #[test]
    fn own_selectors_replace_the_usual_ones() {
        let json = r#"[{"podSelector":{"matchExpressions":[
            {"key":"tier","operator":"In","values":["web","db"]},
            {"key":"legacy","operator":"DoesNotExist"},{"key":"app","operator":"Exists"}]}}]"#;
        let own = Enablement::new(serde_json::from_str(json).unwrap(), [], "").unwrap();
        assert!(own.includes(&pod("a", "tier=web,app=x"), &labels("")));
        assert!(!own.includes(&pod("a", "tier=web"), &labels("")));
        assert!(!own.includes(&pod("a", "tier=web,app=x,legacy=1"), &labels("")));
        assert!(!own.includes(&pod("a", "tier=else,app=x"), &labels(AMBIENT)));
    }

    #[test]
    fn an_unknown_operator_is_an_error() {
        let json = r#"[{"podSelector":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}]"#;
        let error = Enablement::new(serde_json::from_str(json).unwrap(), [], "").unwrap_err();
        assert!(error.to_string().contains("Gt"));
        assert!(serde_json::from_str::<EnablementSelector>(r#"{"podselector":{}}"#).is_err());
    }
}
