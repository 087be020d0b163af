//! Tests of policies that compare token claims.

use ambit_jwt::Claims;

use super::*;

fn call_with_claims(claims: &str) -> TestRequest {
    let claims = Claims::parse(claims.as_bytes(), &["roles".into()]).unwrap();
    TestRequest {
        claims: Some(claims),
        ..TestRequest::default()
    }
}

fn is_allowed(action: HttpAction, rule: HttpRule, call: &TestRequest) -> bool {
    let policies = policies([policy("p", action, vec![rule])]);
    policies
        .evaluate(Scope::Pod(&[]), &call.request())
        .is_allowed()
}

fn principals_rule(any: &[&str], none: &[&str]) -> HttpRule {
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

fn claim_condition(attribute: HttpAttribute, value: &str) -> HttpRule {
    HttpRule {
        conditions: vec![HttpCondition {
            attribute,
            values: vec![HttpValue::Text(StringMatch::from_pattern(value))],
            not_values: Vec::new(),
        }],
        ..HttpRule::default()
    }
}

fn claim_rule(path: &[&str], value: &str) -> HttpRule {
    let path = path.iter().map(|one| (*one).into()).collect();
    claim_condition(HttpAttribute::RequestClaim(path), value)
}

#[test]
fn request_principal_comes_from_its_token() {
    let call = call_with_claims(r#"{"iss":"https://i","sub":"alice"}"#);
    for (any, none, allowed) in [
        (&["https://i/alice"][..], &[][..], true),
        (&["https://i/*"], &[], true),
        (&["*/alice"], &[], true),
        (&["*"], &[], true),
        (&["https://i/bob", "https://j/*"], &[], false),
        (&["*"], &["https://i/alice"], false),
        (&[], &["https://i/bob"], true),
    ] {
        let rule = principals_rule(any, none);
        assert_eq!(
            is_allowed(HttpAction::Allow, rule, &call),
            allowed,
            "{any:?} {none:?}"
        );
    }
    for nobody in [
        TestRequest::default(),
        call_with_claims(r#"{"iss":"https://i"}"#),
        call_with_claims(r#"{"sub":"alice"}"#),
    ] {
        assert!(!is_allowed(
            HttpAction::Allow,
            principals_rule(&["*"], &[]),
            &nobody
        ));
        assert!(!is_allowed(
            HttpAction::Deny,
            principals_rule(&[], &["*"]),
            &nobody
        ));
        assert!(is_allowed(
            HttpAction::Deny,
            principals_rule(&["*"], &[]),
            &nobody
        ));
    }
}

#[test]
fn subjects_of_different_issuers_are_distinguished() {
    // Joined, issuer and subject are the same text as `carol` of `https://i/tenant`.
    let call = call_with_claims(r#"{"iss":"https://i","sub":"tenant/carol"}"#);
    for pattern in [
        "https://i/tenant/carol",
        "https://i/tenant/*",
        "*tenant/carol",
        "*/tenant/carol",
        "*/carol",
    ] {
        assert!(
            !is_allowed(HttpAction::Allow, principals_rule(&[pattern], &[]), &call),
            "{pattern}"
        );
        assert!(
            !is_allowed(HttpAction::Deny, principals_rule(&[pattern], &[]), &call),
            "{pattern}"
        );
    }
    for pattern in ["https://i/*", "*", "https*", "*rol"] {
        assert!(
            is_allowed(HttpAction::Allow, principals_rule(&[pattern], &[]), &call),
            "{pattern}"
        );
    }
    let other = call_with_claims(r#"{"iss":"https://i/tenant","sub":"carol"}"#);
    for pattern in [
        "https://i/tenant/carol",
        "https://i/tenant/*",
        "*/carol",
        "*nant/carol",
    ] {
        assert!(
            is_allowed(HttpAction::Allow, principals_rule(&[pattern], &[]), &other),
            "{pattern}"
        );
    }
}

#[test]
fn each_value_of_a_claim_is_compared() {
    let call = call_with_claims(
        r#"{"iss":"i","sub":"s","aud":["a","b"],"azp":"app","groups":["dev","ops"],
            "scope":"read write","roles":"one two","realm":{"role":["admin"]},"level":5}"#,
    );
    let allowed = |rule| is_allowed(HttpAction::Allow, rule, &call);
    assert!(allowed(claim_rule(&["groups"], "ops")));
    assert!(allowed(claim_rule(&["groups"], "o*")));
    assert!(allowed(claim_rule(&["scope"], "write")));
    assert!(allowed(claim_rule(&["roles"], "two")));
    assert!(allowed(claim_rule(&["realm", "role"], "admin")));
    assert!(!allowed(claim_rule(&["realm"], "admin")));
    assert!(!allowed(claim_rule(&["role"], "admin")));
    assert!(allowed(claim_condition(
        HttpAttribute::RequestAudiences,
        "b"
    )));
    assert!(!allowed(claim_condition(
        HttpAttribute::RequestAudiences,
        "c"
    )));
    assert!(allowed(claim_condition(
        HttpAttribute::RequestPresenter,
        "app"
    )));
    assert!(allowed(claim_condition(
        HttpAttribute::RequestPrincipal,
        "i/s"
    )));
    // A number is not text, but DENY policies match it.
    assert!(!allowed(claim_rule(&["level"], "5")));
    assert!(!is_allowed(
        HttpAction::Deny,
        claim_rule(&["level"], "5"),
        &call
    ));
}

#[test]
fn policies_with_claims_apply_to_http_only() {
    for rule in [principals_rule(&["*"], &[]), claim_rule(&["a"], "b")] {
        let policies = policies([policy("p", HttpAction::Allow, vec![rule])]);
        assert!(policies.needs_http(Scope::Pod(&[])));
        let connection =
            policies.evaluate_connection(Scope::Pod(&[]), &TestRequest::default().connection());
        assert!(!connection.is_allowed());
    }
}
