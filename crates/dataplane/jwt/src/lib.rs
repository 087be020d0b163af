//! JSON web tokens at a waypoint (Istio's RequestAuthentication): their sources in a request, their validation, their
//! claims, and the claims that are passed to applications. The control plane reads its callers' tokens by the same
//! code ([`UnverifiedToken`]).
//!
//! Pure: no IO, and no clock of its own. Key sets are passed in as text; the control plane fetches
//! them.
//!
//! **Rules of a token**: a token belongs to each rule that names its location and its issuer, and
//! must be valid under all of them. A token in a rule's location that belongs to no rule is
//! invalid. A request without a token passes here: authorization policies decide by the claims
//! ([`Claims`]).
//!
//! **What is refused** besides: two different tokens for one place or for one issuer; whatever [`token`] and [`json`]
//! refuse. Two tokens of two issuers are both verified; policies have to admit the request with the claims of each.
//!
//! aws-lc verifies signatures. Parsing is here rather than in a library, since parsers differ in
//! ambiguous texts: the available libraries accept the last of two claims with one name, and do not
//! support P-521.
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

pub use claims::{Claims, ComparableValues};
pub use key_set::{KeySet, KeySetError, MAX_KEY_SET_BYTES};
pub use set::{
    AuthenticatedRequest, RejectedRequest, RejectionReason, RequestAuthentications, RequestParts,
};
pub use token::{CLOCK_SKEW, MAX_TOKEN_BYTES, TokenError, UnverifiedToken};

/// Decodes base64url in its canonical form: without padding or trailing bits.
fn base64url(text: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests;
