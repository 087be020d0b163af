//! Tests of the objects that the chart renders for given values.

use serde_json::json;

use super::*;
use crate::{object::ObjectRef, values::ValueOverrides};

const PLATFORMS: [&str; 11] = [
    "",
    "gke",
    "eks",
    "aks",
    "openshift",
    "k3s",
    "k3d",
    "minikube",
    "kind",
    "talos",
    "microk8s",
];

fn render(settings: &[&str]) -> Vec<Value> {
    let mut overrides = ValueOverrides::default();
    for setting in settings {
        overrides.set(setting, false).unwrap();
    }
    render_objects(&Release::default(), &overrides.with_defaults().unwrap()).unwrap()
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|object| {
        let reference = ObjectRef::from_object(object).unwrap();
        reference.kind == kind && reference.name == name
    });
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

#[test]
fn default_values_render_these_manifests() {
    for object in render(&[]) {
        let name = ObjectRef::from_object(&object).unwrap();
        insta::assert_yaml_snapshot!(format!("{}-{}", name.kind, name.name), object);
    }
}

/// Checks which fields each platform changes, as paths that differ from the objects of the defaults.
#[test]
fn platforms_change_only_these_fields() {
    let plain = flattened_lines(&render(&[]));
    for platform in PLATFORMS.into_iter().skip(1) {
        let setting = format!("global.platform={platform}");
        let mine = flattened_lines(&render(&[&setting]));
        let mut lines: Vec<_> = mine.difference(&plain).map(|l| format!("+ {l}")).collect();
        lines.extend(plain.difference(&mine).map(|l| format!("- {l}")));
        // The checksum changes with the configuration.
        lines.retain(|line| !line.contains("config-checksum"));
        insta::assert_snapshot!(format!("platform-{platform}"), lines.join("\n"));
    }
}

fn flattened_lines(objects: &[Value]) -> std::collections::BTreeSet<String> {
    fn walk(path: &str, value: &Value, lines: &mut std::collections::BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    walk(&format!("{path}.{key}"), value, lines);
                }
            }
            Value::Array(list) => {
                for (index, value) in list.iter().enumerate() {
                    let name = value.get("name").and_then(Value::as_str);
                    let name = name.map_or_else(|| index.to_string(), ToOwned::to_owned);
                    walk(&format!("{path}[{name}]"), value, lines);
                }
            }
            other => {
                lines.insert(format!("{path} = {other}"));
            }
        }
    }
    let mut lines = std::collections::BTreeSet::new();
    for object in objects {
        walk(
            &ObjectRef::from_object(object).unwrap().to_string(),
            object,
            &mut lines,
        );
    }
    lines
}

#[test]
fn images_are_named_by_hub_and_tag() {
    let objects = render(&["global.hub=example/x,global.tag=dev,global.imagePullPolicy=Never"]);
    for (kind, name, image) in [
        ("DaemonSet", "ambit-agent", "example/x/agent:dev"),
        ("DaemonSet", "ztunnel", "example/x/node-proxy:dev"),
        ("Deployment", "ambit-control", "example/x/control:dev"),
        ("Job", "ambit-release", "example/x/tools:dev"),
    ] {
        let container = &find(&objects, kind, name)["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], image);
        assert_eq!(container["imagePullPolicy"], "Never");
    }
}

#[test]
fn values_of_every_form_reach_their_field() {
    let objects = render(&[
        "cni.excludeNamespaces={a,b}",
        "cni.env.HOST_PROBE_RULE=false",
        "cni.probeExemption=node,cni.kubeletUser=1000",
        "pilot.trustedNodeAccounts={x/y}",
        "pilot.affinity.nodeAffinity.a=b",
        "ztunnel.unenrolledDrain=10m",
        "ztunnel.missingPolicyGrace=1m,ztunnel.waypointGrace=2m,ztunnel.keepLastGoodPolicy=true",
        "global.network=net1",
        "global.networkPolicy.enabled=true",
        "global.imagePullSecrets={one,two}",
        "cni.tolerations=null",
    ]);
    let config = &find(&objects, "ConfigMap", "ambit-agent-config")["data"];
    assert_eq!(config["EXCLUDE_NAMESPACES"], "a,b");
    assert_eq!(config["HOST_PROBE_RULE"], "false");
    assert_eq!(config["PROBE_EXEMPTION"], "node");
    assert_eq!(config["KUBELET_UID"], "1000");
    let control = &find(&objects, "Deployment", "ambit-control")["spec"]["template"]["spec"];
    assert_eq!(control["affinity"], json!({"nodeAffinity": {"a": "b"}}));
    assert_eq!(
        control["imagePullSecrets"],
        json!([{"name": "one"}, {"name": "two"}])
    );
    let env = control["containers"][0]["env"].as_array().unwrap();
    let accounts = json!({"name": "CA_TRUSTED_NODE_ACCOUNTS", "value": "istio-system/ztunnel,x/y"});
    assert!(env.contains(&accounts));
    let proxy = &find(&objects, "DaemonSet", "ztunnel")["spec"]["template"]["spec"];
    let env = proxy["containers"][0]["env"].as_array().unwrap();
    assert!(env.contains(&json!({"name": "AMBIT_UNENROLLED_DRAIN", "value": "10m"})));
    assert!(env.contains(&json!({"name": "AMBIT_MISSING_POLICY_GRACE", "value": "1m"})));
    assert!(env.contains(&json!({"name": "AMBIT_WAYPOINT_GRACE", "value": "2m"})));
    assert!(env.contains(&json!({"name": "AMBIT_KEEP_LAST_GOOD_POLICY", "value": "true"})));
    assert!(env.contains(&json!({"name": "NETWORK", "value": "net1"})));
    let policies = objects
        .iter()
        .filter(|object| object["kind"] == "NetworkPolicy");
    assert_eq!(policies.count(), 4);
    let agent = &find(&objects, "DaemonSet", "ambit-agent")["spec"]["template"]["spec"];
    assert_eq!(agent.get("tolerations"), None);
}

#[test]
fn values_replace_labels_annotations_and_variables_of_the_templates() {
    let objects = render(&[
        "ztunnel.podLabels.istio\\.io/dataplane-mode=x,ztunnel.podAnnotations.prometheus\\.io/port=x",
        "cni.podLabels.k8s-app=x,cni.podAnnotations.prometheus\\.io/port=x,cni.env.RUST_LOG=x",
        "pilot.podLabels.istio=x,pilot.podAnnotations.prometheus\\.io/port=x",
        "ztunnel.env.RUST_LOG=x,pilot.env.RUST_LOG=x",
    ]);
    for (kind, name, label) in [
        ("DaemonSet", "ztunnel", "istio.io/dataplane-mode"),
        ("DaemonSet", "ambit-agent", "k8s-app"),
        ("Deployment", "ambit-control", "istio"),
    ] {
        let template = &find(&objects, kind, name)["spec"]["template"];
        assert_eq!(template["metadata"]["labels"][label], "x", "{name}");
        assert_eq!(
            template["metadata"]["annotations"]["prometheus.io/port"], "x",
            "{name}"
        );
        for container in template["spec"]["containers"].as_array().unwrap() {
            let env = container["env"].as_array().unwrap().iter();
            let levels: Vec<_> = env.filter(|one| one["name"] == "RUST_LOG").collect();
            match name {
                "ambit-agent" => assert!(levels.is_empty()),
                _ => assert_eq!(
                    levels,
                    [&json!({"name": "RUST_LOG", "value": "x"})],
                    "{name}"
                ),
            }
        }
    }
    let config = &find(&objects, "ConfigMap", "ambit-agent-config")["data"];
    assert_eq!(config["RUST_LOG"], "x");
    let mut overrides = ValueOverrides::default();
    overrides.set("pilot.podLabels.app=x", false).unwrap();
    let refused = super::render_objects(&Release::default(), &overrides.with_defaults().unwrap());
    let refused = format!("{:?}", refused.unwrap_err());
    assert!(
        refused.contains("pilot.podLabels.app: the mesh selects its pods by this label"),
        "{refused}"
    );
}

#[test]
fn selectors_are_rendered_in_the_agents_format() {
    let mut overrides = ValueOverrides::default();
    overrides
        .add_file(
            "x",
            "cni: {ambient: {enablementSelectors: [{podSelector: {matchLabels: {a: \"b\"}}}]}}",
        )
        .unwrap();
    let objects = render_objects(&Release::default(), &overrides.with_defaults().unwrap()).unwrap();
    let text =
        find(&objects, "ConfigMap", "ambit-agent-config")["data"]["AMBIENT_ENABLEMENT_SELECTOR"]
            .as_str()
            .unwrap();
    let read: Value = serde_saphyr::from_str(text).unwrap();
    assert_eq!(read, json!([{"podSelector": {"matchLabels": {"a": "b"}}}]));
    // The certificate authority parses the same value.
    let control = find(&objects, "Deployment", "ambit-control");
    let env = &control["spec"]["template"]["spec"]["containers"][0]["env"];
    let same = json!({"name": "AMBIENT_ENABLEMENT_SELECTOR", "value": text});
    assert!(env.as_array().unwrap().contains(&same), "{env}");
}

#[test]
fn old_clusters_get_the_apparmor_annotation() {
    let values = ValueOverrides::default().with_defaults().unwrap();
    let release = Release {
        kube_minor_version: "29+".to_owned(),
        ..Release::default()
    };
    let objects = render_objects(&release, &values).unwrap();
    let template = &find(&objects, "DaemonSet", "ambit-agent")["spec"]["template"];
    let key = "container.apparmor.security.beta.kubernetes.io/agent";
    assert_eq!(template["metadata"]["annotations"][key], "unconfined");
    let security = &template["spec"]["containers"][0]["securityContext"];
    assert_eq!(security.get("appArmorProfile"), None);
}

#[test]
fn containers_have_only_the_privileges_they_need() {
    for object in render(&[]) {
        let pod = &object["spec"]["template"]["spec"];
        for container in pod["containers"].as_array().into_iter().flatten() {
            let security = &container["securityContext"];
            assert_eq!(security["readOnlyRootFilesystem"], true, "{container}");
            assert_eq!(
                security["capabilities"]["drop"],
                json!(["ALL"]),
                "{container}"
            );
            assert_ne!(security["privileged"], true, "{container}");
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"],
                "RuntimeDefault"
            );
            assert_eq!(pod.get("hostNetwork"), None);
            assert_eq!(pod.get("hostPID"), None);
            assert!(container.get("resources").is_some(), "{container}");
            let serves = object["kind"] != "Job";
            assert_eq!(container.get("readinessProbe").is_some(), serves);
        }
    }
}

#[test]
fn startup_taint_is_tolerated_and_removed() {
    let nodes = |objects: &[Value]| -> Vec<Value> {
        let rules = find(objects, "ClusterRole", "ambit-control")["rules"].clone();
        let rules = rules.as_array().unwrap().clone();
        let writes = |rule: &Value| {
            rule["resources"] == json!(["nodes"]) && rule["verbs"] == json!(["patch"])
        };
        rules.into_iter().filter(writes).collect()
    };
    let plain = render(&[]);
    assert!(nodes(&plain).is_empty());
    let objects = render(&["pilot.taint.enabled=true", "pilot.taint.key=mesh/not-ready"]);
    assert_eq!(nodes(&objects).len(), 1);
    let control = &find(&objects, "Deployment", "ambit-control")["spec"]["template"]["spec"];
    let toleration = json!([{"key": "mesh/not-ready", "operator": "Exists"}]);
    assert_eq!(control["tolerations"], toleration);
    let env = control["containers"][0]["env"].as_array().unwrap();
    assert!(env.contains(&json!({
        "name": "PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME", "value": "mesh/not-ready"})));
    for name in ["ambit-agent", "ztunnel"] {
        let pod = &find(&plain, "DaemonSet", name)["spec"]["template"]["spec"];
        assert_eq!(
            pod["tolerations"],
            json!([{"operator": "Exists"}]),
            "{name}"
        );
    }
}

#[test]
fn permission_to_delete_pods_is_limited_and_optional() {
    let rights = |objects: &[Value], kind: &str| -> usize {
        let roles = objects.iter().filter(|object| object["kind"] == kind);
        let rules = roles.filter_map(|role| role["rules"].as_array()).flatten();
        let deletes = rules.filter(|rule| {
            let contains = |list: &Value, item: &str| {
                list.as_array()
                    .is_some_and(|list| list.iter().any(|one| one == item))
            };
            contains(&rule["resources"], "pods") && contains(&rule["verbs"], "delete")
        });
        deletes.count()
    };
    let default = render(&[]);
    assert_eq!(
        (rights(&default, "Role"), rights(&default, "ClusterRole")),
        (1, 0)
    );
    let without = render(&["pilot.resetRestartBackoff=false"]);
    assert_eq!(
        (rights(&without, "Role"), rights(&without, "ClusterRole")),
        (0, 0)
    );
    let env = |objects: &[Value]| {
        let control = find(objects, "Deployment", "ambit-control");
        control["spec"]["template"]["spec"]["containers"][0]["env"].to_string()
    };
    assert!(env(&default).contains("AMBIT_RESET_RESTART_BACKOFF"));
    assert!(!env(&without).contains("AMBIT_RESET_RESTART_BACKOFF"));
}

#[test]
fn secrets_are_listed_only_for_pull_secrets() {
    let rights = |objects: &[Value]| -> Vec<Value> {
        let roles = objects
            .iter()
            .filter(|object| object["kind"] == "ClusterRole");
        let rules = roles.filter_map(|role| role["rules"].as_array()).flatten();
        let of_secrets = rules.filter(|rule| {
            let mut resources = rule["resources"].as_array().into_iter().flatten();
            resources.any(|one| one == "secrets" || one == "*")
        });
        of_secrets.map(|rule| rule["verbs"].clone()).collect()
    };
    let env = |objects: &[Value]| {
        let control = &find(objects, "Deployment", "ambit-control")["spec"]["template"]["spec"];
        let env = control["containers"][0]["env"].as_array().unwrap();
        env.contains(&json!({"name": "AMBIT_IMAGE_PULL_SECRETS", "value": "true"}))
    };
    let plain = render(&[]);
    assert_eq!((rights(&plain), env(&plain)), (Vec::new(), false));
    let objects = render(&["pilot.imagePullSecrets=true"]);
    assert_eq!(rights(&objects), [json!(["list", "watch"])]);
    assert!(env(&objects));
}

#[test]
fn crl_and_trust_domains_are_mounted_at_the_proxys_paths() {
    let objects = render(&["ztunnel.peerCaCrl.enabled=true"]);
    let pod = &find(&objects, "DaemonSet", "ztunnel")["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    for (map, file, variable) in [
        ("istio-ca-crl", "ca-crl.pem", "CRL_PATH"),
        (
            "ambit-trust-domains",
            "trust-domains.json",
            "AMBIT_TRUST_DOMAINS_PATH",
        ),
    ] {
        let optional = json!({"name": map, "optional": true});
        let mut all = volumes.iter();
        let volume = all.find(|one| one["configMap"] == optional).unwrap();
        for container in pod["containers"].as_array().unwrap() {
            let mut mounts = container["volumeMounts"].as_array().unwrap().iter();
            let mount = mounts.find(|one| one["name"] == volume["name"]).unwrap();
            let path = format!("{}/{file}", mount["mountPath"].as_str().unwrap());
            let env = container["env"].as_array().unwrap();
            assert!(env.contains(&json!({"name": variable, "value": path})));
        }
    }
}

#[test]
fn agent_may_write_status_of_its_own_nodes_pods_only() {
    let objects = render(&[]);
    let policy = "ambit-agent-own-node-istio-system";
    let binding = &find(&objects, "ValidatingAdmissionPolicyBinding", policy)["spec"];
    assert_eq!(binding["policyName"], policy);
    let policy = &find(&objects, "ValidatingAdmissionPolicy", policy)["spec"];
    assert_eq!(policy["failurePolicy"], "Fail");
    // Earlier versions of Kubernetes do not put the node into tokens.
    let release = Release {
        kube_minor_version: "29".to_owned(),
        ..Release::default()
    };
    let old = super::render_objects(
        &release,
        &ValueOverrides::default().with_defaults().unwrap(),
    )
    .unwrap();
    assert!(
        old.iter()
            .all(|object| object["kind"] != "ValidatingAdmissionPolicy")
    );
}

#[test]
fn release_before_uninstall_is_an_optional_hook() {
    let names =
        |objects: &[Value]| -> Vec<_> { objects.iter().map(ObjectRef::from_object).collect() };
    let policies = "global.networkPolicy.enabled=true";
    let mut with = render(&[policies]);
    let hooks: Vec<_> = with
        .extract_if(.., |object| object::is_helm_hook(object))
        .collect();
    assert_eq!(hooks.len(), 7);
    for hook in &hooks {
        assert_eq!(
            hook["metadata"]["annotations"]["helm.sh/hook"],
            "pre-delete"
        );
        assert_eq!(hook["metadata"]["name"], "ambit-release");
    }
    let without = render(&[policies, "global.releaseOnUninstall=false"]);
    assert_eq!(names(&with), names(&without));
}

#[test]
fn crds_serve_the_versions_of_istio() {
    let names: Vec<_> = render_crds()
        .unwrap()
        .iter()
        .map(|crd| {
            let versions = crd["spec"]["versions"].as_array().unwrap();
            let group = crd["spec"]["group"].as_str().unwrap();
            for version in versions {
                assert_eq!(version["subresources"], json!({"status": {}}));
                // The version that is stored and whose schema has all fields.
                let is_newest = ["extensions.istio.io", "ambit.io"].contains(&group);
                let stored = if is_newest { "v1alpha1" } else { "v1" };
                assert_eq!(version["storage"], version["name"] == stored);
                assert!(version["schema"]["openAPIV3Schema"]["properties"]["spec"].is_object());
            }
            let versions: Vec<_> = versions
                .iter()
                .map(|v| v["name"].as_str().unwrap())
                .collect();
            format!(
                "{} {}",
                crd["metadata"]["name"].as_str().unwrap(),
                versions.join(" ")
            )
        })
        .collect();
    assert_eq!(
        names,
        [
            "authorizationpolicies.security.istio.io v1 v1beta1",
            "destinationrules.networking.istio.io v1 v1beta1 v1alpha3",
            "httpfaults.ambit.io v1alpha1",
            "peerauthentications.security.istio.io v1 v1beta1",
            "ratelimits.ambit.io v1alpha1",
            "requestauthentications.security.istio.io v1 v1beta1",
            "serviceentries.networking.istio.io v1 v1beta1 v1alpha3",
            "telemetries.telemetry.istio.io v1 v1alpha1",
            "wasmplugins.extensions.istio.io v1alpha1",
            "workloadentries.networking.istio.io v1 v1beta1 v1alpha3",
        ]
    );
}

#[test]
fn kiali_crds_are_optional_and_survive_an_uninstallation() {
    let names = |settings: &[&str]| -> Vec<String> {
        let definitions = render(settings).into_iter();
        let definitions = definitions.filter(|object| object["kind"] == "CustomResourceDefinition");
        definitions
            .map(|object| {
                let keep = &object["metadata"]["annotations"]["helm.sh/resource-policy"];
                assert_eq!(keep, "keep", "{object}");
                object["spec"]["names"]["kind"].as_str().unwrap().to_owned()
            })
            .collect()
    };
    assert_eq!(names(&[]), Vec::<String>::new());
    let setting = "monitoring.kiali.definitions=true";
    let kinds = [
        "Sidecar",
        "Gateway",
        "VirtualService",
        "WorkloadGroup",
        "EnvoyFilter",
        "ProxyConfig",
    ];
    assert_eq!(names(&[setting]), kinds);
    let mut overrides = ValueOverrides::default();
    overrides.set(setting, false).unwrap();
    let plan = crate::plan::Plan::new(Release::default(), overrides).unwrap();
    let kind = |object: &Value| object["spec"]["names"]["kind"].as_str() == Some("Sidecar");
    assert!(plan.crds.iter().any(kind) && !plan.objects.iter().any(kind));
}

#[test]
fn notes_name_the_namespace() {
    let release = Release {
        namespace: "mesh".to_owned(),
        ..Release::default()
    };
    let mut values = ValueOverrides::default();
    let text = render_notes(&release, &values.with_defaults().unwrap()).unwrap();
    assert!(text.contains("namespace mesh "), "{text}");
    assert!(!text.contains("--release-only"), "{text}");
    values
        .set("global.releaseOnUninstall=false", false)
        .unwrap();
    let text = render_notes(&release, &values.with_defaults().unwrap()).unwrap();
    let by_hand = "unenrolled:\n  ambit uninstall --release-only --mesh-namespace mesh\n";
    assert!(text.ends_with(by_hand), "{text}");
}

/// Checks that `waypoint-objects` accepts the waypoint values that the chart passes on.
#[test]
fn waypoint_values_reach_the_control_plane() {
    let objects = render(&[
        "global.hub=example/x,global.tag=dev,global.imagePullPolicy=Never,global.imagePullSecrets={one}",
        "global.waypoint.replicas=3,global.waypoint.terminationGracePeriodSeconds=600",
        "global.network=net1,global.waypoint.upgrades={websocket,spice}",
    ]);
    let control = find(&objects, "Deployment", "ambit-control");
    let env = &control["spec"]["template"]["spec"]["containers"][0]["env"];
    let env = env.as_array().unwrap().iter();
    let settings = env.clone().find(|one| one["name"] == "AMBIT_WAYPOINTS");
    let settings = settings.unwrap()["value"].as_str().unwrap();
    let settings: ambit_waypoint_objects::Settings = serde_json::from_str(settings).unwrap();
    assert_eq!(settings.image, "example/x/waypoint:dev");
    assert_eq!(settings.image_pull_policy, "Never");
    assert_eq!(settings.image_pull_secrets, ["one"]);
    assert_eq!(settings.replicas, 3);
    assert_eq!(settings.termination_grace_period_seconds, 600);
    assert_eq!(settings.network, "net1");
    assert_eq!(settings.upgrades, ["websocket", "spice"]);
    assert_eq!(settings.resources["requests"]["cpu"], "100m");
    assert_eq!(
        (settings.ca_address.as_str(), settings.peer_ca_crl),
        ("", false)
    );
    assert!(settings.metrics_principals);
}

#[test]
fn waypoints_use_the_ca_and_crl_of_node_proxies() {
    let settings = |values: &[&str]| {
        let objects = render(values);
        let control = find(&objects, "Deployment", "ambit-control");
        let env = &control["spec"]["template"]["spec"]["containers"][0]["env"];
        let mut env = env.as_array().unwrap().iter();
        let variable = env.find(|one| one["name"] == "AMBIT_WAYPOINTS").unwrap();
        let variable = variable["value"].as_str().unwrap();
        serde_json::from_str::<ambit_waypoint_objects::Settings>(variable).unwrap()
    };
    let shared = settings(&["ztunnel.caAddress=https://csr:443,ztunnel.peerCaCrl.enabled=true"]);
    assert_eq!(shared.ca_address, "https://csr:443");
    assert!(shared.peer_ca_crl);
    let own =
        settings(&["ztunnel.caAddress=https://csr:443,global.waypoint.caAddress=https://own:1"]);
    assert_eq!(own.ca_address, "https://own:1");
    assert!(!settings(&["global.metrics.principals=false"]).metrics_principals);
    assert_eq!(shared.spiffe, None);
    let spiffe = settings(&["global.spiffe.enabled=true"]).spiffe.unwrap();
    assert_eq!(spiffe.csi_driver, "csi.spiffe.io");
    assert_eq!(spiffe.socket, "spire-agent.sock");
}

#[test]
fn node_proxies_mount_the_admin_socket_of_the_spiffe_agent() {
    let values = ["global.spiffe.enabled=true,global.spiffe.delegatedIdentity.hostPath=/run/a"];
    let objects = render(&values);
    let pod = &find(&objects, "DaemonSet", "ztunnel")["spec"]["template"]["spec"];
    let host_path = json!({"path": "/run/a", "type": "DirectoryOrCreate"});
    let volume = json!({"name": "spire-admin", "hostPath": host_path});
    assert!(pod["volumes"].as_array().unwrap().contains(&volume));
    let mount = json!({"name": "spire-admin", "mountPath": "/var/run/spire", "readOnly": true});
    let socket = json!(
        {"name": "AMBIT_SPIRE_ADMIN_SOCKET", "value": "unix:///var/run/spire/admin.sock"}
    );
    for container in pod["containers"].as_array().unwrap() {
        assert!(
            container["volumeMounts"]
                .as_array()
                .unwrap()
                .contains(&mount)
        );
        assert!(container["env"].as_array().unwrap().contains(&socket));
    }
}

#[test]
fn programs_and_waypoints_push_to_the_collector_that_is_set() {
    assert!(
        !render(&[])
            .iter()
            .any(|one| one.to_string().contains("OTEL_"))
    );
    let objects = render(&[
        "global.openTelemetry.endpoint=http://collector.observability:4317",
        "global.openTelemetry.protocol=grpc,global.openTelemetry.metrics=false",
        "global.openTelemetry.headersSecret.name=otlp,global.openTelemetry.headersSecret.key=all",
    ]);
    let pod = |kind: &str, name: &str| &find(&objects, kind, name)["spec"]["template"]["spec"];
    let secret = json!({"secretKeyRef": {"name": "otlp", "key": "all", "optional": true}});
    let headers = json!({"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": secret});
    let expected = [
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://collector.observability:4317",
        ),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_METRICS_EXPORTER", "none"),
    ];
    for pod in [
        pod("DaemonSet", "ztunnel"),
        pod("Deployment", "ambit-control"),
    ] {
        for container in pod["containers"].as_array().unwrap() {
            let env = container["env"].as_array().unwrap();
            for (name, value) in expected {
                assert!(
                    env.contains(&json!({"name": name, "value": value})),
                    "{name}"
                );
            }
            assert!(env.contains(&headers));
            assert!(!container.to_string().contains("OTEL_LOGS_EXPORTER"));
        }
    }
    let agent = &pod("DaemonSet", "ambit-agent")["containers"][0]["env"];
    assert!(agent.as_array().unwrap().contains(&headers));
    let data = &find(&objects, "ConfigMap", "ambit-agent-config")["data"];
    for (name, value) in expected {
        assert_eq!(data[name], value);
    }
    let control = &pod("Deployment", "ambit-control")["containers"][0]["env"];
    let mut control = control.as_array().unwrap().iter();
    let waypoints = control
        .find(|one| one["name"] == "AMBIT_WAYPOINTS")
        .unwrap();
    let waypoints = waypoints["value"].as_str().unwrap();
    let settings: ambit_waypoint_objects::Settings = serde_json::from_str(waypoints).unwrap();
    let telemetry = settings.open_telemetry;
    assert_eq!(telemetry.endpoint, "http://collector.observability:4317");
    assert_eq!(telemetry.protocol, "grpc");
    assert_eq!((telemetry.metrics, telemetry.logs), (false, true));
    let secret = (telemetry.headers_secret.name, telemetry.headers_secret.key);
    assert_eq!(secret, ("otlp".to_owned(), "all".to_owned()));
}

#[test]
fn ca_and_agents_have_the_same_enablement_rules() {
    let objects = render(&["cni.excludeNamespaces={a,b},pilot.maxWorkloadCertTTL=1h"]);
    let control = find(&objects, "Deployment", "ambit-control");
    let env = &control["spec"]["template"]["spec"]["containers"][0]["env"];
    let value = |name: &str| {
        let mut env = env.as_array().unwrap().iter();
        let found = env.find(|one| one["name"] == name);
        found.map(|one| one["value"].as_str().unwrap().to_owned())
    };
    let agent = &find(&objects, "ConfigMap", "ambit-agent-config")["data"];
    assert_eq!(value("EXCLUDE_NAMESPACES").unwrap(), "a,b");
    assert_eq!(agent["EXCLUDE_NAMESPACES"], "a,b");
    assert_eq!(value("AMBIENT_ENABLEMENT_SELECTOR"), None);
    assert_eq!(value("MAX_WORKLOAD_CERT_TTL").unwrap(), "1h");
}

/// Returns the validation rules of an object schema of a CRD.
fn validation_rules(schema: &Value) -> Vec<&str> {
    let rules = schema["x-kubernetes-validations"].as_array();
    let rules = rules.into_iter().flatten();
    rules.filter_map(|rule| rule["rule"].as_str()).collect()
}

#[test]
fn misspelt_targets_are_rejected_at_admission() {
    let mut checked = 0;
    for crd in render_crds().unwrap() {
        let name = crd["metadata"]["name"].as_str().unwrap();
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let schema = &version["schema"]["openAPIV3Schema"];
            let spec = &schema["properties"]["spec"]["properties"];
            let targets = [&spec["targetRef"], &spec["targetRefs"]["items"]];
            for target in targets.into_iter().filter(|target| target.is_object()) {
                let [rule] = validation_rules(target)[..] else {
                    panic!("{name} has not one rule for its targets");
                };
                for part in [
                    "self.kind == 'Service' ? !has(self.group) || self.group in ['', 'core']",
                    "self.kind == 'ServiceEntry' ? has(self.group) && self.group == 'networking.istio.io'",
                    "self.kind in ['Gateway', 'GatewayClass'] && has(self.group) && self.group == 'gateway.networking.k8s.io'",
                ] {
                    assert!(rule.contains(part), "{name}: {rule}");
                }
                // The API server limits the cost of a rule, which it estimates by the maximum
                // lengths of texts.
                assert_eq!(target["properties"]["kind"]["maxLength"], 63, "{name}");
                assert_eq!(target["properties"]["group"]["maxLength"], 253, "{name}");
                checked += 1;
            }
            if let Some(refs) = spec["targetRefs"].as_object() {
                assert_eq!(refs["maxItems"], 16, "{name}");
            }
        }
    }
    // AuthorizationPolicy, RequestAuthentication and Telemetry in two versions, RateLimit and WasmPlugin in one.
    assert_eq!(checked, 2 * 2 * 3 + 1 + 2);
}

mod revisions;
