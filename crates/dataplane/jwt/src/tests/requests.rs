//! Tests of requests: locations of tokens, rules that apply to them, and forwarding.

use super::*;

pub(super) struct TestRequest {
    method: Method,
    pub(super) headers: HeaderMap,
    query: Option<&'static str>,
}

pub(super) fn get_request(lines: &[(&str, &str)]) -> TestRequest {
    let line = |(name, value): &(&str, &str)| {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    };
    TestRequest {
        method: Method::GET,
        headers: lines.iter().map(line).collect(),
        query: None,
    }
}

fn bearer_request(token: &str) -> TestRequest {
    get_request(&[("authorization", &format!("Bearer {token}"))])
}

pub(super) fn authentication(name: &str, rules: Vec<JwtRule>) -> Authentication {
    Authentication {
        key: PolicyKey::from_resource_name(name),
        for_gateway: true,
        rules,
        ..Authentication::default()
    }
}

pub(super) fn authentications(rules: Vec<JwtRule>) -> RequestAuthentications {
    let mut all = RequestAuthentications::default();
    assert!(all.insert(authentication("ns/a", rules)));
    all
}

/// Authenticates a request; returns the subjects of its verified tokens, or the reason for the rejection.
fn authenticate(
    all: &RequestAuthentications,
    sent: &mut TestRequest,
) -> Result<Vec<String>, RejectionReason> {
    let request = RequestParts {
        method: &sent.method,
        headers: &mut sent.headers,
        query: sent.query,
    };
    let proved = all
        .authenticate(&[], request, now())
        .map_err(|refused| refused.reason)?;
    let claims = all.still_valid_claims(&[], &proved);
    let subjects = claims.filter_map(|one| one.principal());
    Ok(subjects.map(|(_, subject)| subject.to_owned()).collect())
}

fn claims(subject: &str) -> Value {
    json!({ "iss": ISSUER, "sub": subject, "aud": "shop" })
}

#[test]
fn valid_token_is_removed_and_invalid_token_is_refused() {
    let issuer = Issuer::new("a");
    let all = authentications(vec![issuer.rule()]);
    let token = issuer.token(&claims("alice"));
    // Twice: the second token comes from the cache.
    for _ in 0..2 {
        let mut sent = bearer_request(&token);
        assert_eq!(authenticate(&all, &mut sent), Ok(vec!["alice".to_owned()]));
        assert!(sent.headers.is_empty());
    }
    let mut none = get_request(&[("authorization", "Basic abc")]);
    assert_eq!(authenticate(&all, &mut none), Ok(vec![]));
    assert_eq!(none.headers.len(), 1);
    let stranger = json!({ "iss": "https://other", "sub": "alice" });
    let refused = authenticate(&all, &mut bearer_request(&issuer.token(&stranger)));
    assert_eq!(refused, Err(TokenError::WrongIssuer.into()));
    let forged = Issuer::new("a").token(&claims("alice"));
    assert_eq!(
        authenticate(&all, &mut bearer_request(&forged)),
        Err(TokenError::InvalidSignature.into())
    );
    let mut old = claims("alice");
    old["exp"] = json!(1);
    assert_eq!(
        authenticate(&all, &mut bearer_request(&issuer.token(&old))),
        Err(TokenError::Expired.into())
    );
}

#[test]
fn cached_token_expires_like_any_other() {
    let issuer = Issuer::new("a");
    let all = authentications(vec![issuer.rule()]);
    let mut claims = claims("alice");
    claims["exp"] = json!(1_800_000_000);
    let token = issuer.token(&claims);
    let at_time = |time| {
        let mut sent = bearer_request(&token);
        let request = RequestParts {
            method: &sent.method,
            headers: &mut sent.headers,
            query: None,
        };
        all.authenticate(&[], request, time)
            .map(drop)
            .map_err(|refused| refused.reason)
    };
    assert_eq!(at_time(now()), Ok(()));
    assert_eq!(
        at_time(unix_time(1_800_000_060)),
        Err(TokenError::Expired.into())
    );
    assert_eq!(at_time(now()), Ok(()));
}

#[test]
fn token_audience_must_be_one_of_the_rules() {
    let issuer = Issuer::new("a");
    let rule = |audiences: &[&str]| JwtRule {
        audiences: audiences.iter().map(|one| ArcStr::from(*one)).collect(),
        ..issuer.rule()
    };
    for (aud, audiences, allowed) in [
        (json!("shop"), &["shop"][..], true),
        (json!(["bank", "shop"]), &["x", "shop"], true),
        (json!("shop"), &[], true),
        (json!("shop"), &["sho"], false),
        (json!(["bank"]), &["shop"], false),
        (json!({ "shop": true }), &["shop"], false),
        (json!(null), &["shop"], false),
    ] {
        let token = issuer.token(&json!({ "iss": ISSUER, "sub": "a", "aud": aud }));
        let result = authenticate(
            &authentications(vec![rule(audiences)]),
            &mut bearer_request(&token),
        );
        assert_eq!(result.is_ok(), allowed, "{aud} {audiences:?}");
    }
}

#[test]
fn tokens_are_read_only_at_the_rules_locations() {
    let issuer = Issuer::new("a");
    let rule = JwtRule {
        headers: vec![("x-jwt".into(), "JWT ".into())],
        params: vec!["token".into()],
        cookies: vec!["session".into()],
        ..issuer.rule()
    };
    let all = authentications(vec![rule]);
    let token = issuer.token(&claims("alice"));
    let alice = || Ok(vec!["alice".to_owned()]);
    let mut header = get_request(&[("x-jwt", &format!("JWT {token}")), ("x-other", "1")]);
    assert_eq!(authenticate(&all, &mut header), alice());
    assert_eq!(header.headers.keys().collect::<Vec<_>>(), ["x-other"]);
    let mut cookie = get_request(&[("cookie", &format!("a=1; session={token}"))]);
    assert_eq!(authenticate(&all, &mut cookie), alice());
    assert_eq!(cookie.headers["cookie"], "a=1");
    let query: &'static str = Box::leak(format!("a=1&token={token}").into_boxed_str());
    let mut sent = get_request(&[]);
    let request = RequestParts {
        method: &sent.method,
        headers: &mut sent.headers,
        query: Some(query),
    };
    let proved = all.authenticate(&[], request, now()).unwrap();
    assert_eq!(proved.query, Some(Some("a=1".to_owned())));
    // Not in the sources of other rules.
    let mut elsewhere = bearer_request("no.to.ken");
    assert_eq!(authenticate(&all, &mut elsewhere), Ok(vec![]));
    // The same token in two sources is one, and removed from both; two tokens are refused.
    let mut both = get_request(&[
        ("x-jwt", &format!("jwt {token}")),
        ("cookie", &format!("session={token}")),
    ]);
    assert_eq!(authenticate(&all, &mut both), alice());
    assert!(both.headers.is_empty());
    let bob = issuer.token(&claims("bob"));
    let mut two = get_request(&[
        ("x-jwt", &format!("JWT {token}")),
        ("cookie", &format!("session={bob}")),
    ]);
    assert_eq!(
        authenticate(&all, &mut two),
        Err(TokenError::MultipleTokens.into())
    );
    let mut two = get_request(&[
        ("x-jwt", &format!("JWT {token}")),
        ("x-jwt", &format!("JWT {bob}")),
    ]);
    assert_eq!(
        authenticate(&all, &mut two),
        Err(TokenError::MultipleTokens.into())
    );
}

#[test]
fn applications_get_verified_claims_only() {
    let issuer = Issuer::new("a");
    let rule = JwtRule {
        payload_header: Some("x-payload".into()),
        claim_headers: vec![
            ("x-user".into(), "sub".into()),
            ("x-tenant".into(), "org.id".into()),
            ("x-groups".into(), "groups".into()),
        ],
        forward_token: true,
        ..issuer.rule()
    };
    let all = authentications(vec![rule]);
    let payload = json!({ "iss": ISSUER, "sub": "alice", "org": { "id": 7 }, "groups": ["a"] });
    let token = issuer.token(&payload);
    let authorization = format!("Bearer {token}");
    let forged = [
        ("x-user", "root"),
        ("x_user", "root"),
        ("x-groups", "admin"),
        ("x-payload", "root"),
    ];
    let mut sent = get_request(&[&forged[..], &[("authorization", &authorization)]].concat());
    assert!(authenticate(&all, &mut sent).is_ok());
    assert_eq!(sent.headers["x-user"], "alice");
    assert_eq!(sent.headers["x-tenant"], "7");
    assert_eq!(
        sent.headers["x-payload"],
        encode_base64url(payload.to_string().as_bytes())
    );
    assert_eq!(sent.headers["authorization"], authorization);
    assert_eq!(sent.headers.len(), 4, "{:?}", sent.headers);
    let mut nobody = get_request(&forged);
    assert_eq!(authenticate(&all, &mut nobody), Ok(vec![]));
    assert!(nobody.headers.is_empty());
}

#[test]
fn tokens_in_other_spellings_of_a_header_are_removed() {
    let issuer = Issuer::new("a");
    let rule = JwtRule {
        headers: vec![("x-jwt".into(), "JWT ".into())],
        forward_token: true,
        ..issuer.rule()
    };
    let all = authentications(vec![rule]);
    let token = format!(
        "JWT {}",
        issuer.token(&json!({ "iss": ISSUER, "sub": "alice" }))
    );
    let mut sent = get_request(&[("x-jwt", &token), ("x_jwt", "JWT forged")]);
    assert!(authenticate(&all, &mut sent).is_ok());
    assert_eq!(sent.headers, get_request(&[("x-jwt", &token)]).headers);
    let name = |text| http::HeaderName::from_static(text);
    for (text, is_own) in [("x-jwt", true), ("x_jwt", true), ("authorization", false)] {
        assert_eq!(all.is_reserved_header(&[], &name(text)), is_own, "{text}");
    }
}

#[test]
fn preflight_needs_no_token_and_has_none_accepted() {
    let issuer = Issuer::new("a");
    let rule = JwtRule {
        forward_token: true,
        claim_headers: vec![("x-user".into(), "sub".into())],
        ..issuer.rule()
    };
    let all = authentications(vec![rule]);
    let lines = [
        ("origin", "https://a"),
        ("access-control-request-method", "PUT"),
        ("authorization", "Bearer not.a.token"),
        ("x-user", "root"),
    ];
    let mut sent = get_request(&lines);
    sent.method = Method::OPTIONS;
    assert_eq!(authenticate(&all, &mut sent), Ok(vec![]));
    assert!(!sent.headers.contains_key("authorization"));
    assert!(!sent.headers.contains_key("x-user"));
    for (method, left_out) in [(Method::GET, 9), (Method::OPTIONS, 0), (Method::OPTIONS, 1)] {
        let others = lines.iter().enumerate().filter(|(at, _)| *at != left_out);
        let others: Vec<_> = others.map(|(_, line)| *line).collect();
        let mut sent = get_request(&others);
        sent.method = method;
        assert_eq!(
            authenticate(&all, &mut sent),
            Err(TokenError::Malformed.into())
        );
    }
}

#[test]
fn tokens_of_two_issuers_are_both_verified() {
    let (one, other) = (Issuer::new("a"), Issuer::new("b"));
    let rule = JwtRule {
        issuer: "https://other".into(),
        headers: vec![("x-other".into(), ArcStr::new())],
        ..other.rule()
    };
    let all = authentications(vec![one.rule(), rule]);
    let mine = format!("Bearer {}", one.token(&claims("alice")));
    let others = other.token(&json!({ "iss": "https://other", "sub": "app" }));
    let mut both = get_request(&[("authorization", &mine), ("x-other", &others)]);
    assert_eq!(
        authenticate(&all, &mut both),
        Ok(vec!["alice".to_owned(), "app".to_owned()])
    );
    let forged = other.token(&claims("root"));
    let mut sent = get_request(&[("x-other", &forged)]);
    assert_eq!(
        authenticate(&all, &mut sent),
        Err(TokenError::WrongIssuer.into())
    );
    let mut sent = bearer_request(&forged);
    assert_eq!(
        authenticate(&all, &mut sent),
        Err(TokenError::UnknownKey.into())
    );
    let mut sent = get_request(&[("authorization", &mine), ("x-other", "no.to.ken")]);
    assert!(authenticate(&all, &mut sent).is_err());
}

#[test]
fn missing_keys_validate_nothing_and_rotated_keys_only_their_own_tokens() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let with = |keys: JwtKeys| JwtRule {
        keys,
        key_source: "https://issuer.example/keys".into(),
        ..old.rule()
    };
    let known = |issuer: &Issuer| match issuer.rule().keys {
        JwtKeys::Known(keys) => with(JwtKeys::Known(keys)),
        _ => unreachable!(),
    };
    let token = old.token(&claims("alice"));
    let mut all = authentications(vec![with(JwtKeys::Pending)]);
    assert_eq!(
        authenticate(&all, &mut bearer_request(&token)),
        Err(TokenError::NoKeys.into())
    );
    all.insert(authentication("ns/a", vec![known(&old)]));
    assert!(authenticate(&all, &mut bearer_request(&token)).is_ok());
    // A restarted control plane has not fetched the keys yet.
    all.insert(authentication("ns/a", vec![with(JwtKeys::Pending)]));
    assert!(authenticate(&all, &mut bearer_request(&token)).is_ok());
    let mut sent = bearer_request(&token);
    let request = RequestParts {
        method: &sent.method,
        headers: &mut sent.headers,
        query: None,
    };
    let proved = all.authenticate(&[], request, now()).unwrap();
    assert_eq!(all.still_valid_claims(&[], &proved).count(), 1);
    all.insert(authentication("ns/a", vec![known(&new)]));
    assert_eq!(
        authenticate(&all, &mut bearer_request(&token)),
        Err(TokenError::UnknownKey.into())
    );
    assert!(authenticate(&all, &mut bearer_request(&new.token(&claims("alice")))).is_ok());
    // Requests in flight are no longer valid either.
    assert_eq!(all.still_valid_claims(&[], &proved).count(), 0);
    all.insert(authentication(
        "ns/a",
        vec![with(JwtKeys::Unavailable("gone".into()))],
    ));
    let token = new.token(&claims("alice"));
    assert_eq!(
        authenticate(&all, &mut bearer_request(&token)),
        Err(TokenError::NoKeys.into())
    );
    // Keys of another source are not kept for a new one.
    all.insert(authentication("ns/a", vec![known(&old)]));
    let elsewhere = JwtRule {
        key_source: "https://elsewhere/keys".into(),
        ..with(JwtKeys::Pending)
    };
    all.insert(authentication("ns/a", vec![elsewhere]));
    let token = old.token(&claims("alice"));
    assert_eq!(
        authenticate(&all, &mut bearer_request(&token)),
        Err(TokenError::NoKeys.into())
    );
}

#[test]
fn objects_apply_to_their_targets_and_invalid_ones_deny_there() {
    let issuer = Issuer::new("a");
    let service = |name: &str| NamespacedHostname::new("ns", name);
    let mut all = RequestAuthentications::default();
    all.insert(Authentication {
        for_gateway: false,
        services: vec![service("a")],
        ..authentication("ns/a", vec![issuer.rule()])
    });
    let refused = |all: &RequestAuthentications, of: &[NamespacedHostname]| {
        let mut sent = bearer_request("no.to.ken");
        let request = RequestParts {
            method: &sent.method,
            headers: &mut sent.headers,
            query: None,
        };
        all.authenticate(of, request, now()).is_err()
    };
    assert!(refused(&all, &[service("a")]));
    assert!(!refused(&all, &[service("b")]) && !refused(&all, &[]));
    // Any of several services suffices.
    assert!(refused(&all, &[service("b"), service("a")]));
    assert!(all.needs_http(&[service("b"), service("a")]));
    assert!(all.needs_http(&[service("a")]) && !all.needs_http(&[]));
    let broken = Authentication {
        not_understood: Some("why".into()),
        ..authentication("ns/b", Vec::new())
    };
    all.insert(broken);
    assert!(refused(&all, &[]) && refused(&all, &[service("b")]));
    assert!(all.remove(&PolicyKey::from_resource_name("ns/b")));
    assert!(!refused(&all, &[]));
    assert!(all.remove(&PolicyKey::from_resource_name("ns/a")) && all.is_empty());
}
