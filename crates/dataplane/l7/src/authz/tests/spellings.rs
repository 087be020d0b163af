//! Spellings of `/admin`: each is refused, or judged as `/admin` is, whatever a DENY or an ALLOW policy says,
//! as long as an application may take it for `/admin`.

use ambit_model::PathNormalization;

use super::*;
use crate::path;

/// Each is served as `/admin` by some application.
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
];

#[test]
fn every_spelling_of_admin_is_refused_or_judged_as_admin() {
    let deny = to(HttpOperation {
        paths: paths(&["/admin", "/admin/*"]),
        ..HttpOperation::default()
    });
    let all_but = to(HttpOperation {
        not_paths: paths(&["/admin"]),
        ..HttpOperation::default()
    });
    let public = to(HttpOperation {
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
            let call = Call::path(target.path());
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
fn what_is_not_admin_is_not_denied() {
    let deny = to(HttpOperation {
        paths: paths(&["/admin", "/admin/*"]),
        ..HttpOperation::default()
    });
    for other in ["/administrator", "/x/admin", "/%2561dmin", "/a;/dmin"] {
        let target = path::normalize(other, PathNormalization::Base).unwrap();
        let call = Call::path(target.path());
        assert!(!matches(&deny, HttpAction::Deny, &call), "{other}");
    }
}
