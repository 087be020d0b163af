//! Records of VirtualServices at waypoints, by clients and ports, and their status conditions.

use ambit_k8s_api::Kind;
use ambit_model::{HttpFilter, HttpPathMatch, HttpRetry, HttpRoute, HttpValueMatch, PathChange};

use super::{
    routes_and_conditions::{PARENT, backend, route, routes},
    *,
};

const ROUTE_TO_CART: &str = "http: [{route: [{destination: {host: cart}}]}]";

/// Returns the manifest of a VirtualService; `key` is `namespace/name`.
fn virtual_service(key: &str, spec: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

fn cart_virtual_service(spec: &str) -> String {
    virtual_service("shop/vs", &format!("hosts: [cart], {spec}"))
}

fn mesh(more: &[&str]) -> TestMesh {
    let gateway = gateway("wp", "");
    let objects = [CART_SERVICE, CART_POD, &gateway];
    TestMesh::from_yaml(&join_documents(&[&objects[..], more].concat()))
}

fn condition(mesh: &TestMesh, key: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    let key = ObjectKey::new(Kind::VirtualService, namespace, name);
    let derived_status = mesh.index.derived_status(&key);
    let condition = derived_status.and_then(|derived_status| derived_status.condition.clone());
    condition.map_or_else(String::new, |one| {
        assert_eq!(one.needs_attention, one.reason != "Used", "{one:?}");
        format!("{} {}: {}", one.is_true, one.reason, one.message)
    })
}

/// Summarizes routes as text: name, clients, ports and names of rules.
fn summarize_routes(routes: &[HttpRoute]) -> Vec<String> {
    let one = |route: &HttpRoute| {
        let rules = route
            .rules
            .iter()
            .map(|rule| rule.name.as_deref().unwrap_or("-"));
        format!(
            "{} {:?} {:?} {}",
            route.name,
            route.clients.as_deref().unwrap_or_default(),
            route.ports,
            rules.collect::<Vec<_>>().join(",")
        )
    };
    routes.iter().map(one).collect()
}

#[test]
fn virtual_services_become_routes_in_the_order_of_their_rules() {
    let spec = "http: [{name: all, match: [{uri: {prefix: /a}, method: {exact: GET}, headers: {X-User: {prefix: a.}}, \
        withoutHeaders: {x-no: {}}, queryParams: {q: {exact: '1'}}, authority: {exact: cart}}], route: [{destination: {host: cart, port: {number: 80}}}], \
        retries: {attempts: 0}, timeout: 1.5s}, {match: [{uri: {exact: /B, }, ignoreUriCase: true}], route: [{destination: {host: cart}}]}]";
    let mesh = mesh(&[&cart_virtual_service(spec)]);
    assert_eq!(mesh.problems(), Vec::<String>::new());
    let [route] = routes(&mesh) else {
        panic!("{:#?}", routes(&mesh));
    };
    assert_eq!(route.name.to_string(), "VirtualService/shop/vs");
    assert!(route.first_match && route.clients.is_none());
    let [first, second] = route.rules.as_slice() else {
        panic!("{route:#?}");
    };
    assert_eq!(
        (first.name.as_deref(), second.name.as_deref()),
        (Some("all"), Some("http[1]"))
    );
    let of = &first.matches[0];
    assert_eq!(of.path, Some(HttpPathMatch::TextPrefix("/a".into())));
    assert_eq!(of.method.as_deref(), Some("GET"));
    assert_eq!(
        of.headers,
        [
            ("x-user".into(), HttpValueMatch::Regex("a\\..*".into())),
            ("host".into(), HttpValueMatch::Exact("cart".into())),
        ]
    );
    assert_eq!(
        of.without_headers,
        [("x-no".into(), HttpValueMatch::Regex(".*".into()))]
    );
    assert_eq!(
        of.query_params,
        [("q".into(), HttpValueMatch::Exact("1".into()))]
    );
    assert_eq!(first.retry, Some(HttpRetry::default()));
    assert_eq!(first.timeouts.request.unwrap().as_millis(), 1500);
    // The only port of the service.
    assert_eq!((first.backends[0].port, second.backends[0].port), (80, 80));
    assert_eq!(
        second.matches[0].path,
        Some(HttpPathMatch::Regex("(?i)\\/B".into()))
    );
    assert_eq!(
        condition(&mesh, "shop/vs"),
        "true Used: followed by shop/wp"
    );
}

#[test]
fn rewrites_replace_what_the_match_has_of_the_path() {
    let spec = "http: [{match: [{uri: {prefix: /a/}}, {method: {exact: PUT}}], rewrite: {uri: /}, route: [{destination: {host: cart}}]}, \
        {rewrite: {uri: /all, authority: other.example}, route: [{destination: {host: cart}}]}]";
    let mesh = mesh(&[&cart_virtual_service(spec)]);
    let rules = &routes(&mesh)[0].rules;
    let root = || Some(HttpPathMatch::TextPrefix("/".into()));
    assert_eq!(
        rules[0].matches[0].path,
        Some(HttpPathMatch::TextPrefix("/a/".into()))
    );
    assert_eq!(rules[0].matches[1].path, root());
    assert_eq!(rules[1].matches[0].path, root());
    let [HttpFilter::Rewrite(rewrite)] = rules[1].filters.as_slice() else {
        panic!("{rules:#?}");
    };
    assert_eq!(rewrite.path, Some(PathChange::Matched("/all".into())));
    assert_eq!(rewrite.hostname.as_deref(), Some("other.example"));
}

#[test]
fn weights_subsets_mirrors_and_faults_become_records() {
    let spec = "http: [{route: [{destination: {host: cart, subset: v1}, weight: 9}, {destination: {host: two, port: {number: 81}}, weight: 1}, \
        {destination: {host: cart, subset: v2}}], mirrors: [{destination: {host: two}, percentage: {value: 0.5}}], \
        fault: {abort: {httpStatus: 503, percentage: {value: 10}}}}]";
    let rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: shop}\n\
        spec: {host: cart, subsets: [{name: v1, labels: {v: '1'}}]}\n";
    let mesh = mesh(&[&backend("two", 81), rule, &cart_virtual_service(spec)]);
    let rule = &routes(&mesh)[0].rules[0];
    let backends: Vec<_> = rule
        .backends
        .iter()
        .map(|one| {
            (
                one.service.is_ok(),
                one.port,
                one.subset.as_deref(),
                one.weight,
            )
        })
        .collect();
    assert_eq!(
        backends,
        [
            (true, 80, Some("v1"), 9),
            (true, 81, None, 1),
            (false, 0, Some("v2"), 0),
        ]
    );
    assert!(matches!(&rule.filters[0], HttpFilter::Fault(fault) if fault.abort.is_some()));
    assert!(
        matches!(&rule.filters[1], HttpFilter::Mirror(to) if (to.port, to.numerator, to.denominator) == (81, 5000, 1_000_000))
    );
    let found = condition(&mesh, "shop/vs");
    assert!(
        found.starts_with(
            "true PartiallyUsed: followed by shop/wp; no DestinationRule that shop/wp follows"
        ),
        "{found}"
    );
}

#[test]
fn unsupported_fields_refuse_their_rule_and_no_other() {
    for (field, rule) in [
        (
            "http[0].match[0].sourceLabels",
            "match: [{sourceLabels: {app: a}, uri: {prefix: /a}}]",
        ),
        (
            "http[0].match[0].scheme",
            "match: [{scheme: {exact: http}, uri: {prefix: /a}}]",
        ),
        ("http[0].match[0].uri", "match: [{uri: {prefix: a}}]"),
        ("http[0].match[0].uri.value", "match: [{uri: {regex: '('}}]"),
        ("http[0].match[0].method", "match: [{method: {prefix: G}}]"),
        ("http[0].delegate", "delegate: {name: a}"),
        ("http[0].directResponse", "directResponse: {status: 200}"),
        (
            "http[0].headers.request[x]",
            "headers: {request: {set: {x: '%A%'}}}",
        ),
        ("http[0].filters[0]", "headers: {request: {set: {te: a}}}"),
        ("http[0].rewrite.uri", "rewrite: {uri: 'a?b'}"),
        (
            "http[0].rewrite.uriRegexRewrite",
            "rewrite: {uriRegexRewrite: {}}",
        ),
        (
            "http[0].corsPolicy.allowOrigins[0]",
            "corsPolicy: {allowOrigins: [{prefix: a}]}",
        ),
        (
            "http[0].retries.retryOn",
            "retries: {attempts: 1, retryOn: odd}",
        ),
        ("http[0].timeout", "timeout: soon"),
        (
            "http[0].fault.delay.fixedDelay",
            "fault: {delay: {fixedDelay: 1h}}",
        ),
        (
            "http[0].fault.abort.httpStatus",
            "fault: {abort: {httpStatus: 42}}",
        ),
        ("http[0]", "redirect: {uri: /a}"),
    ] {
        let to = "route: [{destination: {host: cart}}]";
        let spec = format!("http: [{{{rule}, {to}}}, {{{to}}}]");
        let mesh = mesh(&[&cart_virtual_service(&spec)]);
        let rules = &routes(&mesh)[0].rules;
        assert!(rules[0].unsupported.is_some(), "{rule}: {rules:#?}");
        assert_eq!(rules[1].unsupported, None, "{rule}");
        let problems = mesh.problems().join("\n");
        let named = format!("VirtualService shop/vs: spec.{field}");
        assert!(
            problems.contains(&named) && problems.contains("500"),
            "{rule}: {problems}"
        );
    }
    // A condition that is not known does not widen the rule, and neither does it of the whole object.
    let mesh = mesh(&[&cart_virtual_service(&format!(
        "{ROUTE_TO_CART}, onlyOnSundays: true"
    ))]);
    assert!(routes(&mesh)[0].rules[0].unsupported.is_some());
}

#[test]
fn unreadable_objects_refuse_the_host_or_keep_the_last_form() {
    let object = |http: &str| {
        serde_json::json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "vs", "namespace": "shop"},
            "spec": {"hosts": ["cart"], "http": http},
        })
    };
    let value = object("all");
    let key = ObjectKey::read(&value).unwrap();
    let error = ambit_k8s_api::Object::from_value(key.kind, &value).unwrap_err();
    let mut fresh = mesh(&[]);
    fresh
        .index
        .apply_invalid(&key, &error, &value, &mut fresh.pods);
    fresh.flush();
    assert!(routes(&fresh)[0].rules[0].unsupported.is_some());
    let mut kept = mesh(&[&cart_virtual_service(ROUTE_TO_CART)]);
    kept.index
        .apply_invalid(&key, &error, &value, &mut kept.pods);
    kept.flush();
    assert_eq!(routes(&kept)[0].rules[0].unsupported, None);
    assert!(kept.problems()[0].contains("its last good version stays in force"));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table is as long as it is")]
fn attachment_follows_namespaces_exports_and_gateways() {
    let rule = ROUTE_TO_CART;
    let all_clients = |key: &str| vec![format!("VirtualService/{key} \"\" [] http[0]")];
    let own_clients = |key: &str, of: &str| vec![format!("VirtualService/{key} {of:?} [] http[0]")];
    let full = "hosts: [cart.shop.svc.cluster.local]";
    for (key, spec, expected, reason) in [
        (
            "shop/vs",
            "hosts: [cart]".to_owned(),
            all_clients("shop/vs"),
            "true Used",
        ),
        (
            "shop/vs",
            full.to_owned(),
            all_clients("shop/vs"),
            "true Used",
        ),
        (
            "shop/vs",
            "hosts: [Cart, other]".to_owned(),
            all_clients("shop/vs"),
            "true PartiallyUsed",
        ),
        (
            "shop/vs",
            "hosts: [cart.shop]".to_owned(),
            vec![],
            "false HostNotFound",
        ),
        (
            "shop/vs",
            "hosts: ['*']".to_owned(),
            vec![],
            "false HostNotFound",
        ),
        (
            "shop/vs",
            "hosts: ['']".to_owned(),
            vec![],
            "false HostNotFound",
        ),
        (
            "shop/vs",
            "hosts: []".to_owned(),
            vec![],
            "false HostNotFound",
        ),
        (
            "shop/vs",
            "hosts: [cart], gateways: [mesh, shop/edge]".to_owned(),
            all_clients("shop/vs"),
            "true Used",
        ),
        (
            "shop/vs",
            "hosts: [cart], gateways: [shop/edge]".to_owned(),
            vec![],
            "false NotForMesh",
        ),
        (
            "shop/vs",
            "hosts: [cart], exportTo: ['*']".to_owned(),
            all_clients("shop/vs"),
            "true Used",
        ),
        (
            "shop/vs",
            "hosts: [cart], exportTo: [.]".to_owned(),
            all_clients("shop/vs"),
            "true Used",
        ),
        (
            "shop/vs",
            "hosts: [cart], exportTo: [bank, shop]".to_owned(),
            all_clients("shop/vs"),
            "true Used",
        ),
        (
            "shop/vs",
            "hosts: [cart], exportTo: [bank]".to_owned(),
            vec![],
            "false NotExported",
        ),
        (
            "shop/vs",
            "hosts: [cart], exportTo: ['~']".to_owned(),
            vec![],
            "false NotExported",
        ),
        // One in the clients' namespace applies to them, as HTTPRoutes do.
        (
            "bank/vs",
            full.to_owned(),
            own_clients("bank/vs", "bank"),
            "true Used",
        ),
        (
            "bank/vs",
            format!("{full}, exportTo: [.]"),
            own_clients("bank/vs", "bank"),
            "true Used",
        ),
        (
            "bank/vs",
            format!("{full}, exportTo: [shop]"),
            vec![],
            "false NotExported",
        ),
        (
            "bank/vs",
            "hosts: [cart]".to_owned(),
            vec![],
            "false HostNotFound",
        ),
    ] {
        let to = rule.replace("host: cart", "host: cart.shop.svc.cluster.local");
        let mesh = mesh(&[&virtual_service(key, &format!("{spec}, {to}"))]);
        assert_eq!(summarize_routes(routes(&mesh)), expected, "{key} {spec}");
        let found = condition(&mesh, key);
        assert!(found.starts_with(reason), "{key} {spec}: {found}");
    }
}

#[test]
fn hosts_of_service_entries_have_virtual_services() {
    let entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: shop, labels: {istio.io/use-waypoint: wp}}\n\
        spec: {hosts: [api.example.com], ports: [{number: 80, name: http}], resolution: DNS}\n";
    let vs = virtual_service(
        "shop/vs",
        "hosts: [api.example.com], http: [{route: [{destination: {host: api.example.com}}]}]",
    );
    let mut mesh = mesh(&[&vs]);
    assert_eq!(
        condition(&mesh, "shop/vs"),
        "false HostNotFound: no service has the host api.example.com: it has no effect"
    );
    mesh.apply(entry);
    let record = &mesh.waypoint_services["shop/wp shop/api.example.com"];
    assert_eq!(
        summarize_routes(&record.routes),
        ["VirtualService/shop/vs \"\" [] http[0]"]
    );
    assert!(record.routes[0].rules[0].backends[0].service.is_ok());
    assert_eq!(
        condition(&mesh, "shop/vs"),
        "true Used: followed by shop/wp"
    );
    mesh.delete(Kind::Gateway, "shop", "wp");
    assert!(condition(&mesh, "shop/vs").starts_with("false NoWaypoint"));
}

#[test]
fn gateway_api_routes_go_before_virtual_services() {
    let http = route("r", "shop", &format!("{PARENT}, rules: [{{}}]"));
    let mut mesh = mesh(&[&cart_virtual_service(ROUTE_TO_CART)]);
    mesh.apply(&http);
    assert_eq!(
        summarize_routes(routes(&mesh)),
        ["HTTPRoute/shop/r \"\" [] -"]
    );
    let found = condition(&mesh, "shop/vs");
    assert!(
        found.starts_with("false Conflict: HTTPRoute/shop/r is followed"),
        "{found}"
    );
    // A route of clients of one namespace leaves the others to it.
    mesh.delete(Kind::HTTPRoute, "shop", "r");
    mesh.apply(&route("r", "bank", &format!("{PARENT}, rules: [{{}}]")));
    let of_bank = "HTTPRoute/bank/r \"bank\" [] -";
    assert_eq!(
        summarize_routes(routes(&mesh)),
        [of_bank, "VirtualService/shop/vs \"\" [] http[0]"]
    );
    assert!(condition(&mesh, "shop/vs").starts_with("true Used"));
    // Neither do its rules for that namespace.
    mesh.apply(&cart_virtual_service(
        "http: [{match: [{sourceNamespace: bank}], route: [{destination: {host: cart}}]}]",
    ));
    assert_eq!(summarize_routes(routes(&mesh)), [of_bank]);
}

#[test]
fn gateway_api_routes_of_a_port_leave_the_others() {
    let two = CART_SERVICE.replace("ports: [", "ports: [{name: http-more, port: 81}, ");
    let http = route(
        "r",
        "shop",
        &format!(
            "{}, rules: [{{}}]",
            PARENT.replace("shop}", "shop, port: 80}")
        ),
    );
    let mut mesh = mesh(&[&cart_virtual_service(ROUTE_TO_CART)]);
    mesh.apply(&two);
    mesh.apply(&http);
    assert_eq!(
        summarize_routes(routes(&mesh)),
        [
            "HTTPRoute/shop/r \"\" [80] -",
            "VirtualService/shop/vs \"\" [81] http[0]"
        ]
    );
    assert_eq!(routes(&mesh)[1].rules[0].backends[0].port, 81);
}

#[test]
fn rules_for_ports_and_namespaces_are_for_those_alone() {
    let two = CART_SERVICE.replace("ports: [", "ports: [{name: http-more, port: 81}, ");
    let spec = "http: [{name: p, match: [{port: 81}], route: [{destination: {host: cart}}]}, \
        {name: n, match: [{sourceNamespace: bank}, {sourceNamespace: legacy, port: 80}], route: [{destination: {host: cart}}]}, \
        {name: edge, match: [{gateways: [shop/edge]}], route: [{destination: {host: cart}}]}, \
        {name: rest, route: [{destination: {host: cart}}]}]";
    let mut mesh = mesh(&[&cart_virtual_service(spec)]);
    mesh.apply(&two);
    let mut found = summarize_routes(routes(&mesh));
    found.sort();
    assert_eq!(
        found,
        [
            "VirtualService/shop/vs \"\" [80] rest",
            "VirtualService/shop/vs \"\" [81] p,rest",
            "VirtualService/shop/vs \"bank\" [80] n,rest",
            "VirtualService/shop/vs \"bank\" [81] p,n,rest",
            "VirtualService/shop/vs \"legacy\" [80] n,rest",
            "VirtualService/shop/vs \"legacy\" [81] p,rest",
        ]
    );
    let is_of_service = |route: &HttpRoute| route.of_service == route.clients.is_some();
    assert!(routes(&mesh).iter().all(is_of_service));
    // Other clients have no route: none of its rules is for them.
    mesh.apply(&cart_virtual_service(
        "http: [{name: n, match: [{sourceNamespace: bank}], route: [{destination: {host: cart, port: {number: 80}}}]}]",
    ));
    assert_eq!(
        summarize_routes(routes(&mesh)),
        ["VirtualService/shop/vs \"bank\" [] n"]
    );
}

#[test]
fn the_older_of_two_comes_first_until_it_matches_all() {
    let dated = |name: &str, year: u16, http: &str| {
        virtual_service(&format!("shop/{name}"), &format!("hosts: [cart], {http}")).replace(
            "namespace: shop}",
            &format!("namespace: shop, creationTimestamp: '{year}-01-01T00:00:00Z'}}"),
        )
    };
    let part = "http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: cart}}]}]";
    let (old, new) = (dated("z", 2024, part), dated("a", 2025, ROUTE_TO_CART));
    let mut mesh = mesh(&[&new, &old]);
    assert_eq!(
        summarize_routes(routes(&mesh)),
        [
            "VirtualService/shop/z \"\" [] http[0]",
            "VirtualService/shop/a \"\" [] http[0]"
        ]
    );
    assert!(condition(&mesh, "shop/a").starts_with("true Used"));
    mesh.apply(&dated("z", 2024, ROUTE_TO_CART));
    let found = condition(&mesh, "shop/a");
    assert!(
        found.starts_with("false Conflict: VirtualService/shop/z is older"),
        "{found}"
    );
    assert!(condition(&mesh, "shop/z").starts_with("true Used"));
    mesh.delete(Kind::VirtualService, "shop", "z");
    assert!(condition(&mesh, "shop/a").starts_with("true Used"));
}

#[test]
fn backends_of_other_namespaces_need_a_grant() {
    let other = backend("two", 81).replace("namespace: shop", "namespace: bank");
    let spec = "http: [{route: [{destination: {host: two.bank.svc.cluster.local}}]}]";
    let mut mesh = mesh(&[&other, &cart_virtual_service(spec)]);
    let service = |mesh: &TestMesh| routes(mesh)[0].rules[0].backends[0].service.clone();
    assert!(service(&mesh).unwrap_err().contains("no ReferenceGrant"));
    assert!(condition(&mesh, "shop/vs").starts_with("true PartiallyUsed"));
    let grant = |kind: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {{name: g, namespace: bank}}\n\
             spec: {{from: [{{{kind}, namespace: shop}}], to: [{{group: '', kind: Service}}]}}\n"
        )
    };
    mesh.apply(&grant("group: gateway.networking.k8s.io, kind: HTTPRoute"));
    assert!(service(&mesh).is_err());
    mesh.apply(&grant("group: networking.istio.io, kind: VirtualService"));
    assert_eq!(service(&mesh).unwrap().namespace, "bank");
    assert!(condition(&mesh, "shop/vs").starts_with("true Used"));
}

#[test]
fn rules_without_a_destination_and_too_many_rules_are_refused() {
    let spec = "http: [{route: [{destination: {host: cart}, weight: 0}, {destination: {host: gone}, weight: 0}]}]";
    let mut mesh = mesh(&[&cart_virtual_service(spec)]);
    let total: u32 = routes(&mesh)[0].rules[0]
        .backends
        .iter()
        .map(|one| one.weight)
        .sum();
    assert_eq!(total, 0);
    let many = |count: usize| {
        let rule = "{match: [{uri: {exact: /x}}], route: [{destination: {host: cart}}]}, ";
        cart_virtual_service(&format!("http: [{}]", rule.repeat(count)))
    };
    mesh.apply(&many(1000));
    assert_eq!(routes(&mesh)[0].rules.len(), 1000);
    mesh.apply(&many(1025));
    assert_eq!(routes(&mesh)[0].rules.len(), 1000);
    assert!(
        mesh.problems()[0].contains("are too many"),
        "{:?}",
        mesh.problems()
    );
}

#[test]
fn rules_for_connections_have_no_effect_and_are_named() {
    let tcp = "tcp: [{route: [{destination: {host: cart}}]}]";
    let mesh = mesh(&[&cart_virtual_service(tcp)]);
    assert!(routes(&mesh).is_empty());
    assert!(
        mesh.problems()[0].contains("spec.tcp: has no effect"),
        "{:?}",
        mesh.problems()
    );
    assert!(condition(&mesh, "shop/vs").starts_with("false NoRules"));
}
