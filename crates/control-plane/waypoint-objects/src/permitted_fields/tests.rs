//! Tests of changes that overlays may not make.

use serde_json::json;

use super::*;

/// Returns a Deployment overlay that sets one field of the pods' specification.
fn pod_overlay(spec: Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

fn proxy_overlay(fields: Value) -> Value {
    let mut container = json!({"name": "istio-proxy"});
    let into = container.as_object_mut().unwrap();
    into.extend(fields.as_object().unwrap().clone());
    pod_overlay(json!({"containers": [container]}))
}

fn rejected_path(part: WaypointObjectKind, overlay: &Value) -> Option<String> {
    let base = json!({"kind": part.kind(), "metadata": {"name": "way", "namespace": "shop"},
        "spec": {"selector": {"a": "b"}, "scaleTargetRef": {"name": "way"}}});
    check_overlay(part, overlay, &base)
        .err()
        .map(|wrong| wrong.path)
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table is as long as what it lists")]
fn overlays_cannot_change_trusted_fields() {
    let in_pod = "spec.template.spec";
    let in_proxy = "spec.template.spec.containers[0]";
    for (overlay, place) in [
        // Service account of the pods.
        (
            pod_overlay(json!({"serviceAccountName": "admin"})),
            format!("{in_pod}.serviceAccountName"),
        ),
        (
            pod_overlay(json!({"serviceAccount": "admin"})),
            format!("{in_pod}.serviceAccount"),
        ),
        (
            pod_overlay(json!({"automountServiceAccountToken": true})),
            format!("{in_pod}.automountServiceAccountToken"),
        ),
        // Programs.
        (
            proxy_overlay(json!({"image": "evil"})),
            format!("{in_proxy}.image"),
        ),
        (
            proxy_overlay(json!({"command": ["sh"]})),
            format!("{in_proxy}.command"),
        ),
        (
            proxy_overlay(json!({"args": ["-c"]})),
            format!("{in_proxy}.args"),
        ),
        (
            proxy_overlay(json!({"lifecycle": {"preStop": {"exec": {}}}})),
            format!("{in_proxy}.lifecycle"),
        ),
        (
            proxy_overlay(json!({"livenessProbe": {"exec": {"command": ["sh"]}}})),
            format!("{in_proxy}.livenessProbe.exec"),
        ),
        (
            proxy_overlay(json!({"readinessProbe": {"httpGet": {"host": "10.0.0.1"}}})),
            format!("{in_proxy}.readinessProbe.httpGet.host"),
        ),
        (
            pod_overlay(json!({"containers": [{"name": "spy", "image": "evil"}]})),
            format!("{in_proxy}.name"),
        ),
        (
            pod_overlay(json!({"initContainers": [{"name": "spy"}]})),
            format!("{in_pod}.initContainers"),
        ),
        (
            pod_overlay(json!({"containers": null})),
            format!("{in_pod}.containers"),
        ),
        (
            pod_overlay(json!({"containers": [{"$patch": "replace"}]})),
            in_proxy.to_owned(),
        ),
        (
            proxy_overlay(json!({"$patch": "replace"})),
            in_proxy.to_owned(),
        ),
        (
            pod_overlay(json!({"shareProcessNamespace": true})),
            format!("{in_pod}.shareProcessNamespace"),
        ),
        (
            pod_overlay(json!({"hostPID": true})),
            format!("{in_pod}.hostPID"),
        ),
        // Namespace and name.
        (
            pod_overlay(json!({"hostNetwork": true})),
            format!("{in_pod}.hostNetwork"),
        ),
        // Source of keys and roots.
        (
            proxy_overlay(json!({"env": [{"name": "CA_ADDRESS", "value": "evil:1"}]})),
            format!("{in_proxy}.env[0].name"),
        ),
        (
            proxy_overlay(json!({"env": [{"name": "LD_PRELOAD", "value": "/mnt/evil"}]})),
            format!("{in_proxy}.env[0].name"),
        ),
        // Settings that bypass policies are reserved for the administrator.
        (
            proxy_overlay(json!({"env": [{"name": "AMBIT_UPGRADES", "value": "spice"}]})),
            format!("{in_proxy}.env[0].name"),
        ),
        (
            proxy_overlay(json!({"env": [{"name": "XDS_ROOT_CA", "$patch": "delete"}]})),
            format!("{in_proxy}.env[0].name"),
        ),
        (
            proxy_overlay(json!({"env": [{"$patch": "replace"}]})),
            format!("{in_proxy}.env[0]"),
        ),
        (
            proxy_overlay(json!({"env": null})),
            format!("{in_proxy}.env"),
        ),
        (
            proxy_overlay(
                json!({"env": [{"name": "RUST_LOG", "valueFrom": {"secretKeyRef": {}}}]}),
            ),
            format!("{in_proxy}.env[0].valueFrom"),
        ),
        (
            proxy_overlay(json!({"envFrom": []})),
            format!("{in_proxy}.envFrom"),
        ),
        (
            proxy_overlay(
                json!({"volumeMounts": [{"mountPath": "/var/run/secrets/tokens", "name": "v"}]}),
            ),
            format!("{in_proxy}.volumeMounts[0].mountPath"),
        ),
        (
            proxy_overlay(json!({"volumeMounts": [{"mountPath": "/lib", "name": "v"}]})),
            format!("{in_proxy}.volumeMounts[0].mountPath"),
        ),
        (
            proxy_overlay(json!({"volumeMounts": [{"mountPath": "/mnt/../lib", "name": "v"}]})),
            format!("{in_proxy}.volumeMounts[0].mountPath"),
        ),
        (
            pod_overlay(json!({"volumes": [{"name": "istio-token", "$patch": "delete"}]})),
            format!("{in_pod}.volumes[0].name"),
        ),
        (
            pod_overlay(json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]})),
            format!("{in_pod}.volumes[0].hostPath"),
        ),
        (
            pod_overlay(json!({"volumes": [{"name": "v", "projected": {}}]})),
            format!("{in_pod}.volumes[0].projected"),
        ),
        // Confinement of the container.
        (
            pod_overlay(json!({"securityContext": {"runAsNonRoot": false}})),
            format!("{in_pod}.securityContext.runAsNonRoot"),
        ),
        (
            proxy_overlay(json!({"securityContext": {"privileged": true}})),
            format!("{in_proxy}.securityContext.privileged"),
        ),
        // Labels that mark the waypoint.
        (
            json!({"spec": {"selector": {}}}),
            "spec.selector".to_owned(),
        ),
        (
            json!({"spec": {"template": {"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}}}}),
            "spec.template.metadata.labels.istio.io/dataplane-mode".to_owned(),
        ),
        (
            json!({"spec": {"template": {"metadata": {"labels": {"$patch": "replace"}}}}}),
            "spec.template.metadata.labels".to_owned(),
        ),
        (
            json!({"metadata": {"labels": {"gateway.istio.io/managed": null}}}),
            "metadata.labels.gateway.istio.io/managed".to_owned(),
        ),
        (
            json!({"metadata": {"ownerReferences": []}}),
            "metadata.ownerReferences".to_owned(),
        ),
        (
            json!({"metadata": {"name": "other"}}),
            "metadata.name".to_owned(),
        ),
        (
            json!({"metadata": {"namespace": "other"}}),
            "metadata.namespace".to_owned(),
        ),
        (json!({"metadata": null}), "metadata".to_owned()),
        (json!({"kind": "Pod"}), "kind".to_owned()),
        (json!({"spec": {"$patch": "replace"}}), "spec".to_owned()),
        (json!({"$patch": "delete"}), "$patch".to_owned()),
        (json!({"status": {}}), "status".to_owned()),
    ] {
        assert_eq!(
            rejected_path(WaypointObjectKind::Deployment, &overlay),
            Some(place),
            "{overlay}"
        );
    }
    for (part, overlay, place) in [
        (
            WaypointObjectKind::Service,
            json!({"spec": {"selector": {}}}),
            "spec.selector",
        ),
        (
            WaypointObjectKind::Service,
            json!({"spec": {"type": "ExternalName"}}),
            "spec.type",
        ),
        (
            WaypointObjectKind::Service,
            json!({"spec": {"externalIPs": []}}),
            "spec.externalIPs",
        ),
        (
            WaypointObjectKind::Service,
            json!({"spec": {"clusterIP": "None"}}),
            "spec.clusterIP",
        ),
        (
            WaypointObjectKind::Service,
            json!({"spec": {"ports": [{"port": 15008, "targetPort": 1}]}}),
            "spec.ports[0].port",
        ),
        (
            WaypointObjectKind::Service,
            json!({"spec": {"ports": [{"$patch": "replace"}]}}),
            "spec.ports[0]",
        ),
        (
            WaypointObjectKind::ServiceAccount,
            json!({"secrets": []}),
            "secrets",
        ),
        (
            WaypointObjectKind::Autoscaler,
            json!({"spec": {"scaleTargetRef": {"name": "other"}}}),
            "spec.scaleTargetRef",
        ),
        (
            WaypointObjectKind::DisruptionBudget,
            json!({"spec": {"selector": null}}),
            "spec.selector",
        ),
    ] {
        assert_eq!(
            rejected_path(part, &overlay).as_deref(),
            Some(place),
            "{overlay}"
        );
    }
}

#[test]
fn overlays_may_set_placement_number_and_resources() {
    for (part, overlay) in [
        (
            WaypointObjectKind::Deployment,
            json!({"kind": "Deployment", "metadata": {"name": "way", "namespace": "shop",
            "labels": {"team": "a"}, "annotations": {"a": null}},
            "spec": {"replicas": 3, "strategy": {"$patch": "replace", "type": "Recreate"},
                "template": {"metadata": {"labels": {"team": "a"}, "annotations": {"$patch": "delete"}}}}}),
        ),
        (
            WaypointObjectKind::Deployment,
            pod_overlay(
                json!({"nodeSelector": {"a": "b"}, "tolerations": [], "affinity": null,
            "priorityClassName": "p", "volumes": [{"name": "v", "secret": {"secretName": "s"}}, {"name": "w", "$patch": "delete"}]}),
            ),
        ),
        (
            WaypointObjectKind::Deployment,
            proxy_overlay(json!({"resources": {"limits": {"cpu": "1"}},
            "env": [{"name": "RUST_LOG", "value": "debug"}, {"name": "AMBIT_ACCESS_LOG", "$patch": "delete"}],
            "volumeMounts": [{"mountPath": "/mnt/a", "name": "v"}]})),
        ),
        (
            WaypointObjectKind::Service,
            json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 15021, "$patch": "delete"}, {"port": 80}]}}),
        ),
        (
            WaypointObjectKind::ServiceAccount,
            json!({"metadata": {"annotations": {"cloud": "role"}}}),
        ),
        (
            WaypointObjectKind::Autoscaler,
            json!({"spec": {"maxReplicas": 5, "metrics": []}}),
        ),
        (
            WaypointObjectKind::DisruptionBudget,
            json!({"spec": {"minAvailable": 1}}),
        ),
    ] {
        assert_eq!(rejected_path(part, &overlay), None, "{overlay}");
    }
}
