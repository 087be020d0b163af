//! Tests of ConfigMaps that are merged into the objects of a waypoint.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use ambit_k8s_api::{ConfigMap, Gateway};
use ambit_waypoint_objects::{
    ConfigMaps, InvalidParameters, Parameters, Settings, WaypointError, WaypointObjects,
    build_objects,
};
use serde_json::{Value, json};

fn gateway(reference: Option<Value>) -> Gateway {
    let infrastructure = reference.map(|to| json!({"parametersRef": to}));
    let value = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "waypoint", "namespace": "shop", "uid": "1234"},
        "spec": {"gatewayClassName": "istio-waypoint", "infrastructure": infrastructure},
    });
    serde_json::from_value(value).unwrap()
}

fn parameters_ref(name: &str) -> Option<Value> {
    Some(json!({"group": "", "kind": "ConfigMap", "name": name}))
}

fn parameters(labels: Value, data: &[(&str, &str)]) -> Parameters {
    let data: std::collections::BTreeMap<_, _> = data.iter().copied().collect();
    let map: ConfigMap =
        serde_json::from_value(json!({"metadata": {"labels": labels}, "data": data})).unwrap();
    Parameters::from_config_map(&map)
}

fn default_parameters(data: &[(&str, &str)]) -> Parameters {
    let label = json!({"gateway.istio.io/defaults-for-class": "istio-waypoint"});
    parameters(label, data)
}

fn own_config_map(own: &[(&str, &str)]) -> ConfigMaps {
    let mut maps = ConfigMaps::new("istio-system");
    maps.set("shop", "own", Some(parameters(json!({}), own)));
    maps
}

fn objects_with_overlays(own: &[(&str, &str)]) -> Result<WaypointObjects, WaypointError> {
    build_objects(
        &gateway(parameters_ref("own")),
        &Settings::default(),
        &own_config_map(own),
    )
}

/// Returns the reason, as in the Gateway's condition, why an overlay is rejected.
fn overlay_error(key: &str, text: &str) -> String {
    let error = objects_with_overlays(&[(key, text)]).unwrap_err();
    assert_eq!(error.reason(), "InvalidParameters");
    let text = error.to_string();
    let beginning = format!("ConfigMap shop/own, key {key}: ");
    text.strip_prefix(&beginning).unwrap().to_owned()
}

#[test]
fn each_overlay_is_merged_into_the_object_of_its_kind() {
    let deployment = "
metadata: {annotations: {a: b}}
spec:
  replicas: 5
  template:
    spec:
      terminationGracePeriodSeconds: 5
      nodeSelector: {pool: mesh}
      topologySpreadConstraints: [{topologyKey: rack, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]
      containers:
      - name: istio-proxy
        resources: {limits: {cpu: 2}}
        env: [{name: RUST_LOG, value: debug}]
        volumeMounts: [{name: extra, mountPath: /mnt/extra}]
      volumes: [{name: extra, configMap: {name: extra}}]
";
    let made = objects_with_overlays(&[
        ("deployment", deployment),
        (
            "service",
            "spec: {type: LoadBalancer, ports: [{port: 15021, $patch: delete}]}",
        ),
        ("serviceAccount", "metadata: {annotations: {role: cloud}}"),
        ("podDisruptionBudget", "spec: {minAvailable: 1}"),
        ("other", "{"),
    ]);
    let made = made.unwrap();
    assert!(made.sets_replicas);
    assert_eq!(made.autoscaler, None);
    assert_eq!(made.deployment["metadata"]["annotations"]["a"], "b");
    assert_eq!(made.deployment["spec"]["replicas"], 5);
    let pod = &made.deployment["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "waypoint");
    assert_eq!(pod["nodeSelector"], json!({"pool": "mesh"}));
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "ambit/waypoint");
    assert_eq!(container["resources"], json!({"limits": {"cpu": 2}}));
    assert_eq!(container["volumeMounts"].as_array().unwrap().len(), 5);
    assert_eq!(pod["volumes"].as_array().unwrap().len(), 5);
    let value = |name: &str| {
        let env = container["env"].as_array().unwrap().iter();
        let mut found = env.filter(|one| one["name"] == name);
        let value = found.next().unwrap()["value"].clone();
        assert_eq!(found.next(), None);
        value
    };
    assert_eq!(value("RUST_LOG"), "debug");
    // The program's setting follows the pod's field.
    assert_eq!(value("TERMINATION_GRACE_PERIOD_SECONDS"), "5");
    let constraints = pod["topologySpreadConstraints"].as_array().unwrap();
    assert_eq!(constraints.len(), 2);
    for one in constraints {
        let selected = &one["labelSelector"]["matchLabels"];
        assert_eq!(
            selected["gateway.networking.k8s.io/gateway-name"],
            "waypoint"
        );
    }
    let ports = made.service["spec"]["ports"].as_array().unwrap();
    assert_eq!((ports.len(), &ports[0]["port"]), (1, &json!(15008)));
    assert_eq!(made.service["spec"]["type"], "LoadBalancer");
    assert_eq!(
        made.service_account["metadata"]["annotations"]["role"],
        "cloud"
    );
    let budget = &made.disruption_budget.unwrap()["spec"];
    assert_eq!(
        (&budget["minAvailable"], budget.get("maxUnavailable")),
        (&json!(1), None)
    );
}

#[test]
fn requested_autoscaler_sets_the_number_of_pods() {
    let made = objects_with_overlays(&[
        (
            "horizontalPodAutoscaler",
            "spec: {minReplicas: 2, maxReplicas: 9}",
        ),
        ("deployment", "spec: {replicas: 4}"),
    ]);
    let made = made.unwrap();
    let scaler = made.autoscaler.unwrap();
    assert_eq!(scaler["metadata"]["name"], "waypoint");
    assert_eq!(scaler["metadata"]["ownerReferences"][0]["uid"], "1234");
    assert_eq!(
        scaler["spec"],
        json!({"minReplicas": 2, "maxReplicas": 9,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "waypoint"}})
    );
    assert_eq!(made.deployment["spec"].get("replicas"), None);
    assert_eq!(
        overlay_error("horizontalPodAutoscaler", ""),
        "spec.maxReplicas: is missing"
    );
    assert_eq!(
        overlay_error(
            "horizontalPodAutoscaler",
            "spec: {minReplicas: 3, maxReplicas: 2}"
        ),
        "spec.maxReplicas: is less than minReplicas"
    );
}

#[test]
fn budget_exists_unless_an_overlay_deletes_it() {
    assert!(
        objects_with_overlays(&[])
            .unwrap()
            .disruption_budget
            .is_some()
    );
    let none = objects_with_overlays(&[("podDisruptionBudget", "$patch: delete")]).unwrap();
    assert_eq!(none.disruption_budget, None);
    assert_eq!(
        overlay_error(
            "podDisruptionBudget",
            "spec: {minAvailable: 1, maxUnavailable: 1}"
        ),
        "spec: has both minAvailable and maxUnavailable: give one"
    );
}

#[test]
fn class_defaults_are_merged_before_the_gateways_overlays() {
    let mut maps = own_config_map(&[("deployment", "spec: {replicas: 4}")]);
    let label = default_parameters(&[
        ("deployment", "spec: {replicas: 7, minReadySeconds: 3}"),
        ("podDisruptionBudget", "$patch: delete"),
    ]);
    assert!(maps.set("istio-system", "defaults", Some(label.clone())));
    assert!(
        !maps.set("istio-system", "defaults", Some(label.clone())),
        "as before"
    );
    // A label in another namespace, or for another class, has no effect.
    assert!(!maps.set("shop", "defaults", Some(label)));
    let other = json!({"gateway.istio.io/defaults-for-class": "istio"});
    let other = parameters(other, &[("deployment", "spec: {replicas: 1}")]);
    assert!(!maps.set("istio-system", "other", Some(other)));
    let spec = |gateway: &Gateway, maps: &ConfigMaps| {
        let made = build_objects(gateway, &Settings::default(), maps).unwrap();
        let spec = &made.deployment["spec"];
        (
            spec["replicas"].clone(),
            spec["minReadySeconds"].clone(),
            made.disruption_budget.is_some(),
        )
    };
    assert_eq!(
        spec(&gateway(parameters_ref("own")), &maps),
        (json!(4), json!(3), false)
    );
    assert_eq!(spec(&gateway(None), &maps), (json!(7), json!(3), false));
    assert!(maps.set("istio-system", "defaults", None));
    assert_eq!(spec(&gateway(None), &maps), (json!(2), Value::Null, true));
    assert!(!maps.set("istio-system", "defaults", None));
}

#[test]
fn errors_name_key_and_path() {
    let line = overlay_error("deployment", "spec:\n  replicas: [\n");
    assert!(
        line.starts_with("line ") && line.contains("is not YAML"),
        "{line}"
    );
    for (key, text, place) in [
        ("deployment", "- a", ".: is not a map"),
        ("deployment", "spec: {replicas: many}", "spec.replicas: "),
        (
            "deployment",
            "spec: {template: {spec: {affinity: {nodeAfinity: {}}}}}",
            "spec.template.spec.affinity.nodeAfinity: is no field of this kind",
        ),
        (
            "deployment",
            "spec: {template: {spec: {hostNetwork: true}}}",
            "spec.template.spec.hostNetwork: is not for overlays",
        ),
        (
            "service",
            "metadata: {name: other}",
            "metadata.name: is the Gateway's to say",
        ),
        (
            "service",
            "spec: {ports: [{name: a}]}",
            "spec.ports[0]: has no port",
        ),
    ] {
        let reported = overlay_error(key, text);
        assert!(reported.starts_with(place), "{text}: {reported}");
    }
}

#[test]
fn dangling_reference_is_reported() {
    let error = |reference: Option<Value>| {
        build_objects(
            &gateway(reference),
            &Settings::default(),
            &own_config_map(&[]),
        )
        .unwrap_err()
    };
    let missing = InvalidParameters::MissingConfigMap("shop/absent".into());
    assert_eq!(
        error(parameters_ref("absent")),
        WaypointError::InvalidParameters(missing)
    );
    for reference in [
        json!({"group": "apps", "kind": "ConfigMap", "name": "own"}),
        json!({"group": "", "kind": "Secret", "name": "own"}),
        json!({"group": "", "kind": "ConfigMap"}),
    ] {
        let error = error(Some(reference));
        assert!(
            matches!(
                error,
                WaypointError::InvalidParameters(InvalidParameters::InvalidReference(_))
            ),
            "{error}"
        );
    }
}
