//! Tests of alternative spellings of `/admin`: for every DENY or ALLOW policy, a spelling that an application may take
//! for `/admin` is rejected, or authorized as `/admin` is.

use ambit_model::PathNormalization;
use proptest::prelude::*;

use super::*;
use crate::path;

/// Paths that some application serves as `/admin`.
const SPELLINGS: &[&str] = &[
    "/admin",
    "/admin?x=/public",
    "/./admin",
    "/public/../admin",
    "/%61dmin",
    "/%61%64%6d%69%6e",
    "/%61%64%6D%69%6E",
    "/public/%2e%2e/admin",
    "/public/%2E./admin",
    "/public/.%2e/admin",
    "/%2e/admin",
    "\\admin",
    "/public\\..\\admin",
    "/public/..\\admin",
    "//admin",
    "///admin",
    "/.//admin",
    "/public//../../admin",
    "/%2fadmin",
    "/%2Fadmin",
    "/%5cadmin",
    "/%5Cadmin",
    "/public%2f..%2fadmin",
    "/public/..%2fadmin",
    "/public%2f../admin",
    "/public/..%5cadmin",
    "/public%5c..%5cadmin",
    "/admin;x=y",
    "/admin;",
    "/;x/admin",
    "/public/..;/admin",
    "/public/..;x=y/admin",
    "/.;/admin",
    "/%2e%2e;/admin",
    "/../admin",
    "/..//admin",
    "/public/../../admin",
    "/%2e%2e/admin",
    "/admin#",
    "/admin#/../public",
    "/admin%00",
    "/admin%00.html",
    "/admin%09",
    "/admin%0d%0a",
    "/adm\tin",
    "/admin ",
    "/%u0061dmin",
    "/%c1%a1dmin",
    "/%c0%afadmin",
    "/public/%c0%ae%c0%ae/admin",
    "/%e0%80%afadmin",
    "http://shop/admin",
    "admin",
    "/admin%",
    "/admin%2",
    "/%;x/admin",
    "/ADMIN",
    "/aDmin",
    "/admin/",
    "/admin//",
    "/admin/.",
    "/admin/x/..",
    "/admin%2F",
    "/admin%2f%2f",
    "/admin\\",
    "/admin%5C",
    "/admin%20",
    "/%20admin",
    "/admin.",
    "/admin%2e",
    "/admin;/public",
    "/admin;x/../public/../admin",
    "/admin%3bx",
    "/admin%3B/public",
    "/admin%3f/public",
    "/admin%23/public",
    "/%2561dmin",
    "/%252561dmin",
    "/%25252e%25252e/admin",
    "/%252fadmin",
    "/public/%252e%252e/admin",
    "/public/%252e%252e%252fadmin",
    "/admin%2500",
    "/admin%250d%250a",
    "/admin%2500.css",
    "/public/..%20/admin",
    "/public%5c%2e%2e%5cadmin",
    "/public/%2e%2e;/admin",
    "/public;x/../admin",
    "/;/admin",
    "/;/;/admin",
    "//;//admin",
    "/.;x/admin",
    "/%3b/admin",
    "/./././admin",
    "/public/./../admin",
    "/public/x/../../admin",
];

#[test]
fn spellings_of_admin_are_refused_or_authorized_as_admin() {
    let deny = operation_rule(HttpOperation {
        paths: paths(&["/admin", "/admin/*"]),
        ..HttpOperation::default()
    });
    let all_but = operation_rule(HttpOperation {
        not_paths: paths(&["/admin"]),
        ..HttpOperation::default()
    });
    let public = operation_rule(HttpOperation {
        paths: paths(&["/public/*", "/public", "/"]),
        ..HttpOperation::default()
    });
    for mode in [
        PathNormalization::Base,
        PathNormalization::MergeSlashes,
        PathNormalization::DecodeAndMergeSlashes,
    ] {
        for spelling in SPELLINGS {
            let Ok(target) = path::normalize(spelling, mode) else {
                continue;
            };
            let call = TestRequest::path(target.path());
            assert!(matches(&deny, HttpAction::Deny, &call), "{spelling}");
            assert!(!matches(&all_but, HttpAction::Allow, &call), "{spelling}");
            assert!(!matches(&public, HttpAction::Allow, &call), "{spelling}");
        }
    }
}

#[test]
fn the_plain_spellings_are_not_refused() {
    for spelling in SPELLINGS.iter().take(16) {
        let target = path::normalize(spelling, PathNormalization::Base);
        assert!(target.is_ok(), "{spelling}");
    }
}

#[test]
fn other_paths_are_not_denied() {
    let deny = operation_rule(HttpOperation {
        paths: paths(&["/admin", "/admin/*"]),
        ..HttpOperation::default()
    });
    for other in ["/administrator", "/x/admin", "/a;/dmin"] {
        let target = path::normalize(other, PathNormalization::Base).unwrap();
        let call = TestRequest::path(target.path());
        assert!(!matches(&deny, HttpAction::Deny, &call), "{other}");
    }
}

/// Generates an alternative spelling of a path, which a lenient server treats as the same path.
fn alternative_spelling(path: &str, how: &[u8]) -> String {
    let mut out = String::new();
    let mut how = how.iter().copied().cycle();
    for byte in path.bytes() {
        let text = char::from(byte).to_string();
        let how = how.next().unwrap_or_default();
        match (byte, how % 9) {
            (b'/', 1) => out.push_str("//"),
            (b'/', 2) => out.push_str("/./"),
            (b'/', 3) => out.push_str(";x/"),
            (b'/', 4) => out.push_str("/%2F"),
            (b'/', 5) => out.push_str("/x/../"),
            (b'/', 6) => out.push_str("/%5C"),
            (b'a'..=b'z', 1) => out.push_str(&text.to_uppercase()),
            (b'a'..=b'z', 2) => out.push_str(&format!("%{byte:02X}")),
            (b'a'..=b'z', 3) => out.push_str(&format!("%25{byte:02x}")),
            _ => out.push_str(&text),
        }
    }
    // A path begins with a slash.
    match out.strip_prefix(';') {
        Some(rest) => format!("/;{rest}"),
        None => out,
    }
}

fn plain_path() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec!["admin", "public", "x.css", "api"]);
    prop::collection::vec(names, 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn spellings_never_get_more_access_than_the_plain_path(
        plain in plain_path(),
        how in prop::collection::vec(any::<u8>(), 1..20),
        end in prop::sample::select(vec!["", "/", ";x.css", "%3Fx.css", ";/public", "%2500.css", "%20", "."]),
        patterns in prop::collection::vec(
            prop::sample::select(vec![
                "/admin", "/admin/*", "/public", "/public/*", "*.css", "*/admin", "/api/{*}", "/{*}", "/public/{**}",
            ]),
            1..3,
        ),
        is_exception in any::<bool>(),
    ) {
        let spelling = alternative_spelling(&plain, &how);
        // No server both cuts a path at a semicolon and strips parameters before it.
        let end = if spelling.contains(';') && end == ";/public" { "" } else { end };
        let spelling = format!("{spelling}{end}");
        let Ok(target) = path::normalize(&spelling, PathNormalization::Base) else { return Ok(()) };
        let all = paths(&patterns);
        let rule = operation_rule(match is_exception {
            false => HttpOperation { paths: all, ..HttpOperation::default() },
            true => HttpOperation { not_paths: all, ..HttpOperation::default() },
        });
        let [plain, odd] = [&plain, target.path()].map(TestRequest::path);
        // For allowing and excepting rules, a slash at the end distinguishes `/public/` from `/public`.
        let is_same = end != "/";
        if (is_same || !is_exception) && matches(&rule, HttpAction::Deny, &plain) {
            prop_assert!(matches(&rule, HttpAction::Deny, &odd), "{spelling} {patterns:?}");
        }
        if (is_same || is_exception) && matches(&rule, HttpAction::Allow, &odd) {
            prop_assert!(matches(&rule, HttpAction::Allow, &plain), "{spelling} {patterns:?}");
        }
    }
}
