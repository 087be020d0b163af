//! Decodes WDS records and authorization policies strictly to the model.
//!
//! A record that cannot be decoded in full is rejected as a whole, with the field and the reason: ignoring a part could
//! widen or narrow a policy, or send traffic elsewhere. Unknown extensions and unknown fields of workloads and services
//! are the exception: they are ignored (fields are counted). In a policy, they are errors. Decoded addresses are
//! canonical.

mod address;
mod delta;
mod error;
mod fields;
mod policy;
mod service;
mod strict;
#[cfg(test)]
mod tests;
mod workload;

pub use crate::unknown::UnknownField;
pub use address::AddressRecord;
pub use delta::{DELTA_PATH, DeltaCodec, LazyDeltaResponse, LazyResource};
pub use error::DecodeError;
pub use policy::{decode_authorization, decode_policy};
pub use strict::{RecordDecodeError, Substitute};

pub(crate) use error::DecodeErrorReason;
pub(crate) use fields::{decode_enum, decode_ip, decode_port, decode_prefix};
pub(crate) use policy::{
    decode_ip_nets, decode_ports, decode_service_account_matches, decode_string_matches,
};
pub(crate) use strict::{check_resource_name, decode_strictly};
