//! Tests of filters on requests, and of invalid filters.

use ambit_model::HttpCors;
use proptest::prelude::*;

use super::*;

const BASE: PathNormalization = PathNormalization::Base;

fn request_of(path: &str, prefix: usize) -> MatchedPath<'_> {
    MatchedPath {
        path,
        query: None,
        prefix_len: prefix,
    }
}

/// Checks the Gateway API's table of prefix replacements.
#[test]
fn prefixes_are_replaced_as_specified() {
    for (path, prefix, with, expected) in [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        ("/foo", "", "/xyz", "/xyz/foo"),
    ] {
        let change = PathChange::Prefix(with.into());
        let target = rewrite_path(Some(&change), request_of(path, prefix.len()), BASE);
        assert_eq!(target.as_deref(), Ok(expected), "{path} {prefix} {with}");
    }
    let full = PathChange::Full("/all".into());
    let with_query = MatchedPath {
        query: Some("a=b?c"),
        ..request_of("/foo", 0)
    };
    let target = rewrite_path(Some(&full), with_query, BASE);
    assert_eq!(target.as_deref(), Ok("/all?a=b?c"));
}

#[test]
fn matched_part_of_the_path_is_replaced_as_text() {
    for (path, prefix, with, expected) in [
        ("/api/x", "/api/", "/", "/x"),
        ("/api/", "/api/", "/new/", "/new/"),
        ("/apis", "/api", "/new", "/news"),
        ("/foo", "/", "/x", "/xfoo"),
        // The match covers the full path.
        ("/foo/bar", "", "/all", "/all"),
    ] {
        let change = PathChange::Matched(with.into());
        let target = rewrite_path(Some(&change), request_of(path, prefix.len()), BASE);
        assert_eq!(target.as_deref(), Ok(expected), "{path} {prefix} {with}");
    }
}

fn location(to: HttpRedirect, host: &str, port: u16) -> String {
    let redirect = Redirect::new(&HttpRedirect { status: 302, ..to }).unwrap();
    let location = redirect.location_header(host, port, request_of("//evil/x", 0), BASE);
    location.unwrap_or_else(|error| error.to_string())
}

#[test]
fn redirect_location_has_consistent_scheme_host_and_port() {
    let to = |scheme: Option<&str>, hostname: Option<&str>, port: Option<u16>| HttpRedirect {
        scheme: scheme.map(ArcStr::from),
        hostname: hostname.map(ArcStr::from),
        port,
        ..HttpRedirect::default()
    };
    for (to, host, port, expected) in [
        (to(None, None, None), "echo:8080", 80, "http://echo//evil/x"),
        (
            to(None, None, None),
            "echo",
            8080,
            "http://echo:8080//evil/x",
        ),
        (
            to(Some("https"), None, None),
            "echo",
            8080,
            "https://echo//evil/x",
        ),
        (
            to(Some("http"), None, None),
            "echo",
            8080,
            "http://echo//evil/x",
        ),
        (
            to(Some("https"), Some("b"), Some(80)),
            "echo",
            80,
            "https://b:80//evil/x",
        ),
        (
            to(None, None, Some(443)),
            "[::1]:80",
            80,
            "http://[::1]:443//evil/x",
        ),
    ] {
        assert_eq!(location(to, host, port), expected);
    }
    assert!(location(to(None, None, None), "", 80).contains("no host"));
}

#[test]
fn headers_are_set_added_and_removed() {
    let line = |name: &str, value: &str| (ArcStr::from(name), ArcStr::from(value));
    let filters = Filters::new(&[HttpFilter::RequestHeaders(HeaderChanges {
        set: vec![line("x-set", "new")],
        add: vec![line("x-add", "2")],
        remove: vec!["x-gone".into()],
    })])
    .unwrap();
    let mut headers = HeaderMap::new();
    for name in ["x-set", "x-add", "x-gone"] {
        headers.append(name, HeaderValue::from_static("1"));
        headers.append(name, HeaderValue::from_static("1b"));
    }
    let applied = EffectiveFilters {
        rule: &filters,
        backend: None,
    };
    applied.change_response(&mut headers);
    assert_eq!(headers.len(), 6);
    applied.change_request(&mut headers);
    let all = |name| headers.get_all(name).iter().collect::<Vec<_>>();
    assert_eq!(all("x-set"), ["new"]);
    assert_eq!(all("x-add"), ["1", "1b", "2"]);
    assert!(all("x-gone").is_empty());
}

#[test]
fn contradictory_and_forbidden_filters_are_refused() {
    let set = |name: &str, value: &str| {
        HttpFilter::RequestHeaders(HeaderChanges {
            set: vec![(name.into(), value.into())],
            ..HeaderChanges::default()
        })
    };
    let remove = |name: &str| {
        HttpFilter::ResponseHeaders(HeaderChanges {
            remove: vec![name.into()],
            ..HeaderChanges::default()
        })
    };
    let redirect = |status| {
        HttpFilter::Redirect(HttpRedirect {
            status,
            ..HttpRedirect::default()
        })
    };
    let rewrite = |path| {
        HttpFilter::Rewrite(HttpRewrite {
            path: Some(path),
            ..HttpRewrite::default()
        })
    };
    let full = |text: &str| rewrite(PathChange::Full(text.into()));
    let cors = |origin: &str, method: &str| {
        HttpFilter::Cors(HttpCors {
            allow_origins: vec![origin.into()],
            allow_methods: vec![method.into()],
            ..HttpCors::default()
        })
    };
    assert!(Filters::new(&[set("x", "1"), remove("x"), full("/a")]).is_ok());
    for filters in [
        vec![set("x", "1"), set("y", "1")],
        vec![redirect(302), full("/a")],
        vec![redirect(200)],
        vec![set("host", "evil")],
        vec![set("X-Forwarded-Client-Cert", "evil")],
        vec![set("x-ambit-original-peer", "evil")],
        vec![set("x_ambit_original_peer", "evil")],
        vec![set("X_Forwarded_Client_Cert", "evil")],
        vec![set("x-envoy-internal", "true")],
        vec![set("x_forwarded_for", "192.0.2.1")],
        vec![set("Content_Length", "5")],
        vec![remove("forwarded")],
        vec![set("content-length", "5")],
        vec![remove("transfer-encoding")],
        vec![set("x", "a\r\nb: c")],
        vec![set("a b", "1")],
        vec![
            HttpFilter::Cors(HttpCors::default()),
            HttpFilter::Cors(HttpCors::default()),
        ],
        vec![cors("https://a/b", "GET")],
        vec![cors("https://a", "GET, POST")],
        vec![cors("https://a", "G\r\nset-cookie: a")],
        vec![full("a")],
        vec![full("")],
        vec![full("/a?b")],
        vec![full("/../a")],
        vec![rewrite(PathChange::Prefix("a".into()))],
    ] {
        assert!(Filters::new(&filters).is_err(), "{filters:?}");
    }
}

proptest! {
    /// Checks that every rewritten path is normalized, or the request is rejected.
    #[test]
    fn rewritten_paths_are_normalized(path in "/[a-c./%2e;\\\\]{0,12}", with in "/?[a-c./%2f;\\\\]{0,8}", prefix in 0..12_usize) {
        let Ok(normal) = path::normalize(&path, BASE) else { return Ok(()) };
        let change = PathChange::Prefix(with.as_str().into());
        if let Ok(target) = rewrite_path(Some(&change), request_of(normal.path(), prefix), BASE) {
            let again = path::normalize(&target, BASE).unwrap();
            prop_assert!(target.starts_with('/') && !again.was_changed(), "{target}");
        }
    }

    /// Checks that no application interprets a rewritten path as one outside of the replacement prefix.
    #[test]
    fn a_rewritten_path_stays_below_the_new_prefix(rest in "(/[a.%2e;\\\\]{0,4}|/%2[ef]|/\\.\\.){0,4}") {
        let path = format!("/old{rest}");
        let Ok(normal) = path::normalize(&path, BASE) else { return Ok(()) };
        let Some(after) = normal.path().strip_prefix("/old") else { return Ok(()) };
        if !after.is_empty() && !after.starts_with('/') {
            return Ok(());
        }
        let change = PathChange::Prefix("/new".into());
        let target = rewrite_path(Some(&change), request_of(normal.path(), "/old".len()), BASE).unwrap();
        for one in path::path_readings(&target).into_iter().chain([target.clone()]) {
            prop_assert!(one == "/new" || one.starts_with("/new/"), "{rest}: {target} as {one}");
        }
    }
}
