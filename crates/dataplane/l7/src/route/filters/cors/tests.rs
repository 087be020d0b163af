//! Tests of allowed origins, by the texts of the Gateway API and the Fetch standard.

use proptest::prelude::*;

use super::*;

fn texts(of: &[&str]) -> Vec<ArcStr> {
    of.iter().map(|text| ArcStr::from(*text)).collect()
}

fn cors(origins: &[&str], more: impl FnOnce(&mut HttpCors)) -> Cors {
    let mut from = HttpCors {
        allow_origins: texts(origins),
        max_age: 5,
        ..HttpCors::default()
    };
    more(&mut from);
    Cors::new(&from).unwrap()
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

/// Applies a CORS filter to a response that has the CORS headers `upstream`, and returns the resulting headers.
fn filtered_response_headers(
    cors: &Cors,
    request: &CorsRequest,
    upstream: &[(&'static str, &str)],
) -> Vec<String> {
    let mut answer = headers(upstream);
    cors.change_response(request, &mut answer);
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        format!(
            "{}: {}",
            name.as_str().trim_start_matches("access-control-"),
            value.to_str().unwrap()
        )
    };
    let mut lines: Vec<_> = answer.iter().map(line).collect();
    lines.sort();
    lines
}

fn simple_request(origin: &str) -> CorsRequest {
    CorsRequest::from_request(&Method::GET, &headers(&[("origin", origin)]))
}

fn preflight_request(origin: &str) -> CorsRequest {
    let headers = headers(&[
        ("origin", origin),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "x-a, x-b"),
    ]);
    CorsRequest::from_request(&Method::OPTIONS, &headers)
}

#[test]
fn origins_match_by_scheme_host_and_port() {
    for (pattern, origin, expected) in [
        ("*", "https://a", true),
        ("*", "null", true),
        ("https://www.foo.com", "https://www.foo.com", true),
        ("https://www.foo.com", "https://WWW.foo.com:443", true),
        ("https://www.foo.com", "http://www.foo.com", false),
        ("https://www.foo.com", "https://www.foo.com:8443", false),
        ("https://www.foo.com:8443", "https://www.foo.com:8443", true),
        ("https://www.foo.com", "https://www.foo.com.evil.com", false),
        ("https://www.foo.com", "https://xwww.foo.com", false),
        ("https://www.foo.com", "https://www.foo.com/", false),
        ("https://www.foo.com", "https://u@www.foo.com", false),
        ("https://*.foo.com", "https://a.foo.com", true),
        ("https://*.foo.com", "https://a.b.foo.com", true),
        ("https://*.foo.com", "https://foo.com", false),
        ("https://*.foo.com", "https://evilfoo.com", false),
        ("https://*.foo.com", "https://evil.com/.foo.com", false),
        ("https://*.foo.com", "https://evil.com#.foo.com", false),
        ("https://*.foo.com", "https://evil.com:443.foo.com", false),
        ("http://*", "http://anything.at.all", true),
        ("http://*", "http://[::1]", true),
        ("http://*", "http://", false),
        ("http://*", "null", false),
        ("http://*:8080", "http://a:8080", true),
        ("http://*:8080", "http://a", false),
    ] {
        let is_allowed = cors(&[pattern], |_| ())
            .matching_origin(&simple_request(origin))
            .is_some();
        assert_eq!(is_allowed, expected, "{pattern} {origin}");
    }
    for pattern in [
        "",
        "foo.com",
        "https://",
        "https://*foo.com",
        "https://a.*.com",
        "https://a:0",
        "https://a:x",
        "https://a:+1",
        "https://a/",
        "ftp://a",
        "https://a b",
        "https://a\r\nb: c",
    ] {
        assert!(OriginPattern::new(pattern).is_none(), "{pattern:?}");
    }
}

#[test]
fn allowed_origin_gets_the_headers_of_the_rule() {
    let some = cors(&["https://a"], |from| {
        from.allow_credentials = true;
        from.allow_methods = texts(&["GET", "PUT"]);
        from.allow_headers = texts(&["x-a", "x-b"]);
        from.expose_headers = texts(&["x-c"]);
        from.max_age = 3600;
    });
    let upstream = [("access-control-allow-origin", "*"), ("x-other", "1")];
    assert_eq!(
        filtered_response_headers(&some, &simple_request("https://a"), &upstream),
        [
            "allow-credentials: true",
            "allow-origin: https://a",
            "expose-headers: x-c",
            "vary: origin",
            "x-other: 1"
        ]
    );
    assert_eq!(
        filtered_response_headers(&some, &preflight_request("https://a"), &[]),
        [
            "allow-credentials: true",
            "allow-headers: x-a, x-b",
            "allow-methods: GET, PUT",
            "allow-origin: https://a",
            "expose-headers: x-c",
            "max-age: 3600",
            "vary: origin"
        ]
    );
    // Headers of the application allow nothing.
    for request in [simple_request("https://b"), preflight_request("https://b")] {
        assert_eq!(
            filtered_response_headers(&some, &request, &upstream),
            ["vary: origin", "x-other: 1"]
        );
    }
    let two = headers(&[("origin", "https://a"), ("origin", "https://b")]);
    let two = CorsRequest::from_request(&Method::GET, &two);
    assert_eq!(
        filtered_response_headers(&some, &two, &upstream),
        ["vary: origin", "x-other: 1"]
    );
}

#[test]
fn star_means_all_only_without_credentials() {
    let all = |credentials| {
        cors(&["*"], |from| {
            from.allow_credentials = credentials;
            from.allow_methods = texts(&["*"]);
            from.allow_headers = texts(&["*"]);
            from.expose_headers = texts(&["*"]);
        })
    };
    assert_eq!(
        filtered_response_headers(&all(false), &preflight_request("https://a"), &[]),
        [
            "allow-headers: *",
            "allow-methods: *",
            "allow-origin: *",
            "expose-headers: *",
            "max-age: 5"
        ]
    );
    assert_eq!(
        filtered_response_headers(&all(true), &preflight_request("https://a"), &[]),
        [
            "allow-credentials: true",
            "allow-headers: x-a, x-b",
            "allow-methods: PUT",
            "allow-origin: https://a",
            "max-age: 5",
            "vary: origin"
        ]
    );
}

#[test]
fn preflights_have_origin_and_method() {
    assert!(preflight_request("https://a").is_preflight());
    let lines = [
        ("origin", "https://a"),
        ("access-control-request-method", "PUT"),
    ];
    for (method, lines) in [
        (Method::GET, &lines[..]),
        (Method::OPTIONS, &lines[..1]),
        (Method::OPTIONS, &lines[1..]),
    ] {
        assert!(
            !CorsRequest::from_request(&method, &headers(lines)).is_preflight(),
            "{method} {lines:?}"
        );
    }
}

proptest! {
    /// Checks that a pattern allows the host itself and hosts below it, and no other origin.
    #[test]
    fn origin_patterns_match_the_host_and_its_subdomains_only(origin in "(https://)?[a-c.:@/#\\\\%*\\[\\] ]{0,10}(\\.?a\\.b)?(:443)?") {
        let wild = cors(&["https://*.a.b"], |_| ());
        if wild.matching_origin(&simple_request(&origin)).is_some() {
            let host = origin.strip_prefix("https://").unwrap();
            let host = host.strip_suffix(":443").unwrap_or(host);
            prop_assert!(host.ends_with(".a.b") && host.len() > 4, "{origin}");
            prop_assert!(host.bytes().all(|byte| byte == b'.' || byte.is_ascii_lowercase()), "{origin}");
        }
    }
}
