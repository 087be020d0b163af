//! Accessors of messages that several of Envoy's services share.

use crate::generated::envoy::config::core::v3::HeaderValue;

impl HeaderValue {
    /// Returns the name, and the value from one of its two fields.
    pub(crate) fn into_parts(self) -> (String, Vec<u8>) {
        let value = match self.raw_value.is_empty() {
            true => self.value.into_bytes(),
            false => self.raw_value.into(),
        };
        (self.key, value)
    }
}
