//! Records of RateLimits at waypoints, and the objects' status conditions.

use std::time::Duration;

use ambit_k8s_api::Kind;
use ambit_model::{HttpPathMatch, LimitKey, LimitValue, NamespacedHostname, RateLimit};

use super::{
    routes_and_conditions::{grant, waypoint_condition},
    *,
};

const GATEWAY_TARGET: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: wp}";
const SERVICE_TARGET: &str = "{kind: Service, name: cart}";
const LOCAL_LIMIT: &str = "local: [{requests: 10, per: 1s}]";
const GLOBAL_LIMIT: &str = "global: {service: {name: limits, port: 8081}, domain: shop, descriptors: [{entries: [{key: generic_key, value: all}]}]}";
const RATE_LIMIT_SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: limits, namespace: shop}\nspec: {clusterIP: 10.96.0.9, ports: [{port: 8081}]}\n";

fn rate_limit(target: &str, spec: &str) -> String {
    format!(
        "apiVersion: ambit.io/v1alpha1\nkind: RateLimit\nmetadata: {{name: l, namespace: shop}}\nspec: {{targetRefs: [{target}], {spec}}}\n"
    )
}

fn mesh_with_limit(spec: &str) -> TestMesh {
    let limit = rate_limit(GATEWAY_TARGET, spec);
    TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &limit,
    ]))
}

fn published_limit(mesh: &TestMesh) -> &RateLimit {
    &mesh.waypoint_rate_limits["shop/wp limits by shop/l"]
}

fn condition_text(mesh: &TestMesh) -> String {
    waypoint_condition(mesh, Kind::RateLimit, "shop", "l")
}

#[test]
fn a_limit_goes_to_the_waypoints_of_its_targets() {
    for (target, for_gateway, services) in [(GATEWAY_TARGET, true, 0), (SERVICE_TARGET, false, 1)] {
        let mut mesh = TestMesh::from_yaml(&join_documents(&[
            CART_SERVICE,
            CART_POD,
            &rate_limit(target, LOCAL_LIMIT),
        ]));
        assert!(mesh.waypoint_rate_limits.is_empty());
        assert!(condition_text(&mesh).starts_with("false"));
        mesh.apply(&gateway("wp", ""));
        let record = published_limit(&mesh);
        assert_eq!(
            (record.for_gateway, record.services.len()),
            (for_gateway, services),
            "{target}"
        );
        assert_eq!(condition_text(&mesh), "true Accepted");
        mesh.delete(Kind::RateLimit, "shop", "l");
        assert!(mesh.waypoint_rate_limits.is_empty());
    }
    assert_eq!(
        condition_text(&TestMesh::from_yaml(&rate_limit("", LOCAL_LIMIT))),
        "false NoTargets"
    );
}

#[test]
fn limit_record_is_complete() {
    let mesh = mesh_with_limit(
        "failOpen: true, tellClients: true, dryRun: true, local: [{requests: 5, per: 1m30s, burst: 7, buckets: 3, \
         matches: [{method: GET, path: {value: /a/}, headers: [{name: X-A, value: b}]}], \
         by: [{source: Principal}, {source: Namespace}, {source: Address}, {header: X-User}, {request: Path}, {request: Method}]}]",
    );
    let told_of = published_limit(&mesh);
    assert!(told_of.fail_open && told_of.sends_headers && told_of.dry_run);
    let local = &told_of.local[0];
    assert_eq!((local.requests, local.burst, local.buckets), (5, 7, 3));
    assert_eq!(local.per, Duration::from_secs(90));
    let keys = [
        LimitKey::Principal,
        LimitKey::Namespace,
        LimitKey::Address,
        LimitKey::Header("x-user".into()),
        LimitKey::Path,
        LimitKey::Method,
    ];
    assert_eq!(local.bucket_keys, keys);
    let matched = &local.matches[0];
    assert_eq!(matched.path, Some(HttpPathMatch::Prefix("/a".into())));
    assert_eq!(matched.headers[0].0, "x-a");
    let defaults = mesh_with_limit(LOCAL_LIMIT);
    let told_of = published_limit(&defaults);
    assert!(!told_of.fail_open && !told_of.sends_headers && !told_of.dry_run);
    assert_eq!(
        (told_of.local[0].burst, told_of.local[0].buckets),
        (10, 10_000)
    );
}

#[test]
fn a_rate_limit_service_is_looked_for() {
    let mut mesh = mesh_with_limit(GLOBAL_LIMIT);
    let place = |mesh: &TestMesh| {
        published_limit(mesh)
            .global
            .as_ref()
            .unwrap()
            .target
            .clone()
    };
    assert!(place(&mesh).unwrap_err().contains("there is no service"));
    assert_eq!(condition_text(&mesh), "true PartiallyInvalid");
    mesh.apply(RATE_LIMIT_SERVICE);
    let name = NamespacedHostname::new("shop", "limits.shop.svc.cluster.local");
    assert_eq!(place(&mesh), Ok((name, 8081)));
    assert_eq!(condition_text(&mesh), "true Accepted");
    let global = published_limit(&mesh).global.clone().unwrap();
    assert_eq!(
        (global.domain.as_str(), global.timeout, global.hits),
        ("shop", Duration::from_millis(20), 1)
    );
    let entry = ("generic_key".into(), LimitValue::Text("all".into()));
    assert_eq!(global.descriptors[0].entries, [entry]);
    mesh.delete(Kind::Service, "shop", "limits");
    assert!(place(&mesh).is_err());
}

#[test]
fn a_limit_that_cannot_be_used_decides_nothing_and_leaves_its_last_form() {
    let of_global = |of: &str| {
        format!("global: {{service: {{name: limits, port: 1}}, domain: d, descriptors: {of}}}")
    };
    let entries = |of: &str| of_global(&format!("[{{entries: {of}}}]"));
    let service = |of: &str| {
        format!(
            "global: {{service: {of}, domain: d, descriptors: [{{entries: [{{key: k, value: v}}]}}]}}"
        )
    };
    for (spec, field) in [
        ("dryRun: false".to_owned(), "spec:"),
        ("local: [{requests: 0, per: 1s}]".into(), "spec.local[0].requests"),
        ("local: [{requests: 1}]".into(), "spec.local[0].per"),
        ("local: [{requests: 1, per: 0s}]".into(), "spec.local[0].per"),
        ("local: [{requests: 1, per: 25h}]".into(), "spec.local[0].per"),
        (
            "local: [{requests: 1, per: 1s, burst: -1}]".into(),
            "spec.local[0].burst",
        ),
        (
            "local: [{requests: 1, per: 1s, buckets: 1000001}]".into(),
            "spec.local[0].buckets",
        ),
        (
            "local: [{requests: 1, per: 1s, by: [{source: Pod}]}]".into(),
            "spec.local[0].by[0].source",
        ),
        (
            "local: [{requests: 1, per: 1s, by: [{header: 'a b'}]}]".into(),
            "spec.local[0].by[0].header",
        ),
        (
            "local: [{requests: 1, per: 1s, by: [{header: a, request: Path}]}]".into(),
            "spec.local[0].by[0]:",
        ),
        (
            "local: [{requests: 1, per: 1s, matches: [{path: {type: Glob, value: /}}]}]".into(),
            "spec.local[0].matches[0].path.type",
        ),
        (
            "local: [{requests: 1, per: 1s, matches: [{path: {type: RegularExpression, value: '('}}]}]".into(),
            "spec.local[0].matches[0].path.value",
        ),
        (
            "local: [{requests: 1, per: 1s, matches: [{paths: {}}]}]".into(),
            "spec.local[0].matches[0].paths",
        ),
        (of_global("[]"), "spec.global.descriptors"),
        (entries("[]"), "spec.global.descriptors[0].entries"),
        (
            entries("[{key: a}]"),
            "spec.global.descriptors[0].entries[0]:",
        ),
        (
            entries("[{key: a, value: b, header: c}]"),
            "spec.global.descriptors[0].entries[0]:",
        ),
        (
            service("{name: limits, port: 0}"),
            "spec.global.service.port",
        ),
        (
            service("{name: 'a.b/c', port: 1}"),
            "spec.global.service.name",
        ),
        (
            service("{name: limits, namespace: 'o/ther', port: 1}"),
            "spec.global.service.namespace",
        ),
    ] {
        let mut mesh = mesh_with_limit(&spec);
        let problems = mesh.problems().join("\n");
        assert!(problems.contains(field), "{spec}: {problems}");
        let told_of = published_limit(&mesh).clone();
        assert!(
            told_of.not_understood.is_some() && told_of.for_gateway && !told_of.fail_open,
            "{spec}"
        );
        mesh.apply(&rate_limit(GATEWAY_TARGET, LOCAL_LIMIT));
        mesh.apply(&rate_limit(GATEWAY_TARGET, &spec));
        assert_eq!(published_limit(&mesh).local.len(), 1, "{spec}");
        assert_eq!(published_limit(&mesh).not_understood, None, "{spec}");
    }
    let open = mesh_with_limit("failOpen: true, dryRun: true, local: [{requests: 0, per: 1s}]");
    assert!(
        published_limit(&open).not_understood.is_some()
            && published_limit(&open).fail_open
            && published_limit(&open).dry_run
    );
}

#[test]
fn a_rate_limit_service_of_another_namespace_needs_a_grant() {
    for namespace in ["bank", "istio-system"] {
        let spec = format!(
            "global: {{service: {{name: limits, namespace: {namespace}, port: 8081}}, domain: d, descriptors: [{{entries: [{{key: k, value: v}}]}}]}}"
        );
        let mut mesh = mesh_with_limit(&spec);
        mesh.apply(&RATE_LIMIT_SERVICE.replace("shop", namespace));
        let place = |mesh: &TestMesh| {
            published_limit(mesh)
                .global
                .as_ref()
                .unwrap()
                .target
                .clone()
        };
        let refused = |mesh: &TestMesh| {
            let why = place(mesh).unwrap_err();
            why.contains("ReferenceGrant") && condition_text(mesh) == "true PartiallyInvalid"
        };
        assert!(refused(&mesh), "{namespace}");
        let of = |kind: &str, group: &str, from: &str| {
            let from = format!("{{group: {group}, kind: {kind}, namespace: {from}}}");
            grant(namespace, &from, "{group: '', kind: Service, name: limits}")
        };
        for (kind, group, from) in [
            ("WasmPlugin", "extensions.istio.io", "shop"),
            ("HTTPRoute", "gateway.networking.k8s.io", "shop"),
            ("RateLimit", "example.io", "shop"),
            ("RateLimit", "ambit.io", "other"),
        ] {
            mesh.apply(&of(kind, group, from));
            assert!(refused(&mesh), "{namespace} {group} {kind} {from}");
        }
        mesh.apply(&of("RateLimit", "ambit.io", "shop"));
        let host = format!("limits.{namespace}.svc.cluster.local");
        let granted = (NamespacedHostname::new(namespace, host), 8081);
        assert_eq!(place(&mesh), Ok(granted));
        assert_eq!(condition_text(&mesh), "true Accepted");
        mesh.delete(Kind::ReferenceGrant, namespace, "g");
        assert!(refused(&mesh), "{namespace}");
    }
}
