//! Allowlist of changes by overlays. A user who may write a ConfigMap and a Gateway need not be allowed to run programs
//! in the namespace, and a waypoint is trusted beyond its namespace: so an overlay may set placement, number and
//! resources of its pods, and never their programs, identity, or source of keys. Any field that is not listed here is
//! rejected.

use serde_json::{Map, Value};

use crate::{
    MANAGED,
    field_path::{FieldError, FieldPath},
    merge::DIRECTIVE,
    ours::GATEWAY_CLASS_NAME,
    part::Part,
    pod::{CONTAINER, GATEWAY_NAME, HBONE_PORT, VOLUMES},
};
use ambit_k8s_api::labels::DATAPLANE_MODE;

/// Labels that mark an object as a waypoint's, which overlays cannot change.
const LABELS: [&str; 5] = [
    MANAGED,
    GATEWAY_NAME,
    GATEWAY_CLASS_NAME,
    DATAPLANE_MODE,
    "sidecar.istio.io/inject",
];
/// Environment variables that overlays may set, since they have no effect on identities, keys and
/// trust.
const VARIABLES: [&str; 11] = [
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
const VARIABLE_PREFIXES: [&str; 6] = [
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
enum Rule {
    /// Any value, including removal.
    Any,
    /// Only these fields; others are rejected.
    Fields(&'static [(&'static str, Self)]),
    /// Only the value that the object already has, for overlays with complete objects.
    Same,
    /// Any labels except those in [`LABELS`].
    Labels,
    /// One of these values.
    OneOf(&'static [&'static str]),
    /// Only these elements of a list, identified by a merge key.
    List(&'static List),
}

struct List {
    key: &'static str,
    is_allowed: fn(&Value) -> Result<(), &'static str>,
    element: Rule,
    /// Whether overlays may remove or replace elements.
    may_be_removed: bool,
}

const METADATA: Rule = Rule::Fields(&[
    ("name", Rule::Same),
    ("namespace", Rule::Same),
    ("labels", Rule::Labels),
    ("annotations", Rule::Any),
]);

const SERVICE_ACCOUNT: &[(&str, Rule)] = &[("imagePullSecrets", Rule::Any)];

const SERVICE: &[(&str, Rule)] = &[(
    "spec",
    Rule::Fields(&[
        (
            "type",
            Rule::OneOf(&["ClusterIP", "NodePort", "LoadBalancer"]),
        ),
        ("allocateLoadBalancerNodePorts", Rule::Any),
        ("externalTrafficPolicy", Rule::Any),
        ("healthCheckNodePort", Rule::Any),
        ("internalTrafficPolicy", Rule::Any),
        ("ipFamilies", Rule::Any),
        ("ipFamilyPolicy", Rule::Any),
        ("loadBalancerClass", Rule::Any),
        ("loadBalancerIP", Rule::Any),
        ("loadBalancerSourceRanges", Rule::Any),
        ("sessionAffinity", Rule::Any),
        ("sessionAffinityConfig", Rule::Any),
        ("trafficDistribution", Rule::Any),
        (
            "ports",
            Rule::List(&List {
                key: "port",
                is_allowed: port,
                element: Rule::Any,
                may_be_removed: true,
            }),
        ),
    ]),
)];

const DEPLOYMENT: &[(&str, Rule)] = &[(
    "spec",
    Rule::Fields(&[
        ("replicas", Rule::Any),
        ("strategy", Rule::Any),
        ("minReadySeconds", Rule::Any),
        ("revisionHistoryLimit", Rule::Any),
        ("progressDeadlineSeconds", Rule::Any),
        ("paused", Rule::Any),
        (
            "template",
            Rule::Fields(&[
                (
                    "metadata",
                    Rule::Fields(&[("labels", Rule::Labels), ("annotations", Rule::Any)]),
                ),
                ("spec", Rule::Fields(POD)),
            ]),
        ),
    ]),
)];

const POD: &[(&str, Rule)] = &[
    ("affinity", Rule::Any),
    ("nodeSelector", Rule::Any),
    ("tolerations", Rule::Any),
    ("topologySpreadConstraints", Rule::Any),
    ("priorityClassName", Rule::Any),
    ("schedulerName", Rule::Any),
    ("runtimeClassName", Rule::Any),
    ("terminationGracePeriodSeconds", Rule::Any),
    ("dnsConfig", Rule::Any),
    ("dnsPolicy", Rule::Any),
    ("hostAliases", Rule::Any),
    ("imagePullSecrets", Rule::Any),
    (
        "securityContext",
        Rule::Fields(&[
            ("fsGroup", Rule::Any),
            ("fsGroupChangePolicy", Rule::Any),
            ("runAsGroup", Rule::Any),
            ("runAsUser", Rule::Any),
            ("seLinuxOptions", Rule::Any),
            ("supplementalGroups", Rule::Any),
        ]),
    ),
    (
        "containers",
        Rule::List(&List {
            key: "name",
            is_allowed: container,
            element: Rule::Fields(PROXY),
            may_be_removed: false,
        }),
    ),
    (
        "volumes",
        Rule::List(&List {
            key: "name",
            is_allowed: volume,
            element: Rule::Fields(&[
                ("name", Rule::Any),
                ("configMap", Rule::Any),
                ("downwardAPI", Rule::Any),
                ("emptyDir", Rule::Any),
                ("persistentVolumeClaim", Rule::Any),
                ("secret", Rule::Any),
            ]),
            may_be_removed: true,
        }),
    ),
];

const PROXY: &[(&str, Rule)] = &[
    ("name", Rule::Any),
    ("imagePullPolicy", Rule::Any),
    ("resources", Rule::Any),
    ("livenessProbe", PROBE),
    ("readinessProbe", PROBE),
    ("startupProbe", PROBE),
    (
        "securityContext",
        Rule::Fields(&[
            ("runAsGroup", Rule::Any),
            ("runAsUser", Rule::Any),
            ("seLinuxOptions", Rule::Any),
        ]),
    ),
    (
        "env",
        Rule::List(&List {
            key: "name",
            is_allowed: variable,
            element: Rule::Fields(&[("name", Rule::Any), ("value", Rule::Any)]),
            may_be_removed: true,
        }),
    ),
    (
        "volumeMounts",
        Rule::List(&List {
            key: "mountPath",
            is_allowed: mount,
            element: Rule::Any,
            may_be_removed: true,
        }),
    ),
];

/// Rule for probes: never `exec`, which would run a program, and no other host, which the kubelet would call.
const PROBE: Rule = Rule::Fields(&[
    ("failureThreshold", Rule::Any),
    (
        "httpGet",
        Rule::Fields(&[
            ("httpHeaders", Rule::Any),
            ("path", Rule::Any),
            ("port", Rule::Any),
            ("scheme", Rule::Any),
        ]),
    ),
    ("initialDelaySeconds", Rule::Any),
    ("periodSeconds", Rule::Any),
    ("successThreshold", Rule::Any),
    ("terminationGracePeriodSeconds", Rule::Any),
    ("timeoutSeconds", Rule::Any),
]);

const AUTOSCALER: &[(&str, Rule)] = &[(
    "spec",
    Rule::Fields(&[
        ("scaleTargetRef", Rule::Same),
        ("minReplicas", Rule::Any),
        ("maxReplicas", Rule::Any),
        ("metrics", Rule::Any),
        ("behavior", Rule::Any),
    ]),
)];

const DISRUPTION_BUDGET: &[(&str, Rule)] = &[(
    "spec",
    Rule::Fields(&[
        ("selector", Rule::Same),
        ("minAvailable", Rule::Any),
        ("maxUnavailable", Rule::Any),
        ("unhealthyPodEvictionPolicy", Rule::Any),
    ]),
)];

/// Checks that an overlay makes only permitted changes to one of a waypoint's objects; `base` is the object without it.
pub(crate) fn check(part: Part, overlay: &Value, base: &Value) -> Result<(), FieldError> {
    let own = match part {
        Part::ServiceAccount => SERVICE_ACCOUNT,
        Part::Service => SERVICE,
        Part::Deployment => DEPLOYMENT,
        Part::Autoscaler => AUTOSCALER,
        Part::DisruptionBudget => DISRUPTION_BUDGET,
    };
    let root = FieldPath::default();
    let members = overlay
        .as_object()
        .ok_or_else(|| root.wrong("is not a map"))?;
    for (name, value) in members {
        let place = root.member(name);
        let base = base.get(name);
        match name.as_str() {
            "apiVersion" | "kind" => judge(&Rule::Same, value, base, &place)?,
            "metadata" => judge(&METADATA, value, base, &place)?,
            _ => member(own, name, value, base, &place)?,
        }
    }
    Ok(())
}

fn member(
    rules: &[(&str, Rule)],
    name: &str,
    value: &Value,
    base: Option<&Value>,
    place: &FieldPath,
) -> Result<(), FieldError> {
    let rule = rules.iter().find(|(known, _)| *known == name);
    let (_, rule) = rule.ok_or_else(|| {
        place.wrong("is not for overlays: they set placement, number and resources of a waypoint's pods, not their programs and identity")
    })?;
    judge(rule, value, base, place)
}

fn judge(
    rule: &Rule,
    value: &Value,
    base: Option<&Value>,
    place: &FieldPath,
) -> Result<(), FieldError> {
    match rule {
        Rule::Any => Ok(()),
        Rule::Same if base == Some(value) => Ok(()),
        Rule::Same => Err(place.wrong("is the Gateway's to say, and not for overlays")),
        Rule::OneOf(words) if value.as_str().is_some_and(|word| words.contains(&word)) => Ok(()),
        Rule::OneOf(words) => Err(place.wrong(format!("is none of {}", words.join(", ")))),
        Rule::Labels => labels(map(value, place)?, place),
        Rule::Fields(rules) => {
            for (name, value) in map(value, place)? {
                let base = base.and_then(|base| base.get(name));
                member(rules, name, value, base, &place.member(name))?;
            }
            Ok(())
        }
        Rule::List(list) => elements(list, value, place),
    }
}

/// Returns the map at a path, which an overlay may neither remove nor replace, since some of its members must stay.
fn map<'a>(value: &'a Value, place: &FieldPath) -> Result<&'a Map<String, Value>, FieldError> {
    let members = value
        .as_object()
        .ok_or_else(|| place.wrong("must be a map: what it holds cannot all be removed"))?;
    match members.contains_key(DIRECTIVE) {
        true => Err(place.wrong("cannot be removed or replaced as a whole: some of it must stay")),
        false => Ok(members),
    }
}

fn labels(given: &Map<String, Value>, place: &FieldPath) -> Result<(), FieldError> {
    match given.keys().find(|name| LABELS.contains(&name.as_str())) {
        Some(name) => Err(place
            .member(name)
            .wrong("is how a waypoint is known, and not for overlays")),
        None => Ok(()),
    }
}

fn elements(list: &List, value: &Value, place: &FieldPath) -> Result<(), FieldError> {
    let Some(elements) = value.as_array() else {
        return Err(place.wrong("must be a list: what it holds cannot all be removed"));
    };
    for (index, element) in elements.iter().enumerate() {
        let place = place.element(index);
        let key = element.get(list.key).ok_or_else(|| {
            place.wrong(format!(
                "has no {}: the list cannot be replaced as a whole",
                list.key
            ))
        })?;
        (list.is_allowed)(key).map_err(|why| place.member(list.key).wrong(why))?;
        let mut element = element.clone();
        if list.may_be_removed
            && let Some(members) = element.as_object_mut()
        {
            members.remove(DIRECTIVE);
        }
        judge(&list.element, &element, None, &place)?;
    }
    Ok(())
}

fn allowed(is_allowed: bool, why: &'static str) -> Result<(), &'static str> {
    is_allowed.then_some(()).ok_or(why)
}

fn port(port: &Value) -> Result<(), &'static str> {
    let is_ours = port.as_u64() == Some(HBONE_PORT.into());
    allowed(!is_ours, "15008 is where clients find the waypoint")
}

fn container(name: &Value) -> Result<(), &'static str> {
    let why = "is another container, which would run under the waypoint's identity";
    allowed(name.as_str() == Some(CONTAINER), why)
}

fn volume(name: &Value) -> Result<(), &'static str> {
    let is_ours = name.as_str().is_none_or(|name| VOLUMES.contains(&name));
    allowed(!is_ours, "is a volume that the waypoint cannot do without")
}

fn variable(name: &Value) -> Result<(), &'static str> {
    let name = name.as_str().unwrap_or_default();
    let is_known = VARIABLES.contains(&name)
        || VARIABLE_PREFIXES
            .iter()
            .any(|beginning| name.starts_with(beginning));
    allowed(
        is_known,
        "is no variable that overlays may set: the chart's values for waypoints can",
    )
}

fn mount(path: &Value) -> Result<(), &'static str> {
    let path = path.as_str().unwrap_or_default();
    let is_below = MOUNT_DIRECTORIES.iter().any(|dir| path.starts_with(dir));
    let climbs = path.split('/').any(|part| part == "..");
    allowed(
        is_below && !climbs,
        "is not below /mnt, /data or /etc/certs, where files may be mounted",
    )
}

#[cfg(test)]
mod tests;
