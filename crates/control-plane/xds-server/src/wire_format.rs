//! Encodes a delta xDS response directly from shared records.
//!
//! Written by hand because the generated messages own their bytes: every client would copy every record before it is
//! encoded. Fields may have any order, so that the fields which clients share are encoded once and follow those of a
//! single client.

use std::sync::Arc;

use ambit_model::ArcStr;
use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::{encoded_record::EncodedRecord, resource::ResourceType};

// Field numbers of envoy.service.discovery.v3.
const RESPONSE_SYSTEM_VERSION_FIELD: u32 = 1;
const RESPONSE_RESOURCES_FIELD: u32 = 2;
const RESPONSE_TYPE_URL_FIELD: u32 = 4;
const RESPONSE_NONCE_FIELD: u32 = 5;
const RESPONSE_REMOVED_FIELD: u32 = 6;
const RESOURCE_VERSION_FIELD: u32 = 1;
const RESOURCE_ANY_FIELD: u32 = 2;
const RESOURCE_NAME_FIELD: u32 = 3;
const RESOURCE_ALIASES_FIELD: u32 = 4;
const ANY_TYPE_URL_FIELD: u32 = 1;
const ANY_VALUE_FIELD: u32 = 2;

/// Target size of the pieces of an encoded batch, in bytes: few pieces, and each cheap to pass on.
const TARGET_PIECE_BYTES: usize = 128 * 1024;
/// Maximum size of a push in bytes that is copied into one piece, which is cheaper than two writes.
const MAX_COPIED_BYTES: usize = 4 * 1024;
/// Length of gRPC's message prefix: compression flag and message length.
const GRPC_HEADER_BYTES: usize = 5;

/// Returns a response as a gRPC message in pieces. Only the first piece is encoded for the single client; `shared` is
/// the result of [`encode`].
pub(crate) fn frame_response(
    resource_type: ResourceType,
    nonce: &str,
    system_version: &str,
    shared: &[Bytes],
) -> impl Iterator<Item = Bytes> {
    let length: usize = shared.iter().map(Bytes::len).sum();
    let type_url = resource_type.type_url();
    let own = encoded_field_len(RESPONSE_SYSTEM_VERSION_FIELD, system_version.len())
        + encoded_field_len(RESPONSE_TYPE_URL_FIELD, type_url.len())
        + encoded_field_len(RESPONSE_NONCE_FIELD, nonce.len());
    let copied = if length <= MAX_COPIED_BYTES {
        length
    } else {
        0
    };
    let mut first = BytesMut::with_capacity(GRPC_HEADER_BYTES + own + copied);
    first.put_u8(0);
    // A message cannot exceed the range of its length field; the limits of clients are far lower.
    first.put_u32(u32::try_from(own + length).unwrap_or(u32::MAX));
    encode_bytes_field(
        RESPONSE_SYSTEM_VERSION_FIELD,
        system_version.as_bytes(),
        &mut first,
    );
    encode_bytes_field(RESPONSE_TYPE_URL_FIELD, type_url.as_bytes(), &mut first);
    encode_bytes_field(RESPONSE_NONCE_FIELD, nonce.as_bytes(), &mut first);
    let rest = if length <= MAX_COPIED_BYTES {
        shared.iter().for_each(|piece| first.put_slice(piece));
        &[]
    } else {
        shared
    };
    std::iter::once(first.freeze()).chain(rest.iter().cloned())
}

/// Encodes records and names of removed records, in pieces that clients share.
pub(crate) fn encode(
    resource_type: ResourceType,
    resources: &[Arc<EncodedRecord>],
    removed: &[ArcStr],
    with_aliases: bool,
) -> Vec<Bytes> {
    let form = RecordEncoder {
        resource_type,
        with_aliases,
    };
    let lengths = resources.iter();
    let lengths =
        lengths.map(|entry| encoded_field_len(RESPONSE_RESOURCES_FIELD, form.resource_len(entry)));
    let names = removed.iter();
    let names = names.map(|name| encoded_field_len(RESPONSE_REMOVED_FIELD, name.len()));
    let mut left = lengths.chain(names).sum::<usize>();
    let mut pieces = Vec::new();
    let mut piece = BytesMut::with_capacity(left.min(TARGET_PIECE_BYTES));
    let mut room_for = |needed: usize, piece: &mut BytesMut| {
        if piece.len() + needed > piece.capacity() && !piece.is_empty() {
            let next = BytesMut::with_capacity(left.min(TARGET_PIECE_BYTES.max(needed)));
            pieces.push(std::mem::replace(piece, next).freeze());
        }
        left -= needed;
    };
    for entry in resources {
        let length = form.resource_len(entry);
        room_for(
            encoded_field_len(RESPONSE_RESOURCES_FIELD, length),
            &mut piece,
        );
        encode_field_header(RESPONSE_RESOURCES_FIELD, length, &mut piece);
        let value = resource_type.encoded_value(entry);
        encode_bytes_field(RESOURCE_VERSION_FIELD, entry.version.as_bytes(), &mut piece);
        encode_field_header(RESOURCE_ANY_FIELD, form.any_len(value), &mut piece);
        let type_url = resource_type.type_url();
        encode_bytes_field(ANY_TYPE_URL_FIELD, type_url.as_bytes(), &mut piece);
        encode_bytes_field(ANY_VALUE_FIELD, value, &mut piece);
        encode_bytes_field(RESOURCE_NAME_FIELD, entry.name.as_bytes(), &mut piece);
        for alias in form.aliases(entry) {
            encode_bytes_field(RESOURCE_ALIASES_FIELD, alias.as_bytes(), &mut piece);
        }
    }
    for name in removed {
        room_for(
            encoded_field_len(RESPONSE_REMOVED_FIELD, name.len()),
            &mut piece,
        );
        encode_bytes_field(RESPONSE_REMOVED_FIELD, name.as_bytes(), &mut piece);
    }
    if !piece.is_empty() {
        pieces.push(piece.freeze());
    }
    pieces
}

/// Encoder of records of one resource type, with or without aliases.
#[derive(Clone, Copy)]
struct RecordEncoder {
    resource_type: ResourceType,
    /// Whether to include aliases, which only clients without a wildcard subscription use.
    with_aliases: bool,
}

impl RecordEncoder {
    fn aliases(self, entry: &EncodedRecord) -> &[ArcStr] {
        if self.with_aliases {
            &entry.aliases
        } else {
            &[]
        }
    }

    fn any_len(self, value: &[u8]) -> usize {
        encoded_field_len(ANY_TYPE_URL_FIELD, self.resource_type.type_url().len())
            + encoded_field_len(ANY_VALUE_FIELD, value.len())
    }

    fn resource_len(self, entry: &EncodedRecord) -> usize {
        let aliases = self.aliases(entry).iter();
        let aliases = aliases.map(|alias| encoded_field_len(RESOURCE_ALIASES_FIELD, alias.len()));
        encoded_field_len(RESOURCE_VERSION_FIELD, entry.version.len())
            + encoded_field_len(
                RESOURCE_ANY_FIELD,
                self.any_len(self.resource_type.encoded_value(entry)),
            )
            + encoded_field_len(RESOURCE_NAME_FIELD, entry.name.len())
            + aliases.sum::<usize>()
    }
}

fn encoded_field_len(field: u32, length: usize) -> usize {
    key_len(field) + encoded_len_varint(length as u64) + length
}

fn encode_field_header(field: u32, length: usize, buf: &mut impl BufMut) {
    encode_key(field, WireType::LengthDelimited, buf);
    encode_varint(length as u64, buf);
}

fn encode_bytes_field(field: u32, bytes: &[u8], buf: &mut impl BufMut) {
    encode_field_header(field, bytes.len(), buf);
    buf.put_slice(bytes);
}
