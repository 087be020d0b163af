//! JSON web tokens at a waypoint (Istio's RequestAuthentication): their sources in a request, their validation, their
//! claims, and the claims that are passed to applications. The control plane reads its callers' tokens by the same
//! code ([`UnverifiedToken`]).
//!
//! Pure: no IO, and no clock of its own. Key sets come as texts; who fetches them is the control plane.
//!
//! **Of which rule a token is**: of each one in whose places it is and whose issuer it names. It must be valid under all
//! of those, and a token in a place of a rule that is of no rule is not valid. A request without a token passes: whether
//! it may is for policies to say, which see the claims ([`Claims`]).
//!
//! **What is refused** besides: two different tokens for one place or for one issuer; whatever [`token`] and [`json`]
//! refuse. Two tokens of two issuers are both verified; policies have to admit the request with the claims of each.
//!
//! Signatures are aws-lc's. What is around them is here, and not a library's, since it decides which of two readings of
//! a text is believed: libraries at hand take the last of two claims of one name, and know no P-521.
#![forbid(unsafe_code)]

mod algorithm;
mod cache;
mod claims;
mod json;
mod key_set;
mod rule;
mod set;
mod token;
mod token_source;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

pub use claims::{Claims, Values};
pub use key_set::{KeySet, KeySetError, MAX_KEY_SET};
pub use set::{Authenticated, Authentications, Denial, Refused, RequestParts};
pub use token::{CLOCK_SKEW, MAX_TOKEN, TokenError, UnverifiedToken};

/// Decodes base64url in its canonical form: without padding or trailing bits.
fn base64url(text: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests;
