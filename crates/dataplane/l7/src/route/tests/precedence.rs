//! Compares the route table with a naive implementation of the Gateway API's precedence, which compares all matching
//! rules pairwise.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::*;

/// Generated request: method, path, and the names of its headers and of its query parameters, which all have the value
/// `1`.
type TestRequest = (&'static str, &'static str, Vec<usize>, Vec<usize>);

fn match_applies(of: &HttpRouteMatch, drawn: &TestRequest) -> bool {
    let (method, path, headers, params) = drawn;
    let of_path = match &of.path {
        None => true,
        Some(HttpPathMatch::Exact(exact)) => exact == path,
        Some(HttpPathMatch::Prefix(prefix)) => {
            let segments = |path: &str| {
                let all = path.split('/').filter(|one| !one.is_empty());
                all.map(str::to_owned).collect::<Vec<_>>()
            };
            segments(path).starts_with(&segments(prefix))
        }
        Some(HttpPathMatch::Regex(_)) => path.starts_with("/a"),
        Some(HttpPathMatch::TextPrefix(prefix)) => path.starts_with(prefix.as_str()),
    };
    let named = |matchers: &[(ArcStr, HttpValueMatch)], letter: &str, there: &[usize]| {
        let is_there = |name: &str| there.iter().any(|one| format!("{letter}{one}") == name);
        matchers.iter().all(|(name, _)| is_there(name))
    };
    of_path
        && of.method.as_ref().is_none_or(|one| one == method)
        && named(&of.headers, "h", headers)
        && named(&of.query_params, "q", params)
}

/// Compares the precedence of two matches by the specification's rules.
fn compare_precedence(a: &HttpRouteMatch, b: &HttpRouteMatch) -> Ordering {
    let kind = |of: &HttpRouteMatch| match &of.path {
        Some(HttpPathMatch::Exact(_)) => 3,
        Some(HttpPathMatch::Prefix(_)) | None => 2,
        Some(HttpPathMatch::Regex(_) | HttpPathMatch::TextPrefix(_)) => 1,
    };
    let length = |of: &HttpRouteMatch| match &of.path {
        Some(HttpPathMatch::Prefix(path)) if path == "/" => 0,
        Some(
            HttpPathMatch::Exact(path)
            | HttpPathMatch::Prefix(path)
            | HttpPathMatch::Regex(path)
            | HttpPathMatch::TextPrefix(path),
        ) => path.len(),
        None => 0,
    };
    kind(b)
        .cmp(&kind(a))
        .then(length(b).cmp(&length(a)))
        .then(b.method.is_some().cmp(&a.method.is_some()))
        .then(b.headers.len().cmp(&a.headers.len()))
        .then(b.query_params.len().cmp(&a.query_params.len()))
}

fn naive_selected_rule(routes: &[HttpRoute], drawn: &TestRequest) -> String {
    let mut best: Option<(&HttpRouteMatch, String)> = None;
    for route in routes {
        for (index, rule) in route.rules.iter().enumerate() {
            for of in rule.matches.iter().filter(|of| match_applies(of, drawn)) {
                let wins = best
                    .as_ref()
                    .is_none_or(|(best, _)| compare_precedence(of, best) == Ordering::Less);
                if wins {
                    best = Some((of, format!("{}/{index}", route.name.name)));
                }
            }
        }
    }
    best.map_or_else(|| "none".to_owned(), |(_, name)| name)
}

fn paths() -> impl Strategy<Value = Option<HttpPathMatch>> {
    let text = prop::sample::select(vec!["/", "/a", "/a/b", "/ab", "/b"]);
    prop_oneof![
        Just(None),
        text.clone()
            .prop_map(|text| Some(HttpPathMatch::Exact(text.into()))),
        text.prop_map(|text| Some(HttpPathMatch::Prefix(text.into()))),
        prop::sample::select(vec!["/a.*", "/[a].*"])
            .prop_map(|text| Some(HttpPathMatch::Regex(text.into()))),
    ]
}

fn matches() -> impl Strategy<Value = HttpRouteMatch> {
    let some = || prop::collection::btree_set(0..3_usize, 0..3);
    let method = prop::option::of(prop::sample::select(vec!["GET", "POST"]));
    let values = |letter: &str, of: std::collections::BTreeSet<usize>| {
        let one = |index| {
            (
                arcstr(&format!("{letter}{index}")),
                HttpValueMatch::Exact("1".into()),
            )
        };
        of.into_iter().map(one).collect()
    };
    (paths(), method, some(), some()).prop_map(move |(path, method, headers, params)| {
        HttpRouteMatch {
            path,
            method: method.map(ArcStr::from),
            headers: values("h", headers),
            query_params: values("q", params),
            ..HttpRouteMatch::default()
        }
    })
}

proptest! {
    #[test]
    fn table_agrees_with_the_naive_precedence(
        routes in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(matches(), 1..4), 1..4), 1..4),
        method in prop::sample::select(vec!["GET", "POST"]),
        path in prop::sample::select(vec!["/", "/a", "/a/", "/a/b", "/a/b/c", "/ab", "/b", "/c"]),
        headers in prop::collection::vec(0..3_usize, 0..3),
        params in prop::collection::vec(0..3_usize, 0..3),
    ) {
        let named = |(index, rules): (usize, Vec<Vec<HttpRouteMatch>>)| {
            route(&format!("r{index}"), &[], rules.into_iter().map(rule).collect())
        };
        let routes: Vec<_> = routes.into_iter().enumerate().map(named).collect();
        let drawn = (method, path, headers, params);
        let query: Vec<_> = drawn.3.iter().map(|index| format!("q{index}=1")).collect();
        let query = query.join("&");
        let mut lines = HeaderMap::new();
        for index in &drawn.2 {
            let name = HeaderName::from_bytes(format!("h{index}").as_bytes()).unwrap();
            lines.insert(name, "1".parse().unwrap());
        }
        let table = RouteTable::new(&routes, 80, None);
        let request = RouteRequest { method, path, query: Some(&query), host: "", headers: &lines };
        let choice = table.select_rule(&request);
        prop_assert_eq!(last_candidate(&table, &request), rule_of(&choice));
        let chosen = match choice {
            RouteDecision::NoRoutes => "itself".to_owned(),
            RouteDecision::NoMatchingRule => "none".to_owned(),
            RouteDecision::Rule(rule, _) => format!("{}/{}", rule.route.name, rule.rule_index),
        };
        prop_assert_eq!(chosen, naive_selected_rule(&routes, &drawn));
    }
}
