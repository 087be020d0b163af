//! Parses an issuer's public keys from a JSON Web Key Set (RFC 7517) or PEM. A key that cannot verify signatures is
//! skipped, with the reason; keys for other uses are ignored.

use std::fmt;

use aws_lc_rs::{digest, signature::ParsedPublicKey};
use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{algorithm::Algorithm, base64url, json::Json};

/// Maximum length of a key set, in bytes.
pub const MAX_KEY_SET_BYTES: usize = 256 << 10;
/// First line of a public key in PEM.
const PEM_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PEM_END: &str = "-----END PUBLIC KEY-----";
/// Maximum number of keys in a key set.
const MAX_KEYS: usize = 100;

/// Public keys of an issuer.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<Key>,
    unusable: Vec<String>,
}

/// Digest of a public key's content, which does not depend on the key id.
pub(crate) type Fingerprint = [u8; 32];

/// Public key in a key set.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) id: Option<String>,
    pub(crate) fingerprint: Fingerprint,
    algorithms: Vec<(Algorithm, ParsedPublicKey)>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Reason why a text is not a key set.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// The text has this length, which exceeds [`MAX_KEY_SET_BYTES`].
    #[error("the key set has {0} bytes; at most {MAX_KEY_SET_BYTES}")]
    TooLong(usize),
    /// The text is not JSON, or has a duplicate name.
    #[error("the key set is no JSON")]
    InvalidJson(#[source] serde_json::Error),
    /// The text contains no list of keys.
    #[error("the key set has no list \"keys\"")]
    NoKeys,
    /// The set contains this number of keys, which exceeds `MAX_KEYS`.
    #[error("the key set has {0} keys; at most {MAX_KEYS}")]
    TooManyKeys(usize),
}

impl KeySet {
    /// Parses a key set.
    ///
    /// # Errors
    ///
    /// When the text is not a key set. A set without a usable key is valid, and verifies no token.
    pub fn parse_jwks(text: &[u8]) -> Result<Self, KeySetError> {
        if text.len() > MAX_KEY_SET_BYTES {
            return Err(KeySetError::TooLong(text.len()));
        }
        let set = Json::parse(text).map_err(KeySetError::InvalidJson)?;
        let Some(Json::List(keys)) = set.get("keys") else {
            return Err(KeySetError::NoKeys);
        };
        if keys.len() > MAX_KEYS {
            return Err(KeySetError::TooManyKeys(keys.len()));
        }
        let mut read = Self::default();
        for (index, key) in keys.iter().enumerate() {
            match Key::parse_jwk(key) {
                Ok(key) => read.keys.push(key),
                Err(why) => read.unusable.push(format!("keys[{index}] {why}")),
            }
        }
        Ok(read)
    }

    /// Parses public keys in PEM (RFC 7468, section 13), which have no key ids; other text is skipped.
    ///
    /// # Errors
    ///
    /// Returns the number of the first unusable key, counted from 1.
    pub fn parse_pem(text: &str) -> Result<Self, usize> {
        let mut read = Self::default();
        let blocks = text
            .split_inclusive(PEM_END)
            .filter(|block| block.ends_with(PEM_END));
        for (number, block) in (1_usize..).zip(blocks) {
            read.keys.push(Key::parse_pem(block).ok_or(number)?);
        }
        Ok(read)
    }

    /// Whether the set has no usable key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns a description of each skipped key, with the reason.
    pub fn unusable_keys(&self) -> &[String] {
        &self.unusable
    }

    /// Returns the keys that may have signed a token with this algorithm and key id: keys with the same key id or
    /// without one; all keys if the token has no key id.
    pub(crate) fn candidate_keys(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> impl Iterator<Item = (&Key, &ParsedPublicKey)> {
        let named = move |key: &&Key| match (id, key.id.as_deref()) {
            (Some(key_id), Some(id)) => key_id == id,
            _ => true,
        };
        self.keys.iter().filter(named).filter_map(move |key| {
            let mut all = key.algorithms.iter();
            let (_, parsed) = all.find(|(one, _)| *one == algorithm)?;
            Some((key, parsed))
        })
    }

    /// Whether the set contains the key with this fingerprint.
    pub(crate) fn contains_key(&self, fingerprint: &Fingerprint) -> bool {
        self.keys.iter().any(|key| key.fingerprint == *fingerprint)
    }
}

impl Key {
    fn parse_pem(block: &str) -> Option<Self> {
        let (_, body) = block.strip_suffix(PEM_END)?.rsplit_once(PEM_BEGIN)?;
        let body: String = body.split_ascii_whitespace().collect();
        let der = STANDARD.decode(body).ok()?;
        let algorithms = Algorithm::der_keys(&der);
        (!algorithms.is_empty()).then(|| Self {
            id: None,
            fingerprint: fingerprint(&der),
            algorithms,
        })
    }

    fn parse_jwk(key: &Json) -> Result<Self, String> {
        let text = |name: &str| match key.get(name) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(format!("has a {name:?} that is no text")),
        };
        if let Some(other) = text("use")?.filter(|one| *one != "sig") {
            return Err(format!("is for another use than signatures: {other:.20?}"));
        }
        let verifies = |all: &Json| match all {
            Json::List(all) => all.iter().any(|one| one.as_text() == Some("verify")),
            _ => false,
        };
        if key.get("key_ops").is_some_and(|all| !verifies(all)) {
            return Err("is not for verifying signatures (key_ops)".to_owned());
        }
        let number = |name: &str| {
            let text = text(name)?.ok_or_else(|| format!("has no {name:?}"))?;
            base64url(text.as_bytes()).ok_or_else(|| format!("has a {name:?} that is no base64url"))
        };
        let named =
            match text("alg")? {
                None => None,
                Some(name) => Some(Algorithm::from_name(name).ok_or_else(|| {
                    format!("is for the algorithm {name:.20?}, not a supported one")
                })?),
            };
        let kind = text("kty")?.ok_or("has no \"kty\"")?;
        let curve = || text("crv").map(Option::unwrap_or_default);
        let mut public = Vec::new();
        let algorithms: Vec<_> = match kind {
            "RSA" => {
                let (n, e) = (number("n")?, number("e")?);
                public.extend([&n[..], &[0], &e[..]].concat());
                let one = |of: Algorithm| of.rsa_key(&n, &e).map(|key| (of, key));
                let all = Algorithm::RSA_ALGORITHMS.into_iter();
                all.filter(|of| named.is_none_or(|named| named == *of))
                    .filter_map(one)
                    .collect()
            }
            "EC" => {
                let (x, y) = (number("x")?, number("y")?);
                public.extend([&x[..], &[0], &y[..]].concat());
                Algorithm::ecdsa_key(curve()?, &x, &y).into_iter().collect()
            }
            "OKP" => {
                let x = number("x")?;
                public.extend_from_slice(&x);
                Algorithm::ed25519_key(curve()?, &x).into_iter().collect()
            }
            other => return Err(format!("is of the kind {other:.20?}, not RSA, EC or OKP")),
        };
        let fits = |(of, _): &(Algorithm, _)| named.is_none_or(|named| named == *of);
        if !algorithms.iter().any(fits) {
            return Err("is no public key of 2048 to 8192 bits (RSA), or of P-256, P-384, P-521 or Ed25519, for its algorithm".to_owned());
        }
        Ok(Self {
            id: text("kid")?.map(str::to_owned),
            fingerprint: fingerprint(&public),
            algorithms,
        })
    }
}

fn fingerprint(content: &[u8]) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(digest::digest(&digest::SHA256, content).as_ref());
    fingerprint
}
