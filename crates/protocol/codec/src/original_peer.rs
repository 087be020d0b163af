//! `x-ambit-original-peer` header: identifies the client of a connection that bypassed the waypoint of the destination
//! pod, and that the pod's node proxy therefore redirects to the waypoint in a tunnel.
//!
//! Value: the SPIFFE ID that mTLS verified, or `none`. Receivers must verify that the header's sender is the pod's node
//! proxy before they trust it.

use std::fmt;

use ambit_model::Identity;

/// Name of the `x-ambit-original-peer` header.
pub const ORIGINAL_PEER_HEADER: &str = "x-ambit-original-peer";

/// Maximum length of an accepted header in bytes: the maximum length of a SPIFFE ID.
const MAX_ORIGINAL_PEER_BYTES: usize = 2048;

const NO_IDENTITY_VALUE: &str = "none";

/// Identity of the original client, if mTLS verified it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalPeer(pub Option<Identity>);

/// Reason why the header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseOriginalPeerError {
    /// The header is longer than 2 KiB.
    #[error("the x-ambit-original-peer header is too long")]
    TooLong,
    /// The header is neither a SPIFFE ID nor `none`.
    #[error(
        "the x-ambit-original-peer header is neither a SPIFFE id of a service account nor `none`"
    )]
    NoIdentity,
}

impl OriginalPeer {
    /// Parses a header.
    ///
    /// # Errors
    ///
    /// When it is neither `none` nor a SPIFFE ID in canonical form.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseOriginalPeerError> {
        if bytes.len() > MAX_ORIGINAL_PEER_BYTES {
            return Err(ParseOriginalPeerError::TooLong);
        }
        let is_text = bytes.iter().all(u8::is_ascii_graphic);
        let text = std::str::from_utf8(bytes).ok().filter(|_| is_text);
        match text.ok_or(ParseOriginalPeerError::NoIdentity)? {
            NO_IDENTITY_VALUE => Ok(Self(None)),
            text => {
                let identity = text.parse();
                let identity = identity.map_err(|_| ParseOriginalPeerError::NoIdentity)?;
                Ok(Self(Some(identity)))
            }
        }
    }
}

impl fmt::Display for OriginalPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(identity) => identity.fmt(f),
            None => f.write_str(NO_IDENTITY_VALUE),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_an_identity_or_none() {
        let client = Identity::new("cluster.local", "shop", "client");
        for (peer, text) in [
            (Some(client), "spiffe://cluster.local/ns/shop/sa/client"),
            (None, "none"),
        ] {
            let peer = OriginalPeer(peer);
            assert_eq!(peer.to_string(), text);
            assert_eq!(OriginalPeer::parse(text.as_bytes()), Ok(peer));
        }
    }

    #[test]
    fn other_forms_are_refused() {
        let long = format!(
            "spiffe://td/ns/a/sa/{}",
            "b".repeat(MAX_ORIGINAL_PEER_BYTES)
        );
        let too_long = OriginalPeer::parse(long.as_bytes());
        assert_eq!(too_long, Err(ParseOriginalPeerError::TooLong));
        for text in [
            "",
            "None",
            " none",
            "none,none",
            "td/ns/a/sa/b",
            "spiffe://td/ns/a/sa/b c",
            "spiffe://td/ns/a/sa/b\t",
            "spiffe://td/ns/a/sa/\u{e4}",
            "spiffe://td/ns/a/sa/b/c",
        ] {
            assert_eq!(
                OriginalPeer::parse(text.as_bytes()),
                Err(ParseOriginalPeerError::NoIdentity),
                "{text:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(peer) = OriginalPeer::parse(&bytes) {
                prop_assert_eq!(peer.to_string().into_bytes(), bytes);
            }
        }
    }
}
