//! Tests of filters of rules and of their backends, in every combination.

use ambit_model::{
    HeaderChanges, HttpCors, HttpFilter, HttpMirror, HttpRedirect, HttpRewrite, NamespacedHostname,
    PathChange,
};
use http::{HeaderValue, Method};
use rand::{SeedableRng as _, rngs::StdRng};

use super::{super::cors::CorsRequest, *};

const RULE: &str = "rule";
const BACKEND: &str = "backend";

fn mirror(of: &str, numerator: u32, denominator: u32) -> HttpMirror {
    HttpMirror {
        service: NamespacedHostname::new("shop", of),
        port: 80,
        numerator,
        denominator,
    }
}

/// Returns one filter of each type, whose values name its owner (rule or backend).
fn filters_of_all_types(of: &str) -> [HttpFilter; 6] {
    let headers = |name: &str| HeaderChanges {
        set: vec![(name.into(), of.into())],
        add: vec![("x-both".into(), of.into())],
        remove: Vec::new(),
    };
    [
        HttpFilter::RequestHeaders(headers("x-request")),
        HttpFilter::ResponseHeaders(headers("x-response")),
        HttpFilter::Redirect(HttpRedirect {
            hostname: Some(of.into()),
            status: 302,
            ..HttpRedirect::default()
        }),
        HttpFilter::Rewrite(HttpRewrite {
            hostname: (of == RULE).then(|| of.into()),
            path: Some(PathChange::Full(format!("/{of}").into())),
        }),
        HttpFilter::Mirror(mirror(of, 1, 1)),
        HttpFilter::Cors(HttpCors {
            allow_origins: vec![format!("https://{of}").into()],
            max_age: 5,
            ..HttpCors::default()
        }),
    ]
}

fn filters_in_mask(of: &str, which: u32) -> Vec<HttpFilter> {
    let all = filters_of_all_types(of).into_iter().enumerate();
    let all = all.filter(|(index, _)| which >> index & 1 == 1);
    all.map(|(_, filter)| filter).collect()
}

/// Returns the owner whose filter applies: the backend if it has the filter, else the rule.
fn effective_owner<'a>(index: u32, rule: u32, backend: u32) -> Option<&'a str> {
    let has = |which: u32| which >> index & 1 == 1;
    match (has(rule), has(backend)) {
        (_, true) => Some(BACKEND),
        (true, false) => Some(RULE),
        (false, false) => None,
    }
}

/// Checks all 4096 combinations: contradictory ones are rejected, and in the others each filter has the effect that it
/// has alone.
#[test]
fn every_combination_applies_each_filter() {
    let contradicts = |which: u32| which & 0b1100 == 0b1100;
    for rule in 0..64 {
        for backend in 0..64 {
            let filters = [(RULE, rule), (BACKEND, backend)].map(|(of, which)| {
                let made = Filters::new(&filters_in_mask(of, which));
                assert_eq!(made.is_err(), contradicts(which), "{of} {which:b}");
                made.ok()
            });
            let [Some(of_rule), Some(of_backend)] = filters else {
                continue;
            };
            let applied = EffectiveFilters {
                rule: &of_rule,
                backend: Some(&of_backend),
            };
            let case = format!("rule {rule:06b}, backend {backend:06b}");
            check_headers(applied, rule, backend, &case);
            let to = applied.redirect().map(|to| to.host().unwrap().to_string());
            // The rule's redirect comes first: its requests reach no backend.
            let expected = effective_owner(2, backend, rule)
                .map(|of| if of == BACKEND { RULE } else { BACKEND });
            assert_eq!(to.as_deref(), expected, "{case}");
            let path = applied.rewrite().and_then(|rewrite| rewrite.path);
            let expected = effective_owner(3, rule, backend);
            let expected = expected.map(|of| PathChange::Full(format!("/{of}").into()));
            assert_eq!(path, expected, "{case}");
            let host = applied.rewrite().and_then(|rewrite| rewrite.hostname);
            assert_eq!(host.is_some(), rule >> 3 & 1 == 1, "{case}");
            let mirrors = applied.select_mirrors(&mut rand::rng());
            let count = (rule >> 4 & 1) + (backend >> 4 & 1);
            assert_eq!(u32::try_from(mirrors.len()), Ok(count), "{case}");
        }
    }
}

fn check_headers(applied: EffectiveFilters<'_>, rule: u32, backend: u32, case: &str) {
    let (mut request, mut response) = (HeaderMap::new(), HeaderMap::new());
    applied.change_request(&mut request);
    applied.change_response(&mut response);
    for (index, name, headers) in [(0, "x-request", &request), (1, "x-response", &response)] {
        let value = headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(value, effective_owner(index, rule, backend), "{case}");
        let both = headers.get_all("x-both").iter().count();
        let count = (rule >> index & 1) + (backend >> index & 1);
        assert_eq!(u32::try_from(both), Ok(count), "{case}");
    }
    let is_allowed = |cors: &Cors, of: &str| {
        let origin = HeaderValue::from_str(&format!("https://{of}")).unwrap();
        let request_headers = HeaderMap::from_iter([(http::header::ORIGIN, origin)]);
        let mut answer = HeaderMap::new();
        cors.change_response(
            &CorsRequest::from_request(&Method::GET, &request_headers),
            &mut answer,
        );
        answer.contains_key(http::header::ACCESS_CONTROL_ALLOW_ORIGIN)
    };
    let whose = applied.cors().map(|cors| {
        let of = [RULE, BACKEND].map(|of| is_allowed(cors, of));
        assert_ne!(of[0], of[1], "{case}");
        if of[0] { RULE } else { BACKEND }
    });
    assert_eq!(whose, effective_owner(5, rule, backend), "{case}");
}

#[test]
fn mirrors_get_their_share() {
    let of = [
        mirror("none", 0, 100),
        mirror("some", 1, 4),
        mirror("most", 90, 100),
        mirror("all", 7, 7),
    ];
    let filters = Filters::new(&of.clone().map(HttpFilter::Mirror)).unwrap();
    let applied = EffectiveFilters {
        rule: &filters,
        backend: None,
    };
    let mut rng = StdRng::seed_from_u64(7);
    let mut counts = [0; 4];
    for _ in 0..4000 {
        for drawn in applied.select_mirrors(&mut rng) {
            counts[of.iter().position(|one| one == drawn).unwrap()] += 1;
        }
    }
    let [none, some, most, all] = counts;
    assert_eq!((none, all), (0, 4000));
    assert!(
        (900..1100).contains(&some) && (3520..3680).contains(&most),
        "{counts:?}"
    );
}
