//! A delta response as bytes, straight from shared records.
//!
//! Written by hand because the generated messages own their bytes: every client would copy every
//! record before it is encoded. Fields may come in any order, so what all clients share is encoded once
//! and put behind what is each one's own.

use ambit_model::ArcStr;
use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::{
    batch::Batch,
    session::{Push, ResourceType},
    store::{Entry, EntryKind},
};

// Field numbers of envoy.service.discovery.v3.
const RESPONSE_SYSTEM_VERSION: u32 = 1;
const RESPONSE_RESOURCES: u32 = 2;
const RESPONSE_TYPE_URL: u32 = 4;
const RESPONSE_NONCE: u32 = 5;
const RESPONSE_REMOVED: u32 = 6;
const RESOURCE_VERSION: u32 = 1;
const RESOURCE_ANY: u32 = 2;
const RESOURCE_NAME: u32 = 3;
const RESOURCE_ALIASES: u32 = 4;
const ANY_TYPE_URL: u32 = 1;
const ANY_VALUE: u32 = 2;

/// Pieces of this size are cheap to pass on and still few.
const PIECE: usize = 128 * 1024;
/// A push up to this size is copied into one piece: cheaper than two writes.
const SMALL: usize = 4 * 1024;
/// gRPC's head of a message: not compressed, and its length.
const HEAD: usize = 5;

/// A push as a gRPC message, in pieces. Only the first of them is this client's own.
pub(super) fn message(push: &Push) -> impl Iterator<Item = Bytes> {
    let shared = push.batch.encoded();
    let length: usize = shared.iter().map(Bytes::len).sum();
    let type_url = push.batch.resource_type.type_url();
    let own = field_len(RESPONSE_SYSTEM_VERSION, push.system_version.len())
        + field_len(RESPONSE_TYPE_URL, type_url.len())
        + field_len(RESPONSE_NONCE, push.nonce.len());
    let copied = if length <= SMALL { length } else { 0 };
    let mut first = BytesMut::with_capacity(HEAD + own + copied);
    first.put_u8(0);
    // A message may not be longer than its length can say; clients take far less.
    first.put_u32(u32::try_from(own + length).unwrap_or(u32::MAX));
    text(
        RESPONSE_SYSTEM_VERSION,
        push.system_version.as_bytes(),
        &mut first,
    );
    text(RESPONSE_TYPE_URL, type_url.as_bytes(), &mut first);
    text(RESPONSE_NONCE, push.nonce.as_bytes(), &mut first);
    let rest = if length <= SMALL {
        shared.iter().for_each(|piece| first.put_slice(piece));
        &[]
    } else {
        shared
    };
    std::iter::once(first.freeze()).chain(rest.iter().cloned())
}

/// What a batch adds to a response, in pieces.
pub(super) fn encode(batch: &Batch) -> Vec<Bytes> {
    let resources = batch.resources.iter();
    let lengths = resources.map(|entry| field_len(RESPONSE_RESOURCES, resource_len(batch, entry)));
    let removed = batch.removed.iter();
    let names = removed.map(|name| field_len(RESPONSE_REMOVED, name.len()));
    let mut left = lengths.chain(names).sum::<usize>();
    let mut pieces = Vec::new();
    let mut piece = BytesMut::with_capacity(left.min(PIECE));
    let mut room_for = |needed: usize, piece: &mut BytesMut| {
        if piece.len() + needed > piece.capacity() && !piece.is_empty() {
            let next = BytesMut::with_capacity(left.min(PIECE.max(needed)));
            pieces.push(std::mem::replace(piece, next).freeze());
        }
        left -= needed;
    };
    for entry in &batch.resources {
        let length = resource_len(batch, entry);
        room_for(field_len(RESPONSE_RESOURCES, length), &mut piece);
        header(RESPONSE_RESOURCES, length, &mut piece);
        let value = value(batch, entry);
        text(RESOURCE_VERSION, entry.version.as_bytes(), &mut piece);
        header(RESOURCE_ANY, any_len(batch, value), &mut piece);
        let type_url = batch.resource_type.type_url();
        text(ANY_TYPE_URL, type_url.as_bytes(), &mut piece);
        text(ANY_VALUE, value, &mut piece);
        text(RESOURCE_NAME, entry.name.as_bytes(), &mut piece);
        for alias in aliases(batch, entry) {
            text(RESOURCE_ALIASES, alias.as_bytes(), &mut piece);
        }
    }
    for name in &batch.removed {
        room_for(field_len(RESPONSE_REMOVED, name.len()), &mut piece);
        text(RESPONSE_REMOVED, name.as_bytes(), &mut piece);
    }
    if !piece.is_empty() {
        pieces.push(piece.freeze());
    }
    pieces
}

/// Only clients that ask for single records know them by other names.
fn aliases<'a>(batch: &Batch, entry: &'a Entry) -> &'a [ArcStr] {
    if batch.with_aliases {
        &entry.aliases
    } else {
        &[]
    }
}

/// The record in the form of the type asked for: an `Address` is a `Workload` behind one key and a
/// length, so the workload alone is its tail.
fn value<'a>(batch: &Batch, entry: &'a Entry) -> &'a [u8] {
    let is_workload = matches!(entry.kind, EntryKind::Workload { .. });
    if batch.resource_type != ResourceType::Workload || !is_workload {
        return &entry.value;
    }
    let mut tail: &[u8] = &entry.value;
    let key = prost::encoding::decode_key(&mut tail);
    let length = prost::encoding::decode_varint(&mut tail);
    if key.is_ok() && length.is_ok() {
        tail
    } else {
        &[]
    }
}

fn any_len(batch: &Batch, value: &[u8]) -> usize {
    field_len(ANY_TYPE_URL, batch.resource_type.type_url().len())
        + field_len(ANY_VALUE, value.len())
}

fn resource_len(batch: &Batch, entry: &Entry) -> usize {
    let aliases = aliases(batch, entry)
        .iter()
        .map(|alias| field_len(RESOURCE_ALIASES, alias.len()));
    field_len(RESOURCE_VERSION, entry.version.len())
        + field_len(RESOURCE_ANY, any_len(batch, value(batch, entry)))
        + field_len(RESOURCE_NAME, entry.name.len())
        + aliases.sum::<usize>()
}

fn field_len(field: u32, length: usize) -> usize {
    key_len(field) + encoded_len_varint(length as u64) + length
}

fn header(field: u32, length: usize, buf: &mut impl BufMut) {
    encode_key(field, WireType::LengthDelimited, buf);
    encode_varint(length as u64, buf);
}

fn text(field: u32, bytes: &[u8], buf: &mut impl BufMut) {
    header(field, bytes.len(), buf);
    buf.put_slice(bytes);
}
