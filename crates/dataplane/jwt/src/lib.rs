//! JSON Web Tokens at a waypoint (Istio's RequestAuthentication): finds tokens in a request, verifies them, and passes
//! their claims to policies and applications. The control plane parses its callers' tokens with the same code
//! ([`UnverifiedToken`]).
//!
//! No IO and no clock: callers pass in the time, and key sets as text that the control plane has fetched.
//!
//! **Rules of a token**: a token belongs to each rule that names its location and its issuer, and must be valid under
//! all of these rules. A token at a rule's location that belongs to no rule is invalid. A request without a token
//! passes: authorization policies decide by the claims ([`Claims`]).
//!
//! **Rejected requests**: those with two different tokens at one location or of one issuer, and those with a token that
//! [`token`] or [`json`] rejects. Tokens of two issuers are both verified, and policies see the claims of both.
//!
//! The library aws-lc verifies signatures. This crate parses tokens itself, since parsers differ on ambiguous texts:
//! the available libraries accept the last of two claims with one name, and do not support P-521.
#![forbid(unsafe_code)]

mod algorithm;
mod cache;
mod claims;
mod json;
mod key_set;
mod request_authentications;
mod rule;
mod token;
mod token_source;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

pub use claims::{Claims, ComparableValues};
pub use key_set::{KeySet, KeySetError, MAX_KEY_SET_BYTES};
pub use request_authentications::{
    AuthenticatedRequest, RejectedRequest, RejectionReason, RequestAuthentications, RequestParts,
};
pub use token::{CLOCK_SKEW, MAX_TOKEN_BYTES, TokenError, UnverifiedToken};

/// Decodes base64url in its canonical form: without padding or trailing bits.
fn base64url(text: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests;
