//! Tests with the vectors of RFC 7515, RFC 8037 and PyJWT, and with tokens that are rejected.

use std::time::{Duration, SystemTime};

use ambit_model::{ArcStr, Authentication, JwtKeys, JwtRule, NamespacedHostname, PolicyKey};
use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};

use crate::{
    KeySet, RejectionReason, RequestAuthentications, RequestParts, TokenError,
    algorithm::Algorithm, base64url, token::UnverifiedToken,
};

mod attacks;
mod redact;
mod requests;

const ISSUER: &str = "https://issuer.example";

fn pyjwt_vectors() -> Value {
    serde_json::from_str(include_str!("tests/pyjwt.json")).unwrap()
}

fn rfc_vectors() -> Value {
    serde_json::from_str(include_str!("tests/rfc.json")).unwrap()
}

fn unix_time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Returns the time at which the tests' tokens are valid.
fn now() -> SystemTime {
    unix_time(1_800_000_000)
}

fn key_set(keys: &[Value]) -> KeySet {
    KeySet::parse_jwks(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

/// Issuer of tokens with a signing key.
struct Issuer {
    key_pair: EcdsaKeyPair,
    random: SystemRandom,
    id: &'static str,
}

impl Issuer {
    fn new(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let random = SystemRandom::new();
        Self {
            key_pair: pair,
            random,
            id,
        }
    }

    fn public_jwk(&self) -> Value {
        let point = self.key_pair.public_key().as_ref();
        json!({ "kty": "EC", "crv": "P-256", "kid": self.id,
            "x": encode_base64url(&point[1..33]), "y": encode_base64url(&point[33..]) })
    }

    fn sign(&self, header: &str, payload: &str) -> String {
        let signed = format!(
            "{}.{}",
            encode_base64url(header.as_bytes()),
            encode_base64url(payload.as_bytes())
        );
        let signature = self.key_pair.sign(&self.random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", encode_base64url(signature.as_ref()))
    }

    fn token(&self, claims: &Value) -> String {
        let header = json!({ "alg": "ES256", "kid": self.id }).to_string();
        self.sign(&header, &claims.to_string())
    }

    fn rule(&self) -> JwtRule {
        JwtRule {
            issuer: ISSUER.into(),
            keys: JwtKeys::Known(json!({ "keys": [self.public_jwk()] }).to_string().into()),
            ..JwtRule::default()
        }
    }
}

fn encode_base64url(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

#[test]
fn tokens_of_other_libraries_are_valid_with_their_keys_only() {
    let made = pyjwt_vectors();
    let keys = made["key_set"]["keys"].as_array().unwrap();
    let all = key_set(keys);
    assert_eq!(all.unusable_keys(), [] as [String; 0]);
    let tokens = made["tokens"].as_object().unwrap();
    assert_eq!(tokens.len(), 10);
    for (name, token) in tokens {
        let token = token.as_str().unwrap();
        let read = UnverifiedToken::parse(token).unwrap();
        assert_eq!(read.issuer(), Some(ISSUER), "{name}");
        assert!(read.verify(&all, now()).is_ok(), "{name}");
        // Changes one character of the signature.
        let dot = token.rfind('.').unwrap() + 1;
        let other = if &token[dot..=dot] == "A" { "B" } else { "A" };
        let changed = format!("{}{other}{}", &token[..dot], &token[dot + 1..]);
        let result = UnverifiedToken::parse(&changed).and_then(|read| read.verify(&all, now()));
        assert!(result.is_err(), "{name}");
        // Without key ids, keys of other types are not tried.
        let nameless: Vec<_> = keys.iter().cloned().map(without_key_id).collect();
        assert!(read.verify(&key_set(&nameless), now()).is_ok(), "{name}");
        let header = base64url(token.split('.').next().unwrap().as_bytes()).unwrap();
        let header: Value = serde_json::from_slice(&header).unwrap();
        let others = keys.iter().filter(|key| key["kid"] != header["kid"]);
        let others: Vec<_> = others.cloned().collect();
        assert_eq!(
            read.verify(&key_set(&others), now()),
            Err(TokenError::UnknownKey),
            "{name}"
        );
    }
}

fn without_key_id(mut key: Value) -> Value {
    key.as_object_mut().unwrap().remove("kid");
    key
}

#[test]
fn examples_of_the_rfcs_are_valid() {
    let rfc = rfc_vectors();
    for name in ["rs256", "es256"] {
        let (key, token) = (&rfc[name]["key"], rfc[name]["token"].as_str().unwrap());
        let read = UnverifiedToken::parse(token).unwrap();
        assert_eq!(read.issuer(), Some("joe"));
        let keys = key_set(std::slice::from_ref(key));
        assert!(
            read.verify(&keys, unix_time(1_300_819_379)).is_ok(),
            "{name}"
        );
        assert_eq!(
            read.verify(&keys, now()),
            Err(TokenError::Expired),
            "{name}"
        );
    }
    // The payload is not JSON: the signature is valid, the token is not.
    let (key, token) = (
        &rfc["eddsa"]["key"],
        rfc["eddsa"]["token"].as_str().unwrap(),
    );
    assert!(matches!(
        UnverifiedToken::parse(token),
        Err(TokenError::InvalidPayload)
    ));
    let x = base64url(key["x"].as_str().unwrap().as_bytes()).unwrap();
    let (_, key) = Algorithm::ed25519_key("Ed25519", &x).unwrap();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let signature = base64url(signature.as_bytes()).unwrap();
    assert!(key.verify_sig(signed.as_bytes(), &signature).is_ok());
}

#[test]
fn times_are_checked_with_a_minute_of_clock_skew() {
    let issuer = Issuer::new("a");
    let keys = key_set(&[issuer.public_jwk()]);
    let check_times = |claims: Value, now: u64| {
        let token = issuer.token(&claims);
        UnverifiedToken::parse(&token).and_then(|read| read.verify(&keys, unix_time(now)).map(drop))
    };
    for (claims, from, until) in [
        (json!({ "exp": 1000 }), 0, 1059),
        (json!({ "exp": 1000.5 }), 0, 1060),
        (json!({ "nbf": 1000 }), 940, u64::from(u32::MAX)),
        (json!({ "iat": 1000 }), 940, u64::from(u32::MAX)),
        (json!({}), 0, u64::from(u32::MAX)),
    ] {
        assert_eq!(check_times(claims.clone(), from), Ok(()), "{claims} {from}");
        assert_eq!(
            check_times(claims.clone(), until),
            Ok(()),
            "{claims} {until}"
        );
    }
    assert_eq!(
        check_times(json!({ "exp": 1000 }), 1060),
        Err(TokenError::Expired)
    );
    assert_eq!(
        check_times(json!({ "nbf": 1000 }), 939),
        Err(TokenError::NotYetValid)
    );
    assert_eq!(
        check_times(json!({ "iat": 1000 }), 939),
        Err(TokenError::NotYetValid)
    );
    for wrong in ["exp", "nbf", "iat"] {
        assert_eq!(
            check_times(json!({ wrong: "1000" }), 1000),
            Err(TokenError::InvalidPayload)
        );
        assert_eq!(
            check_times(json!({ wrong: null }), 1000),
            Err(TokenError::InvalidPayload)
        );
    }
}
