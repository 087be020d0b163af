//! Tests of token verification with valid and forged tokens.

use ambit_jwt::MAX_TOKEN_BYTES;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
    PublicKeyData, RsaKeySize,
};
use serde_json::{Value, json};

use super::*;

fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

fn public_pem(key: &KeyPair) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(key.subject_public_key_info());
    let lines: Vec<_> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        lines.join("\n")
    )
}

fn claims() -> Value {
    json!({
        "iss": "lab",
        "aud": ["istio-ca"],
        "sub": "system:serviceaccount:istio-system:ztunnel",
        "iat": now(),
        "exp": now() + 600,
        "kubernetes.io": {
            "namespace": "istio-system",
            "serviceaccount": {"name": "ztunnel", "uid": "s"},
            "pod": {"name": "zt-1", "uid": "u1"},
            "node": {"name": "n1", "uid": "n"},
        },
    })
}

fn sign(key: &KeyPair, claims: &Value, kid: Option<&str>) -> String {
    let mut header = Header::new(Algorithm::ES256);
    header.kid = kid.map(str::to_owned);
    encode(
        &header,
        claims,
        &EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap(),
    )
    .unwrap()
}

fn verifier(keys: &str) -> KeyFileAuthenticator {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    std::fs::write(&path, keys).unwrap();
    KeyFileAuthenticator::open(&path, "istio-ca").unwrap()
}

#[test]
fn valid_token_yields_account_and_pod() {
    let key = key();
    let caller = verifier(&public_pem(&key))
        .verify(&sign(&key, &claims(), Some("any")))
        .unwrap();
    assert_eq!(caller.to_string(), "istio-system/ztunnel (pod zt-1)");
    assert_eq!(caller.pod.unwrap().uid, "u1");
}

#[test]
fn several_keys_and_jwks_are_accepted() {
    let (old, new) = (key(), key());
    let both = verifier(&(public_pem(&old) + "\n" + &public_pem(&new)));
    assert!(both.verify(&sign(&old, &claims(), None)).is_ok());
    assert!(both.verify(&sign(&new, &claims(), None)).is_ok());
    use base64::Engine;
    let raw = new.der_bytes();
    let coordinate = |range: std::ops::Range<usize>| {
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&raw[range])
    };
    let jwks = json!({"keys": [
        {"kty": "EC", "crv": "P-256", "kid": "k1", "x": coordinate(1..33), "y": coordinate(33..65)},
        {"kty": "oct", "k": "c2VjcmV0"},
    ]});
    let set = verifier(&jwks.to_string());
    assert!(set.verify(&sign(&new, &claims(), Some("k1"))).is_ok());
    assert!(set.verify(&sign(&new, &claims(), None)).is_ok());
    assert_eq!(
        set.verify(&sign(&new, &claims(), Some("k2"))),
        Err(TokenError::InvalidSignature)
    );
    let with_secret = encode(
        &Header::new(Algorithm::HS256),
        &claims(),
        &EncodingKey::from_secret(b"secret"),
    )
    .unwrap();
    assert_eq!(
        set.verify(&with_secret),
        Err(TokenError::UnsupportedAlgorithm),
        "a shared secret is no key"
    );
}

#[test]
fn keys_in_pem_verify_their_own_algorithms_alone() {
    type KeyParser = fn(&[u8]) -> jsonwebtoken::errors::Result<EncodingKey>;
    let rsa = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let generate = |of| KeyPair::generate_for(of).unwrap();
    let kinds: [(KeyPair, KeyParser, &[Algorithm]); 4] = [
        (key(), EncodingKey::from_ec_pem, &[Algorithm::ES256]),
        (
            generate(&PKCS_ECDSA_P384_SHA384),
            EncodingKey::from_ec_pem,
            &[Algorithm::ES384],
        ),
        (
            generate(&PKCS_ED25519),
            EncodingKey::from_ed_pem,
            &[Algorithm::EdDSA],
        ),
        (
            rsa,
            EncodingKey::from_rsa_pem,
            &[Algorithm::RS256, Algorithm::PS512],
        ),
    ];
    let pems: Vec<_> = kinds.iter().map(|(key, ..)| public_pem(key)).collect();
    for (index, (key, read, algorithms)) in kinds.iter().enumerate() {
        for algorithm in *algorithms {
            let key = read(key.serialize_pem().as_bytes()).unwrap();
            let token = encode(&Header::new(*algorithm), &claims(), &key).unwrap();
            for (other, pem) in pems.iter().enumerate() {
                let verified = verifier(pem).verify(&token).map(|_| ());
                let expected = match other == index {
                    true => Ok(()),
                    false => Err(TokenError::InvalidSignature),
                };
                assert_eq!(verified, expected, "{algorithm:?}, key {other}");
            }
            assert!(verifier(&pems.concat()).verify(&token).is_ok());
        }
    }
}

#[test]
fn invalid_tokens_are_rejected_with_the_reason() {
    let key = key();
    let keys = verifier(&public_pem(&key));
    let with = |path: &str, value: Value| {
        let mut claims = claims();
        *claims.pointer_mut(path).unwrap() = value;
        keys.verify(&sign(&key, &claims, None))
    };
    assert_eq!(
        keys.verify(&sign(&self::key(), &claims(), None)),
        Err(TokenError::InvalidSignature)
    );
    assert_eq!(with("/exp", json!(now() - 60)), Err(TokenError::Expired));
    assert!(
        with("/exp", json!(now() - 2)).is_ok(),
        "clocks may differ a little"
    );
    assert_eq!(
        with("/aud", json!(["other"])),
        Err(TokenError::WrongAudience("istio-ca".into()))
    );
    assert_eq!(with("/aud", json!("istio-ca")).map(|_| ()), Ok(()));
    for subject in [
        "",
        "alice",
        "system:serviceaccount:a",
        "system:serviceaccount:a:b:c",
        "system:serviceaccount:a/b:c",
        "system:node:n1",
    ] {
        assert_eq!(
            with("/sub", json!(subject)),
            Err(TokenError::InvalidSubject),
            "{subject}"
        );
    }
    assert_eq!(
        with("/kubernetes.io/namespace", json!("other")),
        Err(TokenError::ContradictoryClaims)
    );
    assert_eq!(
        with("/kubernetes.io/serviceaccount/name", json!("other")),
        Err(TokenError::ContradictoryClaims)
    );
    for claim in ["exp", "aud", "sub"] {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(claim);
        assert_eq!(
            keys.verify(&sign(&key, &claims, None)),
            Err(TokenError::InvalidClaim(claim.into()))
        );
    }
    let mut future = claims();
    future["nbf"] = json!(now() + 300);
    assert_eq!(
        keys.verify(&sign(&key, &future, None)),
        Err(TokenError::NotYetValid)
    );
}

#[test]
fn forged_headers_are_rejected() {
    use base64::Engine;
    let key = key();
    let keys = verifier(&public_pem(&key));
    let part =
        |value: &Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
    let none = format!(
        "{}.{}.",
        part(&json!({"alg": "none", "typ": "JWT"})),
        part(&claims())
    );
    assert_eq!(keys.verify(&none), Err(TokenError::UnsupportedAlgorithm));
    // HS256 with the public key as the shared secret.
    let confused = encode(
        &Header::new(Algorithm::HS256),
        &claims(),
        &EncodingKey::from_secret(public_pem(&key).as_bytes()),
    )
    .unwrap();
    assert_eq!(
        keys.verify(&confused),
        Err(TokenError::UnsupportedAlgorithm)
    );
    let good = sign(&key, &claims(), None);
    let (head, signature) = good.rsplit_once('.').unwrap();
    let changed = format!("{head}x.{signature}");
    assert!(keys.verify(&changed).is_err());
    for text in [
        "",
        "a",
        "a.b",
        "a.b.c",
        "....",
        &"x".repeat(MAX_TOKEN_BYTES + 1),
    ] {
        assert!(keys.verify(text).is_err());
    }
}

#[test]
fn key_files_without_a_usable_key_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    for text in [
        "",
        "nonsense",
        "{\"keys\": []}",
        "{\"keys\": [{\"kty\": \"oct\", \"k\": \"YQ\"}]}",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    ] {
        std::fs::write(&path, text).unwrap();
        let error = KeyFileAuthenticator::open(&path, "a")
            .unwrap_err()
            .to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn header_must_be_a_bearer_token() {
    use tonic::metadata::MetadataMap;
    let mut metadata = MetadataMap::new();
    assert_eq!(bearer_token(&metadata), Err(TokenError::Missing));
    metadata.insert("authorization", "Basic YQ==".parse().unwrap());
    assert_eq!(bearer_token(&metadata), Err(TokenError::Missing));
    metadata.insert("authorization", "bearer abc".parse().unwrap());
    assert_eq!(bearer_token(&metadata), Ok("abc"));
}
