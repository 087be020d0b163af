//! MeshConfig: fields with and without an effect, and errors.

use ambit_k8s_api::Kind;
use ambit_model::PathNormalization;

use super::*;

pub(super) const GATEWAY: &str = "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
";

pub(super) fn mesh_config(mesh: &str) -> String {
    let mut text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n".to_owned();
    for line in mesh.lines() {
        text += &format!("    {line}\n");
    }
    text
}

pub(super) fn problems(mesh: &TestMesh) -> Vec<String> {
    let key = ObjectKey::new(Kind::ConfigMap, "istio-system", "istio");
    let problems = mesh.index.problems_of(&key).into_iter();
    problems
        .map(|problem| format!("{:?} {}", problem.severity, problem.field))
        .collect()
}

fn gateway_settings(mesh: &TestMesh) -> (PathNormalization, u32) {
    let gateway = &mesh.waypoint_gateways["gateway shop/wp"];
    (gateway.path_normalization, gateway.trusted_proxies)
}

#[test]
fn settings_are_followed_while_the_mesh_runs() {
    let mut mesh = TestMesh::from_yaml(GATEWAY);
    assert_eq!(gateway_settings(&mesh), (PathNormalization::Base, 0));
    mesh.apply(&mesh_config(
        "pathNormalization: {normalization: MERGE_SLASHES}\ndefaultConfig: {gatewayTopology: {numTrustedProxies: 2}}",
    ));
    assert_eq!(
        gateway_settings(&mesh),
        (PathNormalization::MergeSlashes, 2)
    );
    assert_eq!(problems(&mesh), [""; 0]);
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert_eq!(gateway_settings(&mesh), (PathNormalization::Base, 0));
}

#[test]
fn what_istio_installs_is_no_problem_and_what_is_not_supported_is_named() {
    let of_istio = "defaultConfig:\n  discoveryAddress: istiod.istio-system.svc:15012\ndefaultProviders:\n  metrics:\n  - prometheus\nrootNamespace: istio-system\ntrustDomain: cluster.local\nenableAutoMtls: true\ntrustDomainAliases: []";
    let mut mesh = TestMesh::from_yaml(&mesh_config(of_istio));
    assert_eq!(problems(&mesh), [""; 0]);
    mesh.apply(&mesh_config(
        "outboundTrafficPolicy: {mode: REGISTRY_ONLY}\nmade: up\nwaypointBinding: ready\nwaypointMissing: allow\nextensionProviders:\n- name: a\n  zipkin: {service: z.x, port: 1}\n- name: b\n  future: {}",
    ));
    let mut found = problems(&mesh);
    found.sort();
    assert_eq!(
        found,
        [
            "Warning data.mesh.extensionProviders[0].zipkin",
            "Warning data.mesh.extensionProviders[1].future",
            "Warning data.mesh.made",
            "Warning data.mesh.outboundTrafficPolicy.mode",
            "Warning data.mesh.waypointBinding",
            "Warning data.mesh.waypointMissing",
        ]
    );
}

#[test]
fn bad_security_settings_keep_the_last_good_ones() {
    let good = "pathNormalization: {normalization: MERGE_SLASHES}";
    let mut mesh = TestMesh::from_yaml(&format!("{GATEWAY}\n---\n{}", mesh_config(good)));
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
        assert_eq!(mesh.apply(&mesh_config(bad)), [""; 0], "{bad}");
        assert_eq!(problems(&mesh), [format!("Error {field}")], "{bad}");
        assert_eq!(gateway_settings(&mesh).0, PathNormalization::MergeSlashes);
    }
}

#[test]
fn config_maps_of_others_say_nothing() {
    for (namespace, name) in [("shop", "istio"), ("istio-system", "other")] {
        let text = mesh_config("trustDomain: other.local");
        let text = text.replace("name: istio,", &format!("name: {name},"));
        let text = text.replace(
            "namespace: istio-system",
            &format!("namespace: {namespace}"),
        );
        let mesh = TestMesh::from_yaml(&text);
        assert_eq!(mesh.index.problems().count(), 0);
    }
}

const POLICY: &str = "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: wp}]
  action: CUSTOM
  provider: {name: a}
  rules: [{}]
";

fn service(namespace: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: authz, namespace: {namespace}}}\nspec: {{clusterIP: 10.96.0.77, ports: [{{port: 9000}}]}}\n"
    )
}

fn published_provider(mesh: &TestMesh) -> ambit_model::Provider {
    let policy = &mesh.waypoint_policies["shop/wp shop/ask"];
    assert_eq!(policy.action, ambit_model::HttpAction::Custom);
    ambit_model::Provider::clone(policy.provider.as_ref().unwrap())
}

#[test]
fn policy_record_has_its_provider_and_follows_it() {
    let mut mesh = TestMesh::from_yaml(&format!("{GATEWAY}\n---\n{POLICY}"));
    assert!(
        published_provider(&mesh)
            .target
            .unwrap_err()
            .contains("no provider with the name a")
    );
    let grpc = "extensionProviders: [{name: a, envoyExtAuthzGrpc: {service: authz.auth.svc.cluster.local, port: 9000}}]";
    mesh.apply(&mesh_config(grpc));
    assert!(
        published_provider(&mesh)
            .target
            .unwrap_err()
            .contains("there is no service")
    );
    let key = ObjectKey::new(Kind::AuthorizationPolicy, "shop", "ask");
    let note = mesh.index.problems_of(&key).pop().unwrap();
    assert_eq!(note.field, "spec.provider.name");
    mesh.apply(&service("auth"));
    let of_grpc = published_provider(&mesh);
    let (name, port) = of_grpc.target.unwrap();
    assert_eq!(
        (name.to_string(), port),
        ("auth/authz.auth.svc.cluster.local".to_owned(), 9000)
    );
    assert_eq!(
        (of_grpc.timeout.as_secs(), of_grpc.status_on_error),
        (600, 403)
    );
    assert_eq!(mesh.index.problems_of(&key), []);
    let http = "extensionProviders: [{name: a, envoyExtAuthzHttp: {service: auth/authz.auth.svc.cluster.local, port: 9000, timeout: 2s, statusOnError: '503', failOpen: true, pathPrefix: /p, includeHeadersInCheck: [Cookie], includeRequestHeadersInCheck: ['x-*'], includeRequestBodyInCheck: {maxRequestBytes: 8, packAsBytes: true}}}]";
    mesh.apply(&mesh_config(http));
    let of_http = published_provider(&mesh);
    assert!(of_http.fail_open && of_http.body.unwrap().as_bytes);
    assert_eq!(
        (of_http.timeout.as_secs(), of_http.status_on_error),
        (2, 503)
    );
    let ambit_model::ProviderProtocol::Http(http) = of_http.protocol else {
        panic!("not HTTP");
    };
    let headers = ["x-*", "cookie"].map(ambit_model::StringMatch::from_pattern);
    assert_eq!(
        (http.path_prefix.as_str(), &*http.headers),
        ("/p", &headers[..])
    );
    mesh.delete(Kind::Service, "auth", "authz");
    assert!(published_provider(&mesh).target.is_err());
}

#[test]
fn a_provider_that_cannot_be_read_leaves_the_last_good_one() {
    let place = "service: authz.auth.svc.cluster.local, port: 9000";
    let of = |kind: &str, more: &str| {
        mesh_config(&format!(
            "extensionProviders: [{{name: a, {kind}: {{{place}{more}}}}}]"
        ))
    };
    let good = of("envoyExtAuthzGrpc", "");
    let mut mesh = TestMesh::from_yaml(&[GATEWAY, POLICY, &service("auth"), &good].join("\n---\n"));
    assert!(published_provider(&mesh).target.is_ok());
    for (more, field) in [
        (", timeout: soon", ".timeout"),
        (", statusOnError: '200'", ".statusOnError"),
        (", pathPrefix: p", ".pathPrefix"),
        (", surprise: 1", ".surprise"),
        (", failOpen: perhaps", ""),
        (
            ", includeRequestBodyInCheck: {maxRequestBytes: 0}",
            ".includeRequestBodyInCheck.maxRequestBytes",
        ),
        (
            ", includeAdditionalHeadersInCheck: {host: a}",
            ".includeAdditionalHeadersInCheck",
        ),
        (
            ", headersToUpstreamOnAllow: ['a b']",
            ".headersToUpstreamOnAllow",
        ),
    ] {
        assert_eq!(
            mesh.apply(&of("envoyExtAuthzHttp", more)),
            [""; 0],
            "{more}"
        );
        let at = "Error data.mesh.extensionProviders[0].envoyExtAuthzHttp";
        assert_eq!(problems(&mesh), [format!("{at}{field}")], "{more}");
        assert!(published_provider(&mesh).target.is_ok());
    }
}

#[test]
fn ports_without_http_checks_are_named() {
    let cache = |labels: &str, name: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: cache, namespace: shop, labels: {{{labels}}}}}\nspec: {{clusterIP: 10.96.0.78, ports: [{{name: http, port: 80}}, {{name: {name}, port: 7000}}]}}\n"
        )
    };
    let bound = "istio.io/use-waypoint: wp";
    let of = |kind: &str| {
        mesh_config(&format!(
            "extensionProviders: [{{name: a, {kind}: {{service: authz.auth.svc.cluster.local, port: 9000}}}}]"
        ))
    };
    let key = ObjectKey::new(Kind::AuthorizationPolicy, "shop", "ask");
    let of_gateway = "group: gateway.networking.k8s.io, kind: Gateway, name: wp";
    for target in [of_gateway, "kind: Service, name: cache"] {
        let policy = POLICY.replace(of_gateway, target);
        let objects = [
            GATEWAY,
            &policy,
            &service("auth"),
            &cache(bound, "tcp-binary"),
            &of("envoyExtAuthzGrpc"),
        ];
        let mut mesh = TestMesh::from_yaml(&objects.join("\n---\n"));
        let notes = |mesh: &TestMesh| -> Vec<String> {
            let problems = mesh.index.problems_of(&key).into_iter();
            problems.map(|problem| problem.message).collect()
        };
        assert_eq!(notes(&mesh), [""; 0], "{target}");
        mesh.apply(&of("envoyExtAuthzHttp"));
        let last_note = notes(&mesh).pop().unwrap_or_default();
        assert!(
            last_note.contains("connections to port 7000 of Service shop/cache are refused"),
            "{target}: {last_note}"
        );
        mesh.apply(&cache(bound, "http-binary"));
        assert_eq!(notes(&mesh), [""; 0], "{target}");
        mesh.apply(&cache(bound, "tls-binary"));
        assert_eq!(notes(&mesh).len(), 1, "{target}");
        if target == of_gateway {
            mesh.apply(&cache("", "tls-binary"));
            assert_eq!(notes(&mesh), [""; 0]);
        }
    }
}

#[test]
fn namespaces_that_discovery_selectors_leave_out_are_not_the_meshs() {
    let namespaces = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n\
                      apiVersion: v1\nkind: Namespace\nmetadata: {name: evil, labels: {mesh: \"yes\"}}\n";
    let entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: claim, namespace: evil}\n\
                 spec: {hosts: [cart.shop, claim.example.com], resolution: STATIC, addresses: [10.96.0.9],\n  \
                 ports: [{number: 80, name: http}]}\n";
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        namespaces,
        CART_POD,
        CART_SERVICE,
        entry,
    ]));
    let has_cart = |mesh: &TestMesh| {
        let service = mesh
            .services
            .contains_key("shop/cart.shop.svc.cluster.local");
        assert_eq!(mesh.workloads.contains_key("c1//Pod/shop/cart-1"), service);
        service
    };
    let claimed = |mesh: &TestMesh| mesh.service("evil/claim.example.com").vips.len();
    let short_name = |mesh: &TestMesh| mesh.services.contains_key("evil/cart.shop");
    assert_eq!(
        (has_cart(&mesh), claimed(&mesh), short_name(&mesh)),
        (true, 0, false)
    );

    mesh.apply(&mesh_config(
        "discoverySelectors: [{matchLabels: {mesh: \"yes\"}}]",
    ));
    assert_eq!(problems(&mesh), [""; 0]);
    assert_eq!(
        (has_cart(&mesh), claimed(&mesh), short_name(&mesh)),
        (false, 1, true)
    );
    // What comes while it is left out is there when the namespace is selected, which ends what others have of it.
    mesh.apply(
        &CART_POD
            .replace("cart-1", "cart-2")
            .replace("10.1.2.3", "10.1.2.4"),
    );
    mesh.apply(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {mesh: \"yes\"}}\n",
    );
    assert_eq!(
        (has_cart(&mesh), claimed(&mesh), short_name(&mesh)),
        (true, 0, false)
    );
    assert!(mesh.workloads.contains_key("c1//Pod/shop/cart-2"));

    mesh.apply(&mesh_config(
        "discoverySelectors: [{matchLabels: {other: \"yes\"}}]",
    ));
    assert!(!has_cart(&mesh) && mesh.services.is_empty());
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert!(has_cart(&mesh));
    mesh.apply(&mesh_config("discoverySelectors: all"));
    assert_eq!(problems(&mesh), ["Error data.mesh.discoverySelectors"]);
    assert!(has_cart(&mesh));
}

#[test]
fn selector_that_cannot_be_read_leaves_the_last_ones_in_force() {
    let namespace = |labels: &str| {
        format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n")
    };
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\n\
                  spec: {action: DENY, rules: [{}]}\n";
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        &namespace("mesh: \"yes\""),
        CART_POD,
        policy,
    ]));
    let seen = |mesh: &TestMesh| {
        let workload = mesh.workloads.contains_key("c1//Pod/shop/cart-1");
        // A workload that is discovered has its policies.
        assert_eq!(mesh.policies.contains_key("shop/p"), workload);
        workload
    };
    mesh.apply(&mesh_config(
        "discoverySelectors: [{matchLabels: {mesh: \"yes\"}}]",
    ));
    assert!(seen(&mesh));
    for (selector, field) in [
        ("all", ""),
        ("[{matchLabels: {a: b}}, {matchlabels: {a: b}}]", "[1]"),
        (
            "[{matchExpressions: [{key: mesh, operator: in, values: [a]}]}]",
            "[0]",
        ),
        ("[{matchExpressions: [{key: mesh, operator: In}]}]", "[0]"),
    ] {
        mesh.apply(&mesh_config(&format!("discoverySelectors: {selector}")));
        let expected = format!("Error data.mesh.discoverySelectors{field}");
        assert_eq!(problems(&mesh), [expected]);
        assert!(seen(&mesh), "{selector}");
        mesh.apply(&namespace("mesh: \"no\""));
        assert!(!seen(&mesh), "{selector}: the last ones are followed");
        mesh.apply(&namespace("mesh: \"yes\""));
        assert!(seen(&mesh), "{selector}");
    }
}

#[test]
fn pods_of_namespaces_that_are_left_out_get_no_certificates() {
    let namespace = |labels: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{istio.io/dataplane-mode: ambient{labels}}}}}\n"
        )
    };
    let mut mesh = TestMesh::from_yaml(&join_documents(&[&namespace(""), CART_POD]));
    let is_served = |mesh: &TestMesh| {
        let workload = mesh.workloads.contains_key("c1//Pod/shop/cart-1");
        assert_eq!(mesh.pods.is_served_on("n1", "shop", "cart"), workload);
        workload
    };
    assert!(is_served(&mesh));
    mesh.apply(&mesh_config(
        "discoverySelectors: [{matchLabels: {mesh: \"yes\"}}]",
    ));
    assert!(!is_served(&mesh));
    mesh.apply(&CART_POD.replace("uid: u1", "uid: u2"));
    assert!(!is_served(&mesh), "seen again");
    mesh.apply(&namespace(", mesh: \"yes\""));
    assert!(is_served(&mesh));
    mesh.apply(&namespace(""));
    assert!(!is_served(&mesh));
    mesh.delete(Kind::ConfigMap, "istio-system", "istio");
    assert!(is_served(&mesh));
}

#[test]
fn waypoint_of_a_namespace_that_is_left_out_is_missing() {
    let in_shop = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {mesh: \"yes\", \
                   istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: bank}}\n";
    let in_bank = "apiVersion: v1\nkind: Namespace\nmetadata: {name: bank}\n";
    let gateway = GATEWAY
        .replace("namespace: shop", "namespace: bank")
        .replace(
            "protocol: HBONE}",
            "protocol: HBONE, allowedRoutes: {namespaces: {from: All}}}",
        );
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        in_shop,
        in_bank,
        &gateway,
        CART_POD,
        CART_SERVICE,
    ]));
    let waypoint = |mesh: &TestMesh| {
        let service = mesh.service("shop/cart.shop.svc.cluster.local");
        let address = service
            .waypoint
            .as_ref()
            .map(|one| one.destination.to_string());
        address.unwrap_or_default()
    };
    assert_eq!(waypoint(&mesh), "bank/wp.bank.svc.cluster.local");
    mesh.apply(&mesh_config(
        "discoverySelectors: [{matchLabels: {mesh: \"yes\"}}]",
    ));
    assert_eq!(waypoint(&mesh), "bank/missing.wp.bank.waypoint.invalid");
}

#[test]
fn each_revision_has_a_config_map_of_its_own() {
    let canary = MeshConfig {
        revision: "canary".into(),
        ..MeshConfig::default()
    };
    let own = "pathNormalization: {normalization: NONE}";
    let of_default = mesh_config("pathNormalization: {normalization: MERGE_SLASHES}");
    let of_canary = mesh_config(own).replace("name: istio,", "name: istio-canary,");
    for (settings, expected) in [
        (MeshConfig::default(), PathNormalization::MergeSlashes),
        (canary, PathNormalization::None),
    ] {
        let revision = settings.revision.clone();
        let mut mesh = TestMesh::with_config(settings);
        let gateway = GATEWAY.replace(
            "namespace: shop",
            &format!("namespace: shop, labels: {{istio.io/rev: {revision}}}"),
        );
        mesh.apply(&join_documents(&[&gateway, &of_default, &of_canary]));
        assert_eq!(gateway_settings(&mesh).0, expected);
    }
}
