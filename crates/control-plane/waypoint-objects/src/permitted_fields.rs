//! Allowlist of changes by overlays. A user who may write a ConfigMap and a Gateway need not be allowed to run programs
//! in the namespace, and a waypoint is trusted beyond its namespace: so an overlay may set placement, number and
//! resources of its pods, and never their programs, identity, or source of keys. Any field that is not listed here is
//! rejected.

use serde_json::{Map, Value};

use crate::{
    MANAGED_LABEL,
    field_path::{FieldError, FieldPath},
    merge::PATCH_DIRECTIVE,
    ownership::GATEWAY_CLASS_LABEL,
    part::WaypointObjectKind,
    pod::{GATEWAY_NAME_LABEL, HBONE_PORT, PROXY_CONTAINER, VOLUME_NAMES},
};
use ambit_k8s_api::labels::DATAPLANE_MODE;

/// Labels that mark an object as a waypoint's, which overlays cannot change.
const RESERVED_LABELS: [&str; 5] = [
    MANAGED_LABEL,
    GATEWAY_NAME_LABEL,
    GATEWAY_CLASS_LABEL,
    DATAPLANE_MODE,
    "sidecar.istio.io/inject",
];
/// Environment variables that overlays may set, since they have no effect on identities, keys and
/// trust.
const PERMITTED_VARIABLES: [&str; 11] = [
    "RUST_LOG",
    "LOG_FORMAT",
    "CONNECTION_TERMINATION_DEADLINE",
    "ZTUNNEL_WORKER_THREADS",
    "AMBIT_WAYPOINT_LINGER",
    "AMBIT_MAX_HEADERS",
    "AMBIT_MAX_HEADER_BYTES",
    "AMBIT_REQUEST_HEADERS_TIMEOUT",
    "AMBIT_STREAM_STALL_TIMEOUT",
    "AMBIT_STREAM_IDLE_TIMEOUT",
    "AMBIT_CANCEL_ON_HALF_CLOSE",
];
/// Prefixes of environment variables that overlays may set.
const PERMITTED_VARIABLE_PREFIXES: [&str; 6] = [
    "AMBIT_ACCESS_LOG",
    "AMBIT_MAX_SETUPS_",
    "HTTP2_",
    "KEEPALIVE_",
    "OTEL_",
    "POOL_",
];
/// Directories below which overlays may mount files: no program or library is in them, and no file that is read without
/// configuration.
const MOUNT_DIRECTORIES: [&str; 3] = ["/data/", "/etc/certs/", "/mnt/"];

/// Rule about the values that an overlay may set in a field.
enum FieldRule {
    /// Any value, including removal.
    Any,
    /// Only these fields; others are rejected.
    Fields(&'static [(&'static str, Self)]),
    /// Only the value that the object already has, for overlays with complete objects.
    Unchanged,
    /// Any labels except those in [`RESERVED_LABELS`].
    Labels,
    /// One of these values.
    OneOf(&'static [&'static str]),
    /// Only list elements whose merge key the rule allows.
    List(&'static ListRule),
}

struct ListRule {
    merge_key: &'static str,
    check_key: fn(&Value) -> Result<(), &'static str>,
    element: FieldRule,
    /// Whether overlays may remove or replace elements.
    may_be_removed: bool,
}

const METADATA_RULE: FieldRule = FieldRule::Fields(&[
    ("name", FieldRule::Unchanged),
    ("namespace", FieldRule::Unchanged),
    ("labels", FieldRule::Labels),
    ("annotations", FieldRule::Any),
]);

const SERVICE_ACCOUNT_RULES: &[(&str, FieldRule)] = &[("imagePullSecrets", FieldRule::Any)];

const SERVICE_RULES: &[(&str, FieldRule)] = &[(
    "spec",
    FieldRule::Fields(&[
        (
            "type",
            FieldRule::OneOf(&["ClusterIP", "NodePort", "LoadBalancer"]),
        ),
        ("allocateLoadBalancerNodePorts", FieldRule::Any),
        ("externalTrafficPolicy", FieldRule::Any),
        ("healthCheckNodePort", FieldRule::Any),
        ("internalTrafficPolicy", FieldRule::Any),
        ("ipFamilies", FieldRule::Any),
        ("ipFamilyPolicy", FieldRule::Any),
        ("loadBalancerClass", FieldRule::Any),
        ("loadBalancerIP", FieldRule::Any),
        ("loadBalancerSourceRanges", FieldRule::Any),
        ("sessionAffinity", FieldRule::Any),
        ("sessionAffinityConfig", FieldRule::Any),
        ("trafficDistribution", FieldRule::Any),
        (
            "ports",
            FieldRule::List(&ListRule {
                merge_key: "port",
                check_key: check_port,
                element: FieldRule::Any,
                may_be_removed: true,
            }),
        ),
    ]),
)];

const DEPLOYMENT_RULES: &[(&str, FieldRule)] = &[(
    "spec",
    FieldRule::Fields(&[
        ("replicas", FieldRule::Any),
        ("strategy", FieldRule::Any),
        ("minReadySeconds", FieldRule::Any),
        ("revisionHistoryLimit", FieldRule::Any),
        ("progressDeadlineSeconds", FieldRule::Any),
        ("paused", FieldRule::Any),
        (
            "template",
            FieldRule::Fields(&[
                (
                    "metadata",
                    FieldRule::Fields(&[
                        ("labels", FieldRule::Labels),
                        ("annotations", FieldRule::Any),
                    ]),
                ),
                ("spec", FieldRule::Fields(POD_RULES)),
            ]),
        ),
    ]),
)];

const POD_RULES: &[(&str, FieldRule)] = &[
    ("affinity", FieldRule::Any),
    ("nodeSelector", FieldRule::Any),
    ("tolerations", FieldRule::Any),
    ("topologySpreadConstraints", FieldRule::Any),
    ("priorityClassName", FieldRule::Any),
    ("schedulerName", FieldRule::Any),
    ("runtimeClassName", FieldRule::Any),
    ("terminationGracePeriodSeconds", FieldRule::Any),
    ("dnsConfig", FieldRule::Any),
    ("dnsPolicy", FieldRule::Any),
    ("hostAliases", FieldRule::Any),
    ("imagePullSecrets", FieldRule::Any),
    (
        "securityContext",
        FieldRule::Fields(&[
            ("fsGroup", FieldRule::Any),
            ("fsGroupChangePolicy", FieldRule::Any),
            ("runAsGroup", FieldRule::Any),
            ("runAsUser", FieldRule::Any),
            ("seLinuxOptions", FieldRule::Any),
            ("supplementalGroups", FieldRule::Any),
        ]),
    ),
    (
        "containers",
        FieldRule::List(&ListRule {
            merge_key: "name",
            check_key: check_container,
            element: FieldRule::Fields(PROXY_CONTAINER_RULES),
            may_be_removed: false,
        }),
    ),
    (
        "volumes",
        FieldRule::List(&ListRule {
            merge_key: "name",
            check_key: check_volume,
            element: FieldRule::Fields(&[
                ("name", FieldRule::Any),
                ("configMap", FieldRule::Any),
                ("downwardAPI", FieldRule::Any),
                ("emptyDir", FieldRule::Any),
                ("persistentVolumeClaim", FieldRule::Any),
                ("secret", FieldRule::Any),
            ]),
            may_be_removed: true,
        }),
    ),
];

const PROXY_CONTAINER_RULES: &[(&str, FieldRule)] = &[
    ("name", FieldRule::Any),
    ("imagePullPolicy", FieldRule::Any),
    ("resources", FieldRule::Any),
    ("livenessProbe", PROBE_RULE),
    ("readinessProbe", PROBE_RULE),
    ("startupProbe", PROBE_RULE),
    (
        "securityContext",
        FieldRule::Fields(&[
            ("runAsGroup", FieldRule::Any),
            ("runAsUser", FieldRule::Any),
            ("seLinuxOptions", FieldRule::Any),
        ]),
    ),
    (
        "env",
        FieldRule::List(&ListRule {
            merge_key: "name",
            check_key: check_variable,
            element: FieldRule::Fields(&[("name", FieldRule::Any), ("value", FieldRule::Any)]),
            may_be_removed: true,
        }),
    ),
    (
        "volumeMounts",
        FieldRule::List(&ListRule {
            merge_key: "mountPath",
            check_key: check_mount,
            element: FieldRule::Any,
            may_be_removed: true,
        }),
    ),
];

/// Rule for probes: never `exec`, which would run a program, and no other host, which the kubelet would call.
const PROBE_RULE: FieldRule = FieldRule::Fields(&[
    ("failureThreshold", FieldRule::Any),
    (
        "httpGet",
        FieldRule::Fields(&[
            ("httpHeaders", FieldRule::Any),
            ("path", FieldRule::Any),
            ("port", FieldRule::Any),
            ("scheme", FieldRule::Any),
        ]),
    ),
    ("initialDelaySeconds", FieldRule::Any),
    ("periodSeconds", FieldRule::Any),
    ("successThreshold", FieldRule::Any),
    ("terminationGracePeriodSeconds", FieldRule::Any),
    ("timeoutSeconds", FieldRule::Any),
]);

const AUTOSCALER_RULES: &[(&str, FieldRule)] = &[(
    "spec",
    FieldRule::Fields(&[
        ("scaleTargetRef", FieldRule::Unchanged),
        ("minReplicas", FieldRule::Any),
        ("maxReplicas", FieldRule::Any),
        ("metrics", FieldRule::Any),
        ("behavior", FieldRule::Any),
    ]),
)];

const DISRUPTION_BUDGET_RULES: &[(&str, FieldRule)] = &[(
    "spec",
    FieldRule::Fields(&[
        ("selector", FieldRule::Unchanged),
        ("minAvailable", FieldRule::Any),
        ("maxUnavailable", FieldRule::Any),
        ("unhealthyPodEvictionPolicy", FieldRule::Any),
    ]),
)];

/// Checks that an overlay makes only permitted changes to one of a waypoint's objects; `base` is the object without it.
pub(crate) fn check_overlay(
    part: WaypointObjectKind,
    overlay: &Value,
    base: &Value,
) -> Result<(), FieldError> {
    let own = match part {
        WaypointObjectKind::ServiceAccount => SERVICE_ACCOUNT_RULES,
        WaypointObjectKind::Service => SERVICE_RULES,
        WaypointObjectKind::Deployment => DEPLOYMENT_RULES,
        WaypointObjectKind::Autoscaler => AUTOSCALER_RULES,
        WaypointObjectKind::DisruptionBudget => DISRUPTION_BUDGET_RULES,
    };
    let root = FieldPath::default();
    let members = overlay
        .as_object()
        .ok_or_else(|| root.error("is not a map"))?;
    for (name, value) in members {
        let place = root.join_member(name);
        let base = base.get(name);
        match name.as_str() {
            "apiVersion" | "kind" => check_value(&FieldRule::Unchanged, value, base, &place)?,
            "metadata" => check_value(&METADATA_RULE, value, base, &place)?,
            _ => check_member(own, name, value, base, &place)?,
        }
    }
    Ok(())
}

fn check_member(
    rules: &[(&str, FieldRule)],
    name: &str,
    value: &Value,
    base: Option<&Value>,
    path: &FieldPath,
) -> Result<(), FieldError> {
    let rule = rules.iter().find(|(known, _)| *known == name);
    let (_, rule) = rule.ok_or_else(|| {
        path.error("is not for overlays: they set placement, number and resources of a waypoint's pods, not their programs and identity")
    })?;
    check_value(rule, value, base, path)
}

fn check_value(
    rule: &FieldRule,
    value: &Value,
    base: Option<&Value>,
    path: &FieldPath,
) -> Result<(), FieldError> {
    match rule {
        FieldRule::Any => Ok(()),
        FieldRule::Unchanged if base == Some(value) => Ok(()),
        FieldRule::Unchanged => Err(path.error("is the Gateway's to say, and not for overlays")),
        FieldRule::OneOf(words) if value.as_str().is_some_and(|word| words.contains(&word)) => {
            Ok(())
        }
        FieldRule::OneOf(words) => Err(path.error(format!("is none of {}", words.join(", ")))),
        FieldRule::Labels => check_labels(expect_map(value, path)?, path),
        FieldRule::Fields(rules) => {
            for (name, value) in expect_map(value, path)? {
                let base = base.and_then(|base| base.get(name));
                check_member(rules, name, value, base, &path.join_member(name))?;
            }
            Ok(())
        }
        FieldRule::List(list) => check_elements(list, value, path),
    }
}

/// Returns the map at a path, which an overlay may neither remove nor replace, since some of its members must stay.
fn expect_map<'a>(
    value: &'a Value,
    path: &FieldPath,
) -> Result<&'a Map<String, Value>, FieldError> {
    let members = value
        .as_object()
        .ok_or_else(|| path.error("must be a map: what it holds cannot all be removed"))?;
    match members.contains_key(PATCH_DIRECTIVE) {
        true => Err(path.error("cannot be removed or replaced as a whole: some of it must stay")),
        false => Ok(members),
    }
}

fn check_labels(labels: &Map<String, Value>, place: &FieldPath) -> Result<(), FieldError> {
    match labels
        .keys()
        .find(|name| RESERVED_LABELS.contains(&name.as_str()))
    {
        Some(name) => Err(place
            .join_member(name)
            .error("is how a waypoint is known, and not for overlays")),
        None => Ok(()),
    }
}

fn check_elements(list: &ListRule, value: &Value, place: &FieldPath) -> Result<(), FieldError> {
    let Some(elements) = value.as_array() else {
        return Err(place.error("must be a list: what it holds cannot all be removed"));
    };
    for (index, element) in elements.iter().enumerate() {
        let place = place.join_element(index);
        let key = element.get(list.merge_key).ok_or_else(|| {
            place.error(format!(
                "has no {}: the list cannot be replaced as a whole",
                list.merge_key
            ))
        })?;
        (list.check_key)(key).map_err(|why| place.join_member(list.merge_key).error(why))?;
        let mut element = element.clone();
        if list.may_be_removed
            && let Some(members) = element.as_object_mut()
        {
            members.remove(PATCH_DIRECTIVE);
        }
        check_value(&list.element, &element, None, &place)?;
    }
    Ok(())
}

fn allow_if(is_allowed: bool, why: &'static str) -> Result<(), &'static str> {
    is_allowed.then_some(()).ok_or(why)
}

fn check_port(port: &Value) -> Result<(), &'static str> {
    let is_ours = port.as_u64() == Some(HBONE_PORT.into());
    allow_if(!is_ours, "15008 is where clients find the waypoint")
}

fn check_container(name: &Value) -> Result<(), &'static str> {
    let why = "is another container, which would run under the waypoint's identity";
    allow_if(name.as_str() == Some(PROXY_CONTAINER), why)
}

fn check_volume(name: &Value) -> Result<(), &'static str> {
    let is_ours = name
        .as_str()
        .is_none_or(|name| VOLUME_NAMES.contains(&name));
    allow_if(!is_ours, "is a volume that the waypoint cannot do without")
}

fn check_variable(name: &Value) -> Result<(), &'static str> {
    let name = name.as_str().unwrap_or_default();
    let is_known = PERMITTED_VARIABLES.contains(&name)
        || PERMITTED_VARIABLE_PREFIXES
            .iter()
            .any(|beginning| name.starts_with(beginning));
    allow_if(
        is_known,
        "is no variable that overlays may set: the chart's values for waypoints can",
    )
}

fn check_mount(path: &Value) -> Result<(), &'static str> {
    let path = path.as_str().unwrap_or_default();
    let is_below = MOUNT_DIRECTORIES.iter().any(|dir| path.starts_with(dir));
    let climbs = path.split('/').any(|part| part == "..");
    allow_if(
        is_below && !climbs,
        "is not below /mnt, /data or /etc/certs, where files may be mounted",
    )
}

#[cfg(test)]
mod tests;
