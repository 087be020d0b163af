//! Pod template of a waypoint.

use serde_json::{Map, Value, json};

use crate::Settings;
use ambit_k8s_api::labels::{
    CANONICAL_NAME, CANONICAL_REVISION, DATAPLANE_MODE, DATAPLANE_MODE_NONE, POD_TEMPLATE_HASH,
};

/// Label of a waypoint's pods that names their Gateway.
pub const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// Port on which waypoints accept HBONE tunnels.
pub const HBONE_PORT: u16 = 15008;
/// Port of the readiness probe.
pub(crate) const READINESS_PORT: u16 = 15021;
const METRICS_PORT: u16 = 15020;
/// Requested lifetime of the service account token, in seconds; the kubelet renews it long before it expires.
const TOKEN_LIFETIME_SECONDS: u32 = 43_200;
/// Environment variable with the pod's termination grace period.
const GRACE_PERIOD_VARIABLE: &str = "TERMINATION_GRACE_PERIOD_SECONDS";
/// Name of the pod's only container.
pub(crate) const PROXY_CONTAINER: &str = "istio-proxy";
/// Names of the pod's volumes: the token and the root certificates for requests to the CA, scratch space, CRLs, trust
/// domains, and the socket of a SPIFFE agent.
pub(crate) const VOLUME_NAMES: [&str; 6] = [
    "istio-token",
    "istiod-ca-cert",
    "trust-domains",
    "tmp",
    "peer-ca-crl",
    "spiffe-workload-api",
];
/// Directory of the Workload API's socket in the container.
const WORKLOAD_API_DIRECTORY: &str = "/var/run/spiffe";
/// Unprivileged user ID of the container's process.
const CONTAINER_USER_ID: u32 = 1337;

/// Returns the labels of a waypoint's pods, without the labels that every object of the waypoint has.
pub(crate) fn labels(gateway: &str) -> Value {
    json!({
        GATEWAY_NAME_LABEL: gateway,
        CANONICAL_NAME: gateway,
        CANONICAL_REVISION: "latest",
        // The waypoint has its own identity and certificates; its connections are not captured.
        DATAPLANE_MODE: DATAPLANE_MODE_NONE,
        "sidecar.istio.io/inject": "false",
    })
}

/// Returns the annotations of a waypoint's pods.
pub(crate) fn annotations() -> Value {
    json!({
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/stats/prometheus",
        "prometheus.io/port": METRICS_PORT.to_string(),
    })
}

/// Returns the specification of a waypoint's pods.
pub(crate) fn spec(gateway: &str, selector: &Value, settings: &Settings) -> Value {
    let secrets: Vec<_> = settings
        .image_pull_secrets
        .iter()
        .map(|name| json!({"name": name}))
        .collect();
    let mut spec = json!({
        "serviceAccountName": gateway,
        // The waypoint never calls the API server; the token for the control plane is a volume.
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": settings.termination_grace_period_seconds,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": CONTAINER_USER_ID, "runAsGroup": CONTAINER_USER_ID, "fsGroup": CONTAINER_USER_ID,
            "seccompProfile": settings.seccomp_profile,
        },
        "imagePullSecrets": secrets,
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "affinity": affinity(selector, settings),
        "topologySpreadConstraints": topology_spread_constraints(selector, settings),
        "containers": [container(gateway, settings)],
        "volumes": volumes(settings),
    });
    remove_empty_members(&mut spec);
    spec
}

fn container(gateway: &str, settings: &Settings) -> Value {
    let ready = json!({"path": "/healthz/ready", "port": READINESS_PORT});
    let mut container = json!({
        "name": PROXY_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": settings.command,
        "args": ["proxy", "waypoint"],
        "env": env(gateway, settings),
        "ports": [
            {"name": "hbone", "containerPort": HBONE_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
            {"name": "status-port", "containerPort": READINESS_PORT, "protocol": "TCP"},
        ],
        // Liveness, not readiness: a restart would not end the wait for a control plane.
        "startupProbe": {
            "tcpSocket": {"port": READINESS_PORT},
            "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 60,
        },
        "readinessProbe": {
            "httpGet": ready, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 20,
        },
        "resources": settings.resources,
        "securityContext": {
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts(settings),
    });
    remove_empty_members(&mut container);
    container
}

fn mounts(settings: &Settings) -> Vec<Value> {
    let mut mounts = vec![
        json!({"name": "istio-token", "mountPath": "/var/run/secrets/tokens", "readOnly": true}),
        json!({"name": "istiod-ca-cert", "mountPath": "/var/run/secrets/istio", "readOnly": true}),
        json!({"name": "trust-domains", "mountPath": "/var/run/secrets/trust-domains", "readOnly": true}),
        json!({"name": "tmp", "mountPath": "/tmp"}),
    ];
    if settings.peer_ca_crl {
        mounts.push(json!(
            {"name": "peer-ca-crl", "mountPath": "/var/run/secrets/istio/crl", "readOnly": true}
        ));
    }
    if settings.spiffe.is_some() {
        mounts.push(
            json!({"name": "spiffe-workload-api", "mountPath": WORKLOAD_API_DIRECTORY, "readOnly": true}),
        );
    }
    mounts
}

fn env(gateway: &str, settings: &Settings) -> Vec<Value> {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut env = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
        field("INSTANCE_IP", "status.podIP"),
        field("NODE_NAME", "spec.nodeName"),
    ];
    let telemetry = &settings.open_telemetry;
    let is_exporting = !telemetry.endpoint.is_empty();
    let protocol = Some(telemetry.protocol.as_str()).filter(|_| is_exporting);
    let none = |is_exported: bool| match is_exporting && !is_exported {
        true => "none",
        false => "",
    };
    let headers = &telemetry.headers_secret;
    if is_exporting && !headers.name.is_empty() {
        let key = json!({"name": headers.name, "key": headers.key, "optional": true});
        env.push(json!({"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": {"secretKeyRef": key}}));
    }
    let grace = settings.termination_grace_period_seconds.to_string();
    let upgrades = match settings.upgrades.is_empty() {
        true => "none".to_owned(),
        false => settings.upgrades.join(","),
    };
    let format = if settings.log_as_json {
        "json"
    } else {
        "plain"
    };
    let crl = Some(settings.files.crl.as_str()).filter(|_| settings.peer_ca_crl);
    let principals = (!settings.metrics_principals).then_some("false");
    let ca_address = match settings.ca_address.as_str() {
        "" => &settings.control_address,
        other => other,
    };
    let workload_api = settings.spiffe.as_ref();
    let workload_api =
        workload_api.map(|api| format!("unix://{WORKLOAD_API_DIRECTORY}/{}", api.socket));
    let fixed = [
        ("GATEWAY_NAME", gateway),
        ("XDS_ADDRESS", &settings.control_address),
        ("CA_ADDRESS", ca_address),
        (
            "SPIFFE_ENDPOINT_SOCKET",
            workload_api.as_deref().unwrap_or_default(),
        ),
        ("XDS_ROOT_CA", &settings.files.root_cert),
        ("CA_ROOT_CA", &settings.files.root_cert),
        ("AMBIT_TRUST_DOMAINS_PATH", &settings.files.trust_domains),
        ("CRL_PATH", crl.unwrap_or_default()),
        (
            "AMBIT_FLOW_READER",
            settings.flow_reader.as_deref().unwrap_or_default(),
        ),
        ("AUTH_TOKEN", &settings.files.token),
        ("TRUST_DOMAIN", &settings.trust_domain),
        ("CLUSTER_ID", &settings.cluster_id),
        ("CLUSTER_DOMAIN", &settings.cluster_domain),
        ("NETWORK", &settings.network),
        (GRACE_PERIOD_VARIABLE, &grace),
        ("AMBIT_METRICS_PRINCIPALS", principals.unwrap_or_default()),
        ("RUST_LOG", &settings.log_level),
        ("LOG_FORMAT", format),
        ("AMBIT_UPGRADES", &upgrades),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &telemetry.endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol.unwrap_or_default()),
        ("OTEL_METRICS_EXPORTER", none(telemetry.metrics)),
        ("OTEL_LOGS_EXPORTER", none(telemetry.logs)),
    ];
    let further = settings
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    // Server-side apply identifies variables by name, so that names must be unique.
    env.retain(|one| {
        let name = one.get("name").and_then(Value::as_str);
        name.is_none_or(|name| !settings.env.contains_key(name))
    });
    let ours = fixed
        .into_iter()
        .filter(|(name, value)| !value.is_empty() && !settings.env.contains_key(*name));
    env.extend(
        ours.chain(further)
            .map(|(name, value)| json!({"name": name, "value": value})),
    );
    env
}

fn volumes(settings: &Settings) -> Vec<Value> {
    let [token_name, roots, domains, room, revoked, workload_api] = VOLUME_NAMES;
    let token = json!({
        "path": "istio-token", "audience": "istio-ca", "expirationSeconds": TOKEN_LIFETIME_SECONDS,
    });
    let mut volumes = vec![
        json!({"name": token_name, "projected": {"sources": [{"serviceAccountToken": token}]}}),
        json!({"name": roots, "configMap": {"name": "istio-ca-root-cert"}}),
        // The control plane creates the ConfigMap only if other trust domains are accepted.
        json!({"name": domains, "configMap": {"name": "ambit-trust-domains", "optional": true}}),
        json!({"name": room, "emptyDir": {}}),
    ];
    if settings.peer_ca_crl {
        // The control plane creates the ConfigMap only if there is a revocation list.
        volumes.push(
            json!({"name": revoked, "configMap": {"name": "istio-ca-crl", "optional": true}}),
        );
    }
    if let Some(api) = &settings.spiffe {
        // The agent recreates its socket when it starts.
        volumes.push(match api.csi_driver.as_str() {
            "" => json!({
                "name": workload_api,
                "hostPath": {"path": api.host_path, "type": "DirectoryOrCreate"},
            }),
            driver => json!({"name": workload_api, "csi": {"driver": driver, "readOnly": true}}),
        });
    }
    volumes
}

/// Returns the default topology spread constraints: over nodes, among the pods of one rollout. They use only a key that
/// every node has: kube-scheduler excludes nodes without a key from all constraints, so that a zone constraint would
/// not spread pods where nodes have no zones.
fn topology_spread_constraints(selector: &Value, settings: &Settings) -> Vec<Value> {
    let usual = json!(
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    );
    let mut constraints = match settings.topology_spread_constraints.as_slice() {
        [] => vec![usual],
        given => given.to_vec(),
    };
    set_selectors(&mut constraints, selector);
    constraints
}

/// Returns the pods' affinity: unless the settings say how pods are spread, pods avoid the zones of the waypoint's
/// other pods. Nodes without zones are equally preferred.
///
/// Without `matchLabelKeys`, which API servers before Kubernetes 1.29 reject.
fn affinity(selector: &Value, settings: &Settings) -> Map<String, Value> {
    let mut affinity = settings.affinity.clone();
    if settings.topology_spread_constraints.is_empty() {
        affinity.entry("podAntiAffinity").or_insert_with(|| {
            json!({"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "topology.kubernetes.io/zone", "labelSelector": selector,
                },
            }]})
        });
    }
    affinity
}

/// Adds the pods' selector to topology spread constraints without one.
fn set_selectors(constraints: &mut [Value], selector: &Value) {
    for constraint in constraints.iter_mut().filter_map(Value::as_object_mut) {
        constraint
            .entry("labelSelector")
            .or_insert_with(|| selector.clone());
        constraint
            .entry("matchLabelKeys")
            .or_insert_with(|| json!([POD_TEMPLATE_HASH]));
    }
}

/// Recomputes fields of a Deployment's pod template that depend on others, after overlays were merged: selectors of
/// topology spread constraints, and the variable with the termination grace period.
pub(crate) fn adjust_pod_template(deployment: &mut Value, selector: &Value, settings: &Settings) {
    let Some(spec) = deployment.pointer_mut("/spec/template/spec") else {
        return;
    };
    let constraints = spec.get_mut("topologySpreadConstraints");
    if let Some(constraints) = constraints.and_then(Value::as_array_mut) {
        set_selectors(constraints, selector);
    }
    let grace = spec.get("terminationGracePeriodSeconds");
    let Some(grace) = grace.and_then(Value::as_u64) else {
        return;
    };
    if grace == u64::from(settings.termination_grace_period_seconds) {
        return;
    }
    let env = spec.pointer_mut("/containers/0/env");
    let env = env.and_then(Value::as_array_mut).into_iter().flatten();
    for variable in env.filter(|variable| {
        variable
            .get("name")
            .is_some_and(|name| name == GRACE_PERIOD_VARIABLE)
    }) {
        if let Some(value) = variable.get_mut("value") {
            *value = grace.to_string().into();
        }
    }
}

/// Removes empty values, so that server-side apply does not own their fields needlessly.
fn remove_empty_members(object: &mut Value) {
    let Some(members) = object.as_object_mut() else {
        return;
    };
    members.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    });
}
