//! Tests of the route rule that a request matches.

mod precedence;

use ambit_model::{HttpPathMatch, HttpRouteMatch, HttpValueMatch, NamespacedHostname};
use http::{HeaderMap, HeaderName};

use super::*;

fn path(of: HttpPathMatch) -> HttpRouteMatch {
    HttpRouteMatch {
        path: Some(of),
        ..HttpRouteMatch::default()
    }
}

fn prefix(text: &str) -> HttpRouteMatch {
    path(HttpPathMatch::Prefix(text.into()))
}

fn rule(matches: Vec<HttpRouteMatch>) -> HttpRouteRule {
    HttpRouteRule {
        matches,
        backends: vec![backend("b", 1)],
        ..HttpRouteRule::default()
    }
}

fn backend(name: &str, weight: u32) -> HttpBackend {
    HttpBackend {
        service: Ok(NamespacedHostname::new("ns", name)),
        port: 80,
        subset: None,
        weight,
        filters: Vec::new(),
    }
}

fn route(name: &str, ports: &[u16], rules: Vec<HttpRouteRule>) -> HttpRoute {
    HttpRoute {
        name: RouteName {
            kind: "HTTPRoute".into(),
            namespace: "ns".into(),
            name: name.into(),
        },
        ports: ports.to_vec(),
        rules,
        ..HttpRoute::default()
    }
}

/// Returns `route/rule` for a GET request, or the outcome without a matching rule.
fn selected_rule(table: &RouteTable, target: &str, headers: &[(&'static str, &str)]) -> String {
    let (path, query) = target
        .split_once('?')
        .map_or((target, None), |(path, query)| (path, Some(query)));
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
        .collect();
    let request = RouteRequest {
        method: "GET",
        path,
        query,
        host: "web.example",
        headers: &headers,
    };
    let choice = table.select_rule(&request);
    assert_eq!(last_candidate(table, &request), rule_of(&choice));
    match choice {
        RouteDecision::NoRoutes => "itself".to_owned(),
        RouteDecision::NoMatchingRule => "none".to_owned(),
        RouteDecision::Rule(rule, _) if rule.rejection_reason.is_some() => "unsupported".to_owned(),
        RouteDecision::Rule(rule, _) => format!("{}/{}", rule.route.name, rule.rule_index),
    }
}

/// Returns the rule of the last match that [`RouteTable::explain_candidates`] lists, if the request meets it. The
/// request must not meet the earlier ones.
fn last_candidate(table: &RouteTable, request: &RouteRequest<'_>) -> Option<*const Rule> {
    let mut considered: Vec<_> = table.explain_candidates(request).collect();
    let last = considered.pop_if(|(_, mismatch)| mismatch.is_none());
    assert!(considered.iter().all(|(_, mismatch)| mismatch.is_some()));
    last.map(|(rule, _)| Arc::as_ptr(rule))
}

fn rule_of(choice: &RouteDecision<'_>) -> Option<*const Rule> {
    match choice {
        RouteDecision::Rule(rule, _) => Some(Arc::as_ptr(rule)),
        RouteDecision::NoRoutes | RouteDecision::NoMatchingRule => None,
    }
}

#[test]
fn first_part_that_differs_is_the_mismatch() {
    let exact = |value: &str| HttpValueMatch::Exact(value.into());
    let of = HttpRouteMatch {
        method: Some("GET".into()),
        headers: vec![("x-a".into(), exact("1"))],
        query_params: vec![("q".into(), exact("1"))],
        ..prefix("/a")
    };
    let table = RouteTable::new(&[route("r", &[], vec![rule(vec![of])])], 80, None);
    let headers: HeaderMap = [(HeaderName::from_static("x-a"), "1".parse().unwrap())]
        .into_iter()
        .collect();
    let good = RouteRequest {
        method: "GET",
        path: "/a/b",
        query: Some("q=1"),
        host: "web",
        headers: &headers,
    };
    let path = RouteRequest { path: "/b", ..good };
    let method = RouteRequest {
        method: "POST",
        ..good
    };
    let none = HeaderMap::new();
    let header = RouteRequest {
        headers: &none,
        ..good
    };
    let query = RouteRequest {
        query: None,
        ..good
    };
    for (request, expected) in [
        (good, None),
        (path, Some(Mismatch::Path)),
        (method, Some(Mismatch::Method)),
        (header, Some(Mismatch::Header("x-a".into()))),
        (query, Some(Mismatch::QueryParam("q".into()))),
    ] {
        let mut considered = table.explain_candidates(&request);
        assert_eq!(
            considered.next().map(|(_, mismatch)| mismatch),
            Some(expected)
        );
    }
}

#[test]
fn service_without_routes_is_its_own_destination() {
    assert_eq!(
        selected_rule(&RouteTable::new(&[], 80, None), "/", &[]),
        "itself"
    );
    let other_port = [route("a", &[81], vec![rule(vec![])])];
    assert_eq!(
        selected_rule(&RouteTable::new(&other_port, 80, None), "/", &[]),
        "itself"
    );
    assert_eq!(
        selected_rule(&RouteTable::new(&other_port, 81, None), "/", &[]),
        "a/0"
    );
    let some = [route("a", &[], vec![rule(vec![prefix("/a")])])];
    assert_eq!(
        selected_rule(&RouteTable::new(&some, 80, None), "/b", &[]),
        "none"
    );
}

#[test]
fn the_most_specific_match_wins_in_any_order() {
    let with = |headers: usize, params: usize, method: bool| HttpRouteMatch {
        path: Some(HttpPathMatch::Prefix("/p".into())),
        method: method.then(|| "GET".into()),
        headers: (0..headers)
            .map(|index| {
                (
                    arcstr(&format!("h{index}")),
                    HttpValueMatch::Exact("1".into()),
                )
            })
            .collect(),
        query_params: (0..params)
            .map(|index| {
                (
                    arcstr(&format!("q{index}")),
                    HttpValueMatch::Exact("1".into()),
                )
            })
            .collect(),
        ..HttpRouteMatch::default()
    };
    let routes = [
        route(
            "old",
            &[],
            vec![
                rule(vec![path(HttpPathMatch::Regex("/p/.*".into()))]),
                rule(vec![prefix("/p")]),
                rule(vec![with(0, 1, false)]),
                rule(vec![with(1, 0, false)]),
            ],
        ),
        route(
            "new",
            &[],
            vec![
                rule(vec![prefix("/p")]),
                rule(vec![prefix("/p/long")]),
                rule(vec![path(HttpPathMatch::Exact("/p/long".into()))]),
                rule(vec![with(0, 0, true)]),
                rule(vec![with(2, 0, false)]),
            ],
        ),
    ];
    let table = RouteTable::new(&routes, 80, None);
    assert_eq!(selected_rule(&table, "/p/long", &[]), "new/2");
    assert_eq!(selected_rule(&table, "/p/long/er", &[]), "new/1");
    assert_eq!(
        selected_rule(&table, "/p/other", &[]),
        "new/3",
        "the method counts most after the path"
    );
    let request =
        |headers: &[(&'static str, &str)], target: &str| selected_rule(&table, target, headers);
    // The method decides first, whatever else matches.
    assert_eq!(request(&[("h0", "1"), ("h1", "1")], "/p?q0=1"), "new/3");
    assert_eq!(request(&[], "/q"), "none");
}

fn arcstr(text: &str) -> ArcStr {
    text.into()
}

#[test]
fn equally_specific_matches_are_ordered_by_age_and_index() {
    let routes = [
        route(
            "old",
            &[],
            vec![rule(vec![prefix("/")]), rule(vec![prefix("/")])],
        ),
        route("new", &[], vec![rule(vec![])]),
    ];
    assert_eq!(
        selected_rule(&RouteTable::new(&routes, 80, None), "/x", &[]),
        "old/0"
    );
}

#[test]
fn prefixes_match_whole_segments() {
    let routes = [route("a", &[], vec![rule(vec![prefix("/abc/")])])];
    let table = RouteTable::new(&routes, 80, None);
    for (target, expected) in [
        ("/abc", "a/0"),
        ("/abc/", "a/0"),
        ("/abc/d", "a/0"),
        ("/abcd", "none"),
        ("/ab", "none"),
    ] {
        assert_eq!(selected_rule(&table, target, &[]), expected, "{target}");
    }
}

#[test]
fn parameters_are_decoded_and_the_first_counts() {
    let of = HttpRouteMatch {
        query_params: vec![("a b".into(), HttpValueMatch::Exact("1&2".into()))],
        ..HttpRouteMatch::default()
    };
    let table = RouteTable::new(&[route("a", &[], vec![rule(vec![of])])], 80, None);
    assert_eq!(selected_rule(&table, "/?x=1&a%20b=1%262", &[]), "a/0");
    assert_eq!(selected_rule(&table, "/?a+b=1%262&a+b=3", &[]), "a/0");
    assert_eq!(selected_rule(&table, "/?a+b=3&a+b=1%262", &[]), "none");
}

#[test]
fn requests_that_an_invalid_expression_might_match_are_refused() {
    // The second expression would be valid with the anchors for whole paths.
    for pattern in ["(", "a)|(b"] {
        let of = path(HttpPathMatch::Regex(pattern.into()));
        let table = RouteTable::new(
            &[route("a", &[], vec![rule(vec![of, prefix("/ok")])])],
            80,
            None,
        );
        assert_eq!(selected_rule(&table, "/anything", &[]), "unsupported");
        assert_eq!(selected_rule(&table, "/ok", &[]), "a/0");
    }
}

#[test]
fn expressions_match_whole_values() {
    let of = HttpRouteMatch {
        headers: vec![("x-v".into(), HttpValueMatch::Regex("a|b".into()))],
        ..HttpRouteMatch::default()
    };
    let table = RouteTable::new(&[route("a", &[], vec![rule(vec![of])])], 80, None);
    assert_eq!(selected_rule(&table, "/", &[("x-v", "b")]), "a/0");
    assert_eq!(selected_rule(&table, "/", &[("x-v", "ab")]), "none");
}

#[test]
fn backends_share_requests_by_weight() {
    let mut rng = rand::rng();
    let mut of = rule(vec![]);
    of.backends = vec![backend("zero", 0), backend("one", 1), backend("three", 3)];
    let table = RouteTable::new(&[route("a", &[], vec![of])], 80, None);
    let headers = HeaderMap::new();
    let request = RouteRequest {
        method: "GET",
        path: "/",
        query: None,
        host: "",
        headers: &headers,
    };
    let RouteDecision::Rule(rule, _) = table.select_rule(&request) else {
        panic!("no rule");
    };
    let mut three = 0;
    for _ in 0..4000 {
        match rule
            .pick_backend(&mut rng)
            .unwrap()
            .1
            .target
            .service
            .as_ref()
            .unwrap()
            .hostname
            .as_str()
        {
            "three" => three += 1,
            "one" => {}
            other => panic!("{other}"),
        }
    }
    assert!((2700..3300).contains(&three), "{three}");
    let mut nothing = super::Rule::new(&route("a", &[], vec![]), 0, &HttpRouteRule::default());
    assert!(nothing.pick_backend(&mut rng).is_none());
    nothing.backends = vec![Backend {
        target: backend("zero", 0),
        filters: Filters::default(),
    }];
    assert!(nothing.pick_backend(&mut rng).is_none());
}

#[test]
fn consumer_routes_replace_producer_routes() {
    let mut own = route("own", &[], vec![rule(vec![prefix("/own")])]);
    own.clients = Some("bank".into());
    let routes = [own, route("all", &[], vec![rule(vec![])])];
    let of = |clients| RouteTable::new(&routes, 80, clients);
    assert_eq!(selected_rule(&of(Some("bank")), "/own", &[]), "own/0");
    assert_eq!(selected_rule(&of(Some("bank")), "/x", &[]), "none");
    assert_eq!(selected_rule(&of(None), "/own", &[]), "all/0");
}

#[test]
fn rule_with_contradictory_filters_serves_nothing() {
    let mut of = rule(vec![]);
    let changes = ambit_model::HttpFilter::RequestHeaders(ambit_model::HeaderChanges::default());
    of.filters = vec![changes.clone(), changes];
    let table = RouteTable::new(&[route("a", &[], vec![of])], 80, None);
    assert_eq!(selected_rule(&table, "/", &[]), "unsupported");
}

#[test]
fn oldest_route_decides_the_route_kind() {
    let of_kind = |kind: &str, name: &str, ports: &[u16]| {
        let mut route = route(name, ports, vec![rule(vec![prefix(&format!("/{name}"))])]);
        route.name.kind = kind.into();
        route
    };
    let routes = [
        of_kind("GRPCRoute", "old", &[80]),
        of_kind("HTTPRoute", "other", &[]),
        of_kind("GRPCRoute", "same", &[]),
    ];
    let table = RouteTable::new(&routes, 80, None);
    assert_eq!(selected_rule(&table, "/old", &[]), "old/0");
    assert_eq!(selected_rule(&table, "/same", &[]), "same/0");
    assert_eq!(selected_rule(&table, "/other", &[]), "none");
    let table = RouteTable::new(&routes, 81, None);
    assert_eq!(selected_rule(&table, "/other", &[]), "other/0");
    assert_eq!(selected_rule(&table, "/same", &[]), "none");
}

#[test]
fn host_matches_read_the_authority_of_http2() {
    let of = |value| HttpRouteMatch {
        headers: vec![("host".into(), value)],
        ..HttpRouteMatch::default()
    };
    for (value, expected) in [
        (HttpValueMatch::Exact("web.example".into()), "a/0"),
        (HttpValueMatch::Regex(r"web\.\w+".into()), "a/0"),
        (HttpValueMatch::Exact("web".into()), "none"),
    ] {
        let table = RouteTable::new(&[route("a", &[], vec![rule(vec![of(value)])])], 80, None);
        assert_eq!(selected_rule(&table, "/", &[]), expected);
        // Regardless of a header of the same name.
        assert_eq!(selected_rule(&table, "/", &[("host", "web")]), expected);
    }
}

#[test]
fn first_matching_rule_wins_in_virtual_services() {
    let text = |text: &str| path(HttpPathMatch::TextPrefix(text.into()));
    let exact = path(HttpPathMatch::Exact("/a/b".into()));
    let without = HttpRouteMatch {
        without_headers: vec![("x-a".into(), HttpValueMatch::Exact("1".into()))],
        ..HttpRouteMatch::default()
    };
    let in_order = |name: &str, rules| HttpRoute {
        first_match: true,
        ..route(name, &[], rules)
    };
    let routes = [
        in_order(
            "old",
            vec![
                rule(vec![text("/a/")]),
                rule(vec![exact.clone(), text("/al")]),
            ],
        ),
        in_order(
            "new",
            vec![rule(vec![without]), rule(Vec::new()), rule(vec![exact])],
        ),
    ];
    let table = RouteTable::new(&routes, 80, None);
    for (target, headers, expected) in [
        // The first match, not the most specific one.
        ("/a/b", &[][..], "old/0"),
        ("/a", &[], "new/0"),
        // Matches within a segment.
        ("/all", &[], "old/1"),
        ("/b", &[("x-a", "2")], "new/0"),
        ("/b", &[("x-a", "1")], "new/1"),
        ("/b", &[("x-a", "2"), ("x-a", "1")], "new/1"),
    ] {
        assert_eq!(
            selected_rule(&table, target, headers),
            expected,
            "{target} {headers:?}"
        );
    }
    let listed = table
        .matches()
        .map(|of| (of.rule.rule_index, of.match_index));
    let expected = [(0, 0), (1, 0), (1, 1), (0, 0), (1, 0), (2, 0)];
    assert_eq!(listed.collect::<Vec<_>>(), expected);
}

#[test]
fn producer_rules_for_one_namespace_are_not_consumer_rules() {
    let of_bank = |of_service| HttpRoute {
        clients: Some("bank".into()),
        of_service,
        ..route("r", &[], vec![rule(Vec::new())])
    };
    for of_service in [false, true] {
        let table = RouteTable::new(&[of_bank(of_service)], 80, Some("bank"));
        let listed = table.matches().map(|of| of.rule.is_consumer_route);
        assert_eq!(listed.collect::<Vec<_>>(), [!of_service]);
    }
}

#[test]
fn all_matches_are_listed_in_the_order_of_evaluation() {
    let exact = path(HttpPathMatch::Exact("/a".into()));
    let regex = path(HttpPathMatch::Regex("/.*".into()));
    let rules = vec![
        rule(vec![regex]),
        rule(Vec::new()),
        rule(vec![prefix("/a"), exact, prefix("/a/b")]),
    ];
    let table = RouteTable::new(&[route("r", &[], rules)], 80, None);
    let listed = table
        .matches()
        .map(|of| (of.rule.rule_index, of.match_index));
    let expected = [(2, 1), (2, 2), (2, 0), (1, 0), (0, 0)];
    assert_eq!(listed.collect::<Vec<_>>(), expected);
}
