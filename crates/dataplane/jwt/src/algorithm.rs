//! Signature algorithms of tokens (RFC 7518, section 3.1; RFC 8037). Algorithms with a shared secret and `none` are
//! unsupported, since key sets are public.

use aws_lc_rs::{
    rsa::PublicKeyComponents,
    signature::{self as lc, ParsedPublicKey, RsaParameters, VerificationAlgorithm},
};

/// Signature algorithm of a token (`alg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

/// Accepted sizes of an RSA key's modulus, in bits.
const RSA_KEY_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

impl Algorithm {
    /// Algorithms that an RSA key can be used with.
    pub(crate) const RSA_ALGORITHMS: [Self; 6] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
    ];

    /// Returns the algorithm with a case-sensitive `alg` name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "ES512" => Self::Es512,
            // RFC 9864 has a name for the curve.
            "EdDSA" | "Ed25519" => Self::EdDsa,
            _ => return None,
        })
    }

    /// Builds an RSA public key from modulus and exponent; `None` for other algorithms and invalid keys.
    pub(crate) fn rsa_key(self, n: &[u8], e: &[u8]) -> Option<ParsedPublicKey> {
        let parameters: &'static RsaParameters = match self {
            Self::Rs256 => &lc::RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &lc::RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &lc::RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &lc::RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &lc::RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &lc::RSA_PSS_2048_8192_SHA512,
            _ => return None,
        };
        let strip = |number: &[u8]| {
            let zeros = number.iter().take_while(|byte| **byte == 0).count();
            number.get(zeros..).unwrap_or_default().to_vec()
        };
        let (n, e) = (strip(n), strip(e));
        let bits = (n.len() * 8).checked_sub(n.first()?.leading_zeros() as usize)?;
        if !RSA_KEY_BITS.contains(&bits) || e.len() > 4 || e.last()? % 2 == 0 || e == [1] {
            return None;
        }
        let components = PublicKeyComponents { n, e };
        components.to_parsed_public_key(parameters).ok()
    }

    /// Builds a public key on an elliptic curve. Returns it with the only algorithm that uses the curve.
    pub(crate) fn ecdsa_key(curve: &str, x: &[u8], y: &[u8]) -> Option<(Self, ParsedPublicKey)> {
        let (algorithm, parameters, size): (_, &'static dyn VerificationAlgorithm, _) = match curve
        {
            "P-256" => (Self::Es256, &lc::ECDSA_P256_SHA256_FIXED, 32),
            "P-384" => (Self::Es384, &lc::ECDSA_P384_SHA384_FIXED, 48),
            "P-521" => (Self::Es512, &lc::ECDSA_P521_SHA512_FIXED, 66),
            _ => return None,
        };
        if x.len() != size || y.len() != size {
            return None;
        }
        let point = [&[4], x, y].concat();
        let key = ParsedPublicKey::new(parameters, point).ok()?;
        Some((algorithm, key))
    }

    /// Parses a public key in DER (SubjectPublicKeyInfo, RFC 5280); returns it once for each algorithm that it can be
    /// used with.
    pub(crate) fn der_keys(der: &[u8]) -> Vec<(Self, ParsedPublicKey)> {
        let all: [(Self, &'static dyn VerificationAlgorithm); 10] = [
            (Self::Rs256, &lc::RSA_PKCS1_2048_8192_SHA256),
            (Self::Rs384, &lc::RSA_PKCS1_2048_8192_SHA384),
            (Self::Rs512, &lc::RSA_PKCS1_2048_8192_SHA512),
            (Self::Ps256, &lc::RSA_PSS_2048_8192_SHA256),
            (Self::Ps384, &lc::RSA_PSS_2048_8192_SHA384),
            (Self::Ps512, &lc::RSA_PSS_2048_8192_SHA512),
            (Self::Es256, &lc::ECDSA_P256_SHA256_FIXED),
            (Self::Es384, &lc::ECDSA_P384_SHA384_FIXED),
            (Self::Es512, &lc::ECDSA_P521_SHA512_FIXED),
            (Self::EdDsa, &lc::ED25519),
        ];
        let key = |(of, parameters)| Some((of, ParsedPublicKey::new(parameters, der).ok()?));
        all.into_iter().filter_map(key).collect()
    }

    /// Builds a public key on an Edwards curve (EdDSA).
    pub(crate) fn ed25519_key(curve: &str, x: &[u8]) -> Option<(Self, ParsedPublicKey)> {
        let is_known = curve == "Ed25519" && x.len() == 32;
        let key = is_known.then(|| ParsedPublicKey::new(&lc::ED25519, x).ok());
        key.flatten().map(|key| (Self::EdDsa, key))
    }
}
