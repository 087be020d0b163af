//! Codecs of waypoint records. Each record type has a module with its type URL, its encoding, and its strict decoding.
//! The messages are defined in `proto/waypoint.proto`.
//!
//! Every record can be encoded, and has the same bytes on every replica, as for WDS records. Decoding ignores nothing:
//! a record with a field that this build does not know is an [error](RecordDecodeError), and a record type that
//! restricts requests has a fail-closed substitute.
//!
//! A further type needs a module with a [`RecordCodec`], a line in [`ambit_model::for_each_waypoint_record`], and a
//! store in the waypoint.

mod authentication;
mod decode_fields;
mod destination;
mod encode_fields;
mod extension;
mod gateway;
mod http_filter;
mod http_route;
mod policy;
mod provider;
mod rate_limit;
mod service;
mod stream_route;
mod telemetry;

#[cfg(test)]
mod tests;

use ambit_model::{
    self as model, IsWaypointRecord, WaypointRecord, WaypointRecordType, for_each_waypoint_record,
};

use crate::decode::{RecordDecodeError, Substitute};

/// Codec of one type of waypoint record.
pub trait RecordCodec: IsWaypointRecord {
    /// Type URL of the records on xDS streams.
    const TYPE_URL: &'static str;
    /// Short name of the record type, for status and metrics.
    const SHORT_NAME: &'static str;

    /// Encodes the record as its protobuf message.
    fn encode(&self) -> Vec<u8>;

    /// Decodes the record that was sent under a name (`namespace/gateway` or `namespace/gateway/NAME`).
    ///
    /// # Errors
    /// When the record cannot be decoded in full.
    fn decode(name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>>;
}

macro_rules! define {
    ($($variant:ident($record:ident),)*) => {
        /// Returns the type URL of a record type.
        pub fn type_url(of: WaypointRecordType) -> &'static str {
            match of {
                $(WaypointRecordType::$variant => model::$record::TYPE_URL,)*
            }
        }

        /// Returns the short name of a record type, for status and metrics.
        pub fn short_name(of: WaypointRecordType) -> &'static str {
            match of {
                $(WaypointRecordType::$variant => model::$record::SHORT_NAME,)*
            }
        }

        /// Encodes a record as the protobuf message of its type.
        pub fn encode(record: &WaypointRecord) -> Vec<u8> {
            match record {
                $(WaypointRecord::$variant(record) => record.encode(),)*
            }
        }

        /// Decodes a record of a type, see [`RecordCodec::decode`].
        ///
        /// # Errors
        /// When the record cannot be decoded in full.
        pub fn decode(
            of: WaypointRecordType,
            name: &str,
            bytes: &[u8],
        ) -> Result<WaypointRecord, RecordDecodeError<WaypointRecord>> {
            match of {
                $(
                    WaypointRecordType::$variant => model::$record::decode(name, bytes)
                        .map(Into::into)
                        .map_err(RecordDecodeError::into_record),
                )*
            }
        }
    };
}

for_each_waypoint_record!(define);

impl<T: Into<WaypointRecord>> RecordDecodeError<T> {
    fn into_record(self) -> RecordDecodeError<WaypointRecord> {
        let any = |of: Substitute<T>| Substitute {
            record: Box::new((*of.record).into()),
            effect: of.effect,
            is_policy: of.is_policy,
        };
        RecordDecodeError {
            error: self.error,
            substitute: self.substitute.map(any),
        }
    }
}
