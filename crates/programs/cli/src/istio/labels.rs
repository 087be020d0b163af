//! Labels and annotations of Istio on namespaces, services and workloads: which of them Ambit follows, and what
//! replaces the others. Labels that the control plane reads are checked by its own code, not here.

use ambit_k8s_api::{
    Object, ObjectMeta,
    enablement::{SIDECAR_STATUS_ANNOTATION, has_sidecar},
    labels::{APP, DATAPLANE_MODE, DATAPLANE_MODE_AMBIENT, GATEWAY_MANAGED, GATEWAY_NAME},
};
use kube::core::TypeMeta;
use serde::Deserialize;
use serde_json::Value;

use super::effect::Outcome::{self, Changes, Lapses, Works};

/// Kind of object whose labels and annotations a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelLocation {
    Namespace,
    Service,
    /// A pod, or the pod template of a workload.
    Workload,
}
use LabelLocation::{Namespace, Service, Workload};

/// Rule for a label or annotation of Istio.
struct LabelRule {
    location: LabelLocation,
    /// Name of the label or annotation; if it ends with a slash, the prefix of names.
    key: &'static str,
    /// Value of the label or annotation; `None` matches any value.
    value: Option<&'static str>,
    outcome: Outcome,
    effect: &'static str,
    advice: &'static str,
}

const fn rule(
    place: LabelLocation,
    (key, value): (&'static str, Option<&'static str>),
    outcome: Outcome,
    effect: &'static str,
    advice: &'static str,
) -> LabelRule {
    LabelRule {
        location: place,
        key,
        value,
        outcome,
        effect,
        advice,
    }
}

/// Placeholder in advice, replaced by the object's name.
const NAME_PLACEHOLDER: &str = "{name}";
const ENROLL_ADVICE: &str = "label it istio.io/dataplane-mode=ambient (`ambit enroll {name}`), and restart pods with sidecars";
const NO_INJECTION_EFFECT: &str = "no sidecars are injected";
const SIDECAR_SETTING_EFFECT: &str = "it is a setting of sidecars";
const REMOVE_ADVICE: &str = "remove it";
const CAPTURES_ALL_PORTS: &str = "the node proxy captures all ports";
const BYPASS_INBOUND_ADVICE: &str =
    "ambient.istio.io/bypass-inbound-capture=true leaves all inbound connections uncaptured";
const OUTBOUND_CAPTURE_EFFECT: &str =
    "all outbound connections are captured; those to addresses outside of the mesh pass unchanged";
const SIDECAR_RESOURCES_ADVICE: &str = "set the chart's ztunnel.resources, and spec.infrastructure.parametersRef of a waypoint's Gateway";

/// Rules for labels and annotations; the first one that matches applies.
const RULES: &[LabelRule] = &[
    rule(
        Namespace,
        ("istio-injection", Some("enabled")),
        Lapses,
        NO_INJECTION_EFFECT,
        ENROLL_ADVICE,
    ),
    rule(
        Namespace,
        ("istio.io/rev", None),
        Lapses,
        "no sidecars are injected, and its waypoints are left to a control plane of that revision",
        "remove it, or install a control plane of that revision (global.revision)",
    ),
    rule(
        Namespace,
        ("istio.io/dataplane-mode", Some("ambient")),
        Works,
        "its pods are captured",
        "",
    ),
    rule(
        Namespace,
        ("istio.io/dataplane-mode", Some("none")),
        Works,
        "its pods are not captured",
        "",
    ),
    rule(
        Namespace,
        ("istio.io/dataplane-mode", None),
        Lapses,
        "the value is neither ambient nor none",
        "label it istio.io/dataplane-mode=ambient (`ambit enroll {name}`)",
    ),
    rule(
        Namespace,
        ("istio.io/use-waypoint", None),
        Works,
        "it names the waypoint",
        "",
    ),
    rule(
        Service,
        ("istio.io/use-waypoint", None),
        Works,
        "it names the waypoint",
        "",
    ),
    rule(
        Workload,
        ("istio.io/use-waypoint", None),
        Works,
        "it names the waypoint",
        "",
    ),
    rule(
        Service,
        ("networking.istio.io/exportTo", None),
        Lapses,
        "Services are seen in all namespaces",
        "restrict its callers with an AuthorizationPolicy",
    ),
    rule(
        Workload,
        ("istio.io/dataplane-mode", Some("ambient")),
        Works,
        "its pods are captured",
        "",
    ),
    rule(
        Workload,
        ("istio.io/dataplane-mode", Some("none")),
        Works,
        "its pods are not captured",
        "",
    ),
    rule(
        Workload,
        ("sidecar.istio.io/inject", Some("false")),
        Lapses,
        "it does not keep pods out of the mesh",
        "label the pods istio.io/dataplane-mode=none",
    ),
    rule(
        Workload,
        ("sidecar.istio.io/inject", None),
        Lapses,
        NO_INJECTION_EFFECT,
        "label the pods istio.io/dataplane-mode=ambient",
    ),
    rule(
        Workload,
        (SIDECAR_STATUS_ANNOTATION, None),
        Lapses,
        "pods with a sidecar are not captured, and the sidecar depends on Istio's control plane",
        "turn off the injection, and restart the pods (`kubectl rollout restart`)",
    ),
    rule(
        Workload,
        ("istio.io/rev", None),
        Lapses,
        NO_INJECTION_EFFECT,
        REMOVE_ADVICE,
    ),
    rule(
        Workload,
        ("inject.istio.io/templates", Some("gateway")),
        Lapses,
        "gateways at the edge of the mesh belong to Istio's control plane",
        "keep it for them, or use another controller of the Gateway API",
    ),
    rule(
        Workload,
        ("inject.istio.io/", None),
        Lapses,
        NO_INJECTION_EFFECT,
        REMOVE_ADVICE,
    ),
    rule(
        Workload,
        ("sidecar.istio.io/proxyCPU", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        SIDECAR_RESOURCES_ADVICE,
    ),
    rule(
        Workload,
        ("sidecar.istio.io/proxyCPULimit", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        SIDECAR_RESOURCES_ADVICE,
    ),
    rule(
        Workload,
        ("sidecar.istio.io/proxyMemory", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        SIDECAR_RESOURCES_ADVICE,
    ),
    rule(
        Workload,
        ("sidecar.istio.io/proxyMemoryLimit", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        SIDECAR_RESOURCES_ADVICE,
    ),
    rule(
        Workload,
        ("sidecar.istio.io/logLevel", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        "`ambit log-level` sets the level of a node proxy or waypoint",
    ),
    rule(
        Workload,
        ("sidecar.istio.io/rewriteAppHTTPProbers", None),
        Changes,
        "kubelet's probes reach the application unchanged",
        REMOVE_ADVICE,
    ),
    rule(
        Workload,
        ("sidecar.istio.io/extraStatTags", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        "use tagOverrides of a Telemetry with targetRefs",
    ),
    rule(
        Workload,
        ("sidecar.istio.io/", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        REMOVE_ADVICE,
    ),
    rule(
        Workload,
        ("traffic.sidecar.istio.io/excludeInboundPorts", None),
        Lapses,
        CAPTURES_ALL_PORTS,
        BYPASS_INBOUND_ADVICE,
    ),
    rule(
        Workload,
        ("traffic.sidecar.istio.io/includeInboundPorts", Some("*")),
        Works,
        CAPTURES_ALL_PORTS,
        "",
    ),
    rule(
        Workload,
        ("traffic.sidecar.istio.io/includeInboundPorts", None),
        Lapses,
        CAPTURES_ALL_PORTS,
        BYPASS_INBOUND_ADVICE,
    ),
    rule(
        Workload,
        ("traffic.sidecar.istio.io/kubevirtInterfaces", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        "use the annotation istio.io/reroute-virtual-interfaces",
    ),
    rule(
        Workload,
        (
            "traffic.sidecar.istio.io/includeOutboundIPRanges",
            Some("*"),
        ),
        Works,
        OUTBOUND_CAPTURE_EFFECT,
        "",
    ),
    rule(
        Workload,
        ("traffic.sidecar.istio.io/", None),
        Lapses,
        OUTBOUND_CAPTURE_EFFECT,
        REMOVE_ADVICE,
    ),
    rule(
        Workload,
        ("proxy.istio.io/config", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        "numTrustedProxies belongs in the same annotation of a waypoint's Gateway; remove the rest",
    ),
    rule(
        Workload,
        ("proxy.istio.io/", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        REMOVE_ADVICE,
    ),
    rule(
        Workload,
        ("prometheus.istio.io/merge-metrics", Some("true")),
        Lapses,
        "metrics of the application are not merged with those of a proxy",
        "let Prometheus scrape the application's own port",
    ),
    rule(
        Workload,
        ("readiness.status.sidecar.istio.io/", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        REMOVE_ADVICE,
    ),
    rule(
        Workload,
        ("status.sidecar.istio.io/", None),
        Lapses,
        SIDECAR_SETTING_EFFECT,
        REMOVE_ADVICE,
    ),
];

/// Values of the labels `app` and `k8s-app` of Istio's own components, which are not checked.
const ISTIO_COMPONENTS: [&str; 3] = ["istiod", "ztunnel", "istio-cni-node"];

/// Label or annotation of an object, with its effect in Ambit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelEffect {
    /// Kind, namespace and name of the object that has the label or annotation.
    pub(crate) object: String,
    pub(crate) outcome: Outcome,
    pub(crate) field: String,
    pub(crate) effect: &'static str,
    pub(crate) advice: String,
}

/// Returns the labels and annotations of an object in JSON for which there is a rule. Those of a pod are attributed to
/// the workload that owns the pod.
pub(super) fn effects_of_value(value: &Value) -> Vec<LabelEffect> {
    let (Ok(TypeMeta { api_version, kind }), Ok(named)) = (
        TypeMeta::deserialize(value),
        ObjectWithTemplate::deserialize(value),
    ) else {
        return Vec::new();
    };
    let (place, at) = match (api_version.as_str(), kind.as_str()) {
        ("v1", "Namespace") => (Namespace, ""),
        ("v1", "Service") => (Service, ""),
        ("v1", "Pod") => (Workload, ""),
        ("apps/v1", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("batch/v1", "Job") => (Workload, "spec.template"),
        ("batch/v1", "CronJob") => (Workload, "spec.jobTemplate.spec.template"),
        _ => return Vec::new(),
    };
    let ObjectWithTemplate {
        metadata: own,
        spec,
    } = named;
    let name = own.name.clone().unwrap_or_default();
    let namespace = own.namespace.clone();
    let namespace = namespace.as_deref().unwrap_or("default");
    let metadata = match at {
        "" => own,
        "spec.template" => spec.template.metadata,
        _ => spec.job_template.spec.template.metadata,
    };
    let mut object = format!("{kind} {namespace}/{name}");
    let mut prefix = at;
    match (place, owner_workload(&metadata)) {
        (Namespace, _) => object = format!("{kind} {name}"),
        (Workload, Some((kind, name))) => {
            object = format!("{kind} {namespace}/{name}");
            prefix = "spec.template";
        }
        _ => {}
    }
    label_effects(&metadata, place, &object, (&name, prefix))
}

/// Metadata of an object, and of the pod template in it, in any kind of workload.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectWithTemplate {
    metadata: ObjectMeta,
    spec: TemplatedSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TemplatedSpec {
    template: PodTemplate,
    job_template: JobTemplate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodTemplate {
    metadata: ObjectMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobTemplate {
    spec: JobSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobSpec {
    template: PodTemplate,
}

/// Returns the labels and annotations of a parsed object for which there is a rule.
pub(crate) fn effects_of_object(object: &Object) -> Vec<LabelEffect> {
    let key = object.key();
    let (place, template) = match object {
        Object::Namespace(_) => (Namespace, None),
        Object::Service(_) => (Service, None),
        Object::Pod(_) => (Workload, None),
        Object::Deployment(one) => {
            let spec = one.spec.as_ref();
            let template = spec.and_then(|spec| spec.template.metadata.as_ref());
            let Some(template) = template else {
                return Vec::new();
            };
            (Workload, Some(template))
        }
        _ => return Vec::new(),
    };
    let prefix = template.map_or("", |_| "spec.template");
    let metadata = template.unwrap_or_else(|| object.metadata());
    label_effects(metadata, place, &key.to_string(), (&key.name, prefix))
}

/// Returns kind and name of the workload that owns a pod; for a Deployment's ReplicaSet, the Deployment.
fn owner_workload(pod: &ObjectMeta) -> Option<(String, String)> {
    let mut owners = pod.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let labels = pod.labels.as_ref();
    let hash = labels.and_then(|labels| labels.get("pod-template-hash"));
    let deployment = hash.and_then(|hash| owner.name.strip_suffix(&format!("-{hash}")));
    Some(match deployment {
        Some(name) if owner.kind == "ReplicaSet" => ("Deployment".to_owned(), name.to_owned()),
        _ => (owner.kind.clone(), owner.name.clone()),
    })
}

fn label_effects(
    metadata: &ObjectMeta,
    place: LabelLocation,
    object: &str,
    (name, prefix): (&str, &str),
) -> Vec<LabelEffect> {
    if place == Workload && is_mesh_component(metadata) {
        return Vec::new();
    }
    let with_sidecar = metadata.annotations.as_ref().is_some_and(has_sidecar);
    let mut found = Vec::new();
    for (list, all) in [
        ("labels", &metadata.labels),
        ("annotations", &metadata.annotations),
    ] {
        for (key, value) in all.iter().flatten() {
            // The injector writes the revision itself.
            if with_sidecar && list == "annotations" && key == "istio.io/rev" {
                continue;
            }
            let mut rules = RULES.iter().filter(|rule| rule.location == place);
            let Some(rule) = rules.find(|rule| matches_label(rule, key, value)) else {
                continue;
            };
            // Of a pod alone: its template cannot have it.
            let prefix = if key == SIDECAR_STATUS_ANNOTATION {
                ""
            } else {
                prefix
            };
            let dot = if prefix.is_empty() { "" } else { "." };
            let advice = match rule.advice {
                ENROLL_ADVICE if is_ambient(metadata) => REMOVE_ADVICE,
                advice => advice,
            };
            found.push(LabelEffect {
                object: object.to_owned(),
                outcome: rule.outcome,
                field: format!("{prefix}{dot}metadata.{list}[{key}]"),
                effect: rule.effect,
                advice: advice.replace(NAME_PLACEHOLDER, name),
            });
        }
    }
    found
}

fn is_ambient(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    let mode = labels.and_then(|labels| labels.get(DATAPLANE_MODE));
    mode.is_some_and(|mode| mode == DATAPLANE_MODE_AMBIENT)
}

fn matches_label(rule: &LabelRule, key: &str, value: &str) -> bool {
    let is_key = match rule.key.ends_with('/') {
        true => key.starts_with(rule.key),
        false => key == rule.key,
    };
    is_key && rule.value.is_none_or(|of_rule| of_rule == value)
}

/// Whether a pod belongs to a mesh's own components: control plane, agents, node proxies, or instances of a Gateway.
fn is_mesh_component(pod: &ObjectMeta) -> bool {
    let labels = pod.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    let of_part = |key| label(key).is_some_and(|app| ISTIO_COMPONENTS.contains(&app.as_str()));
    label(GATEWAY_NAME).is_some()
        || label(GATEWAY_MANAGED).is_some()
        || of_part(APP)
        || of_part("k8s-app")
}
