//! Tests of changes that overlays may not make.

use serde_json::json;

use super::*;

/// Returns a Deployment overlay that sets one field of the pods' specification.
fn pod(spec: Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

fn proxy(fields: Value) -> Value {
    let mut container = json!({"name": "istio-proxy"});
    let into = container.as_object_mut().unwrap();
    into.extend(fields.as_object().unwrap().clone());
    pod(json!({"containers": [container]}))
}

fn refused(part: WaypointObjectKind, overlay: &Value) -> Option<String> {
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
            pod(json!({"serviceAccountName": "admin"})),
            format!("{in_pod}.serviceAccountName"),
        ),
        (
            pod(json!({"serviceAccount": "admin"})),
            format!("{in_pod}.serviceAccount"),
        ),
        (
            pod(json!({"automountServiceAccountToken": true})),
            format!("{in_pod}.automountServiceAccountToken"),
        ),
        // Programs.
        (proxy(json!({"image": "evil"})), format!("{in_proxy}.image")),
        (
            proxy(json!({"command": ["sh"]})),
            format!("{in_proxy}.command"),
        ),
        (proxy(json!({"args": ["-c"]})), format!("{in_proxy}.args")),
        (
            proxy(json!({"lifecycle": {"preStop": {"exec": {}}}})),
            format!("{in_proxy}.lifecycle"),
        ),
        (
            proxy(json!({"livenessProbe": {"exec": {"command": ["sh"]}}})),
            format!("{in_proxy}.livenessProbe.exec"),
        ),
        (
            proxy(json!({"readinessProbe": {"httpGet": {"host": "10.0.0.1"}}})),
            format!("{in_proxy}.readinessProbe.httpGet.host"),
        ),
        (
            pod(json!({"containers": [{"name": "spy", "image": "evil"}]})),
            format!("{in_proxy}.name"),
        ),
        (
            pod(json!({"initContainers": [{"name": "spy"}]})),
            format!("{in_pod}.initContainers"),
        ),
        (
            pod(json!({"containers": null})),
            format!("{in_pod}.containers"),
        ),
        (
            pod(json!({"containers": [{"$patch": "replace"}]})),
            in_proxy.to_owned(),
        ),
        (proxy(json!({"$patch": "replace"})), in_proxy.to_owned()),
        (
            pod(json!({"shareProcessNamespace": true})),
            format!("{in_pod}.shareProcessNamespace"),
        ),
        (pod(json!({"hostPID": true})), format!("{in_pod}.hostPID")),
        // Namespace and name.
        (
            pod(json!({"hostNetwork": true})),
            format!("{in_pod}.hostNetwork"),
        ),
        // Source of keys and roots.
        (
            proxy(json!({"env": [{"name": "CA_ADDRESS", "value": "evil:1"}]})),
            format!("{in_proxy}.env[0].name"),
        ),
        (
            proxy(json!({"env": [{"name": "LD_PRELOAD", "value": "/mnt/evil"}]})),
            format!("{in_proxy}.env[0].name"),
        ),
        // Settings that bypass policies are reserved for the administrator.
        (
            proxy(json!({"env": [{"name": "AMBIT_UPGRADES", "value": "spice"}]})),
            format!("{in_proxy}.env[0].name"),
        ),
        (
            proxy(json!({"env": [{"name": "XDS_ROOT_CA", "$patch": "delete"}]})),
            format!("{in_proxy}.env[0].name"),
        ),
        (
            proxy(json!({"env": [{"$patch": "replace"}]})),
            format!("{in_proxy}.env[0]"),
        ),
        (proxy(json!({"env": null})), format!("{in_proxy}.env")),
        (
            proxy(json!({"env": [{"name": "RUST_LOG", "valueFrom": {"secretKeyRef": {}}}]})),
            format!("{in_proxy}.env[0].valueFrom"),
        ),
        (proxy(json!({"envFrom": []})), format!("{in_proxy}.envFrom")),
        (
            proxy(json!({"volumeMounts": [{"mountPath": "/var/run/secrets/tokens", "name": "v"}]})),
            format!("{in_proxy}.volumeMounts[0].mountPath"),
        ),
        (
            proxy(json!({"volumeMounts": [{"mountPath": "/lib", "name": "v"}]})),
            format!("{in_proxy}.volumeMounts[0].mountPath"),
        ),
        (
            proxy(json!({"volumeMounts": [{"mountPath": "/mnt/../lib", "name": "v"}]})),
            format!("{in_proxy}.volumeMounts[0].mountPath"),
        ),
        (
            pod(json!({"volumes": [{"name": "istio-token", "$patch": "delete"}]})),
            format!("{in_pod}.volumes[0].name"),
        ),
        (
            pod(json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]})),
            format!("{in_pod}.volumes[0].hostPath"),
        ),
        (
            pod(json!({"volumes": [{"name": "v", "projected": {}}]})),
            format!("{in_pod}.volumes[0].projected"),
        ),
        // Confinement of the container.
        (
            pod(json!({"securityContext": {"runAsNonRoot": false}})),
            format!("{in_pod}.securityContext.runAsNonRoot"),
        ),
        (
            proxy(json!({"securityContext": {"privileged": true}})),
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
            refused(WaypointObjectKind::Deployment, &overlay),
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
        assert_eq!(refused(part, &overlay).as_deref(), Some(place), "{overlay}");
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
            pod(
                json!({"nodeSelector": {"a": "b"}, "tolerations": [], "affinity": null,
            "priorityClassName": "p", "volumes": [{"name": "v", "secret": {"secretName": "s"}}, {"name": "w", "$patch": "delete"}]}),
            ),
        ),
        (
            WaypointObjectKind::Deployment,
            proxy(json!({"resources": {"limits": {"cpu": "1"}},
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
        assert_eq!(refused(part, &overlay), None, "{overlay}");
    }
}
