//! Decides which pods belong to the mesh, by their labels and annotations and the agents' settings.
//! Pure.
//!
//! The node agent acts on [`Enablement::decide_membership`], the command line explains it, and the
//! certificate authority issues a node proxy certificates for no other pods. The settings are the
//! environment variables `AMBIENT_ENABLEMENT_SELECTOR` and `EXCLUDE_NAMESPACES`, as of Istio's
//! agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};
use serde::Deserialize;

use crate::labels::{APP, DATAPLANE_MODE, DATAPLANE_MODE_AMBIENT, DATAPLANE_MODE_NONE};
use crate::selector::matches;

/// Annotation that a sidecar injector sets on pods that it has injected.
pub const SIDECAR_STATUS_ANNOTATION: &str = "sidecar.istio.io/status";
/// Value of the label `app` of node proxies, Istio's name for them.
const ZTUNNEL_APP_LABEL: &str = "ztunnel";

/// Labels or annotations of an object.
pub type Labels = BTreeMap<String, String>;

static NO_LABELS: Labels = Labels::new();

/// Pod selector and namespace selector, which must both match a pod. An empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnablementSelector {
    /// Selector of the pod's labels.
    #[serde(default)]
    pub pod_selector: LabelSelector,
    /// Selector of the namespace's labels.
    #[serde(default)]
    pub namespace_selector: LabelSelector,
}

/// Rules that decide which pods belong to the mesh.
#[derive(Clone, Debug)]
pub struct Enablement {
    selectors: Vec<EnablementSelector>,
    /// Whether the selectors come from the agents' settings, rather than being Istio's defaults.
    has_custom_selectors: bool,
    excluded_namespaces: BTreeSet<String>,
    /// Namespace of node proxies, which are never captured.
    system_namespace: String,
}

/// Properties of a pod that decide its membership.
#[derive(Clone, Copy, Debug)]
pub struct PodFacts<'a> {
    /// Name of the pod's namespace.
    pub namespace: &'a str,
    /// Whether the pod shares the node's network namespace.
    pub host_network: bool,
    /// Labels of the pod.
    pub labels: &'a Labels,
    /// Whether the pod has a sidecar.
    pub has_sidecar: bool,
}

impl<'a> From<&'a Pod> for PodFacts<'a> {
    fn from(pod: &'a Pod) -> Self {
        let metadata = &pod.metadata;
        let spec = pod.spec.as_ref();
        Self {
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            host_network: spec.and_then(|spec| spec.host_network).unwrap_or_default(),
            labels: metadata.labels.as_ref().unwrap_or(&NO_LABELS),
            has_sidecar: metadata.annotations.as_ref().is_some_and(has_sidecar),
        }
    }
}

/// Returns whether an injector has added a sidecar to the pod with these annotations.
pub fn has_sidecar(annotations: &Labels) -> bool {
    annotations.contains_key(SIDECAR_STATUS_ANNOTATION)
}

/// Whether a pod belongs to the mesh, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipDecision {
    /// The pod is included by its own label.
    IncludedByPodLabel,
    /// The pod is included by its namespace's label.
    IncludedByNamespaceLabel,
    /// The pod is included by a selector of the agents' settings.
    IncludedBySelector,
    /// The pod is excluded, since it shares the node's network namespace.
    HostNetwork,
    /// The pod is excluded, since it has a sidecar.
    Sidecar,
    /// The pod is excluded, since the agents' settings exclude its namespace.
    ExcludedNamespace,
    /// The pod is excluded, since it is a node proxy.
    NodeProxy,
    /// The pod is excluded by its own label.
    ExcludedByPodLabel,
    /// The pod is not included: neither the pod nor its namespace has the label `istio.io/dataplane-mode=ambient`.
    NotLabelled,
    /// The pod is not included, since no selector of the agents' settings matches.
    NotSelected,
}

impl fmt::Display for MembershipDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IncludedByPodLabel => "its own label is istio.io/dataplane-mode=ambient",
            Self::IncludedByNamespaceLabel => {
                "its namespace has the label istio.io/dataplane-mode=ambient"
            }
            Self::IncludedBySelector => "a selector of cni.ambient.enablementSelectors matches it",
            Self::HostNetwork => "it uses the node's network, which is never captured",
            Self::Sidecar => "it has a sidecar (annotation sidecar.istio.io/status)",
            Self::ExcludedNamespace => "its namespace is excluded by cni.excludeNamespaces",
            Self::NodeProxy => "it is a node proxy",
            Self::ExcludedByPodLabel => "its own label is istio.io/dataplane-mode=none",
            Self::NotLabelled => {
                "neither it nor its namespace has the label istio.io/dataplane-mode=ambient"
            }
            Self::NotSelected => "no selector of cni.ambient.enablementSelectors matches it",
        })
    }
}

impl MembershipDecision {
    /// Returns whether the pod belongs to the mesh.
    pub fn is_included(self) -> bool {
        matches!(
            self,
            Self::IncludedByPodLabel | Self::IncludedByNamespaceLabel | Self::IncludedBySelector
        )
    }

    /// Returns whether no label could include the pod.
    pub fn is_never_included(self) -> bool {
        matches!(
            self,
            Self::HostNetwork | Self::Sidecar | Self::ExcludedNamespace | Self::NodeProxy
        )
    }
}

/// Error in the enablement selectors, which therefore cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Text that is not YAML or not a list of selectors.
    #[error("the enablement selector is not a list of {{podSelector, namespaceSelector}}: {0}")]
    InvalidSyntax(String),
    /// Selector with an unknown operator, which would match no pod without any error.
    #[error(
        "the enablement selector is wrong: the operator {operator:?} of label {key:?} is not In, NotIn, \
         Exists or DoesNotExist"
    )]
    UnknownOperator {
        /// Label key of the selector's requirement.
        key: String,
        /// Operator of the selector's requirement, as written.
        operator: String,
    },
}

impl EnablementSelector {
    /// Parses the setting `AMBIENT_ENABLEMENT_SELECTOR`: a list of selectors in YAML or JSON; no
    /// selectors if it is empty.
    ///
    /// # Errors
    ///
    /// When the text is not such a list.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SelectorError> {
        match text.trim() {
            "" => Ok(Vec::new()),
            text => serde_saphyr::from_str(text)
                .map_err(|error| SelectorError::InvalidSyntax(error.to_string())),
        }
    }
}

impl Enablement {
    /// Builds the rules of membership. Without `selectors`, Istio's apply: a pod labelled
    /// `istio.io/dataplane-mode=ambient`, or any pod except one labelled `none` in a namespace labelled `ambient`.
    ///
    /// # Errors
    ///
    /// When a selector has an unknown operator: it would match no pod without any error.
    pub fn new(
        selectors: Vec<EnablementSelector>,
        excluded: impl IntoIterator<Item = String>,
        system_namespace: impl Into<String>,
    ) -> Result<Self, SelectorError> {
        let usual = Self::with_default_selectors(excluded, system_namespace);
        if selectors.is_empty() {
            return Ok(usual);
        }
        for selector in &selectors {
            validate_selector(&selector.pod_selector)?;
            validate_selector(&selector.namespace_selector)?;
        }
        Ok(Self {
            selectors,
            has_custom_selectors: true,
            ..usual
        })
    }

    /// Builds the rules of membership with Istio's default selectors.
    pub fn with_default_selectors(
        excluded: impl IntoIterator<Item = String>,
        system_namespace: impl Into<String>,
    ) -> Self {
        let excluded = excluded.into_iter().map(|name| name.trim().to_owned());
        Self {
            selectors: default_selectors(),
            has_custom_selectors: false,
            excluded_namespaces: excluded.filter(|name| !name.is_empty()).collect(),
            system_namespace: system_namespace.into(),
        }
    }

    /// Returns whether the pod belongs to the mesh, in a namespace with these labels.
    pub fn includes<'a>(&self, pod: impl Into<PodFacts<'a>>, namespace: &Labels) -> bool {
        self.decide_membership(pod, namespace).is_included()
    }

    /// Returns whether the pod belongs to the mesh, and why.
    pub fn decide_membership<'a>(
        &self,
        pod: impl Into<PodFacts<'a>>,
        namespace: &Labels,
    ) -> MembershipDecision {
        let pod = pod.into();
        let mode = pod.labels.get(DATAPLANE_MODE).map(String::as_str);
        if pod.host_network {
            MembershipDecision::HostNetwork
        } else if pod.has_sidecar {
            MembershipDecision::Sidecar
        } else if self.excludes_namespace(pod.namespace) {
            MembershipDecision::ExcludedNamespace
        } else if self.is_node_proxy(&pod) {
            MembershipDecision::NodeProxy
        } else if self.selects(pod.labels, namespace) {
            match mode {
                _ if self.has_custom_selectors => MembershipDecision::IncludedBySelector,
                Some(DATAPLANE_MODE_AMBIENT) => MembershipDecision::IncludedByPodLabel,
                _ => MembershipDecision::IncludedByNamespaceLabel,
            }
        } else if mode == Some(DATAPLANE_MODE_NONE) {
            MembershipDecision::ExcludedByPodLabel
        } else if self.has_custom_selectors {
            MembershipDecision::NotSelected
        } else {
            MembershipDecision::NotLabelled
        }
    }

    /// Returns the label keys of namespaces that the selectors use.
    pub fn namespace_label_keys(&self) -> BTreeSet<String> {
        let selectors = self.selectors.iter().map(|of| &of.namespace_selector);
        let keys = selectors.flat_map(|selector| {
            let equal = selector.match_labels.iter().flat_map(BTreeMap::keys);
            let others = selector.match_expressions.iter().flatten();
            equal.chain(others.map(|requirement| &requirement.key))
        });
        keys.cloned().collect()
    }

    /// Returns whether the agents' settings exclude the namespace regardless of its labels.
    pub fn excludes_namespace(&self, namespace: &str) -> bool {
        self.excluded_namespaces.contains(namespace)
    }

    /// Returns whether a pod without labels of its own would belong to the mesh, in a namespace
    /// with these labels.
    pub fn includes_namespace(&self, name: &str, labels: &Labels) -> bool {
        !self.excludes_namespace(name) && self.selects(&Labels::new(), labels)
    }

    fn selects(&self, pod: &Labels, namespace: &Labels) -> bool {
        self.selectors.iter().any(|selector| {
            matches(&selector.pod_selector, pod) && matches(&selector.namespace_selector, namespace)
        })
    }

    fn is_node_proxy(&self, pod: &PodFacts<'_>) -> bool {
        pod.namespace == self.system_namespace
            && pod
                .labels
                .get(APP)
                .is_some_and(|app| app == ZTUNNEL_APP_LABEL)
    }
}

fn default_selectors() -> Vec<EnablementSelector> {
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

fn validate_selector(selector: &LabelSelector) -> Result<(), SelectorError> {
    let known = ["In", "NotIn", "Exists", "DoesNotExist"];
    selector
        .match_expressions
        .iter()
        .flatten()
        .find(|requirement| !known.contains(&requirement.operator.as_str()))
        .map_or(Ok(()), |requirement| {
            let LabelSelectorRequirement { key, operator, .. } = requirement.clone();
            Err(SelectorError::UnknownOperator { key, operator })
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

    fn pod(namespace: &str, pod_labels: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some(namespace.to_owned());
        pod.metadata.labels = Some(labels(pod_labels));
        pod
    }

    fn default_enablement() -> Enablement {
        let excluded = [" kube-system ".to_owned(), String::new()];
        Enablement::new(vec![], excluded, "istio-system").unwrap()
    }

    const AMBIENT: &str = "istio.io/dataplane-mode=ambient";
    const NONE: &str = "istio.io/dataplane-mode=none";

    #[test]
    fn pod_label_overrides_that_of_its_namespace() {
        use MembershipDecision::{
            ExcludedByPodLabel, IncludedByNamespaceLabel, IncludedByPodLabel, NotLabelled,
        };
        for (namespace, pod_labels, expected) in [
            ("", "", NotLabelled),
            (AMBIENT, "", IncludedByNamespaceLabel),
            ("", AMBIENT, IncludedByPodLabel),
            (AMBIENT, NONE, ExcludedByPodLabel),
            (AMBIENT, AMBIENT, IncludedByPodLabel),
            (NONE, AMBIENT, IncludedByPodLabel),
            (NONE, "", NotLabelled),
            ("", NONE, ExcludedByPodLabel),
            (
                AMBIENT,
                "istio.io/dataplane-mode=else",
                IncludedByNamespaceLabel,
            ),
        ] {
            let (pod, namespace) = (pod("a", pod_labels), labels(namespace));
            let decision = default_enablement().decide_membership(&pod, &namespace);
            assert_eq!(
                decision, expected,
                "namespace {namespace:?}, pod {pod_labels:?}"
            );
            let included = matches!(expected, IncludedByPodLabel | IncludedByNamespaceLabel);
            assert_eq!(default_enablement().includes(&pod, &namespace), included);
        }
    }

    #[test]
    fn some_pods_are_never_included() {
        let ambient = labels(AMBIENT);
        let mut host = pod("a", AMBIENT);
        host.spec.get_or_insert_default().host_network = Some(true);
        let mut sidecar = pod("a", AMBIENT);
        sidecar.metadata.annotations = Some(labels("sidecar.istio.io/status={}"));
        for (never, why) in [
            (host, MembershipDecision::HostNetwork),
            (sidecar, MembershipDecision::Sidecar),
            (
                pod("kube-system", AMBIENT),
                MembershipDecision::ExcludedNamespace,
            ),
            (
                pod("istio-system", "app=ztunnel"),
                MembershipDecision::NodeProxy,
            ),
        ] {
            assert_eq!(
                default_enablement().decide_membership(&never, &ambient),
                why,
                "{never:?}"
            );
            assert!(
                !default_enablement().includes(&never, &ambient),
                "{never:?}"
            );
        }
        assert!(default_enablement().includes(&pod("a", "app=ztunnel"), &ambient));
        let mut generic = pod("a", "");
        generic.metadata.annotations = Some(labels("sidecar.istio.io/inject=true"));
        assert!(
            default_enablement().includes(&generic, &ambient),
            "only the status opts out"
        );
    }

    #[test]
    fn namespace_is_included_if_an_unlabelled_pod_would_be() {
        assert!(default_enablement().includes_namespace("a", &labels(AMBIENT)));
        assert!(!default_enablement().includes_namespace("a", &labels("")));
        assert!(!default_enablement().includes_namespace("kube-system", &labels(AMBIENT)));
        assert!(
            default_enablement().excludes_namespace("kube-system")
                && !default_enablement().excludes_namespace("")
        );
    }

    #[test]
    fn custom_selectors_replace_the_default_ones() {
        let json = r#"[{"podSelector":{"matchExpressions":[
            {"key":"tier","operator":"In","values":["web","db"]},
            {"key":"legacy","operator":"DoesNotExist"},{"key":"app","operator":"Exists"}]}}]"#;
        let own = Enablement::new(serde_json::from_str(json).unwrap(), [], "").unwrap();
        assert!(own.includes(&pod("a", "tier=web,app=x"), &labels("")));
        assert!(!own.includes(&pod("a", "tier=web"), &labels("")));
        assert!(!own.includes(&pod("a", "tier=web,app=x,legacy=1"), &labels("")));
        assert!(!own.includes(&pod("a", "tier=else,app=x"), &labels(AMBIENT)));
        let decision = |pod_labels| own.decide_membership(&pod("a", pod_labels), &labels(AMBIENT));
        assert_eq!(
            decision("tier=db,app=x"),
            MembershipDecision::IncludedBySelector
        );
        assert_eq!(decision(AMBIENT), MembershipDecision::NotSelected);
        assert_eq!(decision(NONE), MembershipDecision::ExcludedByPodLabel);
    }

    #[test]
    fn unknown_operator_is_an_error() {
        let json = r#"[{"podSelector":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}]"#;
        let error = Enablement::new(serde_json::from_str(json).unwrap(), [], "").unwrap_err();
        assert!(error.to_string().contains("Gt"));
        assert!(serde_json::from_str::<EnablementSelector>(r#"{"podselector":{}}"#).is_err());
    }
}
