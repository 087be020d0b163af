//! Tests of request targets and their normalized forms.

use ambit_model::PathNormalization::{self, *};
use proptest::prelude::*;

use super::*;

fn path(target: &str, mode: PathNormalization) -> Result<String, PathError> {
    normalize(target, mode).map(|target| target.as_str().to_owned())
}

#[test]
fn base_rewrites_equivalent_paths_to_one_form() {
    for (given, expected) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a/b/..", "/a/"),
        ("/a/b/.", "/a/b/"),
        ("/a/..", "/"),
        ("/a/%2e%2E/b", "/b"),
        ("/%61dmin", "/admin"),
        ("/a%7eb%5F", "/a~b_"),
        ("/a%2fb", "/a%2Fb"),
        ("/a%20b", "/a%20b"),
        ("/a%c3%a9", "/a%C3%A9"),
        ("/aé", "/a%C3%A9"),
        ("/a|b", "/a%7Cb"),
        ("\\a\\b", "/a/b"),
        ("/a\\..\\b", "/b"),
        ("//a//b/", "//a//b/"),
        ("/a//../b", "/a/b"),
        ("/%2561", "/%2561"),
        ("/a?b=/../%2e\\", "/a?b=/../%2e\\"),
        ("/%61?%61", "/a?%61"),
        ("/...", "/..."),
        ("/a;b=c", "/a;b=c"),
    ] {
        assert_eq!(path(given, Base).as_deref(), Ok(expected), "{given}");
    }
}

#[test]
fn slashes_are_merged_and_decoded_by_setting() {
    for (given, merged, decoded) in [
        ("//a///b//", "/a/b/", "/a/b/"),
        ("/a%2Fb%5cc", "/a%2Fb%5Cc", "/a/b/c"),
        ("/a%2f%2F/b", "/a%2F%2F/b", "/a/b"),
        ("/a//../b", "/a/b", "/a/b"),
        ("/?//", "/?//", "/?//"),
    ] {
        assert_eq!(path(given, MergeSlashes).as_deref(), Ok(merged), "{given}");
        let all = path(given, DecodeAndMergeSlashes);
        assert_eq!(all.as_deref(), Ok(decoded), "{given}");
    }
    let dots = path("/a%2f..%5Cb", DecodeAndMergeSlashes);
    assert_eq!(dots.as_deref(), Ok("/b"));
}

#[test]
fn ambiguous_paths_are_refused() {
    use PathError::*;
    for (given, error) in [
        ("", NotOriginForm),
        ("*", NotOriginForm),
        ("a/b", NotOriginForm),
        ("http://a/b", NotOriginForm),
        ("?a", NotOriginForm),
        ("/a b", ControlCharacter),
        ("/a\u{0}", ControlCharacter),
        ("/a?b\r\nc", ControlCharacter),
        ("/a\u{7f}", ControlCharacter),
        ("/%00", ControlCharacter),
        ("/a%0d%0a", ControlCharacter),
        ("/%7F", ControlCharacter),
        ("/a#b", Fragment),
        ("/a?b#c", Fragment),
        ("/%", InvalidEscape),
        ("/%2", InvalidEscape),
        ("/%zz", InvalidEscape),
        ("/%u002e", InvalidEscape),
        ("/%+1", InvalidEscape),
        ("/%c0%ae%c0%ae/", OverlongEncoding),
        ("/%e0%80%af", OverlongEncoding),
        ("/%f0%80%80%af", OverlongEncoding),
        ("/..", AboveRoot),
        ("/../a", AboveRoot),
        ("/a/../../b", AboveRoot),
        ("/%2e%2e/a", AboveRoot),
        ("/a/..;/b", EscapedDotSegment),
        ("/a/.;x=y/b", EscapedDotSegment),
        ("/a/%2e%2e;x/b", EscapedDotSegment),
        ("/a/..%3bx/b", EscapedDotSegment),
        ("/a%2f..%2fb", EscapedDotSegment),
        ("/a%5c..", EscapedDotSegment),
        ("/.%2Fa", EscapedDotSegment),
    ] {
        assert_eq!(path(given, Base), Err(error), "{given:?}");
    }
}

#[test]
fn control_characters_are_refused_without_normalization() {
    for kept in ["/a/../b", "/%61\\", "//", "/../..;/%2f..", "/é"] {
        assert_eq!(path(kept, None).as_deref(), Ok(kept));
    }
    for refused in ["/%00", "/a#", "\\a", "/%", "/ "] {
        assert!(path(refused, None).is_err(), "{refused}");
    }
}

#[test]
fn only_options_may_target_the_asterisk() {
    let target = normalize_request_target(&Method::OPTIONS, "*", Base).unwrap();
    assert_eq!((target.path(), target.query()), ("*", Option::None));
    assert_eq!(
        normalize_request_target(&Method::GET, "*", Base),
        Err(PathError::NotOriginForm)
    );
    assert!(normalize_request_target(&Method::OPTIONS, "*?", Base).is_err());
}

#[test]
fn a_target_has_a_path_and_a_query() {
    let target = normalize("/%61?b?c", Base).unwrap();
    assert_eq!((target.path(), target.query()), ("/a", Some("b?c")));
    assert!(target.was_changed());
    let target = normalize("/a?", Base).unwrap().into_owned();
    assert_eq!((target.path(), target.query()), ("/a", Some("")));
    assert_eq!(normalize("/a", Base).unwrap().query(), Option::None);
}

#[test]
fn a_normal_target_is_not_copied() {
    for normal in ["/", "/a/b.c?d=%2f", "/a%20b%2F/é".trim_end_matches("/é")] {
        assert!(!normalize(normal, Base).unwrap().was_changed(), "{normal}");
    }
}

#[test]
fn paths_have_the_readings_of_lenient_servers() {
    for (path, expected) in [
        ("/admin", &[][..]),
        ("/admin/", &[]),
        ("*", &["/"]),
        ("/.well-known/x", &["/.well-known/x"]),
        ("/Admin", &["/admin"]),
        ("/a%2Fb", &["/a/b"]),
        ("//admin", &["//admin", "/admin"]),
        ("/admin;x=y", &["/admin;x=y", "/admin"]),
        ("/%40admin", &["/@admin"]),
        ("/;x/admin;y/", &["/;x/admin;y/", "/admin/", "/"]),
        ("/a;/admin", &["/a;/admin", "/a/admin", "/a"]),
        ("/a%C3%89", &["/a\u{e9}"]),
        ("/%FF", &["/\u{fffd}"]),
        ("/a/../../b", &["/a/../../b", "/b"]),
        ("/a\\b/..", &["/a\\b/..", "/a/"]),
        ("/%2561", &["/%61", "/a"]),
        ("/%25252561", &["/%252561", "/%2561", "/%61"]),
        ("/admin%3Fx", &["/admin?x", "/admin"]),
        (
            "/admin%2500.css",
            &["/admin%00.css", "/admin\0.css", "/admin"],
        ),
        ("/admin%20/x.", &["/admin /x.", "/admin/x"]),
        ("/a/..%20/b", &["/a/.. /b", "/b"]),
        ("/...", &["/..."]),
    ] {
        assert_eq!(path_readings(path), expected, "{path}");
    }
}

#[test]
fn spellings_of_a_path_are_counted_as_one() {
    for (path, expected) in [
        ("/login", "/login"),
        ("/login/", "/login"),
        ("/", "/"),
        ("*", "*"),
        ("//Login;a=1/", "/login"),
        ("/%2Flogin", "/login"),
        ("/%256cogin%3F1", "/login"),
        ("/x;1/../login", "/x"),
    ] {
        assert_eq!(path_equivalence_key(path), expected, "{path}");
    }
}

#[test]
fn policy_texts_get_the_form_of_normalized_paths() {
    for (given, expected) in [
        ("/a%2fb", "/a%2Fb"),
        ("/%61*", "/a*"),
        ("/é", "/%C3%A9"),
        ("/{a}/100%", "/%7Ba%7D/100%"),
    ] {
        assert_eq!(canonicalize_escapes(given), expected);
    }
}

fn target() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(vec![
            "/", "//", ".", "..", "%2e", "%2F", "%5c", "\\", ";", "%3b", "a", "admin", "%61", "%25",
            "%", "?", "é", "%c3%a9", "%C0%AF", "|", "{", "*", "=", "%41", "25",
        ])
        .prop_map(str::to_owned),
        1 => "\\PC{1,3}",
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| format!("/{}", parts.concat()))
}

fn mode() -> impl Strategy<Value = PathNormalization> {
    prop::sample::select(vec![None, Base, MergeSlashes, DecodeAndMergeSlashes])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn normalizing_again_changes_nothing(target in target(), mode in mode()) {
        if let Ok(once) = normalize(&target, mode) {
            let twice = normalize(once.as_str(), mode);
            prop_assert_eq!(twice.as_ref().map(NormalizedTarget::as_str), Ok(once.as_str()));
            prop_assert!(!twice.unwrap().was_changed());
        }
    }

    #[test]
    fn the_query_is_untouched_and_the_path_has_no_dots(target in target(), mode in mode()) {
        if let Ok(normal) = normalize(&target, mode) {
            prop_assert_eq!(normal.query(), target.split_once('?').map(|(_, query)| query));
            prop_assert!(normal.path().starts_with('/'));
            if mode != None {
                prop_assert!(!normal.path().split('/').any(|s| s == "." || s == ".."));
                prop_assert!(!normal.path().contains('\\'));
            }
            if matches!(mode, MergeSlashes | DecodeAndMergeSlashes) {
                prop_assert!(!normal.path().contains("//"));
            }
        }
    }

    /// Checks that the most lenient application interprets a forwarded path as the client's path.
    #[test]
    fn normalization_keeps_the_meaning(target in target()) {
        let Ok(normal) = normalize(&target, Base) else { return Ok(()) };
        let path = target.split('?').next().unwrap_or_default();
        let lenient_only = ["//", ";", "%3b", "%2F", "%5c"];
        if lenient_only.iter().any(|text| path.replace('\\', "/").contains(text)) {
            return Ok(());
        }
        prop_assert_eq!(path_equivalence_key(path), path_equivalence_key(normal.path()));
    }
}
