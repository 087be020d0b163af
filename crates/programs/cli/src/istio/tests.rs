//! Tests of the effects of a bookshop's objects, like the one in Istio's documentation, with and without sidecars.

use std::path::Path;

use super::*;

fn mesh(text: &str) -> Mesh {
    let read = ambit_manifests::parse_values(Path::new("mesh.yaml"), text);
    assert_eq!(read.problems, []);
    let objects = read.objects.into_iter();
    Mesh {
        objects: objects
            .map(|(value, origin)| (value, Some(origin)))
            .collect(),
        ..Mesh::default()
    }
}

/// Formats each effect on one line: outcome, object, field, effect and advice.
fn lines(text: &str) -> Vec<String> {
    let line = |one: Effect| {
        let Effect {
            outcome,
            object,
            field,
            effect,
            advice,
            ..
        } = one;
        format!("{outcome:?} | {object} | {field} | {effect} | {advice}")
    };
    effects(&mesh(text)).into_iter().map(line).collect()
}

fn assert_has(lines: &[String], parts: &[&str]) {
    let is_there = lines
        .iter()
        .any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(is_there, "{parts:?}: {lines:#?}");
}

const SHOP: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: books, labels: {istio.io/dataplane-mode: ambient, istio.io/use-waypoint: waypoint}}
---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: books}
spec: {clusterIP: 10.0.0.9, selector: {app: reviews}, ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reviews-1, namespace: books, labels: {app: reviews, version: v1}}
spec: {nodeName: n1, serviceAccountName: reviews, containers: []}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio-waypoint}
spec: {controllerName: istio.io/mesh-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: books, labels: {istio.io/waypoint-for: service}}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
";

#[test]
fn an_ambient_mesh_of_contracts_that_are_followed_works() {
    let objects = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: books}
spec:
  parentRefs: [{group: '', kind: Service, name: reviews, port: 9080}]
  rules: [{backendRefs: [{name: reviews, port: 9080}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: books}
spec:
  host: reviews
  trafficPolicy: {connectionPool: {http: {http2MaxRequests: 10}}}
  subsets: [{name: v1, labels: {version: v1}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: reviews, namespace: books}
spec:
  targetRefs: [{kind: Service, group: '', name: reviews}]
  rules: [{to: [{operation: {methods: [GET]}}]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: books}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'accessLogFile: /dev/stdout'}
";
    let found = lines(&format!("{SHOP}{objects}"));
    assert_eq!(
        found,
        [
            "Works | AuthorizationPolicy books/reviews | . |  | ",
            "Works | ConfigMap istio-system/istio | . |  | ",
            "Works | DestinationRule books/reviews | . |  | ",
            "Works | Gateway books/waypoint | . |  | ",
            "Works | GatewayClass istio-waypoint | . |  | ",
            "Works | HTTPRoute books/reviews | . |  | ",
            "Works | Namespace books | metadata.labels[istio.io/dataplane-mode] | its pods are captured | ",
            "Works | Namespace books | metadata.labels[istio.io/use-waypoint] | it names the waypoint | ",
            "Works | PeerAuthentication books/default | . |  | ",
        ]
    );
}

#[test]
fn a_mesh_of_sidecars_is_checked_object_by_object() {
    let found = lines(include_str!("tests/sidecars.yaml"));
    insta::assert_snapshot!(found.join("\n"));
}

#[test]
fn every_kind_without_an_effect_is_named_with_advice() {
    let kinds = [
        ("networking.istio.io/v1", "Sidecar"),
        ("networking.istio.io/v1", "Gateway"),
        ("networking.istio.io/v1", "WorkloadGroup"),
        ("networking.istio.io/v1beta1", "ProxyConfig"),
        ("networking.istio.io/v1alpha3", "EnvoyFilter"),
        ("extensions.istio.io/v1alpha1", "TrafficExtension"),
        ("gateway.networking.k8s.io/v1", "ListenerSet"),
        (
            "gateway.networking.x-k8s.io/v1alpha1",
            "XBackendTrafficPolicy",
        ),
        ("gateway.networking.k8s.io/v1alpha2", "UDPRoute"),
    ];
    let of = |(version, kind)| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: one, namespace: books}}\n")
    };
    let found = lines(&kinds.map(of).join("---\n"));
    assert_eq!(found.len(), kinds.len(), "{found:#?}");
    for (_, kind) in kinds {
        let object = format!("Lapses | {kind} books/one | . | objects of this kind have no effect");
        assert_has(&found, &[&object]);
    }
    assert!(!found.iter().any(|line| line.contains("nothing in Ambit")));
    let unknown = of(("telemetry.istio.io/v9", "Future"));
    assert_has(
        &lines(&unknown),
        &["Lapses | Future books/one", "nothing in Ambit"],
    );
    let other = of(("example.com/v1", "Sidecar"));
    assert_eq!(lines(&other), Vec::<String>::new());
}

#[test]
fn gateways_of_istios_classes_lapse_with_their_routes() {
    let found = lines(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: edge}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: other}
spec: {controllerName: example.com/controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: books}
spec: {gatewayClassName: edge, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: other, namespace: books}
spec: {gatewayClassName: other, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: books, namespace: books}
spec:
  parentRefs: [{name: other}, {name: edge}]
  rules: [{backendRefs: [{name: productpage, port: 9080}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: canary, namespace: books, labels: {istio.io/rev: canary}}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
",
    );
    assert_has(
        &found,
        &[
            "Lapses | Gateway books/edge | spec.gatewayClassName",
            "control plane alone",
        ],
    );
    assert_has(
        &found,
        &["Lapses | HTTPRoute books/books | spec.parentRefs[1]"],
    );
    assert_has(
        &found,
        &["Lapses | Gateway books/canary | metadata.labels[istio.io/rev]"],
    );
    assert_has(&found, &["Works | Gateway books/other"]);
    assert!(
        !found.iter().any(|line| line.contains("parentRefs[0]")),
        "{found:#?}"
    );
}

#[test]
fn settings_of_the_mesh_are_followed_or_named() {
    let settings = |mesh: &str| {
        lines(&format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n{mesh}"
        ))
    };
    let found = settings(
        "    trustDomain: books.example\n    enableTracing: true\n    outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n    \
         defaultConfig: {holdApplicationUntilProxyStarts: true}\n    odd: 1\n",
    );
    for parts in [
        [
            "Changes",
            "data.mesh.trustDomain",
            "--set meshConfig.trustDomain=books.example",
        ],
        ["Lapses", "data.mesh.enableTracing", "remove it"],
        [
            "Changes",
            "data.mesh.outboundTrafficPolicy.mode",
            "--set meshConfig.outboundTrafficPolicy.mode=REGISTRY_ONLY",
        ],
        [
            "Lapses",
            "data.mesh.defaultConfig.holdApplicationUntilProxyStarts",
            "no effect",
        ],
        ["Lapses", "data.mesh.odd", "not known"],
    ] {
        assert_has(&found, &parts);
    }
    assert_has(
        &settings("    trustDomain: [\n"),
        &["Lapses", "ConfigMap istio-system/istio", "no YAML"],
    );
    let of_revision = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio-canary, namespace: istio-system}\n\
                       data: {mesh: ''}\n";
    assert_has(
        &lines(of_revision),
        &[
            "Lapses",
            "istio-canary",
            "write the settings into the ConfigMap istio",
        ],
    );
}

#[test]
fn an_installed_mesh_keeps_its_own_trust_domain() {
    let mut mesh = mesh(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'trustDomain: other'}\n",
    );
    mesh.is_installed = true;
    let found = effects(&mesh);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].effect.contains("the mesh has cluster.local"),
        "{found:#?}"
    );
}

#[test]
fn virtual_services_work_at_waypoints_as_far_as_they_can() {
    let virtual_service = |spec: &str| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: ratings, namespace: books}}
spec: {{{spec}}}
"
        )
    };
    let behind = "
apiVersion: v1
kind: Namespace
metadata: {name: books, labels: {istio.io/dataplane-mode: ambient, istio.io/use-waypoint: wp}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: books}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: books}
spec: {clusterIP: 10.0.0.9, ports: [{name: http, port: 9080}]}
---";
    let to = "route: [{destination: {host: ratings}}]";
    let works = format!("hosts: [ratings], http: [{{match: [{{uri: {{prefix: /a}}}}], {to}}}]");
    let found = lines(&format!("{behind}{}", virtual_service(&works)));
    assert_has(&found, &["Works | VirtualService books/ratings"]);
    let found = lines(&virtual_service(&works));
    assert_has(
        &found,
        &[
            "Lapses | VirtualService books/ratings",
            "no service has the host",
        ],
    );
    for (spec, parts) in [
        (
            format!("hosts: [ratings], http: [{{match: [{{sourceLabels: {{a: b}}}}], {to}}}]"),
            ["Lapses", "spec.http[0].match[0].sourceLabels", "without it"],
        ),
        (
            format!("hosts: [ratings], gateways: [edge], http: [{{{to}}}]"),
            ["Lapses", "does not contain mesh", "ingress gateways"],
        ),
        (
            format!("hosts: [ratings], exportTo: [.], http: [{{{to}}}]"),
            ["Changes", "spec.exportTo", "sourceNamespace"],
        ),
        (
            format!("hosts: [a.bank.svc.cluster.local], http: [{{{to}}}]"),
            ["Changes", "for clients of books alone", "write it in bank"],
        ),
    ] {
        let found = lines(&format!("{behind}{}", virtual_service(&spec)));
        assert_has(
            &found,
            &[&["VirtualService books/ratings"][..], &parts].concat(),
        );
    }
}

#[test]
fn pods_of_one_workload_are_one_object() {
    let pod = |number: u8| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata:
  name: reviews-5f-{number}
  namespace: books
  labels: {{pod-template-hash: 5f, sidecar.istio.io/inject: 'true'}}
  annotations: {{sidecar.istio.io/status: '{{}}', istio.io/rev: default}}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: reviews-5f, uid: u, controller: true}}]
"
        )
    };
    let deployment = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviews, namespace: books}
spec: {selector: {}, template: {metadata: {labels: {sidecar.istio.io/inject: 'true'}}}}
";
    let found = lines(&[pod(1), pod(2), deployment.to_owned()].join("---"));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_has(
        &found,
        &["Lapses | Deployment books/reviews | metadata.annotations[sidecar.istio.io/status]"],
    );
    assert_has(
        &found,
        &["Deployment books/reviews | spec.template.metadata.labels[sidecar.istio.io/inject]"],
    );
}

#[test]
fn empty_fields_hide_no_difference_of_others() {
    let text = "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: outside, namespace: books}
spec:
  host: outside.example
  subsets:
  trafficPolicy: {tls: {mode: SIMPLE}, portLevelSettings: }
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: open, namespace: books}
spec: {mtls: {mode: DISABLE}, portLevelMtls: }
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    defaultServiceExportTo:
    trustDomain: shop.example
";
    let lines = lines(text);
    for (object, field) in [
        (
            "DestinationRule books/outside",
            "spec.trafficPolicy.tls.caCertificates",
        ),
        ("PeerAuthentication books/open", "spec.mtls"),
        ("ConfigMap istio-system/istio", "data.mesh.trustDomain"),
    ] {
        assert_has(&lines, &["Changes", object, field]);
    }
}

#[test]
fn broken_objects_are_named_and_the_rest_is_checked() {
    let found = lines(
        "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: broken, namespace: books}
spec: {rulez: []}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: Not A Name, namespace: books}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: odd, namespace: books}
spec: {hosts: reviews}
---
just text
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: books}
spec: {address: 192.0.2.7}
",
    );
    assert_has(
        &found,
        &["Lapses | AuthorizationPolicy books/broken", "rulez"],
    );
    assert_has(
        &found,
        &[
            "Lapses | AuthorizationPolicy books/Not A Name",
            "invalid metadata.name",
        ],
    );
    assert_has(
        &found,
        &["Lapses | VirtualService books/odd | spec.", "invalid type"],
    );
    assert_has(&found, &["Lapses | object without a name", "not an object"]);
    assert_has(&found, &["Works | WorkloadEntry books/vm"]);
}

#[test]
fn ten_thousand_objects_are_checked_in_seconds() {
    let mut text = SHOP.to_owned();
    for number in 0..5_000 {
        text.push_str(&format!(
            "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: route-{number}, namespace: books}}
spec: {{hosts: [reviews], http: [{{route: [{{destination: {{host: reviews, port: {{number: 9080}}}}}}]}}]}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: entry-{number}, namespace: books}}
spec: {{hosts: [host-{number}.example], ports: [{{number: 443, name: tls, protocol: TLS}}], resolution: DNS}}
---"
        ));
    }
    let mesh = mesh(&text);
    let start = std::time::Instant::now();
    let found = effects(&mesh);
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    let count = |outcome| found.iter().filter(|one| one.outcome == outcome).count();
    assert_eq!(
        (count(Outcome::Lapses), count(Outcome::Changes)),
        (4_999, 5_000)
    );
}
