//! Finds fields of an encoded record that this build's schema does not have.
//!
//! prost skips unknown fields silently. That is right for a workload or service, but wrong for a policy: a condition
//! that is left out changes the policy's meaning. So the bytes are parsed a second time, along the schema that `cargo
//! xtask gen` generates from the `.proto` files. The schema of the records is not recursive, so a peer cannot control
//! the parsing depth.

use bytes::Buf;
use prost::{
    DecodeError,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

pub(crate) use schema::*;

#[rustfmt::skip]
#[expect(dead_code, reason = "some messages are named like records and are none")]
mod schema {
    use super::Message;
    include!("generated/schema.rs");
}

/// Schema of a protobuf message: its field numbers in ascending order, each with the schema of its message type, if it
/// has one.
#[derive(Debug)]
pub(crate) struct Message {
    name: &'static str,
    fields: &'static [(u32, Option<&'static Self>)],
}

/// Field of an encoded message that the schema does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownField {
    /// Name of the enclosing message, with its package.
    pub message: &'static str,
    /// Number of the field.
    pub number: u32,
}

impl Message {
    /// Calls `found` for every field in `bytes` that the schema does not have. A message in an unknown field counts as
    /// one field: its contents are not examined.
    ///
    /// # Errors
    /// When the bytes are not protobuf. Fields found until then have been reported.
    pub(crate) fn unknown_fields(
        &self,
        mut bytes: &[u8],
        found: &mut impl FnMut(UnknownField),
    ) -> Result<(), DecodeError> {
        while bytes.has_remaining() {
            let (number, wire_type) = decode_key(&mut bytes)?;
            let field = self
                .fields
                .binary_search_by_key(&number, |(known, _)| *known);
            let inner = match field.ok().and_then(|index| self.fields.get(index)) {
                Some((_, inner)) => *inner,
                None => {
                    found(UnknownField {
                        message: self.name,
                        number,
                    });
                    None
                }
            };
            match inner {
                Some(message) if wire_type == WireType::LengthDelimited => {
                    let length = decode_varint(&mut bytes)?;
                    let inside = usize::try_from(length)
                        .ok()
                        .and_then(|length| bytes.split_at_checked(length));
                    let Some((inside, rest)) = inside else {
                        // Gives prost's own error for it.
                        return skip_field(wire_type, number, &mut [].as_slice(), context());
                    };
                    message.unknown_fields(inside, found)?;
                    bytes = rest;
                }
                _ => skip_field(wire_type, number, &mut bytes, context())?,
            }
        }
        Ok(())
    }
}

fn context() -> DecodeContext {
    DecodeContext::default()
}
