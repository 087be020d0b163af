//! Random VirtualServices and requests: the waypoint's route table, built from a VirtualService and from its converted
//! HTTPRoutes, must choose the first matching rule of the VirtualService.

use std::collections::BTreeMap;

use ambit_derive::MeshConfig;
use ambit_k8s_api::{
    ObjectEvent, VirtualService,
    virtual_service::{HttpMatch, HttpRule, StringMatch},
};
use ambit_l7::route::{RouteDecision, RouteRequest, RouteTable};
use ambit_model::WaypointService;
use http::{HeaderMap, HeaderName, HeaderValue};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use super::*;
use crate::policy_test::build_index;

const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop, labels: {istio.io/use-waypoint: wp}}
spec: {clusterIP: 10.0.0.9, selector: {app: reviews}, ports: [{port: 80}]}
";

const PATHS: [&str; 6] = ["/", "/a", "/a/b", "/ab", "/b", "/a/b/c"];
const METHODS: [&str; 3] = ["GET", "PUT", "POST"];
const HEADERS: [&str; 2] = ["x-one", "x-two"];
const HEADER_VALUES: [&str; 2] = ["1", "2"];

/// Semantics of path prefixes in route matches.
#[derive(Clone, Copy, PartialEq)]
enum Prefixes {
    /// Prefix by characters, as in VirtualServices: `/a` matches `/ab`.
    Text,
    /// Prefix by path segments, as in HTTPRoutes: `/a` does not match `/ab`.
    Segments,
}

fn pick_random<'a>(rng: &mut StdRng, from: &[&'a str]) -> &'a str {
    from[rng.random_range(0..from.len())]
}

fn random_match(rng: &mut StdRng) -> Value {
    let mut one = json!({});
    if rng.random_bool(0.7) {
        let kind = pick_random(rng, &["exact", "prefix", "prefix"]);
        one["uri"] = json!({kind: pick_random(rng, &PATHS)});
    }
    if rng.random_bool(0.3) {
        one["method"] = json!({"exact": pick_random(rng, &METHODS)});
    }
    for (field, share) in [("headers", 0.4), ("queryParams", 0.2)] {
        if rng.random_bool(share) {
            one[field] =
                json!({pick_random(rng, &HEADERS): {"exact": pick_random(rng, &HEADER_VALUES)}});
        }
    }
    one
}

fn random_service(rng: &mut StdRng) -> Object {
    let rules: Vec<_> = (0..rng.random_range(1..=4))
        .map(|_| {
            let matches: Vec<_> = (0..rng.random_range(0..=2))
                .map(|_| random_match(rng))
                .collect();
            json!({
                "match": matches,
                "route": [{"destination": {"host": "reviews", "port": {"number": 80}}}],
            })
        })
        .collect();
    let object = json!({
        "metadata": {"name": "reviews", "namespace": "shop"},
        "spec": {"hosts": ["reviews"], "http": rules},
    });
    Object::from_value(Kind::VirtualService, &object).unwrap()
}

fn virtual_service(object: &Object) -> &VirtualService {
    match object {
        Object::VirtualService(whole) => whole,
        other => panic!("{other:?}"),
    }
}

/// A random request: method, path, and the values of the headers and query parameters, if present.
struct Request {
    method: &'static str,
    path: &'static str,
    headers: [Option<&'static str>; 2],
    parameters: [Option<&'static str>; 2],
}

fn random_request(rng: &mut StdRng) -> Request {
    let mut value = || {
        rng.random_bool(0.5)
            .then(|| pick_random(rng, &HEADER_VALUES))
    };
    let (headers, parameters) = ([value(), value()], [value(), value()]);
    Request {
        method: pick_random(rng, &METHODS),
        path: pick_random(rng, &PATHS),
        headers,
        parameters,
    }
}

/// Returns the index of the first rule of a VirtualService that matches, as Istio documents it.
fn first_rule(rules: &[HttpRule], request: &Request, prefixes: Prefixes) -> Option<usize> {
    rules.iter().position(|rule| {
        let mut matches = rule.matches.iter();
        rule.matches.is_empty() || matches.any(|one| matches_request(one, request, prefixes))
    })
}

fn matches_request(rule_match: &HttpMatch, request: &Request, prefixes: Prefixes) -> bool {
    let path = rule_match.uri.as_ref().is_none_or(|uri| match uri {
        StringMatch {
            exact: Some(exact), ..
        } => request.path == exact,
        StringMatch {
            prefix: Some(prefix),
            ..
        } if prefixes == Prefixes::Text => request.path.starts_with(prefix),
        StringMatch {
            prefix: Some(prefix),
            ..
        } => {
            let rest = request.path.strip_prefix(prefix.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        _ => false,
    });
    let method = rule_match
        .method
        .as_ref()
        .and_then(|method| method.exact.as_deref());
    let named = |given: &BTreeMap<String, StringMatch>, values: &[Option<&str>; 2]| {
        given.iter().all(|(name, wanted)| {
            let at = HEADERS
                .iter()
                .position(|rule_match| rule_match == name)
                .unwrap();
            values[at] == wanted.exact.as_deref()
        })
    };
    path && method.is_none_or(|method| method == request.method)
        && named(&rule_match.headers, &request.headers)
        && named(&rule_match.query_params, &request.parameters)
}

/// Builds a waypoint's route table from VirtualServices or HTTPRoutes.
fn table(routes: Vec<Object>) -> RouteTable {
    let snapshot = ambit_manifests::parse(std::path::Path::new("mesh.yaml"), MESH);
    let present = snapshot.objects.into_values().map(|(object, _)| object);
    let applied = |object| ObjectEvent::Applied {
        object,
        origin: None,
    };
    let objects: Vec<_> = present.chain(routes).map(applied).collect();
    let mut index = build_index(MeshConfig::default(), &objects);
    let delta = index.flush();
    let mut services = delta.waypoint_records_of::<WaypointService>();
    let routes = services
        .find_map(|(_, service)| Some(&service?.routes))
        .unwrap();
    assert_eq!(routes.len(), 1);
    RouteTable::new(routes, 80, None)
}

fn chosen_rule(table: &RouteTable, request: &Request) -> Option<usize> {
    let (mut headers, mut query) = (HeaderMap::new(), Vec::new());
    for (at, name) in HEADERS.iter().enumerate() {
        if let Some(value) = request.headers[at] {
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        if let Some(value) = request.parameters[at] {
            query.push(format!("{name}={value}"));
        }
    }
    let query = query.join("&");
    match table.select_rule(&RouteRequest {
        method: request.method,
        path: request.path,
        query: Some(&query),
        host: "reviews",
        headers: &headers,
    }) {
        RouteDecision::Rule(rule, _) => Some(rule.rule_index),
        RouteDecision::NoMatchingRule => None,
        RouteDecision::NoRoutes => panic!("there is a route"),
    }
}

/// Asserts that a route table chooses the VirtualService's first matching rule for random requests.
fn assert_same_choices(
    table: &RouteTable,
    virtual_service: &VirtualService,
    rng: &mut StdRng,
    prefixes: Prefixes,
) {
    for _ in 0..100 {
        let request = random_request(rng);
        let expected = first_rule(&virtual_service.spec.http, &request, prefixes);
        assert_eq!(
            chosen_rule(table, &request),
            expected,
            "{} {} {:?} {:?} of {:#?}",
            request.method,
            request.path,
            request.headers,
            request.parameters,
            virtual_service.spec.http
        );
    }
}

#[test]
fn virtual_services_are_followed_first_match_first() {
    let mut rng = StdRng::seed_from_u64(7);
    for _ in 0..150 {
        let object = random_service(&mut rng);
        let table = table(vec![object.clone()]);
        assert_same_choices(&table, virtual_service(&object), &mut rng, Prefixes::Text);
    }
}

#[test]
fn converted_routes_choose_as_their_virtual_services_do() {
    let mut rng = StdRng::seed_from_u64(2026);
    let (mut converted, mut left) = (0, 0);
    while converted < 150 {
        let object = random_service(&mut rng);
        let whole = virtual_service(&object);
        let Ok(conversion) = convert_to_http_routes(whole, "cluster.local") else {
            left += 1;
            continue;
        };
        converted += 1;
        let objects = conversion.objects.iter();
        let objects = objects.map(|object| Object::from_value(Kind::HTTPRoute, object).unwrap());
        let of_objects = table(objects.collect());
        assert_same_choices(&of_objects, whole, &mut rng, Prefixes::Segments);
        // Where no prefix ends within a segment, both decide alike.
        let itself = table(vec![object.clone()]);
        for _ in 0..100 {
            let request = random_request(&mut rng);
            let text = first_rule(&whole.spec.http, &request, Prefixes::Text);
            if text == first_rule(&whole.spec.http, &request, Prefixes::Segments) {
                let both = (
                    chosen_rule(&itself, &request),
                    chosen_rule(&of_objects, &request),
                );
                assert_eq!(both.0, both.1, "{:#?}", whole.spec.http);
            }
        }
    }
    assert!(left > 20, "the order matters in {left} of them only");
}
