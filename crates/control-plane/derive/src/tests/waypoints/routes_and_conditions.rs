//! Records of HTTPRoutes and policies at waypoints, and the objects' status conditions.

use ambit_k8s_api::Kind;
use ambit_model::{
    HeaderChanges, HttpBackend, HttpCors, HttpFilter, HttpMirror, HttpPathMatch, HttpRedirect,
    HttpRetry, HttpRewrite, HttpValueMatch, PathChange,
};

use super::*;

const HOST: &str = "shop/cart.shop.svc.cluster.local";

pub(super) fn backend(name: &str, port: u16) -> String {
    CART_SERVICE
        .replace("name: cart", &format!("name: {name}"))
        .replace("port: 80", &format!("port: {port}"))
        .replace("10.96.0.9", &format!("10.96.1.{port}"))
}

pub(super) fn route(name: &str, namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

pub(super) const PARENT: &str =
    "parentRefs: [{group: \"\", kind: Service, name: cart, namespace: shop}]";

pub(super) fn routes(mesh: &TestMesh) -> &[ambit_model::HttpRoute] {
    &mesh.waypoint_services[&format!("shop/wp {HOST}")].routes
}

pub(super) fn parent_conditions(mesh: &TestMesh, namespace: &str, name: &str) -> Vec<String> {
    let key = ObjectKey::new(Kind::HTTPRoute, namespace, name);
    let derived_status = mesh.index.derived_status(&key).unwrap();
    let conditions = derived_status
        .entries
        .iter()
        .flat_map(|part| &part.conditions);
    conditions
        .map(|(name, condition)| format!("{name}={} {}", condition.is_true, condition.reason))
        .collect()
}

#[test]
fn route_forwards_to_its_backend_and_follows_its_changes() {
    let spec = format!("{PARENT}, rules: [{{backendRefs: [{{name: cart-v1, port: 81}}]}}]");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &route("r", "shop", &spec),
    ]));
    let of = |mesh: &TestMesh| routes(mesh)[0].rules[0].backends.clone();
    assert!(
        of(&mesh)[0]
            .service
            .as_ref()
            .unwrap_err()
            .contains("there is no Service shop/cart-v1")
    );
    assert_eq!(
        parent_conditions(&mesh, "shop", "r"),
        [
            "Accepted=true Accepted",
            "ResolvedRefs=false BackendNotFound",
            "ResolvedWaypoints=true ResolvedWaypoints"
        ]
    );
    mesh.apply(&backend("cart-v1", 81));
    let expected = HttpBackend {
        service: Ok(NamespacedHostname::new(
            "shop",
            "cart-v1.shop.svc.cluster.local",
        )),
        port: 81,
        subset: None,
        weight: 1,
        filters: Vec::new(),
    };
    assert_eq!(of(&mesh), [expected]);
    assert_eq!(
        parent_conditions(&mesh, "shop", "r")[1],
        "ResolvedRefs=true ResolvedRefs"
    );
    mesh.apply(&backend("cart-v1", 82));
    assert!(
        of(&mesh)[0]
            .service
            .as_ref()
            .unwrap_err()
            .contains("no port 81")
    );
    mesh.delete(Kind::HTTPRoute, "shop", "r");
    assert!(routes(&mesh).is_empty());
}

#[test]
fn matches_are_read_and_unknown_fields_refuse_the_rule() {
    let rules = "rules: [{matches: [{path: {type: PathPrefix, value: /api/}, method: GET, \
        headers: [{name: X-User, value: a}], queryParams: [{name: Q, type: RegularExpression, value: '[0-9]+'}]}]}, \
        {filters: [{type: ExternalAuth}]}, {timeouts: {request: 1s, other: 2s}}, {retry: {codes: [200]}}, {sessionPersistence: {type: IP}}, \
        {backendRefs: [{name: cart, port: 80, weight: 0, filters: [{type: ExtensionRef, extensionRef: {group: apps, kind: Deployment, name: a}}]}]}]";
    let spec = format!("{PARENT}, {rules}");
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &route("r", "shop", &spec),
    ]));
    let rules = &routes(&mesh)[0].rules;
    let first = &rules[0].matches[0];
    assert_eq!(first.path, Some(HttpPathMatch::Prefix("/api".into())));
    assert_eq!(
        first.headers,
        [("x-user".into(), HttpValueMatch::Exact("a".into()))]
    );
    assert_eq!(
        first.query_params,
        [("Q".into(), HttpValueMatch::Regex("[0-9]+".into()))]
    );
    assert_eq!(rules[0].unsupported, None);
    let reasons: Vec<_> = rules[1..]
        .iter()
        .map(|rule| rule.unsupported.as_deref().unwrap())
        .collect();
    assert_eq!(
        reasons,
        [
            "spec.rules[1].filters[0]: the filter ExternalAuth is not supported",
            "spec.rules[2].timeouts.other: is not supported",
            "spec.rules[3].retry.codes: 200 is not a status of an error, 400 to 599",
            "spec.rules[4].sessionPersistence.type: \"IP\" is not supported",
            "spec.rules[5].backendRefs[0].filters[0].extensionRef: \"Deployment\" of the group \"apps\" is not supported",
        ]
    );
    assert_eq!(
        parent_conditions(&mesh, "shop", "r")[0],
        "Accepted=false UnsupportedValue"
    );
}

pub(super) fn grant(namespace: &str, from: &str, to: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {{name: g, namespace: {namespace}}}\nspec: {{from: [{from}], to: [{to}]}}\n"
    )
}

#[test]
fn a_backend_of_another_namespace_needs_a_grant_that_names_it() {
    let spec =
        format!("{PARENT}, rules: [{{backendRefs: [{{name: till, namespace: bank, port: 81}}]}}]");
    let till = backend("till", 81).replace("namespace: shop", "namespace: bank");
    let manifests = join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &till,
        &route("r", "shop", &spec),
    ]);
    let resolved = |mesh: &TestMesh| parent_conditions(mesh, "shop", "r")[1].clone();
    let from = "{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}";
    let mut mesh = TestMesh::from_yaml(&manifests);
    let forbidden = "ResolvedRefs=false RefNotPermitted";
    assert_eq!(resolved(&mesh), forbidden);
    assert!(routes(&mesh)[0].rules[0].backends[0].service.is_err());
    for (from, to, suffices) in [
        (from, "{group: '', kind: Service}", true),
        (from, "{group: '', kind: Service, name: till}", true),
        (from, "{group: '', kind: Service, name: other}", false),
        (from, "{group: '', kind: Secret}", false),
        (
            "{group: gateway.networking.k8s.io, kind: GRPCRoute, namespace: shop}",
            "{group: '', kind: Service}",
            false,
        ),
        (
            "{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: evil}",
            "{group: '', kind: Service}",
            false,
        ),
        (
            "{group: '', kind: HTTPRoute, namespace: shop}",
            "{group: '', kind: Service}",
            false,
        ),
    ] {
        mesh.apply(&grant("bank", from, to));
        assert_eq!(resolved(&mesh) != forbidden, suffices, "{from} {to}");
        assert_eq!(
            routes(&mesh)[0].rules[0].backends[0].service.is_ok(),
            suffices,
            "{from} {to}"
        );
        mesh.delete(Kind::ReferenceGrant, "bank", "g");
        assert_eq!(resolved(&mesh), forbidden);
    }
    mesh.apply(&grant("shop", from, "{group: '', kind: Service}"));
    assert_eq!(resolved(&mesh), forbidden, "a grant of the route's side");
    let mut ignored = TestMesh::with_config(MeshConfig {
        reference_grants: ReferenceGrants::Ignored,
        ..MeshConfig::default()
    });
    ignored.apply(&manifests);
    assert_eq!(resolved(&ignored), "ResolvedRefs=true ResolvedRefs");
}

#[test]
fn invalid_expressions_and_exceeded_limits_are_reported() {
    let of = |rules: &str| {
        let spec = format!("{PARENT}, rules: [{rules}]");
        TestMesh::from_yaml(&join_documents(&[
            CART_SERVICE,
            CART_POD,
            &gateway("wp", ""),
            &route("r", "shop", &spec),
        ]))
    };
    for pattern in ["(", "a)|(b", "(?=a)", r"\1", "((a{100}){100}){100}"] {
        let pattern = format!("'{pattern}'");
        for rule in [
            format!("{{matches: [{{path: {{type: RegularExpression, value: {pattern}}}}}]}}"),
            format!(
                "{{matches: [{{headers: [{{name: x, type: RegularExpression, value: {pattern}}}]}}]}}"
            ),
        ] {
            let mesh = of(&rule);
            assert!(routes(&mesh)[0].rules[0].unsupported.is_some(), "{rule}");
            let accepted = &parent_conditions(&mesh, "shop", "r")[0];
            assert_eq!(accepted, "Accepted=false UnsupportedValue", "{rule}");
        }
    }
    // As a million would be: nothing of it is taken, and requests are answered with an error.
    let many = vec!["{path: {value: /a}}"; 9000].join(", ");
    let mesh = of(&format!("{{matches: [{many}]}}"));
    assert!(
        mesh.problems()[0].contains("too many"),
        "{:?}",
        mesh.problems()
    );
    assert!(routes(&mesh)[0].rules[0].unsupported.is_some());
    assert!(routes(&mesh)[0].rules[0].matches.is_empty());
}

#[test]
fn a_route_of_another_namespace_is_for_its_own_clients() {
    let spec = format!("{PARENT}, rules: [{{}}]");
    let from_bank = gateway("wp", ", labels: {istio.io/waypoint-for: all}")
        .replace("namespace: shop", "namespace: bank")
        .replace(
            "protocol: HBONE",
            "protocol: HBONE, allowedRoutes: {namespaces: {from: All}}",
        );
    let bound = CART_SERVICE.replacen(
        "namespace: shop",
        "namespace: shop, labels: {istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: bank}",
        1,
    );
    let mesh = TestMesh::from_yaml(&join_documents(&[
        &bound,
        &from_bank,
        &route("far", "client", &spec),
        &route("own", "shop", &spec),
        &route("far", "bank", &spec),
    ]));
    let record = &mesh.waypoint_services[&format!("bank/wp {HOST}")].routes;
    let names: Vec<_> = record
        .iter()
        .map(|route| (route.name.to_string(), route.clients.as_deref()))
        .collect();
    assert_eq!(
        names,
        [
            ("HTTPRoute/bank/far".to_owned(), None),
            ("HTTPRoute/client/far".to_owned(), Some("client")),
            ("HTTPRoute/shop/own".to_owned(), None)
        ]
    );
    assert_eq!(
        parent_conditions(&mesh, "client", "far"),
        [
            "Accepted=true Accepted",
            "ResolvedRefs=true ResolvedRefs",
            "ResolvedWaypoints=true ResolvedWaypoints"
        ]
    );
}

/// Returns the first rule of an HTTPRoute's record, and the route's status condition.
fn published_rule(rule: &str) -> (ambit_model::HttpRouteRule, String) {
    let spec = format!("{PARENT}, rules: [{{{rule}}}]");
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &route("r", "shop", &spec),
    ]));
    let accepted = parent_conditions(&mesh, "shop", "r").remove(0);
    (routes(&mesh)[0].rules[0].clone(), accepted)
}

#[test]
fn filters_and_timeouts_are_published() {
    let (rule, accepted) = published_rule(
        "matches: [{path: {value: /a}}], timeouts: {request: 1m30s, backendRequest: 0s}, filters: [\
         {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-A, value: '1'}], remove: [X-B]}}, \
         {type: URLRewrite, urlRewrite: {hostname: b.example, path: {type: ReplacePrefixMatch, replacePrefixMatch: ''}}}], \
         backendRefs: [{name: cart, port: 80, filters: [\
         {type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: x-c, value: '2'}]}}]}]",
    );
    assert_eq!(accepted, "Accepted=true Accepted");
    assert_eq!(
        rule.filters,
        [
            HttpFilter::RequestHeaders(HeaderChanges {
                set: vec![("x-a".into(), "1".into())],
                add: vec![],
                remove: vec!["x-b".into()],
            }),
            HttpFilter::Rewrite(HttpRewrite {
                hostname: Some("b.example".into()),
                path: Some(PathChange::Prefix("".into())),
            }),
        ]
    );
    let of_backend = HttpFilter::ResponseHeaders(HeaderChanges {
        add: vec![("x-c".into(), "2".into())],
        ..HeaderChanges::default()
    });
    assert_eq!(rule.backends[0].filters, [of_backend]);
    let request = Some(std::time::Duration::from_secs(90));
    assert_eq!(rule.timeouts.request, request);
    assert_eq!(rule.timeouts.backend_request, None);
    let (rule, _) = published_rule(
        "filters: [{type: RequestRedirect, requestRedirect: {scheme: https, port: 8443, path: {type: ReplaceFullPath, replaceFullPath: /x}}}]",
    );
    assert_eq!(
        rule.filters,
        [HttpFilter::Redirect(HttpRedirect {
            scheme: Some("https".into()),
            hostname: None,
            port: Some(8443),
            path: Some(PathChange::Full("/x".into())),
            status: 302,
        })]
    );
}

#[test]
fn unusable_filters_are_reported_and_refuse_the_rule() {
    let redirect = "{type: RequestRedirect, requestRedirect: {hostname: a}}";
    let rewrite = "{type: URLRewrite, urlRewrite: {hostname: a}}";
    let prefix = "{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /a}}}";
    let header = |name: &str| {
        format!(
            "{{type: RequestHeaderModifier, requestHeaderModifier: {{set: [{{name: {name}, value: a}}]}}}}"
        )
    };
    let incompatible = "Accepted=false IncompatibleFilters";
    let unsupported = "Accepted=false UnsupportedValue";
    for (rule, expected) in [
        (format!("filters: [{redirect}, {rewrite}]"), incompatible),
        (format!("filters: [{rewrite}, {rewrite}]"), incompatible),
        (
            format!("filters: [{}, {}]", header("a"), header("b")),
            incompatible,
        ),
        (
            format!("filters: [{redirect}], backendRefs: [{{name: cart, port: 80}}]"),
            incompatible,
        ),
        (
            format!("matches: [{{path: {{type: Exact, value: /}}}}], filters: [{prefix}]"),
            incompatible,
        ),
        (format!("filters: [{}]", header("Host")), unsupported),
        (
            format!("filters: [{}]", header("X-Forwarded-Client-Cert")),
            unsupported,
        ),
        (format!("filters: [{}]", header("'a b'")), unsupported),
        (
            "filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200}}]".to_owned(),
            unsupported,
        ),
        (
            "filters: [{type: ExtensionRef, extensionRef: {}}]".to_owned(),
            unsupported,
        ),
        (
            format!("backendRefs: [{{name: cart, port: 80, filters: [{redirect}, {rewrite}]}}]"),
            incompatible,
        ),
        (
            format!(
                "matches: [{{path: {{type: Exact, value: /}}}}], backendRefs: [{{name: cart, port: 80, filters: [{prefix}]}}]"
            ),
            incompatible,
        ),
        (
            "filters: [{type: CORS, cors: {}}, {type: CORS, cors: {}}]".to_owned(),
            incompatible,
        ),
        (
            "filters: [{type: CORS, cors: {allowOrigins: ['*', 'https://a']}}]".to_owned(),
            unsupported,
        ),
        (
            "filters: [{type: CORS, cors: {allowOrigins: ['https://a/b']}}]".to_owned(),
            unsupported,
        ),
        (
            "filters: [{type: CORS, cors: {allowMethods: ['GET, PUT']}}]".to_owned(),
            unsupported,
        ),
        (
            "filters: [{type: CORS, cors: {allowAll: true}}]".to_owned(),
            unsupported,
        ),
        ("retry: {codes: [500, 1000]}".to_owned(), unsupported),
        ("retry: {budget: 1}".to_owned(), unsupported),
    ] {
        let (record, accepted) = published_rule(&rule);
        assert_eq!(accepted, expected, "{rule}");
        assert!(record.unsupported.is_some(), "{rule}");
    }
    // What cannot be read is refused as a whole: nothing of the route is followed.
    for rule in [
        "filters: [{type: URLRewrite}]",
        "filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: a?b}}}]",
        "filters: [{type: RequestRedirect, requestRedirect: {hostname: 'a/b'}}]",
        "timeouts: {request: 1.5s}",
        "timeouts: {request: 1s, backendRequest: 2s}",
        "filters: [{type: RequestMirror}]",
        "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: cart, port: 80}, percent: 101}}]",
        "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: cart, port: 80}, fraction: {numerator: 1, denominator: 0}}}]",
        "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: cart, port: 80}, percent: 1, fraction: {numerator: 1}}}]",
        "filters: [{type: CORS, cors: {maxAge: 0}}]",
        "retry: {attempts: 0}",
        "retry: {backoff: 1.5s}",
        &format!("filters: [{}]", [redirect; 17].join(", ")),
    ] {
        let (record, _) = published_rule(rule);
        assert_eq!(
            record.unsupported.as_deref(),
            Some("the route cannot be used as it is written"),
            "{rule}"
        );
    }
}

#[test]
fn mirrors_cors_and_retries_are_published_as_written() {
    let (rule, accepted) = published_rule(
        "name: first, retry: {codes: [503, 500, 503], attempts: 70, backoff: 100ms}, filters: [\
         {type: RequestMirror, requestMirror: {backendRef: {name: cart, port: 80}}}, \
         {type: RequestMirror, requestMirror: {backendRef: {name: cart, port: 80}, fraction: {numerator: 1, denominator: 3}}}, \
         {type: CORS, cors: {allowOrigins: ['https://*.a.b'], allowCredentials: true, allowMethods: [PUT], maxAge: 60}}], \
         backendRefs: [{name: cart, port: 80, filters: [\
         {type: RequestMirror, requestMirror: {backendRef: {name: cart, port: 80}, percent: 20}}]}]",
    );
    assert_eq!(accepted, "Accepted=true Accepted");
    assert_eq!(rule.name.as_deref(), Some("first"));
    assert_eq!(
        rule.retry,
        Some(HttpRetry {
            codes: vec![500, 503],
            attempts: 64,
            backoff: Some(std::time::Duration::from_millis(100)),
        })
    );
    let mirror = |numerator, denominator| {
        HttpFilter::Mirror(HttpMirror {
            service: NamespacedHostname::new("shop", "cart.shop.svc.cluster.local"),
            port: 80,
            numerator,
            denominator,
        })
    };
    let cors = HttpFilter::Cors(HttpCors {
        allow_origins: vec!["https://*.a.b".into()],
        allow_credentials: true,
        allow_methods: vec!["PUT".into()],
        max_age: 60,
        ..HttpCors::default()
    });
    assert_eq!(rule.filters, [mirror(100, 100), mirror(1, 3), cors]);
    assert_eq!(rule.backends[0].filters, [mirror(20, 100)]);
    let (rule, _) = published_rule("retry: {}, filters: [{type: CORS, cors: {}}]");
    assert_eq!(rule.retry.map(|retry| retry.attempts), Some(2));
    let HttpFilter::Cors(cors) = &rule.filters[0] else {
        panic!("{:?}", rule.filters)
    };
    assert_eq!(cors.max_age, 5);
}

/// A mirror that cannot be resolved is reported, and affects no request.
#[test]
fn mirror_needs_its_service_and_a_grant() {
    let mirror = |name: &str, namespace: &str| {
        format!(
            "{{type: RequestMirror, requestMirror: {{backendRef: {{name: {name}, namespace: {namespace}, port: 81}}}}}}"
        )
    };
    let (own, other) = (mirror("cart-v1", "shop"), mirror("till", "bank"));
    let spec = format!(
        "{PARENT}, rules: [{{backendRefs: [{{name: cart, port: 80, filters: [{own}]}}], filters: [{other}]}}]"
    );
    let till = backend("till", 81).replace("namespace: shop", "namespace: bank");
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &till,
        &route("r", "shop", &spec),
    ]));
    let count = |mesh: &TestMesh| {
        let rule = &routes(mesh)[0].rules[0];
        assert_eq!(rule.unsupported, None);
        assert!(rule.backends[0].service.is_ok());
        (rule.filters.len(), rule.backends[0].filters.len())
    };
    let resolved = |mesh: &TestMesh| parent_conditions(mesh, "shop", "r")[1].clone();
    assert_eq!(count(&mesh), (0, 0));
    assert_eq!(resolved(&mesh), "ResolvedRefs=false RefNotPermitted");
    let from = "{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}";
    mesh.apply(&grant("bank", from, "{group: '', kind: Service}"));
    assert_eq!(count(&mesh), (1, 0));
    assert_eq!(resolved(&mesh), "ResolvedRefs=false BackendNotFound");
    mesh.apply(&backend("cart-v1", 81));
    assert_eq!(count(&mesh), (1, 1));
    assert_eq!(resolved(&mesh), "ResolvedRefs=true ResolvedRefs");
    mesh.delete(Kind::ReferenceGrant, "bank", "g");
    assert_eq!(count(&mesh), (0, 1));
    mesh.delete(Kind::Service, "shop", "cart-v1");
    assert_eq!(count(&mesh), (0, 0));
}

#[test]
fn two_rules_of_one_name_are_refused_as_a_whole() {
    let spec = format!("{PARENT}, rules: [{{name: a}}, {{name: b}}, {{name: a}}]");
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &route("r", "shop", &spec),
    ]));
    let rules = &routes(&mesh)[0].rules;
    assert_eq!(rules.len(), 1);
    assert!(rules[0].unsupported.is_some());
}

#[test]
fn a_section_of_a_parent_is_a_port_by_its_name() {
    let parent = |section: &str| {
        format!(
            "parentRefs: [{{group: \"\", kind: Service, name: cart, {section}}}], rules: [{{}}]"
        )
    };
    let ports = |section: &str| {
        let mesh = TestMesh::from_yaml(&join_documents(&[
            CART_SERVICE,
            CART_POD,
            &gateway("wp", ""),
            &route("r", "shop", &parent(section)),
        ]));
        let ports = routes(&mesh).first().map(|route| route.ports.clone());
        (ports, parent_conditions(&mesh, "shop", "r")[0].clone())
    };
    let good = (Some(vec![80]), "Accepted=true Accepted".to_owned());
    let bad = (None, "Accepted=false NoMatchingParent".to_owned());
    assert_eq!(ports("sectionName: http-web"), good);
    assert_eq!(ports("sectionName: http-web, port: 80"), good);
    assert_eq!(ports("sectionName: http-web, port: 81"), bad);
    assert_eq!(ports("sectionName: other"), bad);
}

#[test]
fn ports_of_a_parent_are_published_together_and_missing_parents_named() {
    let spec = "parentRefs: [{group: \"\", kind: Service, name: cart, port: 80}, {group: \"\", kind: Service, name: gone}, {group: \"\", kind: Service, name: cart, port: 81}], rules: [{}]";
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &route("r", "shop", spec),
    ]));
    assert_eq!(routes(&mesh)[0].ports, [80]);
    let accepted: Vec<_> = parent_conditions(&mesh, "shop", "r")
        .into_iter()
        .filter(|one| one.starts_with("Accepted"))
        .collect();
    assert_eq!(
        accepted,
        [
            "Accepted=true Accepted",
            "Accepted=false NoMatchingParent",
            "Accepted=false NoMatchingParent"
        ]
    );
}

fn attached_policy(namespace: &str, target: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: {namespace}}}\nspec: {{targetRefs: [{target}], rules: [{{to: [{{operation: {{methods: [GET]}}}}]}}]}}\n"
    )
}

pub(super) fn waypoint_condition(
    mesh: &TestMesh,
    kind: Kind,
    namespace: &str,
    name: &str,
) -> String {
    let derived_status = mesh
        .index
        .derived_status(&ObjectKey::new(kind, namespace, name))
        .unwrap();
    let condition = derived_status.condition.as_ref();
    condition
        .map(|one| format!("{} {}", one.is_true, one.reason))
        .unwrap_or_default()
}

#[test]
fn a_policy_goes_to_the_waypoints_of_its_targets() {
    let gateway_api = "group: gateway.networking.k8s.io";
    let of_gateway = format!("{{{gateway_api}, kind: Gateway, name: wp}}");
    let of_class = format!("{{{gateway_api}, kind: GatewayClass, name: istio-waypoint}}");
    for (namespace, target, for_gateway, services) in [
        ("shop", of_gateway.as_str(), true, 0),
        ("shop", "{kind: Service, name: cart}", false, 1),
        ("istio-system", of_class.as_str(), true, 0),
    ] {
        let policy = attached_policy(namespace, target);
        let mut mesh = TestMesh::from_yaml(&join_documents(&[CART_SERVICE, CART_POD, &policy]));
        assert!(mesh.waypoint_policies.is_empty() && mesh.policies.is_empty());
        let unbound = waypoint_condition(&mesh, Kind::AuthorizationPolicy, namespace, "p");
        assert!(unbound.starts_with("false"), "{target}: {unbound}");
        mesh.apply(&gateway("wp", ""));
        let record = &mesh.waypoint_policies[&format!("shop/wp {namespace}/p")];
        assert_eq!(
            (record.for_gateway, record.services.len()),
            (for_gateway, services),
            "{target}"
        );
        assert_eq!(
            waypoint_condition(&mesh, Kind::AuthorizationPolicy, namespace, "p"),
            "true Accepted"
        );
        mesh.delete(Kind::Gateway, "shop", "wp");
        assert!(mesh.waypoint_policies.is_empty());
    }
    let mesh = TestMesh::from_yaml(&attached_policy("shop", "{kind: Service, name: gone}"));
    assert_eq!(
        waypoint_condition(&mesh, Kind::AuthorizationPolicy, "shop", "p"),
        "false TargetNotFound"
    );
}

#[test]
fn a_policy_that_is_attached_elsewhere_is_refused_and_denies_what_it_can() {
    let of_class = "{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}";
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &attached_policy(
            "shop",
            &format!("{{kind: Service, name: cart}}, {of_class}"),
        ),
    ]));
    assert!(
        mesh.problems()[0].contains("only policies of istio-system"),
        "{:?}",
        mesh.problems()
    );
    let record = &mesh.waypoint_policies["shop/wp shop/p"];
    assert!(record.not_understood.is_some() && record.services.len() == 1);
    let foreign = attached_policy("evil", "{kind: Service, name: cart, namespace: shop}");
    let mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
        &foreign,
    ]));
    assert!(mesh.waypoint_policies.is_empty());
    assert!(mesh.problems()[0].contains("cannot be attached"));
}

#[test]
fn services_report_their_waypoint_or_why_they_have_none() {
    let bound = |labels: &str| {
        CART_SERVICE.replacen(
            "namespace: shop",
            &format!("namespace: shop, labels: {{{labels}}}"),
            1,
        )
    };
    let gw = |name: &str, more: &str| {
        let labels = "{gateway.networking.k8s.io/gateway-name: wp}";
        let ready = cart_pod(&[("cart-1", "wp-1"), ("{app: cart}", labels)]);
        join_documents(&[
            &gateway(name, more),
            &ready.replace("serviceAccountName: cart", "serviceAccountName: wp"),
        ])
    };
    let of = |objects: &[&str]| {
        waypoint_condition(
            &TestMesh::from_yaml(&join_documents(objects)),
            Kind::Service,
            "shop",
            "cart",
        )
    };
    let mine = bound("istio.io/use-waypoint: wp");
    let far = bound("istio.io/use-waypoint: wp, istio.io/use-waypoint-namespace: bank");
    let of_bank = gw("wp", "").replace("namespace: shop", "namespace: bank");
    let of_workloads = gw("wp", ", labels: {istio.io/waypoint-for: workload}");
    assert_eq!(of(&[CART_SERVICE]), "");
    assert_eq!(of(&[&mine]), "false WaypointIsNotReady");
    assert_eq!(of(&[&mine, &gw("wp", "")]), "true WaypointAccepted");
    assert_eq!(of(&[CART_SERVICE, &gw("wp", "")]), "true WaypointAccepted");
    assert_eq!(of(&[&far, &of_bank]), "false AttachmentDenied");
    assert_eq!(of(&[&mine, &of_workloads]), "false UnsupportedTrafficType");
}

#[test]
fn the_listeners_of_a_waypoint_are_judged() {
    let accepted = |gateway: &str| {
        let mesh = TestMesh::from_yaml(gateway);
        let key = ObjectKey::new(Kind::Gateway, "shop", "wp");
        let derived_status = mesh.index.derived_status(&key).unwrap().clone();
        let conditions = derived_status
            .entries
            .into_iter()
            .flat_map(|part| part.conditions);
        let accepted = conditions.filter(|(name, _)| *name == "Accepted");
        accepted
            .map(|(_, condition)| condition.reason)
            .collect::<Vec<_>>()
    };
    assert_eq!(accepted(&gateway("wp", "")), ["Accepted"]);
    let http = gateway("wp", "").replace("protocol: HBONE", "protocol: HTTP");
    assert_eq!(accepted(&http), ["UnsupportedProtocol"]);
    assert!(
        accepted(&http.replace("istio-waypoint", "other")).is_empty(),
        "another controller's"
    );
}
