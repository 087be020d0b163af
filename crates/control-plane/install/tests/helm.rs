//! Compares the rendered chart with the output of real Helm, for every platform and for values of every type.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use ambit_install::{
    object::ObjectRef,
    platform::PLATFORMS,
    render::{self, Release},
    values::ValueOverrides,
};
use ambit_testkit::helm_command;
use serde_json::Value;

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .unwrap()
}

fn helm_template(settings: &[String], file: Option<&str>) -> Result<Vec<Value>, String> {
    let mut command = helm_command();
    command
        .args([
            "template",
            "ambit",
            "--namespace",
            "mesh",
            "--kube-version",
            "1.34.0",
        ])
        .arg(repository_root().join("charts/ambit"));
    for setting in settings {
        command.args(["--set", setting]);
    }
    let directory = tempfile::tempdir().unwrap();
    if let Some(text) = file {
        let path = directory.path().join("values.yaml");
        fs::write(&path, text).unwrap();
        command.arg("--values").arg(path);
    }
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let all: Vec<Option<Value>> = serde_saphyr::from_multiple(&text).unwrap();
    Ok(all
        .into_iter()
        .flatten()
        .filter(|object| !object.is_null())
        .collect())
}

fn render_with_ambit(settings: &[String], file: Option<&str>) -> Result<Vec<Value>, String> {
    let mut overrides = ValueOverrides::default();
    if let Some(text) = file {
        overrides.add_file("values.yaml", text).unwrap();
    }
    for setting in settings {
        overrides.set(setting, false).unwrap();
    }
    let values = overrides
        .with_defaults()
        .map_err(|error| error.to_string())?;
    let release = Release {
        namespace: "mesh".to_owned(),
        service: "Helm".to_owned(),
        ..Release::default()
    };
    render::render_objects(&release, &values).map_err(|error| error.to_string())
}

fn by_name(objects: Vec<Value>) -> BTreeMap<ObjectRef, Value> {
    let count = objects.len();
    let map: BTreeMap<_, _> = objects
        .into_iter()
        .map(|object| (ObjectRef::from_object(&object).unwrap(), object))
        .collect();
    assert_eq!(map.len(), count, "two objects of one name");
    map
}

#[track_caller]
fn assert_same_objects(settings: &[&str], file: Option<&str>) {
    let settings: Vec<_> = settings.iter().map(|text| (*text).to_owned()).collect();
    let helms = by_name(helm_template(&settings, file).unwrap());
    let ours = by_name(render_with_ambit(&settings, file).unwrap());
    let names = |map: &BTreeMap<ObjectRef, Value>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&helms), "{settings:?}");
    for (name, object) in &helms {
        let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap();
        assert!(
            ours[name] == *object,
            "{name} with {settings:?}:\nHelm's {}\nours {}",
            pretty(object),
            pretty(&ours[name])
        );
    }
}

#[test]
fn every_platform_is_rendered_as_by_helm() {
    assert_same_objects(&[], None);
    for platform in PLATFORMS {
        assert_same_objects(&[&format!("global.platform={platform}")], None);
    }
}

#[test]
fn values_of_every_form_are_rendered_as_by_helm() {
    assert_same_objects(
        &[
            "global.hub=ambit,global.tag=dev,global.imagePullPolicy=Never",
            "global.imagePullSecrets={one,two}",
            "global.network=net\\,1,global.logAsJson=true,global.networkPolicy.enabled=true",
            "global.priorityClassName=,global.releaseOnUninstall=false",
            "cni.excludeNamespaces={a,b,c}",
            "cni.ambient.dnsCapture=false,cni.chained=false,cni.mode=owned",
            "cni.ambient.shareHostNetworkNamespace=true",
            "cni.resourceQuotas.enabled=true,cni.resourceQuotas.pods=70000",
            "cni.nodeSelector.kubernetes\\.io/arch=amd64",
            "cni.env.A=1,ztunnel.env.B=true,pilot.env.C=x y",
            "cni.resources=null,ztunnel.tolerations=null",
            "ztunnel.terminationGracePeriodSeconds=86400,ztunnel.unenrolledDrain=10m",
            "ztunnel.missingPolicyGrace=1m,ztunnel.keepLastGoodPolicy=true",
            "ztunnel.dnsConfig.nameservers={1.1.1.1}",
            "pilot.replicaCount=3,pilot.trustedNodeAccounts={a/b,c/d}",
            "ztunnel.podLabels.istio\\.io/dataplane-mode=ambient,ztunnel.podLabels.b=c",
            "pilot.podAnnotations.prometheus\\.io/port=x,cni.podLabels.k8s-app=x",
            "ztunnel.env.RUST_LOG=debug,pilot.env.RUST_LOG=warn,cni.env.RUST_LOG=trace",
            "global.openTelemetry.endpoint=http://a:4317,global.openTelemetry.protocol=grpc",
            "global.openTelemetry.logs=false,global.openTelemetry.headersSecret.name=otlp",
            "global.waypoint.replicas=3,global.waypoint.env.A=b,global.waypoint.resources=null",
        ],
        None,
    );
}

#[test]
fn revisions_are_rendered_as_by_helm() {
    for settings in [
        "global.revision=canary,global.components=control-plane,revisionTags={stable,default}",
        "revision=canary,global.networkPolicy.enabled=true",
        "global.components=node,ztunnel.revision=canary,global.networkPolicy.enabled=true",
        "global.revision=default",
    ] {
        assert_same_objects(&[settings], None);
    }
}

#[test]
fn dashboards_and_alerts_are_rendered_as_by_helm() {
    let rule = "monitoring.alerts.kind=PrometheusRule,monitoring.alerts.labels.release=prometheus";
    assert_same_objects(&["monitoring.dashboards.enabled=true", rule], None);
    assert_same_objects(
        &[
            "monitoring.dashboards.enabled=true,monitoring.dashboards.namespace=grafana",
            "monitoring.dashboards.annotations.grafana_folder=Ambit",
            "monitoring.alerts.kind=ConfigMap,monitoring.alerts.namespace=prometheus",
        ],
        None,
    );
}

#[test]
fn dashboards_and_alerts_are_files_of_the_chart() {
    let text =
        |name: &str| fs::read_to_string(repository_root().join("charts/ambit/files").join(name));
    let settings = "monitoring.dashboards.enabled=true,monitoring.alerts.kind=PrometheusRule";
    let objects = render_with_ambit(&[settings.to_owned()], None).unwrap();
    let named = |name: &str| {
        let mut objects = objects.iter();
        objects.find(|object| object["metadata"]["name"] == name)
    };
    let dashboard = named("ambit-dashboard-node-proxy").unwrap();
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let json = dashboard["data"]["ambit-node-proxy.json"].as_str();
    assert_eq!(json, text("dashboards/node-proxy.json").ok().as_deref());
    let groups: Value = serde_saphyr::from_str(&text("alerts.yaml").unwrap()).unwrap();
    assert_eq!(named("ambit").unwrap()["spec"], groups);
    let none = render_with_ambit(&[], None).unwrap();
    assert!(!none.iter().any(|object| object["kind"] == "PrometheusRule"));
}

#[test]
fn unenrolment_hook_is_rendered_as_by_helm() {
    assert_same_objects(
        &[
            "global.hub=a/b,global.tag=dev,global.imagePullPolicy=Never,global.imagePullSecrets={one}",
            "global.networkPolicy.enabled=true,pilot.nodeSelector.a=b,pilot.resources=null",
        ],
        Some("pilot: {affinity: {nodeAffinity: {a: b}}, tolerations: [{operator: Exists}]}"),
    );
}

#[test]
fn files_of_values_are_rendered_as_by_helm() {
    assert_same_objects(
        &["pilot.replicaCount=2"],
        Some(
            r#"
global:
  platform: gke
  waypoint:
    terminationGracePeriodSeconds: 600
    tolerations: [{key: "<a>&b", operator: Exists}]
cni:
  cniBinDir: /somewhere/else
  resourceQuotas: {enabled: false}
  seLinuxOptions: {type: spc_t, level: "s0:c123"}
  ambient:
    enablementSelectors:
      - podSelector: {matchLabels: {mesh: "yes"}}
        namespaceSelector:
          matchExpressions: [{key: team, operator: NotIn, values: [a, "b"]}]
  updateStrategy: {type: OnDelete}
  podAnnotations: {note: "a: b # c", quoted: "\"x\""}
ztunnel:
  resources: {limits: {cpu: "2", memory: 1Gi}, requests: {cpu: 0.5}}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions: [{key: x, operator: Exists}]
pilot:
  replicaCount: 7
  topologySpreadConstraints:
    - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}
  podLabels: {number: "007", truth: "true"}
"#,
        ),
    );
}

#[test]
fn invalid_values_are_rejected_as_by_helm() {
    for setting in [
        "cni.cniBindir=/x",
        "global.platform=mars",
        "cni.reconcileSeconds=-1",
        "cni.excludeNamespaces=a",
        "pilot.replicaCount=many",
        "global.imagePullPolicy=Sometimes",
        "ztunnel.podLabels.app=mine",
        "global.openTelemetry.protocol=udp",
        "global.revision=Canary",
        "revisionTags={a.b}",
        "global.revision=one,revision=two",
        "pilot.env.REVISION=one",
    ] {
        let settings = [setting.to_owned()];
        assert!(
            helm_template(&settings, None).is_err(),
            "Helm takes {setting}"
        );
        assert!(
            render_with_ambit(&settings, None).is_err(),
            "we take {setting}"
        );
    }
}

#[test]
fn helm_lint_accepts_the_chart() {
    let output = helm_command()
        .args(["lint", "--strict", "--kube-version", "1.34.0"])
        .arg(repository_root().join("charts/ambit"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
