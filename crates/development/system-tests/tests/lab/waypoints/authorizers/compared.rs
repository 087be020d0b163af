//! Compares the checks that Ambit sends to an ext_authz provider, and the effect of its responses, with Envoy's:
//! `vectors/ext-authz` has the checks of Envoy's filter to the same program for the same requests, and the effect of
//! the same responses. All differences are listed here with the reason.

use std::{collections::BTreeMap, net::SocketAddr};

use super::*;

const CASES: &str = include_str!("../../../../../../../vectors/ext-authz/cases.json");
const ENVOY: &str = include_str!("../../../../../../../vectors/ext-authz/envoy.json");

/// Fields of a check that differ between runs, of which only the presence is compared.
const VARYING: [&str; 9] = [
    "asked[0].grpc.attributes.*.address.socketAddress.address",
    "asked[0].grpc.attributes.*.address.socketAddress.portValue",
    "asked[0].grpc.attributes.request.http.id",
    "asked[0].grpc.attributes.request.time",
    "*.headers.x-request-id",
    "*.headers.x-forwarded-for",
    "answered.headers.content-length",
    "answered.headers.date",
    "answered.headers.x-envoy-upstream-service-time",
];
/// Placeholder for values that differ between runs.
const VARYING_VALUE: &str = "something";
const ABSENT_VALUE: &str = "nothing";

/// Intended difference from Envoy, in whose texts `*` matches anything.
struct IntendedDifference {
    case: &'static str,
    field: &'static str,
    envoy: &'static str,
    ours: &'static str,
    /// Reason of the difference, for readers.
    #[expect(dead_code, reason = "it is for people")]
    why: &'static str,
}

const fn intended(
    case: &'static str,
    at: &'static str,
    (envoy, ours): (&'static str, &'static str),
    why: &'static str,
) -> IntendedDifference {
    IntendedDifference {
        case,
        field: at,
        envoy,
        ours,
        why,
    }
}

const INTENDED_DIFFERENCES: &[IntendedDifference] = &[
    // Differences of every request.
    intended(
        "*",
        "answered.headers.server",
        ("envoy", ABSENT_VALUE),
        "answers are the application's own",
    ),
    intended(
        "*",
        "answered.headers.x-envoy-upstream-service-time",
        (VARYING_VALUE, ABSENT_VALUE),
        "the same",
    ),
    intended(
        "*",
        "answered.heard.headers.traceparent",
        (ABSENT_VALUE, "*"),
        "of telemetry, which Envoy was recorded without",
    ),
    intended(
        "*",
        "answered.heard.headers.x-envoy-expected-rq-timeout-ms",
        ("15000", ABSENT_VALUE),
        "Envoy's own",
    ),
    intended(
        "*",
        "answered.heard.headers.x-forwarded-for",
        (ABSENT_VALUE, VARYING_VALUE),
        "it is said who called",
    ),
    intended(
        "*",
        "answered.headers.content-type",
        (ABSENT_VALUE, "text/plain"),
        "of empty bodies, too",
    ),
    intended(
        "*",
        "*source.principal",
        (ABSENT_VALUE, "spiffe://cluster.local/ns/shop/sa/client"),
        "Envoy was called without TLS",
    ),
    intended(
        "*",
        "*destination.principal",
        (ABSENT_VALUE, "spiffe://cluster.local/ns/shop/sa/waypoint"),
        "the same",
    ),
    intended(
        "*",
        "asked*.http.headers.x-forwarded-proto",
        ("*", ABSENT_VALUE),
        "it is set when a request is sent on",
    ),
    intended(
        "*",
        "asked*.http.headers.x-request-id",
        (VARYING_VALUE, ABSENT_VALUE),
        "it is made when a request is sent on",
    ),
    intended(
        "*",
        "asked*.http.id",
        (VARYING_VALUE, ABSENT_VALUE),
        "it is the x-request-id of the client",
    ),
    intended(
        "*post*",
        "asked*.http.headers.content-length",
        ("*", ABSENT_VALUE),
        "size says it",
    ),
    intended(
        "post of*no body*",
        "asked*.http.size",
        (ABSENT_VALUE, "5"),
        "Envoy says it of what it has read",
    ),
    intended(
        "post of unknown length*",
        "asked*.http.size",
        ("4", "-1"),
        "what was not said is not known",
    ),
    intended(
        "*",
        "asked*.headers.x-envoy-auth-partial-body",
        (ABSENT_VALUE, "false"),
        "it is said where bodies are shown",
    ),
    intended(
        "*",
        "asked*.http.headers.x-envoy-expected-rq-timeout-ms",
        ("*", ABSENT_VALUE),
        "Envoy's own",
    ),
    intended(
        "*",
        "asked*.http.headers.x-envoy-internal",
        ("true", ABSENT_VALUE),
        "Envoy's own",
    ),
    intended(
        "http: *",
        "asked*.http.headers.content-length",
        ("0", ABSENT_VALUE),
        "a request without a body needs none",
    ),
    // Inside the mesh's TLS, requests are plain.
    intended(
        "get with TLS*",
        "answered.heard.headers.x-forwarded-proto",
        ("https", "http"),
        "TLS is the mesh's",
    ),
    intended(
        "get with TLS*",
        "asked*.http.headers.:scheme",
        ("https", "http"),
        "the same",
    ),
    intended(
        "get with TLS*",
        "asked*.http.scheme",
        ("https", "http"),
        "the same",
    ),
    intended(
        "context of a route",
        "*.contextExtensions.of",
        ("the route", ABSENT_VALUE),
        "MeshConfig has none",
    ),
    intended(
        "post that is larger*",
        "answered.body",
        ("Payload Too Large", "the body is larger*"),
        "it says why",
    ),
    // A contradictory or empty response denies.
    intended(
        "an empty answer",
        "answered.*",
        ("*", "*"),
        "an answer without a status is none",
    ),
    intended(
        "denied and a status of OK",
        "answered.*",
        ("*", "*"),
        "it contradicts itself",
    ),
    intended(
        "an error and a status of OK",
        "answered.*",
        ("*", "*"),
        "it contradicts itself",
    ),
    intended(
        "denied with a status below 200",
        "answered.*",
        ("*", "*"),
        "Envoy breaks the connection",
    ),
    intended(
        "headers that frame or lead a request",
        "answered.*",
        ("*", "*"),
        "they are never a provider's",
    ),
    intended(
        "a header that is none",
        "answered.*",
        ("*", "*"),
        "it is left out and counted",
    ),
    intended(
        "parameters that are set",
        "answered.*",
        ("*", "*"),
        "Envoy sends them unescaped: no request",
    ),
    // The response sets headers.
    intended(
        "denied with headers twice",
        "answered.headers.x-a",
        ("1 | 2", "2"),
        "the last is set",
    ),
    intended(
        "denied with headers twice",
        "answered.headers.x-b",
        ("1", "1 | 2"),
        "append is append",
    ),
    intended(
        "headers of the request, appended",
        "*.x-new",
        (ABSENT_VALUE, "2"),
        "append is append",
    ),
    intended(
        "headers of the request, appended",
        "*.x-there",
        ("1,2", "1 | 2"),
        "as lines of their own",
    ),
    intended(
        "headers of the request, ADD_IF_ABSENT",
        "*.x-there",
        ("2", "1"),
        "Envoy does not read it here",
    ),
    intended(
        "headers of the request, OVERWRITE_IF_EXISTS",
        "*.x-new",
        ("2", ABSENT_VALUE),
        "the same",
    ),
    intended(
        "http: get",
        "asked*.x-in-1",
        ("a,b", "a | b"),
        "as they came",
    ),
    intended(
        "http: allowed with headers",
        "*.x-set-a",
        ("2", "1 | 2"),
        "both are the provider's",
    ),
];

impl IntendedDifference {
    fn explains(&self, found: &Difference) -> bool {
        matches_pattern(self.case, &found.case)
            && matches_pattern(self.field, &found.field)
            && matches_pattern(self.envoy, &found.envoy)
            && matches_pattern(self.ours, &found.ours)
    }
}

#[derive(Debug)]
struct Difference {
    case: String,
    field: String,
    envoy: String,
    ours: String,
}

/// Returns whether a text matches a pattern with `*`.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            let mut ends = (0..=text.len()).filter(|end| text.is_char_boundary(*end));
            ends.any(|end| matches_pattern(rest, &text[end..]))
        }),
    }
}

/// Adds each leaf of a JSON value to `into`, under its dotted path.
fn flatten(at: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let dot = if at.is_empty() { "" } else { "." };
                flatten(&format!("{at}{dot}{name}"), value, into);
            }
        }
        Value::Array(values) if values.iter().all(Value::is_string) && !values.is_empty() => {
            let texts = values.iter().filter_map(Value::as_str);
            into.insert(at.to_owned(), texts.collect::<Vec<_>>().join(" | "));
        }
        Value::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                flatten(&format!("{at}[{number}]"), value, into);
            }
        }
        Value::Null => {}
        Value::String(text) => drop(into.insert(at.to_owned(), text.clone())),
        other => drop(into.insert(at.to_owned(), other.to_string())),
    }
}

fn flattened_fields(record: &Value) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    flatten("", record, &mut all);
    // Header that selects the provider's response.
    all.retain(|at, _| !at.ends_with(".headers.x-answer"));
    for (at, value) in &mut all {
        if VARYING.iter().any(|varying| matches_pattern(varying, at)) {
            VARYING_VALUE.clone_into(value);
        }
    }
    all
}

fn compare(case: &str, envoy: &Value, ours: &Value) -> Vec<Difference> {
    let (envoy, ours) = (flattened_fields(envoy), flattened_fields(ours));
    let places: std::collections::BTreeSet<_> = envoy.keys().chain(ours.keys()).collect();
    let text = |of: &BTreeMap<String, String>, at: &String| {
        of.get(at)
            .cloned()
            .unwrap_or_else(|| ABSENT_VALUE.to_owned())
    };
    places
        .into_iter()
        .filter(|at| envoy.get(*at) != ours.get(*at))
        .map(|at| Difference {
            case: case.to_owned(),
            field: at.clone(),
            envoy: text(&envoy, at),
            ours: text(&ours, at),
        })
        .collect()
}

/// Returns the request of a recorded case, with the header that selects the provider's response.
fn request(case: &Value) -> Value {
    let mut request = case["request"].clone();
    if let (Some(configured), Some(headers)) =
        (case.get("answer"), request["headers"].as_array_mut())
    {
        headers.push(json!(["x-answer", decision_header(configured)]));
    }
    request
}

#[test]
fn providers_are_treated_as_by_envoy_with_listed_exceptions() {
    let cases: Value = serde_json::from_str(CASES).unwrap();
    let envoy: Value = serde_json::from_str(ENVOY).unwrap();
    let providers = cases["providers"].as_object().unwrap();
    let mut more = Vec::new();
    let mut configured = Vec::new();
    for (name, provider) in providers {
        let mut entry = provider["mesh"].clone();
        for (kind, settings) in entry.as_object_mut().unwrap() {
            let port = if kind == "envoyExtAuthzHttp" {
                HTTP_PORT
            } else {
                GRPC_PORT
            };
            settings["service"] = "authz.legacy.svc.cluster.local".into();
            settings["port"] = port.into();
        }
        entry["name"] = name.as_str().into();
        configured.push(entry);
        let app = format!("app-{name}");
        let ports = json!([{"name": "http", "port": 80, "targetPort": 8081}]);
        more.extend([
            service("shop", &app, "app", ports),
            custom_policy(&app, name),
        ]);
    }
    more.push(mesh_config(&Value::Array(configured)));
    let scene = AuthorizerFixture::new(&more);
    let mut places = BTreeMap::<&str, SocketAddr>::new();
    for name in providers.keys() {
        let host = format!("app-{name}.shop.svc");
        let place = scene.mesh.service_address(&host, 80);
        wait_until("the provider is asked", || {
            let answer = scene.ask("shop/client", place, &get("/", &[]));
            answer["status"] == 200
                && !scene
                    .take_checks("legacy/client", "legacy/authz")
                    .is_empty()
        });
        places.insert(name, place);
    }
    let mut found = Vec::new();
    for case in cases["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let place = places[case["provider"].as_str().unwrap()];
        let answered = scene.ask("shop/client", place, &request(case));
        let asked = scene.take_checks("legacy/client", "legacy/authz");
        let ours = json!({"asked": asked, "answered": answered});
        assert!(envoy[name].is_object(), "{name} is not recorded");
        found.extend(compare(name, &envoy[name], &ours));
    }
    let unmeant: Vec<_> = found
        .iter()
        .filter(|found| {
            !INTENDED_DIFFERENCES
                .iter()
                .any(|meant| meant.explains(found))
        })
        .map(|one| {
            let Difference {
                case,
                field: at,
                envoy,
                ours,
            } = one;
            format!("{case}: {at}: {envoy:?} of Envoy, {ours:?} here")
        })
        .collect();
    assert!(unmeant.is_empty(), "{}", unmeant.join("\n"));
    for meant in INTENDED_DIFFERENCES {
        let is_found = found.iter().any(|found| meant.explains(found));
        assert!(
            is_found,
            "{} in {} does not differ",
            meant.field, meant.case
        );
    }
}
