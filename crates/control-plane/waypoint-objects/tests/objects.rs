//! Snapshots of the complete objects, for reviewers of a change to them, and tests of the parts
//! that a Gateway cannot change.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use ambit_k8s_api::{Deployment, Gateway, Kind, Object, Pod};
use ambit_waypoint_objects::{ConfigMaps, Settings, WaypointError, WaypointObjects};
use serde_json::{Value, json};

fn gateway(metadata: Value, spec: Value) -> Gateway {
    let mut value = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "waypoint", "namespace": "shop", "uid": "1234"},
        "spec": {
            "gatewayClassName": "istio-waypoint",
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
        },
    });
    for (place, members) in [("metadata", metadata), ("spec", spec)] {
        let into = value[place].as_object_mut().unwrap();
        into.extend(members.as_object().unwrap().clone());
    }
    serde_json::from_value(value).unwrap()
}

fn objects(gateway: &Gateway, settings: &Settings) -> Result<WaypointObjects, WaypointError> {
    let none = ConfigMaps::new("istio-system");
    ambit_waypoint_objects::build_objects(gateway, settings, &none)
}

fn default_objects() -> WaypointObjects {
    objects(&gateway(json!({}), json!({})), &Settings::default()).unwrap()
}

#[test]
fn default_waypoint_objects() {
    let made = default_objects();
    let all: Vec<_> = made.all().into_iter().map(|(_, object)| object).collect();
    insta::assert_yaml_snapshot!("ordinary", all);
}

#[test]
fn waypoint_objects_with_all_settings() {
    let settings = json!({
        "image": "registry/waypoint:1", "imagePullPolicy": "Always", "imagePullSecrets": ["registry"],
        "replicas": 3, "resources": {"requests": {"cpu": "100m"}},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]}}},
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
        "seccompProfile": {"type": "Unconfined"}, "terminationGracePeriodSeconds": 600,
        "controlAddress": "https://control:1", "trustDomain": "td", "clusterId": "c1",
        "clusterDomain": "c.l", "network": "n1", "logLevel": "debug", "logAsJson": true,
        "env": {"RUST_LOG": "trace", "EXTRA": "1"},
    });
    let settings: Settings = serde_json::from_value(settings).unwrap();
    let made = objects(&gateway(json!({}), json!({})), &settings).unwrap();
    insta::assert_yaml_snapshot!("every_setting", made.deployment["spec"]);
}

/// Checks that pods spread over zones only by affinity: topology spread constraints exclude nodes that lack one of the
/// keys.
#[test]
fn pods_spread_over_nodes_by_constraint_and_zones_by_affinity() {
    let pod = |settings: Value| {
        let settings: Settings = serde_json::from_value(settings).unwrap();
        let made = objects(&gateway(json!({}), json!({})), &settings).unwrap();
        made.deployment["spec"]["template"]["spec"].clone()
    };
    let zones = "/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm";
    let usual = pod(json!({}));
    let constraints = usual["topologySpreadConstraints"].as_array().unwrap();
    let keys: Vec<_> = constraints.iter().map(|one| &one["topologyKey"]).collect();
    assert_eq!(keys, ["kubernetes.io/hostname"]);
    let term = usual.pointer(zones).unwrap();
    assert_eq!(term["topologyKey"], "topology.kubernetes.io/zone");
    assert_eq!(term["labelSelector"], constraints[0]["labelSelector"]);
    // Node affinity keeps the default; pod affinity or spread constraints replace it.
    let nodes = pod(json!({"affinity": {"nodeAffinity": {"a": 1}}}));
    assert_eq!(nodes["affinity"]["nodeAffinity"], json!({"a": 1}));
    assert_eq!(nodes.pointer(zones), Some(term));
    let pods = pod(json!({"affinity": {"podAntiAffinity": {"a": 1}}}));
    assert_eq!(pods["affinity"], json!({"podAntiAffinity": {"a": 1}}));
    let spread = pod(json!({"topologySpreadConstraints": [{"topologyKey": "rack"}]}));
    assert_eq!(spread.get("affinity"), None);
}

/// Checks that no probe which restarts a waypoint depends on its readiness: a waypoint may wait for
/// a control plane for any time.
#[test]
fn liveness_does_not_depend_on_readiness() {
    let made = default_objects();
    let container = &made.deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["startupProbe"]["tcpSocket"],
        json!({"port": 15021})
    );
    for probe in ["startupProbe", "livenessProbe"] {
        assert_eq!(container[probe].get("httpGet"), None, "{probe}");
    }
    let ready = &container["readinessProbe"];
    assert_eq!(ready["httpGet"]["path"], "/healthz/ready");
    assert_eq!(ready["periodSeconds"], 1, "it serves as soon as it can");
}

/// Checks that Kubernetes accepts the objects: no unknown field, no wrong type.
#[test]
fn objects_parse_strictly_as_kubernetes_types() {
    let made = default_objects();
    for (kind, value) in [
        (Kind::ServiceAccount, &made.service_account),
        (Kind::Service, &made.service),
        (Kind::Deployment, &made.deployment),
    ] {
        let object = Object::from_value(kind, value).unwrap();
        assert_eq!(object.key().to_string(), format!("{kind} shop/waypoint"));
    }
    // Parsing loses nothing: no field is misspelt.
    let typed: Deployment = serde_json::from_value(made.deployment.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), made.deployment);
}

#[test]
fn requested_labels_and_annotations_never_replace_ours() {
    let infrastructure = json!({"infrastructure": {
        "labels": {"team": "a", "istio.io/dataplane-mode": "ambient",
            "gateway.istio.io/managed": "me", "gateway.networking.k8s.io/gateway-name": "other"},
        "annotations": {"note": "b", "prometheus.io/port": "1"},
    }});
    let made = objects(
        &gateway(json!({"labels": {"own": "c"}}), infrastructure),
        &Settings::default(),
    );
    let made = made.unwrap();
    let pod = &made.deployment["spec"]["template"];
    let all = made.all().into_iter().map(|(_, object)| object);
    for object in all.chain([pod]) {
        let metadata = &object["metadata"];
        assert_eq!(metadata["labels"]["team"], "a");
        assert_eq!(metadata["annotations"]["note"], "b");
        assert_eq!(
            metadata["labels"]["gateway.istio.io/managed"],
            "istio.io-mesh-controller"
        );
        assert_eq!(
            metadata["labels"]["gateway.networking.k8s.io/gateway-name"],
            "waypoint"
        );
        assert_eq!(metadata["labels"].get("own"), None);
    }
    assert_eq!(pod["metadata"]["labels"]["istio.io/dataplane-mode"], "none");
    assert_eq!(
        pod["metadata"]["annotations"]["prometheus.io/port"],
        "15020"
    );
}

#[test]
fn gateway_labels_are_copied_but_not_to_its_pods() {
    let own = json!({"labels": {"own": "c"},
        "annotations": {"note": "b", "kubectl.kubernetes.io/last-applied-configuration": "{}"}});
    let made = objects(&gateway(own, json!({})), &Settings::default()).unwrap();
    for (_, object) in made.all() {
        assert_eq!(object["metadata"]["labels"]["own"], "c");
        assert_eq!(object["metadata"]["annotations"]["note"], "b");
        let last = "kubectl.kubernetes.io/last-applied-configuration";
        assert_eq!(object["metadata"]["annotations"].get(last), None);
    }
    let pod: Pod = serde_json::from_value(made.deployment["spec"]["template"].clone()).unwrap();
    assert!(!pod.metadata.labels.unwrap().contains_key("own"));
    assert!(!pod.metadata.annotations.unwrap().contains_key("note"));
}

#[test]
fn gateway_sets_the_number_of_replicas() {
    let annotated = |text: &str| {
        let annotations = json!({"annotations": {"ambit.io/waypoint-replicas": text}});
        let made = objects(&gateway(annotations, json!({})), &Settings::default());
        made.map(|made| made.deployment["spec"]["replicas"].clone())
    };
    assert_eq!(default_objects().deployment["spec"]["replicas"], 2);
    assert_eq!(annotated("5"), Ok(json!(5)));
    assert_eq!(annotated("0"), Ok(json!(0)));
    for wrong in ["-1", "many", ""] {
        assert_eq!(
            annotated(wrong),
            Err(WaypointError::InvalidReplicas(wrong.into()))
        );
    }
}

#[test]
fn gateway_sets_the_service_type_and_repeats_its_name() {
    let of = |annotations: Value| {
        let gateway = gateway(json!({"annotations": annotations}), json!({}));
        objects(&gateway, &Settings::default()).unwrap().service["spec"]["type"].clone()
    };
    assert_eq!(of(json!({})), "ClusterIP");
    assert_eq!(
        of(json!({"networking.istio.io/service-type": "LoadBalancer"})),
        "LoadBalancer"
    );
    assert_eq!(
        of(json!({"gateway.istio.io/name-override": "waypoint"})),
        "ClusterIP"
    );
}

#[test]
fn unusable_gateways_are_reported() {
    for name in ["a.b", "1a", &"a".repeat(64)] {
        let made = objects(
            &gateway(json!({"name": name}), json!({})),
            &Settings::default(),
        );
        assert_eq!(made, Err(WaypointError::InvalidName(name.into())));
    }
    for (annotation, value, why) in [
        (
            "networking.istio.io/service-type",
            "ExternalName",
            WaypointError::InvalidServiceType("ExternalName".into()),
        ),
        (
            "gateway.istio.io/name-override",
            "other",
            WaypointError::ConflictingName("gateway.istio.io/name-override"),
        ),
        (
            "gateway.istio.io/service-account",
            "other",
            WaypointError::ConflictingName("gateway.istio.io/service-account"),
        ),
    ] {
        let annotated = gateway(json!({"annotations": {annotation: value}}), json!({}));
        assert_eq!(objects(&annotated, &Settings::default()), Err(why));
    }
}

#[test]
fn ca_address_and_crl_reach_the_container() {
    let settings = |change: Value| serde_json::from_value::<Settings>(change).unwrap();
    let pod = |settings: &Settings| {
        let made = objects(&gateway(json!({}), json!({})), settings).unwrap();
        made.deployment["spec"]["template"]["spec"].clone()
    };
    let env = |pod: &Value, name: &str| {
        let env = pod["containers"][0]["env"].as_array().unwrap().iter();
        let mut found = env.filter(|one| one["name"] == name);
        let value = found
            .next()
            .map(|one| one["value"].as_str().unwrap().to_owned());
        assert!(found.next().is_none(), "{name} is there twice");
        value
    };
    let address = json!({"controlAddress": "https://control:1"});
    let plain = pod(&settings(address));
    assert_eq!(env(&plain, "CA_ADDRESS").unwrap(), "https://control:1");
    assert_eq!(env(&plain, "CRL_PATH"), None);
    assert_eq!(env(&plain, "AMBIT_METRICS_PRINCIPALS"), None);
    let changed = json!({
        "controlAddress": "https://control:1", "caAddress": "https://istio-csr:443", "peerCaCrl": true,
        "metricsPrincipals": false,
    });
    let changed = pod(&settings(changed));
    assert_eq!(env(&changed, "XDS_ADDRESS").unwrap(), "https://control:1");
    assert_eq!(
        env(&changed, "CA_ADDRESS").unwrap(),
        "https://istio-csr:443"
    );
    assert_eq!(env(&changed, "AMBIT_METRICS_PRINCIPALS").unwrap(), "false");
    for (map, file, variable) in [
        ("istio-ca-crl", "ca-crl.pem", "CRL_PATH"),
        (
            "ambit-trust-domains",
            "trust-domains.json",
            "AMBIT_TRUST_DOMAINS_PATH",
        ),
    ] {
        let optional = json!({"name": map, "optional": true});
        let mut volumes = changed["volumes"].as_array().unwrap().iter();
        let volume = volumes.find(|one| one["configMap"] == optional).unwrap();
        let mounts = &changed["containers"][0]["volumeMounts"];
        let mut mounts = mounts.as_array().unwrap().iter();
        let mount = mounts.find(|one| one["name"] == volume["name"]).unwrap();
        let path = format!("{}/{file}", mount["mountPath"].as_str().unwrap());
        assert_eq!(env(&changed, variable), Some(path));
    }
}

#[test]
fn waypoints_mount_the_workload_api_socket() {
    for (driver, volume) in [
        (
            "csi.spiffe.io",
            json!({"csi": {"driver": "csi.spiffe.io", "readOnly": true}}),
        ),
        (
            "",
            json!({"hostPath": {"path": "/run/spire", "type": "DirectoryOrCreate"}}),
        ),
    ] {
        let spiffe =
            json!({"spiffe": {"csiDriver": driver, "hostPath": "/run/spire", "socket": "a.sock"}});
        let settings = serde_json::from_value::<Settings>(spiffe).unwrap();
        let made = objects(&gateway(json!({}), json!({})), &settings).unwrap();
        let pod = &made.deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let socket =
            json!({"name": "SPIFFE_ENDPOINT_SOCKET", "value": "unix:///var/run/spiffe/a.sock"});
        assert!(container["env"].as_array().unwrap().contains(&socket));
        let mut volumes = pod["volumes"].as_array().unwrap().iter();
        let name = json!("spiffe-workload-api");
        let mut found = volumes.find(|one| one["name"] == name).unwrap().clone();
        found.as_object_mut().unwrap().remove("name");
        assert_eq!(found, volume);
        let mount = json!({"name": name, "mountPath": "/var/run/spiffe", "readOnly": true});
        let mounts = container["volumeMounts"].as_array().unwrap();
        assert!(mounts.contains(&mount));
    }
}

#[test]
fn waypoints_push_to_the_collector_that_is_set() {
    let env = |change: Value| {
        let settings = serde_json::from_value::<Settings>(change).unwrap();
        let made = objects(&gateway(json!({}), json!({})), &settings).unwrap();
        let pod = &made.deployment["spec"]["template"]["spec"];
        let env = pod["containers"][0]["env"].as_array().unwrap().iter();
        let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
        let ours = env.filter(|one| name(one).starts_with("OTEL_"));
        let mut ours: Vec<_> = ours.cloned().collect();
        ours.sort_by_key(name);
        Value::Array(ours)
    };
    assert_eq!(env(json!({})), json!([]));
    let none = json!({"openTelemetry": {"metrics": false, "headersSecret": {"name": "otlp"}}});
    assert_eq!(env(none), json!([]));
    let endpoint = "http://collector:4318";
    assert_eq!(
        env(json!({"openTelemetry": {"endpoint": endpoint}})),
        json!([
            {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": endpoint},
            {"name": "OTEL_EXPORTER_OTLP_PROTOCOL", "value": "http/protobuf"},
        ])
    );
    let all = json!({
        "openTelemetry": {
            "endpoint": endpoint, "protocol": "grpc", "logs": false,
            "headersSecret": {"name": "otlp", "key": "headers"},
        },
        "env": {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
    });
    let secret = json!({"name": "otlp", "key": "headers", "optional": true});
    assert_eq!(
        env(all),
        json!([
            {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": endpoint},
            {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": {"secretKeyRef": secret}},
            {"name": "OTEL_EXPORTER_OTLP_PROTOCOL", "value": "http/protobuf"},
            {"name": "OTEL_LOGS_EXPORTER", "value": "none"},
        ])
    );
}
