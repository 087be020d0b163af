//! Fuzzes JSON web tokens, key sets, and requests with tokens from every source: no input panics, and every accepted
//! token is signed by one of the keys.
#![no_main]

use std::time::SystemTime;

use ambit_jwt::{Claims, ComparableValues, KeySet, RequestAuthentications, RequestParts};
use ambit_model::{Authentication, JwtKeys, JwtRule, PolicyKey};
use http::{HeaderMap, HeaderValue, Method, header};
use libfuzzer_sys::fuzz_target;

const KEYS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    match first % 3 {
        0 => drop(KeySet::parse_jwks(rest)),
        1 => {
            if let Ok(claims) = Claims::parse(rest, &["roles".into()]) {
                let _principal = claims.principal();
                claims.any_value_matches(&["roles".into()], ComparableValues::AllScalars, |text| {
                    text.len() == 1
                });
                claims.any_value_matches(
                    &["a".into(), "b".into()],
                    ComparableValues::StringsOnly,
                    str::is_empty,
                );
            }
        }
        _ => request(rest),
    }
});

fn request(text: &[u8]) {
    let mut all = RequestAuthentications::default();
    let rule = |issuer: &str| JwtRule {
        issuer: issuer.into(),
        keys: JwtKeys::Known(KEYS.into()),
        cookies: vec!["t".into()],
        params: vec!["t".into()],
        headers: vec![("authorization".into(), "Bearer ".into())],
        ..JwtRule::default()
    };
    all.insert(Authentication {
        key: PolicyKey::from_resource_name("ns/a"),
        for_gateway: true,
        rules: vec![rule("joe"), rule("jane")],
        ..Authentication::default()
    });
    let mut headers = HeaderMap::new();
    let Ok(value) = HeaderValue::from_bytes(text) else {
        return;
    };
    headers.append(header::COOKIE, value.clone());
    headers.append(header::AUTHORIZATION, value);
    let parts = RequestParts {
        method: &Method::GET,
        headers: &mut headers,
        query: std::str::from_utf8(text).ok(),
    };
    if let Ok(proved) = all.authenticate(&[], parts, SystemTime::UNIX_EPOCH) {
        // Nobody has the private key, so no token can be valid.
        assert!(proved.is_empty());
    }
}
