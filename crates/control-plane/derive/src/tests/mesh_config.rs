//! The ConfigMap with the settings of the mesh.

use ambit_k8s_api::Kind;
use ambit_model::PathNormalization;

use super::*;

const GATEWAY: &str = "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
";

fn config(mesh: &str) -> String {
    let mut text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n".to_owned();
    for line in mesh.lines() {
        text += &format!("    {line}\n");
    }
    text
}

fn problems(mesh: &TestMesh) -> Vec<String> {
    let key = ObjectKey::new(Kind::ConfigMap, "istio-system", "istio");
    let problems = mesh.index.problems_of(&key).into_iter();
    problems
        .map(|problem| format!("{:?} {}", problem.severity, problem.field))
        .collect()
}

fn of_gateway(mesh: &TestMesh) -> (PathNormalization, u32) {
    let told = &mesh.waypoint_gateways["shop/wp"];
    (told.path_normalization, told.trusted_proxies)
}

#[test]
fn settings_are_followed_while_the_mesh_runs() {
    let mut mesh = TestMesh::of(GATEWAY);
    assert_eq!(of_gateway(&mesh), (PathNormalization::Base, 0));
    mesh.apply(&config(
        "pathNormalization: {normalization: MERGE_SLASHES}\ndefaultConfig: {gatewayTopology: {numTrustedProxies: 2}}",
    ));
    assert_eq!(of_gateway(&mesh), (PathNormalization::MergeSlashes, 2));
    assert_eq!(problems(&mesh), [""; 0]);
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert_eq!(of_gateway(&mesh), (PathNormalization::Base, 0));
}

#[test]
fn what_istio_installs_is_no_problem_and_what_is_not_supported_is_named() {
    let of_istio = "defaultConfig:\n  discoveryAddress: istiod.istio-system.svc:15012\ndefaultProviders:\n  metrics:\n  - prometheus\nrootNamespace: istio-system\ntrustDomain: cluster.local\nenableAutoMtls: true\ntrustDomainAliases: []";
    let mut mesh = TestMesh::of(&config(of_istio));
    assert_eq!(problems(&mesh), [""; 0]);
    mesh.apply(&config(
        "outboundTrafficPolicy: {mode: REGISTRY_ONLY}\nmade: up\ntrustDomainAliases: [old.local]\nwaypointMissing: allow\nextensionProviders:\n- name: a\n  zipkin: {service: z.x, port: 1}\n- name: b\n  future: {}",
    ));
    let mut found = problems(&mesh);
    found.sort();
    assert_eq!(
        found,
        [
            "Warning data.mesh.extensionProviders[0].zipkin",
            "Warning data.mesh.extensionProviders[1].future",
            "Warning data.mesh.made",
            "Warning data.mesh.outboundTrafficPolicy",
            "Warning data.mesh.trustDomainAliases",
            "Warning data.mesh.waypointMissing",
        ]
    );
}

#[test]
fn a_configuration_that_security_hangs_on_leaves_the_last_good_one_in_force() {
    let good = "pathNormalization: {normalization: MERGE_SLASHES}";
    let mut mesh = TestMesh::of(&format!("{GATEWAY}\n---\n{}", config(good)));
    for (bad, field) in [
        ("a: [", "data.mesh"),
        ("- a", "data.mesh"),
        ("trustDomain: other.local", "data.mesh.trustDomain"),
        (
            "pathNormalization: {normalization: MOST}",
            "data.mesh.pathNormalization.normalization",
        ),
        ("pathNormalization: MOST", "data.mesh.pathNormalization"),
        (
            "defaultConfig: {gatewayTopology: {numTrustedProxies: -1}}",
            "data.mesh.defaultConfig.gatewayTopology.numTrustedProxies",
        ),
        ("extensionProviders: {}", "data.mesh.extensionProviders"),
        (
            "extensionProviders: [{envoyExtAuthzGrpc: {}}]",
            "data.mesh.extensionProviders[0].name",
        ),
        (
            "extensionProviders: [{name: a}]",
            "data.mesh.extensionProviders[0]",
        ),
        (
            "extensionProviders: [{name: a, zipkin: {}, sds: {}}]",
            "data.mesh.extensionProviders[0]",
        ),
        (
            "extensionProviders: [{name: a, zipkin: {}}, {name: a, zipkin: {}}]",
            "data.mesh.extensionProviders[1].name",
        ),
    ] {
        assert_eq!(mesh.apply(&config(bad)), [""; 0], "{bad}");
        assert_eq!(problems(&mesh), [format!("Error {field}")], "{bad}");
        assert_eq!(of_gateway(&mesh).0, PathNormalization::MergeSlashes);
    }
}

#[test]
fn config_maps_of_others_say_nothing() {
    for (namespace, name) in [("shop", "istio"), ("istio-system", "other")] {
        let text = config("trustDomain: other.local");
        let text = text.replace("name: istio,", &format!("name: {name},"));
        let text = text.replace(
            "namespace: istio-system",
            &format!("namespace: {namespace}"),
        );
        let mesh = TestMesh::of(&text);
        assert_eq!(mesh.index.problems().count(), 0);
    }
}
