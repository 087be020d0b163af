//! OTLP resource of a program: attributes of all its telemetry (OpenTelemetry's semantic conventions of `service.*`
//! and `k8s.*`).

use ambit_rt::Env;

use crate::message::{Resource, Value, attribute};

/// File in which the kernel generates random UUIDs.
const RANDOM_UUID_PATH: &str = "/proc/sys/kernel/random/uuid";

/// Builds the resource's attributes, in the order of precedence: `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, and
/// the attributes that the program derives from itself and its pod.
pub(crate) fn resource(env: &Env, service: &str, configured: &[(String, String)]) -> Resource {
    let set = |variable: &str| env.get(variable).filter(|text| !text.is_empty());
    let own = [
        ("service.name", Some(service.to_owned())),
        (
            "service.version",
            Some(env!("CARGO_PKG_VERSION").to_owned()),
        ),
        ("service.instance.id", Some(instance_id(env))),
        ("k8s.pod.name", set("POD_NAME").map(str::to_owned)),
        (
            "k8s.namespace.name",
            set("POD_NAMESPACE").map(str::to_owned),
        ),
        ("k8s.node.name", set("NODE_NAME").map(str::to_owned)),
    ];
    let name = set("OTEL_SERVICE_NAME").map(|name| ("service.name", name.to_owned()));
    let configured = configured.iter();
    let configured = configured.map(|(name, value)| (name.as_str(), value.clone()));
    let own = own.into_iter();
    let own = own.filter_map(|(name, value)| Some((name, value?)));
    let mut attributes: Vec<(&str, String)> = Vec::new();
    for (name, value) in name.into_iter().chain(configured).chain(own) {
        if attributes.iter().all(|(other, _)| *other != name) {
            attributes.push((name, value));
        }
    }
    let attributes = attributes.into_iter();
    Resource {
        attributes: attributes
            .map(|(name, value)| attribute(name, Value::Text(value)))
            .collect(),
    }
}

/// Returns `service.instance.id`: from the pod, or else a random id of this process.
fn instance_id(env: &Env) -> String {
    let set = |variable: &str| env.get(variable).filter(|text| !text.is_empty());
    match (set("POD_NAMESPACE"), set("POD_NAME")) {
        (Some(namespace), Some(name)) => format!("{namespace}.{name}"),
        _ => std::fs::read_to_string(RANDOM_UUID_PATH)
            .map(|text| text.trim().to_owned())
            .unwrap_or_else(|_| std::process::id().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(pairs: &[(&str, &str)], configured: &[(&str, &str)]) -> Vec<(String, String)> {
        let configured = configured.iter();
        let configured: Vec<_> = configured
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let env = Env::from_pairs(pairs.iter().copied());
        let resource = resource(&env, "ambit-agent", &configured);
        let text = |value: Option<crate::message::AnyValue>| match value.unwrap().value.unwrap() {
            Value::Text(text) => text,
            other => panic!("{other:?}"),
        };
        let attributes = resource.attributes.into_iter();
        attributes.map(|one| (one.key, text(one.value))).collect()
    }

    #[test]
    fn the_pod_is_named_where_the_environment_has_it() {
        let pod = [
            ("POD_NAME", "agent-1"),
            ("POD_NAMESPACE", "istio-system"),
            ("NODE_NAME", "node-1"),
        ];
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            attributes(&pod, &[]),
            [
                pair("service.name", "ambit-agent"),
                pair("service.version", env!("CARGO_PKG_VERSION")),
                pair("service.instance.id", "istio-system.agent-1"),
                pair("k8s.pod.name", "agent-1"),
                pair("k8s.namespace.name", "istio-system"),
                pair("k8s.node.name", "node-1"),
            ]
        );
        let alone = attributes(&[], &[]);
        assert_eq!(alone.len(), 3);
        assert!(alone[2].1.len() > 30, "{alone:?}");
    }

    #[test]
    fn opentelemetry_variables_override_the_programs_own_attributes() {
        let given = [
            ("service.name", "other"),
            ("k8s.pod.name", "mine"),
            ("a", "b"),
        ];
        let of = |env: &[(&str, &str)], name: &str| {
            let all = attributes(env, &given);
            let same: Vec<_> = all.into_iter().filter(|(own, _)| own == name).collect();
            assert_eq!(same.len(), 1, "{same:?}");
            same[0].1.clone()
        };
        let pod = [("POD_NAME", "agent-1"), ("POD_NAMESPACE", "mesh")];
        assert_eq!(of(&pod, "service.name"), "other");
        assert_eq!(of(&pod, "k8s.pod.name"), "mine");
        assert_eq!(of(&pod, "a"), "b");
        assert_eq!(
            of(&[("OTEL_SERVICE_NAME", "named")], "service.name"),
            "named"
        );
    }
}
