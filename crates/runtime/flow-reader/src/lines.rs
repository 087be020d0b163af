//! Splits a stream of flow events into lines.

use bytes::{Bytes, BytesMut};

use crate::error::{MAX_LINE_BYTES, ReadError};

/// Buffer of the last line of a stream while it is incomplete.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    partial_line: BytesMut,
}

impl LineBuffer {
    /// Adds a chunk, and returns the lines that it completes.
    ///
    /// # Errors
    /// When a line is too long.
    pub(crate) fn add(&mut self, chunk: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.partial_line.extend_from_slice(chunk);
        let end = self.partial_line.iter().rposition(|byte| *byte == b'\n');
        let complete = end.map(|end| self.partial_line.split_to(end + 1).freeze());
        match self.partial_line.len() > MAX_LINE_BYTES {
            true => Err(ReadError::TooLong),
            false => Ok(complete),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_from_chunks() {
        let mut lines = LineBuffer::default();
        let mut whole = Vec::new();
        for byte in b"\n{\"a\":1}\nrest" {
            whole.extend(lines.add(&[*byte]).unwrap());
        }
        assert_eq!(whole, [&b"\n"[..], b"{\"a\":1}\n"]);
    }

    #[test]
    fn several_lines_of_a_chunk_stay_together() {
        let mut lines = LineBuffer::default();
        let complete = lines.add(b"a\nb\nc").unwrap();
        assert_eq!(complete.as_deref(), Some(&b"a\nb\n"[..]));
        let complete = lines.add(b"\n").unwrap();
        assert_eq!(complete.as_deref(), Some(&b"c\n"[..]));
    }

    #[test]
    fn endless_lines_are_refused() {
        let mut lines = LineBuffer::default();
        let endless = lines.add(&vec![b'a'; MAX_LINE_BYTES + 1]);
        assert!(matches!(endless, Err(ReadError::TooLong)));
    }
}
