//! Conversions of protobuf messages that several of Envoy's gRPC APIs share.

use crate::generated::envoy::config::core::v3::HeaderValue;

impl HeaderValue {
    /// Returns the name and value of the header. The value is in one of two fields of the message.
    pub(crate) fn into_parts(self) -> (String, Vec<u8>) {
        let value = match self.raw_value.is_empty() {
            true => self.value.into_bytes(),
            false => self.raw_value.into(),
        };
        (self.key, value)
    }
}
