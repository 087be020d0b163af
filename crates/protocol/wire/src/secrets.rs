//! `Debug` implementations for messages with private keys, which omit the keys.

use std::fmt;

use crate::{delegated_identity::X509svidWithKey, spiffe::X509svid};

impl fmt::Debug for X509svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("X509svid")
            .field("spiffe_id", &self.spiffe_id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for X509svidWithKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("X509svidWithKey")
            .field("x509_svid", &self.x509_svid)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_in_debug_forms() {
        let key = bytes::Bytes::from_static(b"PRIVATE");
        let of_workload = X509svid {
            spiffe_id: "spiffe://td/ns/a/sa/b".to_owned(),
            x509_svid_key: key.clone(),
            ..X509svid::default()
        };
        let delegated = X509svidWithKey {
            x509_svid_key: key,
            ..X509svidWithKey::default()
        };
        let text = format!("{of_workload:?} {delegated:?}");
        assert!(!text.contains("PRIVATE"), "{text}");
        assert!(text.contains("spiffe://td/ns/a/sa/b"), "{text}");
    }
}
