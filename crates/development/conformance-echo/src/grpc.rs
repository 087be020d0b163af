//! The gRPC message that the conformance client and server exchange.

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// Path of the gRPC method.
pub(crate) const ECHO_METHOD_PATH: &str = "/proto.EchoTestService/Echo";
/// Media type of gRPC.
pub(crate) const CONTENT_TYPE: &str = "application/grpc";
/// Trailer with the status of a gRPC call.
pub(crate) const GRPC_STATUS: &str = "grpc-status";

/// Length of a gRPC message's prefix: compression flag and message length.
const FRAME_HEADER_BYTES: usize = 5;

/// Message of the echo service with one text field, for requests and responses.
#[derive(Clone, PartialEq, Eq, Message)]
struct Echo {
    #[prost(string, tag = "1")]
    message: String,
}

/// Encodes a gRPC message with this text.
pub(crate) fn encode(text: String) -> Bytes {
    let message = Echo { message: text }.encode_to_vec();
    let mut bytes = BytesMut::with_capacity(FRAME_HEADER_BYTES + message.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(&message);
    bytes.freeze()
}

/// Decodes the text of a gRPC message.
pub(crate) fn decode(bytes: &[u8]) -> Result<String> {
    let (prefix, message) = bytes
        .split_at_checked(FRAME_HEADER_BYTES)
        .context("no message came")?;
    ensure!(prefix.first() == Some(&0), "a compressed message came");
    Ok(Echo::decode(message)?.message)
}
