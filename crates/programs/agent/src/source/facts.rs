//! Extracts the attributes of a pod that enrolment needs, and no others, so that a node's pods take little memory.

use std::net::IpAddr;

use ambit_k8s_api::{Pod, labels::REDIRECTION};
use ambit_model::PodName;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ObjectMeta};
use serde::Deserialize;

use super::{
    Labels, PodView, RedirectionStatus,
    probe_ports::{ProbedContainer, probe_ports},
};

/// Annotation of a mirror pod by which kubelet gives the cgroup name of the static pod.
const CONFIG_HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
/// Domains of the annotations that enrolment reads.
const KEPT_ANNOTATION_DOMAINS: [&str; 2] = ["istio.io/", "ambit.io/"];

/// Fields of a pod's spec that enrolment reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpecFields {
    host_network: Option<bool>,
    service_account_name: Option<String>,
    containers: Vec<ProbedContainer>,
    init_containers: Option<Vec<ProbedContainer>>,
}

/// Fields of a pod's status that enrolment reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIp>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

/// Extracts the attributes of a complete pod object.
pub(super) fn view_of_pod(pod: &Pod) -> Option<PodView> {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    view_of_parts(
        &pod.metadata,
        &PodSpecFields {
            host_network: spec.and_then(|spec| spec.host_network),
            service_account_name: spec.and_then(|spec| spec.service_account_name.clone()),
            containers: spec
                .map(|spec| {
                    spec.containers
                        .iter()
                        .map(ProbedContainer::from_container)
                        .collect()
                })
                .unwrap_or_default(),
            init_containers: spec
                .and_then(|spec| spec.init_containers.as_ref())
                .map(|all| all.iter().map(ProbedContainer::from_container).collect()),
        },
        &PodStatus {
            phase: status.and_then(|status| status.phase.clone()),
            pod_ip: status.and_then(|status| status.pod_ip.clone()),
            pod_ips: status
                .and_then(|status| status.pod_ips.as_ref())
                .map(|ips| {
                    let ips = ips.iter().map(|ip| PodIp { ip: ip.ip.clone() });
                    ips.collect()
                }),
        },
    )
}

/// Extracts the attributes of a pod; `None` without a UID, since kubelet runs no such pod.
pub(super) fn view_of_parts(
    metadata: &ObjectMeta,
    spec: &PodSpecFields,
    status: &PodStatus,
) -> Option<PodView> {
    let uid = metadata.uid.as_deref().filter(|uid| !uid.is_empty())?;
    let annotations = metadata.annotations.iter().flatten();
    let annotation = |name| metadata.annotations.as_ref()?.get(name);
    let ips = status.pod_ips.iter().flatten().map(|ip| &ip.ip);
    let mut addresses: Vec<_> = ips.filter_map(|ip| parse_address(ip)).collect();
    if addresses.is_empty() {
        addresses.extend(status.pod_ip.as_deref().and_then(parse_address));
    }
    let service_account = spec.service_account_name.as_deref();
    let service_account = service_account.filter(|account| !account.is_empty());
    Some(PodView {
        uid: uid.to_ascii_lowercase().into(),
        name: PodName {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
            service_account: service_account.unwrap_or("default").into(),
        },
        host_network: spec.host_network.unwrap_or(false),
        deleting: metadata.deletion_timestamp.is_some(),
        terminal: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        labels: metadata.labels.clone().unwrap_or_default(),
        probe_ports: Some(probe_ports(
            &spec.containers,
            spec.init_containers.as_deref(),
        )),
        cgroup_alias: annotation(CONFIG_HASH_ANNOTATION).cloned(),
        reported: RedirectionStatus::from_annotation(annotation(REDIRECTION).map(String::as_str)),
        unchanged: is_unchanged(metadata),
        annotations: annotations
            .filter(|(key, _)| {
                KEPT_ANNOTATION_DOMAINS
                    .iter()
                    .any(|domain| key.contains(domain))
            })
            .filter(|(key, _)| *key != REDIRECTION)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect::<Labels>(),
        addresses,
    })
}

/// Whether labels and annotations are unchanged since the object's creation, according to `managedFields`. Changes
/// through the status subresource count only if they concern a label.
fn is_unchanged(metadata: &ObjectMeta) -> bool {
    let Some(created) = &metadata.creation_timestamp else {
        return false;
    };
    let changes = metadata.managed_fields.as_deref().unwrap_or_default();
    let mut of_metadata = changes.iter().filter(|change| {
        let labels = |fields: &FieldsV1| fields.0.pointer("/f:metadata/f:labels").is_some();
        change.subresource.as_deref().is_none_or(str::is_empty)
            || change.fields_v1.as_ref().is_some_and(labels)
    });
    let known = of_metadata.clone().next().is_some();
    known && of_metadata.all(|change| change.time.as_ref().is_some_and(|time| time <= created))
}

fn parse_address(text: &str) -> Option<IpAddr> {
    Some(text.parse::<IpAddr>().ok()?.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relevant_fields_are_extracted_and_status_is_separate() {
        let metadata: ObjectMeta = serde_json::from_value(serde_json::json!({
            "uid": "A-B", "name": "web", "namespace": "shop",
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{…}",
                "ambient.istio.io/redirection": "enabled",
                "ambient.istio.io/dns-capture": "false",
                "kubernetes.io/config.hash": "h",
            }
        }))
        .unwrap();
        let status = PodStatus {
            pod_ip: Some("::ffff:10.0.0.1".to_owned()),
            ..PodStatus::default()
        };
        let view = view_of_parts(&metadata, &PodSpecFields::default(), &status).unwrap();
        assert_eq!(view.probe_ports, Some(Vec::new()));
        assert_eq!(
            (&*view.uid, &*view.name.service_account),
            ("a-b", "default")
        );
        assert_eq!(
            view.annotations.keys().collect::<Vec<_>>(),
            ["ambient.istio.io/dns-capture"]
        );
        assert_eq!(view.reported, RedirectionStatus::Enabled);
        assert_eq!(view.cgroup_alias.as_deref(), Some("h"));
        assert_eq!(view.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn label_changes_after_creation_count_and_status_changes_do_not() {
        let unchanged = |changes: serde_json::Value| {
            let metadata: ObjectMeta = serde_json::from_value(serde_json::json!({
                "creationTimestamp": "2026-01-01T10:00:00Z", "managedFields": changes,
            }))
            .unwrap();
            is_unchanged(&metadata)
        };
        let change = |time: &str, subresource: &str, fields: serde_json::Value| {
            serde_json::json!({"manager": "m", "operation": "Update", "time": time,
                "subresource": subresource, "fieldsType": "FieldsV1", "fieldsV1": fields})
        };
        let labels = serde_json::json!({"f:metadata": {"f:labels": {"f:a": {}}}});
        let status = serde_json::json!({"f:status": {}});
        let made = change("2026-01-01T10:00:00Z", "", labels.clone());
        let started = change("2026-01-01T10:00:09Z", "status", status);
        assert!(unchanged(serde_json::json!([made, started])));
        let later = change("2026-01-01T10:00:05Z", "", serde_json::json!({}));
        assert!(!unchanged(serde_json::json!([made, later])));
        let relabelled = change("2026-01-01T10:00:05Z", "status", labels);
        assert!(!unchanged(serde_json::json!([made, relabelled])));
        assert!(!unchanged(serde_json::json!([started])), "not known");
    }
}
