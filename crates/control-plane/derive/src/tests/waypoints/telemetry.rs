//! Records of Telemetry objects at waypoints, and the objects' status conditions.

use ambit_k8s_api::Kind;
use ambit_model::{TelemetryFamily, TelemetryFormat, WaypointTelemetry};

use super::*;
use crate::condition::ConditionInput;

const WAYPOINT_TELEMETRY: &str = "shop/wp observes all";
const CART_TELEMETRY: &str = "shop/wp observes shop/cart.shop.svc.cluster.local";

const COLLECTOR: &str = "apiVersion: v1
kind: Service
metadata: {name: otel, namespace: obs}
spec: {clusterIP: 10.96.0.99, ports: [{name: grpc, port: 4317}]}
";

const CONFIG: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    defaultConfig: {tracing: {sampling: 5}}
    extensionProviders:
    - {name: otel, opentelemetry: {service: otel.obs.svc.cluster.local, port: 4317}}
    - {name: http, opentelemetry: {service: obs/otel.obs.svc.cluster.local, port: 4318, http: {path: /v1/traces, timeout: 3s, headers: [{name: X-Tenant, value: shop}]}}}
    - {name: zipkin, zipkin: {service: otel.obs.svc.cluster.local, port: 9411}}
    - {name: json, envoyFileAccessLog: {path: /dev/stdout, logFormat: {labels: {code: '%RESPONSE_CODE%'}}}}
    - {name: file, envoyFileAccessLog: {path: /tmp/log}}
    - {name: lines, envoyOtelAls: {service: otel.obs.svc.cluster.local, port: 4317, logFormat: {text: '%PROTOCOL%'}}}
    - {name: nowhere, opentelemetry: {service: gone.obs.svc.cluster.local, port: 4317}}
";

fn telemetry_object(name: &str, namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {{name: {name}, namespace: {namespace}, creationTimestamp: \"2026-01-01T00:00:0{}Z\"}}\nspec: {{{spec}}}\n",
        name.len() % 10
    )
}

fn mesh_with_objects(objects: &[&str]) -> TestMesh {
    let gateway = gateway("wp", "");
    let mut all = vec![CART_SERVICE, CART_POD, &gateway, COLLECTOR, CONFIG];
    all.extend(objects);
    TestMesh::from_yaml(&super::join_documents(&all))
}

fn published_telemetry<'a>(mesh: &'a TestMesh, name: &str) -> &'a WaypointTelemetry {
    let found = mesh.waypoint_telemetry.get(name);
    found.unwrap_or_else(|| panic!("{name} in {:?}", mesh.waypoint_telemetry))
}

fn sampling(mesh: &TestMesh, name: &str) -> Option<u32> {
    Some(published_telemetry(mesh, name).tracing.as_ref()?.sampling)
}

fn condition(mesh: &TestMesh, namespace: &str, name: &str) -> String {
    let key = ObjectKey::new(Kind::Telemetry, namespace, name);
    let [of_object] = crate::conditions(Kind::Telemetry) else {
        panic!("one condition");
    };
    let problems = mesh.index.problems_of(&key);
    let subject = ConditionInput {
        problems: &problems,
        is_in_force: false,
        is_attached: false,
        derived_status: mesh.index.derived_status(&key),
    };
    let condition = (of_object.build)(&subject).expect("a verdict");
    format!(
        "{} {} {}",
        condition.is_true, condition.reason, condition.message
    )
}

#[test]
fn no_telemetry_without_configuration() {
    assert!(mesh_with_objects(&[]).waypoint_telemetry.is_empty());
}

#[test]
fn what_is_nearer_counts_part_by_part() {
    let provider = "providers: [{name: otel}]";
    let root = telemetry_object(
        "r",
        "istio-system",
        &format!(
            "tracing: [{{{provider}, randomSamplingPercentage: 1.5, customTags: {{a: {{literal: {{value: x}}}}}}}}]"
        ),
    );
    let mut mesh = mesh_with_objects(&[&root]);
    let tracing = published_telemetry(&mesh, WAYPOINT_TELEMETRY)
        .tracing
        .clone()
        .unwrap();
    assert_eq!((tracing.sampling, tracing.tags.len()), (150, 1));
    assert_eq!(
        tracing.collector.service.to_string(),
        "obs/otel.obs.svc.cluster.local"
    );
    assert_eq!(
        (tracing.collector.port, tracing.collector.http_path),
        (4317, None)
    );
    // The waypoint's namespace adds settings, the Gateway's still more, and the service's own for it alone.
    mesh.apply(&telemetry_object(
        "ns",
        "shop",
        "tracing: [{randomSamplingPercentage: 20}]",
    ));
    assert_eq!(sampling(&mesh, WAYPOINT_TELEMETRY), Some(2000));
    assert_eq!(
        published_telemetry(&mesh, WAYPOINT_TELEMETRY)
            .tracing
            .as_ref()
            .unwrap()
            .tags
            .len(),
        1
    );
    let gateway = "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: wp}], tracing: [{randomSamplingPercentage: 30}]";
    mesh.apply(&telemetry_object("gw", "shop", gateway));
    assert_eq!(sampling(&mesh, WAYPOINT_TELEMETRY), Some(3000));
    let service = "targetRefs: [{kind: Service, name: cart}], tracing: [{randomSamplingPercentage: 40, providers: [{name: http}]}]";
    mesh.apply(&telemetry_object("svc", "shop", service));
    assert_eq!(
        (
            sampling(&mesh, WAYPOINT_TELEMETRY),
            sampling(&mesh, CART_TELEMETRY)
        ),
        (Some(3000), Some(4000))
    );
    let collector = published_telemetry(&mesh, CART_TELEMETRY)
        .tracing
        .clone()
        .unwrap()
        .collector;
    assert_eq!(collector.http_path.as_deref(), Some("/v1/traces"));
    assert_eq!(collector.headers, [("x-tenant".into(), "shop".into())]);
    assert_eq!(collector.timeout, Some(std::time::Duration::from_secs(3)));
    assert!(condition(&mesh, "shop", "svc").starts_with("true Used followed by shop/wp"));
    mesh.delete(Kind::Telemetry, "shop", "svc");
    assert!(!mesh.waypoint_telemetry.contains_key(CART_TELEMETRY));
    // Headers of traces may be left as they came, and nearer be changed again.
    let propagates = |mesh: &TestMesh| {
        published_telemetry(mesh, WAYPOINT_TELEMETRY)
            .tracing
            .as_ref()
            .unwrap()
            .propagates
    };
    assert!(propagates(&mesh));
    mesh.apply(&telemetry_object(
        "ns",
        "shop",
        "tracing: [{randomSamplingPercentage: 20, disableContextPropagation: true}]",
    ));
    assert!(!propagates(&mesh));
    let problems = mesh.problems().join("\n");
    assert!(
        !problems.contains("disableContextPropagation"),
        "{problems}"
    );
    mesh.apply(&telemetry_object(
        "gw",
        "shop",
        &gateway.replace("30}", "30, disableContextPropagation: false}"),
    ));
    assert!(propagates(&mesh));
    // Off is off, regardless of less specific settings.
    mesh.apply(&telemetry_object(
        "gw",
        "shop",
        &gateway.replace("randomSamplingPercentage: 30", "disableSpanReporting: true"),
    ));
    assert!(!mesh.waypoint_telemetry.contains_key(WAYPOINT_TELEMETRY));
}

#[test]
fn services_of_other_namespaces_have_their_namespaces() {
    let gateway = gateway("wp", "").replace(
        "protocol: HBONE}",
        "protocol: HBONE, allowedRoutes: {namespaces: {from: All}}}",
    );
    let of = |namespace: &str| {
        telemetry_object(
            "t",
            namespace,
            "tracing: [{providers: [{name: otel}], randomSamplingPercentage: 7}]",
        )
    };
    let mut mesh = TestMesh::from_yaml(&super::join_documents(&[
        COLLECTOR,
        CONFIG,
        &gateway,
        &of("bank"),
    ]));
    assert_eq!(sampling(&mesh, "shop/wp observes bank"), Some(700));
    assert!(!mesh.waypoint_telemetry.contains_key(WAYPOINT_TELEMETRY));
    // A waypoint that the namespace may not use learns nothing of it.
    mesh.apply(&super::gateway("wp", ""));
    assert!(mesh.waypoint_telemetry.is_empty());
    assert!(condition(&mesh, "bank", "t").starts_with("false NoWaypoint"));
}

#[test]
fn sampling_that_nobody_asks_for_is_the_meshs() {
    let only = telemetry_object("t", "shop", "tracing: [{providers: [{name: otel}]}]");
    assert_eq!(
        sampling(&mesh_with_objects(&[&only]), WAYPOINT_TELEMETRY),
        Some(500)
    );
    let mut mesh = mesh_with_objects(&[&only]);
    mesh.apply(&CONFIG.replace("{sampling: 5}", "{}"));
    assert_eq!(sampling(&mesh, WAYPOINT_TELEMETRY), Some(100));
    // Tracing may be the mesh's default, too.
    let mut mesh = mesh_with_objects(&[]);
    mesh.apply(&CONFIG.replace(
        "    extension",
        "    defaultProviders: {tracing: [otel]}\n    extension",
    ));
    assert_eq!(sampling(&mesh, WAYPOINT_TELEMETRY), Some(500));
}

#[test]
fn logs_have_providers_filters_and_ends() {
    let logs = |spec: &str| {
        let object = telemetry_object("t", "shop", &format!("accessLogging: [{spec}]"));
        published_telemetry(&mesh_with_objects(&[&object]), WAYPOINT_TELEMETRY)
            .logs
            .clone()
    };
    let failures = "filter: {expression: 'response.code >= 400'}";
    // Without a provider it is the waypoint's own log that is meant.
    let own = logs(&format!("{{{failures}}}")).unwrap();
    assert_eq!(own.len(), 1);
    assert_eq!(
        (own[0].collector.is_none(), &own[0].format),
        (true, &TelemetryFormat::Default)
    );
    assert_eq!(own[0].filter.as_deref(), Some("response.code >= 400"));
    assert_eq!(logs("{disabled: true}"), Some(Vec::new()));
    let two = logs(&format!(
        "{{providers: [{{name: json}}]}}, {{providers: [{{name: lines}}], {failures}}}"
    ))
    .unwrap();
    assert_eq!(
        two[0].format,
        TelemetryFormat::Json("{\"code\":\"%RESPONSE_CODE%\"}".into())
    );
    assert_eq!(
        (two[0].filter.is_none(), two[1].filter.is_some()),
        (true, true)
    );
    assert_eq!(two[1].format, TelemetryFormat::Text("%PROTOCOL%".into()));
    assert!(two[1].collector.is_some());
    // What is for clients' proxies is not for waypoints.
    let object = telemetry_object(
        "t",
        "shop",
        "accessLogging: [{match: {mode: CLIENT}, disabled: true}]",
    );
    let mesh = mesh_with_objects(&[&object]);
    assert!(mesh.waypoint_telemetry.is_empty());
    assert!(mesh.problems().join(" ").contains("match.mode"));
}

#[test]
fn a_log_of_the_whole_mesh_is_followed() {
    let mut mesh = mesh_with_objects(&[]);
    let with_log = |more: &str| {
        CONFIG.replace(
            "    extension",
            &format!("    accessLogFile: /dev/stdout\n{more}    extension"),
        )
    };
    mesh.apply(&with_log(""));
    assert_eq!(
        published_telemetry(&mesh, WAYPOINT_TELEMETRY)
            .logs
            .as_ref()
            .unwrap()[0]
            .format,
        TelemetryFormat::Default
    );
    mesh.apply(&with_log("    accessLogFormat: '%PROTOCOL%'\n"));
    assert_eq!(
        published_telemetry(&mesh, WAYPOINT_TELEMETRY)
            .logs
            .as_ref()
            .unwrap()[0]
            .format,
        TelemetryFormat::Text("%PROTOCOL%".into())
    );
    mesh.apply(&with_log("    accessLogEncoding: JSON\n"));
    assert!(matches!(
        published_telemetry(&mesh, WAYPOINT_TELEMETRY)
            .logs
            .as_ref()
            .unwrap()[0]
            .format,
        TelemetryFormat::Json(_)
    ));
    // What cannot be read changes nothing.
    mesh.apply(&with_log("    accessLogFormat: '%COLOUR%'\n"));
    assert!(matches!(
        published_telemetry(&mesh, WAYPOINT_TELEMETRY)
            .logs
            .as_ref()
            .unwrap()[0]
            .format,
        TelemetryFormat::Json(_)
    ));
    assert!(
        mesh.problems()
            .join(" ")
            .contains("data.mesh.accessLogFormat")
    );
}

#[test]
fn metrics_are_changed_or_left_out() {
    let spec = "metrics: [{providers: [{name: prometheus}], reportingInterval: 5s, overrides: [\
        {match: {metric: ALL_METRICS}, tagOverrides: {source_app: {operation: REMOVE}}}, \
        {match: {metric: REQUEST_COUNT, mode: SERVER}, tagOverrides: {host: {value: request.host}}}, \
        {match: {metric: RESPONSE_SIZE}, disabled: true}, \
        {match: {metric: TCP_SENT_BYTES}, disabled: true}, {match: {customMetric: x}, disabled: true}]}]";
    let mesh = mesh_with_objects(&[&telemetry_object("t", "shop", spec)]);
    let metrics = &published_telemetry(&mesh, WAYPOINT_TELEMETRY).metrics;
    assert_eq!(metrics.len(), TelemetryFamily::ALL.len());
    let of = |family| metrics.iter().find(|one| one.family == family).unwrap();
    let count = of(TelemetryFamily::RequestCount);
    assert_eq!(
        count.labels,
        [
            ("source_app".into(), None),
            ("host".into(), Some("request.host".into()))
        ]
    );
    assert!(of(TelemetryFamily::ResponseSize).disabled && !count.disabled);
    assert!(of(TelemetryFamily::SentBytes).disabled);
    for (name, family) in [
        ("TCP_OPENED_CONNECTIONS", TelemetryFamily::OpenedConnections),
        ("TCP_CLOSED_CONNECTIONS", TelemetryFamily::ClosedConnections),
        ("TCP_SENT_BYTES", TelemetryFamily::SentBytes),
        ("TCP_RECEIVED_BYTES", TelemetryFamily::ReceivedBytes),
    ] {
        let spec =
            format!("metrics: [{{overrides: [{{match: {{metric: {name}}}, disabled: true}}]}}]");
        let mesh = mesh_with_objects(&[&telemetry_object("t", "shop", &spec)]);
        let [only] = published_telemetry(&mesh, WAYPOINT_TELEMETRY)
            .metrics
            .as_slice()
        else {
            panic!("{name} alone");
        };
        assert_eq!((only.family, only.disabled), (family, true));
    }
    let condition_text = mesh.problems().join("\n");
    for named in ["reportingInterval", "customMetric"] {
        assert!(
            condition_text.contains(named),
            "{named} in {condition_text}"
        );
    }
}

#[test]
fn what_cannot_be_used_is_named_and_changes_nothing() {
    let good = "tracing: [{providers: [{name: otel}], randomSamplingPercentage: 50}]";
    let mut mesh = mesh_with_objects(&[&telemetry_object("t", "shop", good)]);
    for (spec, field) in [
        (
            "accessLogging: [{filter: {expression: 'response.colour == 1'}}]",
            "spec.accessLogging[0].filter.expression",
        ),
        (
            "accessLogging: [{filter: {expression: 'a b'}}]",
            "spec.accessLogging[0].filter.expression",
        ),
        (
            "accessLogging: [{match: {mode: SOME}}]",
            "spec.accessLogging[0].match.mode",
        ),
        (
            "tracing: [{randomSamplingPercentage: 101}]",
            "spec.tracing[0].randomSamplingPercentage",
        ),
        (
            "tracing: [{providers: [{name: otel}, {name: http}]}]",
            "spec.tracing[0].providers",
        ),
        (
            "tracing: [{customTags: {a: {}}}]",
            "spec.tracing[0].customTags.a",
        ),
        (
            "tracing: [{customTags: {a: {formatter: {value: '%COLOUR%'}}}}]",
            "spec.tracing[0].customTags.a",
        ),
        (
            "tracing: [{customTags: {a: {header: {name: 'a b'}}}}]",
            "spec.tracing[0].customTags.a",
        ),
        (
            "metrics: [{overrides: [{match: {metric: SOME}}]}]",
            "spec.metrics[0].overrides[0].match.metric",
        ),
        (
            "metrics: [{overrides: [{tagOverrides: {a: {value: 'x('}}}]}]",
            "spec.metrics[0].overrides[0].tagOverrides.a",
        ),
        (
            "metrics: [{overrides: [{tagOverrides: {'a-b': {value: '1'}}}]}]",
            "spec.metrics[0].overrides[0].tagOverrides.a-b",
        ),
        ("targetRefs: [{kind: Pod, name: x}]", "spec.targetRefs[0]"),
        (
            "targetRefs: [{kind: Service, name: x, namespace: bank}]",
            "spec.targetRefs[0]",
        ),
        (
            "targetRefs: [{group: gateway.networking.k8s.io, kind: GatewayClass, name: x}]",
            "spec.targetRefs[0]",
        ),
    ] {
        mesh.apply(&telemetry_object("t", "shop", spec));
        assert_eq!(sampling(&mesh, WAYPOINT_TELEMETRY), Some(5000), "{spec}");
        assert!(
            mesh.problems().join("\n").contains(field),
            "{spec}: {:?}",
            mesh.problems()
        );
        assert!(
            condition(&mesh, "shop", "t").starts_with("false Invalid"),
            "{spec}"
        );
    }
    mesh.apply(&telemetry_object("t", "shop", good));
    assert!(condition(&mesh, "shop", "t").starts_with("true Used"));
}

#[test]
fn providers_that_cannot_be_used_are_named() {
    for (provider, why) in [
        ("gone", "no provider gone"),
        ("zipkin", "of the kind zipkin"),
        ("nowhere", "there is no service gone.obs.svc.cluster.local"),
        ("json", "of the kind envoyFileAccessLog"),
    ] {
        let spec = format!("tracing: [{{providers: [{{name: {provider}}}]}}]");
        let mesh = mesh_with_objects(&[&telemetry_object("t", "shop", &spec)]);
        assert!(
            !mesh.waypoint_telemetry.contains_key(WAYPOINT_TELEMETRY),
            "{provider}"
        );
        let condition_text = condition(&mesh, "shop", "t");
        assert!(
            condition_text.starts_with("false UnknownProvider") && condition_text.contains(why),
            "{condition_text}"
        );
    }
    let spec = "accessLogging: [{providers: [{name: file}]}]";
    let condition_text = condition(
        &mesh_with_objects(&[&telemetry_object("t", "shop", spec)]),
        "shop",
        "t",
    );
    assert!(condition_text.contains("/tmp/log"), "{condition_text}");
    // As soon as the service exists, it is published.
    let spec = "tracing: [{providers: [{name: nowhere}]}]";
    let mut mesh = mesh_with_objects(&[&telemetry_object("t", "shop", spec)]);
    mesh.apply(
        &COLLECTOR
            .replace("name: otel", "name: gone")
            .replace("0.99", "0.98"),
    );
    assert_eq!(sampling(&mesh, WAYPOINT_TELEMETRY), Some(500));
    assert!(condition(&mesh, "shop", "t").starts_with("true Used"));
    mesh.delete(Kind::Service, "obs", "gone");
    assert!(!mesh.waypoint_telemetry.contains_key(WAYPOINT_TELEMETRY));
}

#[test]
fn of_several_for_the_same_the_oldest_counts() {
    let tracing = |percentage: u32| {
        format!(
            "tracing: [{{providers: [{{name: otel}}], randomSamplingPercentage: {percentage}}}]"
        )
    };
    let mut mesh = mesh_with_objects(&[
        &telemetry_object("new", "shop", &tracing(9)),
        &telemetry_object("o", "shop", &tracing(3)),
    ]);
    assert_eq!(sampling(&mesh, WAYPOINT_TELEMETRY), Some(300));
    assert!(condition(&mesh, "shop", "new").starts_with("false Conflict Telemetry shop/o"));
    mesh.delete(Kind::Telemetry, "shop", "o");
    assert_eq!(sampling(&mesh, WAYPOINT_TELEMETRY), Some(900));
    assert!(condition(&mesh, "shop", "new").starts_with("true Used"));
    // One for selected pods is for no waypoint.
    mesh.apply(&telemetry_object(
        "new",
        "shop",
        &format!("selector: {{matchLabels: {{app: x}}}}, {}", tracing(9)),
    ));
    assert!(mesh.waypoint_telemetry.is_empty());
    assert!(mesh.problems().join(" ").contains("spec.selector"));
}
