//! A delta response as bytes, straight from shared records.
//!
//! Written by hand because the generated messages own their bytes: every client would copy every
//! record before it is encoded.

use ambit_model::ArcStr;
use bytes::BufMut;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::{
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

/// Length of the encoded response.
pub(super) fn encoded_len(push: &Push) -> usize {
    let resources = push
        .resources
        .iter()
        .map(|entry| field_len(RESPONSE_RESOURCES, resource_len(push, entry)));
    let removed = push
        .removed
        .iter()
        .map(|name| field_len(RESPONSE_REMOVED, name.len()));
    field_len(RESPONSE_SYSTEM_VERSION, push.system_version.len())
        + resources.sum::<usize>()
        + field_len(RESPONSE_TYPE_URL, push.resource_type.type_url().len())
        + field_len(RESPONSE_NONCE, push.nonce.len())
        + removed.sum::<usize>()
}

/// Writes the response.
pub(super) fn encode(push: &Push, buf: &mut impl BufMut) {
    text(RESPONSE_SYSTEM_VERSION, push.system_version.as_bytes(), buf);
    for entry in &push.resources {
        header(RESPONSE_RESOURCES, resource_len(push, entry), buf);
        let value = value(push, entry);
        text(RESOURCE_VERSION, entry.version.as_bytes(), buf);
        header(RESOURCE_ANY, any_len(push, value), buf);
        text(ANY_TYPE_URL, push.resource_type.type_url().as_bytes(), buf);
        text(ANY_VALUE, value, buf);
        text(RESOURCE_NAME, entry.name.as_bytes(), buf);
        for alias in aliases(push, entry) {
            text(RESOURCE_ALIASES, alias.as_bytes(), buf);
        }
    }
    text(
        RESPONSE_TYPE_URL,
        push.resource_type.type_url().as_bytes(),
        buf,
    );
    text(RESPONSE_NONCE, push.nonce.as_bytes(), buf);
    for name in &push.removed {
        text(RESPONSE_REMOVED, name.as_bytes(), buf);
    }
}

/// Only clients that ask for single records know them by other names.
fn aliases<'a>(push: &Push, entry: &'a Entry) -> &'a [ArcStr] {
    if push.with_aliases {
        &entry.aliases
    } else {
        &[]
    }
}

/// The record in the form of the type asked for: an `Address` is a `Workload` behind one key and a
/// length, so the workload alone is its tail.
fn value<'a>(push: &Push, entry: &'a Entry) -> &'a [u8] {
    let is_workload = matches!(entry.kind, EntryKind::Workload { .. });
    if push.resource_type != ResourceType::Workload || !is_workload {
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

fn any_len(push: &Push, value: &[u8]) -> usize {
    field_len(ANY_TYPE_URL, push.resource_type.type_url().len()) + field_len(ANY_VALUE, value.len())
}

fn resource_len(push: &Push, entry: &Entry) -> usize {
    let aliases = aliases(push, entry)
        .iter()
        .map(|alias| field_len(RESOURCE_ALIASES, alias.len()));
    field_len(RESOURCE_VERSION, entry.version.len())
        + field_len(RESOURCE_ANY, any_len(push, value(push, entry)))
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
