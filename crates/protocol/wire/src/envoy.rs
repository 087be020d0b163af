//! Messages that several of Envoy's services have in common.

use prost::Message;

/// Header of Envoy's API, `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) raw_value: Vec<u8>,
}

impl HeaderValue {
    /// Returns the name, and the value from one of its two fields.
    pub(crate) fn into_parts(self) -> (String, Vec<u8>) {
        let value = match self.raw_value.is_empty() {
            true => self.value.into_bytes(),
            false => self.raw_value,
        };
        (self.key, value)
    }
}
