//! Parses gRPC's length-prefixed messages from the received chunks (gRPC over HTTP/2, "Length-Prefixed-Message").
//!
//! tonic's `Streaming` keeps one buffer, as large as the largest message so far, for the life of the stream. The first
//! push of a large mesh is tens of megabytes, and the stream lasts for days. Here a message consists of its received
//! chunks, which are freed with it.

use std::{cmp::min, collections::VecDeque};

use bytes::{Buf, Bytes};

/// Size of the prefix of each message (compression flag and length), in bytes.
const PREFIX_BYTES: usize = 5;

/// Reason why received bytes are not valid gRPC messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FramingError {
    #[error("a compressed message, which was not requested")]
    Compressed,
    #[error("a message of {0} bytes; at most {1} are read")]
    TooLong(usize, usize),
}

/// Parser of gRPC messages, with the received bytes that are not parsed yet. Allocates no more memory than was
/// received, whatever length a prefix declares.
#[derive(Debug)]
pub(crate) struct FrameReader {
    received: ChunkedBytes,
    /// Length of the current message in bytes, once its prefix is parsed.
    message_length: Option<usize>,
    limit: usize,
}

impl FrameReader {
    /// Creates a parser that rejects messages larger than `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            received: ChunkedBytes::default(),
            message_length: None,
            limit,
        }
    }

    /// Appends a received chunk.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        self.received.push(chunk);
    }

    /// Whether all received messages are complete, so that the stream may end here.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.message_length.is_none() && self.received.remaining() == 0
    }

    /// Returns the next complete message, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<ChunkedBytes>, FramingError> {
        let length = match self.message_length {
            Some(length) => length,
            None if self.received.remaining() < PREFIX_BYTES => return Ok(None),
            None => {
                if self.received.get_u8() != 0 {
                    return Err(FramingError::Compressed);
                }
                let length = usize::try_from(self.received.get_u32()).unwrap_or(usize::MAX);
                if length > self.limit {
                    return Err(FramingError::TooLong(length, self.limit));
                }
                *self.message_length.insert(length)
            }
        };
        if self.received.remaining() < length {
            return Ok(None);
        }
        self.message_length = None;
        Ok(Some(self.received.split_to(length)))
    }
}

/// Bytes of a message in several chunks.
#[derive(Debug, Default)]
pub(crate) struct ChunkedBytes {
    chunks: VecDeque<Bytes>,
    length: usize,
}

impl ChunkedBytes {
    fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.length += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    /// Splits off the first `length` bytes, or all bytes if there are fewer. Copies no bytes.
    fn split_to(&mut self, length: usize) -> Self {
        let mut head = Self::default();
        while head.length < length {
            let Some(mut chunk) = self.chunks.pop_front() else {
                break;
            };
            self.length -= chunk.len();
            let missing = min(length - head.length, chunk.len());
            head.push(chunk.split_to(missing));
            if !chunk.is_empty() {
                self.length += chunk.len();
                self.chunks.push_front(chunk);
            }
        }
        // The capacity for a large message is not kept for the small ones that follow.
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
        }
        head
    }
}

impl Buf for ChunkedBytes {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| chunk)
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(first) = self.chunks.front_mut().filter(|_| count > 0) {
            let step = min(count, first.len());
            first.advance(step);
            self.length -= step;
            count -= step;
            if first.is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    /// Returns a slice if the bytes are in one chunk, otherwise a copy.
    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        let length = min(length, self.length);
        if let Some(first) = self.chunks.front_mut().filter(|first| first.len() > length) {
            self.length -= length;
            return first.split_to(length);
        }
        let mut copy = Vec::with_capacity(length);
        while copy.len() < length {
            let piece = self.chunk();
            let step = min(length - copy.len(), piece.len());
            copy.extend(piece.iter().take(step));
            self.advance(step);
        }
        copy.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.push(0);
            bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            bytes.extend(message);
        }
        bytes
    }

    proptest! {
        #[test]
        fn messages_are_reassembled_from_any_chunks(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            cuts in prop::collection::vec(1_usize..200, 1..40),
        ) {
            let bytes = framed(&messages);
            let mut frames = FrameReader::new(1000);
            let mut seen = Vec::new();
            let mut rest = bytes.as_slice();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, after) = rest.split_at(min(*cut, rest.len()));
                frames.push(Bytes::copy_from_slice(chunk));
                rest = after;
                while let Some(mut message) = frames.next().unwrap() {
                    let length = message.remaining();
                    // Read in two steps, to test slices and copies.
                    let mut text = message.copy_to_bytes(length / 3).to_vec();
                    text.extend(message.copy_to_bytes(length - length / 3));
                    prop_assert_eq!(message.remaining(), 0);
                    seen.push(text);
                }
            }
            prop_assert_eq!(seen, messages);
            prop_assert!(frames.is_between_messages());
        }
    }

    #[test]
    fn unreadable_frames_are_refused() {
        let mut frames = FrameReader::new(10);
        frames.push(Bytes::from_static(&[1, 0, 0, 0, 1, 7]));
        assert_eq!(frames.next().unwrap_err(), FramingError::Compressed);
        let mut frames = FrameReader::new(10);
        frames.push(Bytes::from_static(&[0, 0, 0, 0, 11]));
        assert_eq!(frames.next().unwrap_err(), FramingError::TooLong(11, 10));
    }

    #[test]
    fn an_end_inside_a_message_is_an_error() {
        let mut frames = FrameReader::new(10);
        frames.push(Bytes::from_static(&[0, 0, 0, 0, 4, 1, 2]));
        assert!(frames.next().unwrap().is_none());
        assert!(!frames.is_between_messages());
    }
}
