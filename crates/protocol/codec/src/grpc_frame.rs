//! gRPC message framing: a compression flag, the length in four bytes, the message ("Length-Prefixed-Message" of gRPC
//! over HTTP/2).

/// Encodes a gRPC message as an uncompressed frame; `None` if it exceeds the maximum length of a frame.
pub fn encode_grpc_frame(message: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(message.len()).ok()?;
    let mut framed = Vec::with_capacity(message.len() + 5);
    framed.push(0);
    framed.extend(length.to_be_bytes());
    framed.extend_from_slice(message);
    Some(framed)
}

/// Returns the message in a frame, if the frame is complete and not compressed.
pub fn decode_grpc_frame(body: &[u8]) -> Option<&[u8]> {
    let (head, rest) = body.split_at_checked(5)?;
    let (flag, length) = head.split_first()?;
    let length = u32::from_be_bytes(length.try_into().ok()?);
    (*flag == 0).then(|| rest.get(..usize::try_from(length).ok()?))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_that_of_the_specification() {
        let framed = encode_grpc_frame(b"ab").unwrap();
        assert_eq!(framed, b"\x00\x00\x00\x00\x02ab");
        assert_eq!(decode_grpc_frame(&framed), Some(&b"ab"[..]));
    }

    #[test]
    fn broken_frames_have_no_message() {
        for broken in [
            &b""[..],
            b"\x00\x00\x00\x00",
            b"\x00\x00\x00\x00\x02a",
            b"\x01\x00\x00\x00\x00",
        ] {
            assert_eq!(decode_grpc_frame(broken), None);
        }
    }
}
