//! Tests of policies that compare token claims.

use ambit_jwt::Claims;

use super::*;

fn with(claims: &str) -> Call {
    let claims = Claims::read(claims.as_bytes(), &["roles".into()]).unwrap();
    Call {
        claims: Some(claims),
        ..Call::default()
    }
}

fn decided(action: HttpAction, rule: HttpRule, call: &Call) -> bool {
    let policies = policies([policy("p", action, vec![rule])]);
    policies
        .evaluate(Scope::Pod(&[]), &call.request())
        .is_allowed()
}

fn principals(any: &[&str], none: &[&str]) -> HttpRule {
    let texts = |all: &[&str]| {
        all.iter()
            .map(|one| StringMatch::from_pattern(one))
            .collect()
    };
    HttpRule {
        sources: vec![HttpSource {
            request_principals: texts(any),
            not_request_principals: texts(none),
            ..HttpSource::default()
        }],
        ..HttpRule::default()
    }
}

fn asks(attribute: HttpAttribute, value: &str) -> HttpRule {
    HttpRule {
        conditions: vec![HttpCondition {
            attribute,
            values: vec![HttpValue::Text(StringMatch::from_pattern(value))],
            not_values: Vec::new(),
        }],
        ..HttpRule::default()
    }
}

fn claim(path: &[&str], value: &str) -> HttpRule {
    let path = path.iter().map(|one| (*one).into()).collect();
    asks(HttpAttribute::RequestClaim(path), value)
}

#[test]
fn request_principal_comes_from_its_token() {
    let call = with(r#"{"iss":"https://i","sub":"alice"}"#);
    for (any, none, allowed) in [
        (&["https://i/alice"][..], &[][..], true),
        (&["https://i/*"], &[], true),
        (&["*/alice"], &[], true),
        (&["*"], &[], true),
        (&["https://i/bob", "https://j/*"], &[], false),
        (&["*"], &["https://i/alice"], false),
        (&[], &["https://i/bob"], true),
    ] {
        let rule = principals(any, none);
        assert_eq!(
            decided(HttpAction::Allow, rule, &call),
            allowed,
            "{any:?} {none:?}"
        );
    }
    for nobody in [
        Call::default(),
        with(r#"{"iss":"https://i"}"#),
        with(r#"{"sub":"alice"}"#),
    ] {
        assert!(!decided(
            HttpAction::Allow,
            principals(&["*"], &[]),
            &nobody
        ));
        assert!(!decided(HttpAction::Deny, principals(&[], &["*"]), &nobody));
        assert!(decided(HttpAction::Deny, principals(&["*"], &[]), &nobody));
    }
}

#[test]
fn subjects_of_different_issuers_are_distinguished() {
    // Joined, issuer and subject are the same text as `carol` of `https://i/tenant`.
    let call = with(r#"{"iss":"https://i","sub":"tenant/carol"}"#);
    for pattern in [
        "https://i/tenant/carol",
        "https://i/tenant/*",
        "*tenant/carol",
        "*/tenant/carol",
        "*/carol",
    ] {
        assert!(
            !decided(HttpAction::Allow, principals(&[pattern], &[]), &call),
            "{pattern}"
        );
        assert!(
            !decided(HttpAction::Deny, principals(&[pattern], &[]), &call),
            "{pattern}"
        );
    }
    for pattern in ["https://i/*", "*", "https*", "*rol"] {
        assert!(
            decided(HttpAction::Allow, principals(&[pattern], &[]), &call),
            "{pattern}"
        );
    }
    let other = with(r#"{"iss":"https://i/tenant","sub":"carol"}"#);
    for pattern in [
        "https://i/tenant/carol",
        "https://i/tenant/*",
        "*/carol",
        "*nant/carol",
    ] {
        assert!(
            decided(HttpAction::Allow, principals(&[pattern], &[]), &other),
            "{pattern}"
        );
    }
}

#[test]
fn each_value_of_a_claim_is_compared() {
    let call = with(
        r#"{"iss":"i","sub":"s","aud":["a","b"],"azp":"app","groups":["dev","ops"],
            "scope":"read write","roles":"one two","realm":{"role":["admin"]},"level":5}"#,
    );
    let allowed = |rule| decided(HttpAction::Allow, rule, &call);
    assert!(allowed(claim(&["groups"], "ops")));
    assert!(allowed(claim(&["groups"], "o*")));
    assert!(allowed(claim(&["scope"], "write")));
    assert!(allowed(claim(&["roles"], "two")));
    assert!(allowed(claim(&["realm", "role"], "admin")));
    assert!(!allowed(claim(&["realm"], "admin")));
    assert!(!allowed(claim(&["role"], "admin")));
    assert!(allowed(asks(HttpAttribute::RequestAudiences, "b")));
    assert!(!allowed(asks(HttpAttribute::RequestAudiences, "c")));
    assert!(allowed(asks(HttpAttribute::RequestPresenter, "app")));
    assert!(allowed(asks(HttpAttribute::RequestPrincipal, "i/s")));
    // A number is not text, but DENY policies match it.
    assert!(!allowed(claim(&["level"], "5")));
    assert!(!decided(HttpAction::Deny, claim(&["level"], "5"), &call));
}

#[test]
fn policies_with_claims_apply_to_http_only() {
    for rule in [principals(&["*"], &[]), claim(&["a"], "b")] {
        let policies = policies([policy("p", HttpAction::Allow, vec![rule])]);
        assert!(policies.need_http(Scope::Pod(&[])));
        let connection =
            policies.evaluate_connection(Scope::Pod(&[]), &Call::default().connection());
        assert!(!connection.is_allowed());
    }
}
