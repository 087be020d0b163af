//! Tests with forged tokens, and with key sets that would accept them.

use super::*;

fn verify(token: &str, keys: &KeySet) -> Result<(), TokenError> {
    UnverifiedToken::parse(token).and_then(|read| read.verify(keys, now()).map(drop))
}

#[test]
fn no_algorithm_and_shared_secrets_are_refused() {
    let issuer = Issuer::new("a");
    let keys = key_set(&[issuer.public_jwk()]);
    let claims = json!({ "iss": ISSUER, "sub": "alice" }).to_string();
    for alg in [
        "none", "None", "NONE", "nOnE", "HS256", "HS512", "RS256 ", "es256", "", "ES256K",
    ] {
        let header = json!({ "alg": alg, "kid": "a" }).to_string();
        let token = issuer.sign(&header, &claims);
        assert_eq!(
            verify(&token, &keys),
            Err(TokenError::UnsupportedAlgorithm),
            "{alg}"
        );
        let unsigned = format!(
            "{}.{}.",
            encode_base64url(header.as_bytes()),
            encode_base64url(claims.as_bytes())
        );
        assert_eq!(
            verify(&unsigned, &keys),
            Err(TokenError::UnsupportedAlgorithm),
            "{alg}"
        );
    }
    // Signs with the public key as HMAC secret, for every algorithm name.
    let public = issuer.key_pair.public_key().as_ref();
    for secret in [
        public.to_vec(),
        issuer.public_jwk().to_string().into_bytes(),
    ] {
        for alg in ["HS256", "RS256", "ES256", "PS256", "EdDSA"] {
            let header = json!({ "alg": alg, "kid": "a" }).to_string();
            let signed = format!(
                "{}.{}",
                encode_base64url(header.as_bytes()),
                encode_base64url(claims.as_bytes())
            );
            let tag = hmac::sign(
                &hmac::Key::new(hmac::HMAC_SHA256, &secret),
                signed.as_bytes(),
            );
            let token = format!("{signed}.{}", encode_base64url(tag.as_ref()));
            assert!(verify(&token, &keys).is_err(), "{alg}");
        }
    }
    // A secret in a key set is no key; the other keys still count.
    let mixed = key_set(&[
        json!({ "kty": "oct", "k": "c2VjcmV0" }),
        issuer.public_jwk(),
    ]);
    assert_eq!(mixed.unusable_keys().len(), 1);
    assert!(verify(&issuer.token(&json!({})), &mixed).is_ok());
}

#[test]
fn key_verifies_only_signatures_of_its_algorithm_and_use() {
    let issuer = Issuer::new("a");
    let token = issuer.token(&json!({ "iss": ISSUER }));
    let with = |name: &str, value: Value| {
        let mut key = issuer.public_jwk();
        key[name] = value;
        verify(&token, &key_set(&[key]))
    };
    assert_eq!(with("use", json!("sig")), Ok(()));
    assert_eq!(with("alg", json!("ES256")), Ok(()));
    assert_eq!(with("key_ops", json!(["sign", "verify"])), Ok(()));
    assert_eq!(with("kid", json!("b")), Err(TokenError::UnknownKey));
    for (name, value) in [
        ("use", json!("enc")),
        ("use", json!(1)),
        ("alg", json!("ES384")),
        ("alg", json!("RS256")),
        ("alg", json!("HS256")),
        ("key_ops", json!(["encrypt"])),
        ("kty", json!("RSA")),
        ("kty", json!("OKP")),
        ("kty", json!("oct")),
        ("crv", json!("P-384")),
        ("crv", json!("secp256k1")),
        ("x", json!("AA")),
        ("y", issuer.public_jwk()["x"].clone()),
        ("kid", json!(7)),
    ] {
        assert_eq!(
            with(name, value.clone()),
            Err(TokenError::NoKeys),
            "{name} {value}"
        );
    }
    // An RSA key that is too short, and an exponent that leaves the text unchanged.
    let modulus = encode_base64url(&[0xff; 127]);
    let key = json!({ "kty": "RSA", "n": modulus, "e": "AQAB" });
    assert_eq!(key_set(&[key]).unusable_keys().len(), 1);
    let key = json!({ "kty": "RSA", "n": encode_base64url(&[0xff; 256]), "e": "AQ" });
    assert_eq!(key_set(&[key]).unusable_keys().len(), 1);
}

#[test]
fn ambiguous_input_is_refused() {
    let issuer = Issuer::new("a");
    let keys = key_set(&[issuer.public_jwk()]);
    let header = r#"{"alg":"ES256","kid":"a"}"#;
    let good = issuer.sign(header, r#"{"sub":"alice"}"#);
    assert_eq!(verify(&good, &keys), Ok(()));
    for payload in [
        r#"{"sub":"alice","sub":"admin"}"#,
        r#"{"sub":"alice","s\u0075b":"admin"}"#,
        r#"["alice"]"#,
        "alice",
        "",
        r#"{"sub":"alice"} {"sub":"admin"}"#,
        &format!(r#"{{"a":{}{}}}"#, "[".repeat(64), "]".repeat(64)),
    ] {
        let token = issuer.sign(header, payload);
        assert_eq!(
            verify(&token, &keys),
            Err(TokenError::InvalidPayload),
            "{payload:.40}"
        );
    }
    for header in [
        r#"{"alg":"ES256","alg":"none","kid":"a"}"#,
        r#"{"alg":"ES256","kid":"b","kid":"a"}"#,
        r#"{"alg":"ES256","kid":["a"]}"#,
        r#"{"alg":"ES256","crit":["b64"],"b64":false}"#,
        r#"{"alg":"ES256","crit":[]}"#,
        r#"[]"#,
        "ES256",
    ] {
        let token = issuer.sign(header, r#"{"sub":"alice"}"#);
        assert_eq!(
            verify(&token, &keys),
            Err(TokenError::InvalidHeader),
            "{header}"
        );
    }
    // A key in the token itself is not trusted.
    let other = Issuer::new("a");
    let header =
        json!({ "alg": "ES256", "kid": "a", "jwk": other.public_jwk(), "jku": "http://x/" });
    let token = other.sign(&header.to_string(), r#"{"sub":"alice"}"#);
    assert_eq!(verify(&token, &keys), Err(TokenError::InvalidSignature));
    let dots = |count: usize| {
        good.split('.')
            .chain(["a", "b"])
            .take(count)
            .collect::<Vec<_>>()
            .join(".")
    };
    let signature = good.rsplit('.').next().unwrap();
    for token in [
        String::new(),
        dots(1),
        dots(2),
        dots(4),
        dots(5),
        format!("{good}="),
        format!(" {good}"),
        good.replace(signature, &format!("{signature}A")),
        good.replace(signature, ""),
        good.replace('.', ","),
    ] {
        assert!(verify(&token, &keys).is_err(), "{token}");
    }
    // The last character of a signature has unused bits, which must be zero.
    let last = signature.chars().last().unwrap();
    let twin = char::from(last as u8 + 1);
    assert!(verify(&format!("{}{twin}", &good[..good.len() - 1]), &keys).is_err());
    let huge = issuer.token(&json!({ "a": "a".repeat(crate::MAX_TOKEN_BYTES) }));
    assert_eq!(verify(&huge, &keys), Err(TokenError::TooLong));
}

#[test]
fn invalid_key_sets_are_refused_as_a_whole() {
    for text in [
        "",
        "[]",
        "{}",
        r#"{"keys":{}}"#,
        r#"{"keys":[],"keys":[]}"#,
        &format!(r#"{{"keys":[{}]}}"#, vec!["{}"; 101].join(",")),
        &" ".repeat(crate::MAX_KEY_SET_BYTES + 1),
        &format!(r#"{{"keys":{}}}"#, "[".repeat(10_000)),
    ] {
        assert!(KeySet::parse_jwks(text.as_bytes()).is_err(), "{text:.40}");
    }
    assert!(KeySet::parse_jwks(br#"{"keys":[]}"#).unwrap().is_empty());
}

#[test]
fn signatures_in_other_encodings_are_refused() {
    let issuer = Issuer::new("a");
    let keys = key_set(&[issuer.public_jwk()]);
    let good = issuer.token(&json!({ "iss": ISSUER, "sub": "alice" }));
    assert_eq!(verify(&good, &keys), Ok(()));
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let signature = base64url(signature.as_bytes()).unwrap();
    let halves = |r: &[u8], s: &[u8]| [r, s].concat();
    let der = [
        &[0x30, 68, 2, 32][..],
        &signature[..32],
        &[2, 32],
        &signature[32..],
    ]
    .concat();
    // The order of the group of P-256, which is zero modulo itself.
    let order = base64url(b"_____wAAAAD__________7zm-q2nF56E87nKwvxjJVE").unwrap();
    for forged in [
        vec![0; 64],
        vec![0xff; 64],
        vec![1; 64],
        halves(&[0; 32], &signature[32..]),
        halves(&signature[..32], &[0; 32]),
        halves(&order, &order),
        halves(&signature[32..], &signature[..32]),
        signature[..63].to_vec(),
        signature[1..].to_vec(),
        halves(&[0], &signature),
        halves(&signature, &[0]),
        halves(&signature, &signature),
        der,
        Vec::new(),
    ] {
        let token = format!("{signed}.{}", encode_base64url(&forged));
        assert!(verify(&token, &keys).is_err(), "{forged:02x?}");
    }
}

#[test]
fn tokens_in_another_encoding_are_refused() {
    let issuer = Issuer::new("a");
    let keys = key_set(&[issuer.public_jwk()]);
    // Long enough that the two alphabets differ somewhere.
    let good = issuer.token(&json!({ "iss": ISSUER, "sub": "???>>>~~~\u{7ff}" }));
    assert_eq!(verify(&good, &keys), Ok(()));
    let [header, payload, signature] = crate::token::split_sections(&good).unwrap();
    let forms = [
        format!("{header}=.{payload}.{signature}"),
        format!("{header}.{payload}==.{signature}"),
        format!("{header}\n.{payload}.{signature}"),
        format!("{header}.{payload}.{signature}\0"),
        format!("{header}.{payload}.{signature}%2E"),
        format!("{header}%2E{payload}%2E{signature}"),
        format!("{header}\u{3002}{payload}\u{3002}{signature}"),
        format!("{header}..{payload}.{signature}"),
        format!(".{payload}.{signature}"),
        format!("{header}..{signature}"),
        format!("{payload}.{header}.{signature}"),
        format!("{header}.{payload}.{signature}.{signature}"),
        format!("{header}.{payload}.{signature}~"),
        good.to_ascii_lowercase(),
        good.replace(['-', '_'], "+"),
        format!("Bearer {good}"),
        format!("{good},{good}"),
        format!("\u{feff}{good}"),
    ];
    for token in forms {
        assert!(token == good || verify(&token, &keys).is_err(), "{token}");
    }
}

#[test]
fn headers_and_claims_of_wrong_types_are_refused() {
    let issuer = Issuer::new("a");
    let keys = key_set(&[issuer.public_jwk()]);
    let plain = r#"{"alg":"ES256","kid":"a"}"#;
    for header in [
        r#"{"alg":"ES256","\u0061lg":"none","kid":"a"}"#,
        r#"{"alg":["ES256"],"kid":"a"}"#,
        r#"{"alg":{"alg":"ES256"},"kid":"a"}"#,
        r#"{"alg":null,"kid":"a"}"#,
        r#"{"ALG":"ES256","kid":"a"}"#,
        r#"{"kid":"a"}"#,
        r#"{"alg":"ES256\u0000","kid":"a"}"#,
        r#"{"alg":"ES256","kid":"../a"}"#,
        r#"{"alg":"ES256","kid":"A"}"#,
        r#"{"alg":"ES256","kid":"a "}"#,
        r#"{"alg":"ES256","kid":""}"#,
        r#"{"alg":"ES256","kid":{"a":1}}"#,
        r#"{"alg":"ES256","kid":"a","crit":["exp"]}"#,
        r#"{"alg":"dir","enc":"A256GCM","kid":"a"}"#,
        "\u{feff}{\"alg\":\"ES256\",\"kid\":\"a\"}",
        r#"{"alg":"ES256","kid":"a",}"#,
        r#"{'alg':'ES256','kid':'a'}"#,
        "",
    ] {
        let token = issuer.sign(header, r#"{"sub":"alice"}"#);
        assert!(verify(&token, &keys).is_err(), "{header}");
    }
    for payload in [
        r#"{"sub":"alice","exp":1e999}"#,
        r#"{"sub":"alice","exp":NaN}"#,
        r#"{"sub":"alice","exp":Infinity}"#,
        r#"{"sub":"alice","exp":-1}"#,
        r#"{"sub":"alice","exp":0}"#,
        r#"{"sub":"alice","exp":true}"#,
        r#"{"sub":"alice","exp":[2000000000]}"#,
        r#"{"sub":"alice","exp":{}}"#,
        r#"{"sub":"alice","exp":"2000000000"}"#,
        r#"{"sub":"alice","nbf":1e300}"#,
        r#"{"sub":"alice","iat":1e300}"#,
        r#"{"sub":"alice","exp":2000000000,"\u0065xp":1}"#,
        "\u{feff}{\"sub\":\"alice\"}",
        r#"{"sub":"\ud800"}"#,
        r#"{"sub":"alice"}}"#,
        r#"{"a":{"b":1,"b":2}}"#,
        "null",
        "7",
    ] {
        let token = issuer.sign(plain, payload);
        assert!(verify(&token, &keys).is_err(), "{payload}");
    }
}
