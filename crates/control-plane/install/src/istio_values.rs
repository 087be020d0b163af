//! Converts values for Istio's charts (istiod, cni, ztunnel) or for an IstioOperator to values of
//! this chart.
//!
//! Values with a counterpart in this chart are converted. All others are left out and reported: a file that configured
//! Istio must neither prevent the installation nor seem to have an effect that it does not have.

use serde_json::{Map, Value};

use crate::{
    schema,
    values::{ValuesError, merge, parse_values_file},
};

/// Istio chart that a file of values was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IstioChart {
    /// Chart of the control plane.
    Istiod,
    /// Chart of the node agent.
    Cni,
    /// Chart of the node proxy.
    Ztunnel,
    /// `IstioOperator`, the input of `istioctl install`.
    Operator,
}

impl std::str::FromStr for IstioChart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "istiod" => Ok(Self::Istiod),
            "cni" => Ok(Self::Cni),
            "ztunnel" => Ok(Self::Ztunnel),
            "operator" => Ok(Self::Operator),
            _ => Err(format!(
                "{text:?} is none of istiod, cni, ztunnel, operator"
            )),
        }
    }
}

/// Values of this chart that were converted from a file of Istio's values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TranslatedValues {
    /// Values of this chart.
    pub values: Map<String, Value>,
    /// Values of the file that have no effect here, each with the reason.
    pub ignored: Vec<String>,
}

/// Keys under which Istio's charts keep their own defaults, which users see in `helm show values`.
const DEFAULTS_SECTIONS: [&str; 2] = ["_internal_defaults_do_not_set", "defaults"];

/// Sections that the values of every Istio chart may have besides the chart's own section.
const SHARED_SECTIONS: [&str; 3] = ["global", "meshConfig", "pilot"];

/// Values whose path in this chart differs: path in Istio's chart, and in this one.
const MOVED_PATHS: [(&[&str], &[&str]); 6] = [
    (
        &["ztunnel", "multiCluster", "clusterName"],
        &["global", "multiCluster", "clusterName"],
    ),
    (&["ztunnel", "network"], &["global", "network"]),
    (&["ztunnel", "logLevel"], &["global", "logging", "level"]),
    (&["ztunnel", "logAsJson"], &["global", "logAsJson"]),
    (
        &["ztunnel", "imagePullSecrets"],
        &["global", "imagePullSecrets"],
    ),
    (
        &["cni", "imagePullSecrets"],
        &["global", "imagePullSecrets"],
    ),
];

/// Values that name Istio's images.
const IMAGE_KEYS: [&str; 5] = ["hub", "tag", "variant", "image", "imagePullPolicy"];

/// Sections that may contain the values [`IMAGE_KEYS`].
const SECTIONS_WITH_IMAGES: [&str; 4] = ["global", "pilot", "cni", "ztunnel"];

/// Converts a file of Istio's values; errors contain `name`.
///
/// # Errors
///
/// When the file is not a YAML map; never because of a value in it.
pub fn translate(
    chart: IstioChart,
    name: &str,
    text: &str,
) -> Result<TranslatedValues, ValuesError> {
    let file = parse_values_file(name, text)?;
    let mut ignored = Vec::new();
    let mut values = match chart {
        IstioChart::Operator => translate_operator_values(file, &mut ignored),
        _ => translate_chart_values(chart, with_defaults(file)),
    };
    remove_nulls(&mut values);
    drop_images(&mut values, &mut ignored);
    // The chart installs Istio's default profile, which has no name here.
    if let Some(profile) = values.remove("profile").filter(|one| one != "ambient") {
        ignored.push(format!("profile: {profile} is no profile here"));
    }
    for (from, to) in MOVED_PATHS {
        if let Some(value) = remove_at_path(&mut values, from) {
            insert_at_path(&mut values, to, value);
        }
    }
    // Istio's default. In this chart the value would forbid the plugin's own configuration file.
    if value_at_path(&values, &["cni", "chained"]) == Some(&Value::Bool(true)) {
        remove_at_path(&mut values, &["cni", "chained"]);
    }
    // One pass finds all: the schema check does not descend into a value that does not fit.
    for problem in schema::find_violations(&Value::Object(values.clone())) {
        let path: Vec<_> = problem.path.iter().map(String::as_str).collect();
        // One list may have several problems.
        if remove_at_path(&mut values, &path).is_some() {
            ignored.push(match problem.is_unknown {
                true => format!("{}: there is no such value", path.join(".")),
                false => problem.text,
            });
        }
    }
    Ok(TranslatedValues { values, ignored })
}

/// Merges a file's values over the chart's own defaults that the file contains ([`DEFAULTS_SECTIONS`]).
fn with_defaults(mut file: Map<String, Value>) -> Map<String, Value> {
    let mut all = Map::new();
    for key in DEFAULTS_SECTIONS {
        if let Some(Value::Object(defaults)) = file.remove(key) {
            merge(&mut all, defaults, false);
        }
    }
    merge(&mut all, file, false);
    all
}

/// Arranges the values of an Istio chart by the sections of this chart. The values of istiod's chart have these
/// sections already; those of another chart become one section, except for the shared sections.
fn translate_chart_values(chart: IstioChart, file: Map<String, Value>) -> Map<String, Value> {
    let section = match chart {
        IstioChart::Cni => "cni",
        IstioChart::Ztunnel => "ztunnel",
        IstioChart::Istiod | IstioChart::Operator => return file,
    };
    let (mut all, mut own) = (Map::new(), Map::new());
    for (key, value) in file {
        if key == section || key == "profile" || SHARED_SECTIONS.contains(&key.as_str()) {
            all.insert(key, value);
        } else {
            own.insert(key, value);
        }
    }
    merge(
        &mut all,
        Map::from_iter([(section.to_owned(), Value::Object(own))]),
        false,
    );
    all
}

/// Collects `spec.values`, `spec.meshConfig` and `spec.profile` of an IstioOperator.
fn translate_operator_values(
    mut file: Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Map<String, Value> {
    let mut all = Map::new();
    let Some(Value::Object(spec)) = file.remove("spec") else {
        return all;
    };
    for (key, value) in spec {
        match (key.as_str(), value) {
            ("values", Value::Object(values)) => merge(&mut all, values, false),
            ("meshConfig" | "profile", value) => {
                merge(&mut all, Map::from_iter([(key, value)]), false);
            }
            ("hub" | "tag", _) => ignored.push(image_ignored_message(&format!("spec.{key}"))),
            _ => ignored.push(format!("spec.{key}: there is no such value")),
        }
    }
    all
}

fn drop_images(values: &mut Map<String, Value>, ignored: &mut Vec<String>) {
    for section in SECTIONS_WITH_IMAGES {
        for key in IMAGE_KEYS {
            if remove_at_path(values, &[section, key]).is_some() {
                ignored.push(image_ignored_message(&format!("{section}.{key}")));
            }
        }
    }
}

fn image_ignored_message(path: &str) -> String {
    format!("{path}: it names Istio's images; --set global.hub and global.tag name Ambit's")
}

/// Removes nulls: in Istio's charts they stand for a default that this chart may not have.
fn remove_nulls(values: &mut Map<String, Value>) {
    values.retain(|_, value| match value {
        Value::Null => false,
        Value::Object(below) => {
            remove_nulls(below);
            true
        }
        _ => true,
    });
}

fn value_at_path<'a>(values: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let value = values.get(*first)?;
    rest.iter().try_fold(value, |value, key| value.get(key))
}

/// Removes the value at a path, and then the maps above it that have become empty.
fn remove_at_path(values: &mut Map<String, Value>, path: &[&str]) -> Option<Value> {
    match path {
        [] => None,
        [key] => values.remove(*key),
        [first, rest @ ..] => {
            let below = values.get_mut(*first)?.as_object_mut()?;
            let taken = remove_at_path(below, rest);
            if below.is_empty() {
                values.remove(*first);
            }
            taken
        }
    }
}

/// Sets the value at a path, unless the file already sets one there.
fn insert_at_path(values: &mut Map<String, Value>, path: &[&str], value: Value) {
    if value_at_path(values, path).is_some() {
        return;
    }
    let mut layer = value;
    for key in path.iter().rev() {
        layer = Value::Object(Map::from_iter([((*key).to_owned(), layer)]));
    }
    if let Value::Object(layer) = layer {
        merge(values, layer, false);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::values::ValueOverrides;

    fn translated(chart: IstioChart, text: &str) -> (Value, Vec<String>) {
        let found = translate(chart, "values.yaml", text).unwrap();
        (Value::Object(found.values), found.ignored)
    }

    #[test]
    fn revisions_and_tags_are_converted() {
        for (chart, text, expected) in [
            (
                IstioChart::Istiod,
                "{revision: canary, revisionTags: [stable]}",
                json!({"revision": "canary", "revisionTags": ["stable"]}),
            ),
            (
                IstioChart::Ztunnel,
                "revision: canary",
                json!({"ztunnel": {"revision": "canary"}}),
            ),
        ] {
            assert_eq!(translated(chart, text), (expected, vec![]));
        }
    }

    #[test]
    fn values_of_each_chart_get_their_section() {
        let (values, ignored) = translated(
            IstioChart::Ztunnel,
            "
resources: {requests: {cpu: 300m}}
multiCluster: {clusterName: east}
logLevel: debug
env: {CONNECTION_TERMINATION_DEADLINE: 5m}
global: {logAsJson: true}
podLabels: {team: mesh}
",
        );
        assert_eq!(ignored, Vec::<String>::new());
        assert_eq!(
            values,
            json!({
                "global": {
                    "logAsJson": true,
                    "logging": {"level": "debug"},
                    "multiCluster": {"clusterName": "east"},
                },
                "ztunnel": {
                    "resources": {"requests": {"cpu": "300m"}},
                    "env": {"CONNECTION_TERMINATION_DEADLINE": "5m"},
                    "podLabels": {"team": "mesh"},
                },
            })
        );
        let (values, ignored) = translated(
            IstioChart::Cni,
            "
profile: ambient
cniBinDir: /opt/bin
ambient: {enabled: true, dnsCapture: false}
repair: {enabled: false}
chained: true
global: {platform: gke}
",
        );
        assert_eq!(
            values,
            json!({
                "global": {"platform": "gke"},
                "cni": {"cniBinDir": "/opt/bin", "ambient": {"dnsCapture": false}},
            })
        );
        assert_eq!(
            ignored,
            [
                "cni.ambient.enabled: there is no such value",
                "cni.repair: there is no such value",
            ]
        );
    }

    #[test]
    fn images_of_istio_are_never_converted() {
        let (values, ignored) = translated(
            IstioChart::Istiod,
            "
global: {hub: docker.io/istio, tag: 1.30.0, variant: distroless, logging: {level: info}}
pilot: {image: pilot, hub: x, replicaCount: 3, autoscaleEnabled: true}
meshConfig: {accessLogFile: /dev/stdout}
",
        );
        assert_eq!(
            values,
            json!({
                "global": {"logging": {"level": "info"}},
                "pilot": {"replicaCount": 3},
                "meshConfig": {"accessLogFile": "/dev/stdout"},
            })
        );
        let paths: Vec<_> = ignored
            .iter()
            .filter_map(|text| text.split(':').next())
            .collect();
        assert_eq!(
            paths,
            [
                "global.hub",
                "global.tag",
                "global.variant",
                "pilot.hub",
                "pilot.image",
                "pilot.autoscaleEnabled",
            ]
        );
        assert!(ignored[0].contains("--set global.hub"), "{ignored:?}");
    }

    #[test]
    fn copied_defaults_and_operators_are_unwrapped() {
        let (values, ignored) = translated(
            IstioChart::Ztunnel,
            "
_internal_defaults_do_not_set:
  hub: ''
  terminationGracePeriodSeconds: 30
  seLinuxOptions: {}
  network:
terminationGracePeriodSeconds: 60
",
        );
        assert_eq!(
            values,
            json!({"ztunnel": {"terminationGracePeriodSeconds": 60, "seLinuxOptions": {}}})
        );
        assert_eq!(ignored.len(), 1, "{ignored:?}");
        let (values, ignored) = translated(
            IstioChart::Operator,
            "
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  profile: ambient
  hub: docker.io/istio
  meshConfig: {trustDomain: example.org}
  components: {cni: {enabled: true}}
  values: {cni: {excludeNamespaces: [a]}, pilot: {env: {X: 1}}}
",
        );
        assert_eq!(
            values,
            json!({
                "cni": {"excludeNamespaces": ["a"]},
                "meshConfig": {"trustDomain": "example.org"},
                "pilot": {"env": {"X": 1}},
            })
        );
        assert_eq!(ignored.len(), 2, "{ignored:?}");
    }

    #[test]
    fn unknown_values_are_never_an_error() {
        let (values, ignored) = translated(
            IstioChart::Istiod,
            "
global: {platform: mars, imagePullSecrets: [a, 1], network: 7, proxy: text}
pilot: 1
profile: demo
nonsense: [1]
",
        );
        assert_eq!(values, json!({}));
        assert_eq!(ignored.len(), 7, "{ignored:#?}");
        assert!(translate(IstioChart::Cni, "a", "- 1").is_err());
        assert!(translate(IstioChart::Cni, "a", "a: [").is_err());
        assert!(
            translate(IstioChart::Cni, "a", "")
                .unwrap()
                .ignored
                .is_empty()
        );
    }

    #[test]
    fn converted_values_fit_the_schema() {
        let found = translate(IstioChart::Cni, "a", "resources: {limits: {cpu: 1}}").unwrap();
        let mut overrides = ValueOverrides::default();
        overrides.add_layer(found.values);
        let all = overrides.with_defaults().unwrap();
        assert_eq!(all["cni"]["resources"]["limits"]["cpu"], 1);
    }
}
