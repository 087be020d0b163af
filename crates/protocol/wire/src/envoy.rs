//! Conversions of messages that several of Envoy's gRPC APIs share.

use crate::generated::envoy::config::core::v3::HeaderValue;

impl HeaderValue {
    /// Returns the header's name, and its value from whichever of the two value fields is set.
    pub(crate) fn into_parts(self) -> (String, Vec<u8>) {
        let value = match self.raw_value.is_empty() {
            true => self.value.into_bytes(),
            false => self.raw_value.into(),
        };
        (self.key, value)
    }
}
