//! Parses the ClientHello of a TLS connection that is passed through, for its server name (SNI). Reads at most
//! [`MAX_CLIENT_HELLO_BYTES`] bytes, each once.

use std::{fmt, io};

use rustls::server::Acceptor;

/// Maximum size of a ClientHello with its record headers, in bytes.
pub const MAX_CLIENT_HELLO_BYTES: usize = 16 << 10;

/// Content type of TLS handshake records, the first byte of a ClientHello.
const HANDSHAKE_RECORD: u8 = 0x16;

/// First bytes of a connection, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstMessage {
    /// ClientHello with its server name in lower case, if it has one; IP addresses are not server names.
    ClientHello(Option<String>),
    /// The connection does not begin with a TLS handshake.
    NotTls,
}

/// Reason why a ClientHello cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The ClientHello is longer than [`MAX_CLIENT_HELLO_BYTES`].
    #[error("the client hello is longer than {MAX_CLIENT_HELLO_BYTES} bytes")]
    TooLong,
    /// The ClientHello is malformed, or older than TLS 1.2.
    #[error("the client hello cannot be read")]
    Malformed(#[source] rustls::Error),
    /// The TLS records are malformed.
    #[error("the records of the client hello cannot be read")]
    InvalidRecords(#[source] io::Error),
    /// The connection ended before a complete ClientHello.
    #[error("the connection ended before its client hello was complete")]
    Truncated,
}

/// Incremental parser of a connection's ClientHello.
#[derive(Default)]
pub struct HelloReader {
    acceptor: Acceptor,
    buffered_bytes: usize,
}

impl fmt::Debug for HelloReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HelloReader");
        shown
            .field("taken", &self.buffered_bytes)
            .finish_non_exhaustive()
    }
}

impl HelloReader {
    /// Adds bytes of the connection; returns `None` while the ClientHello is incomplete. Must not be called again
    /// after another result.
    ///
    /// # Errors
    ///
    /// When the bytes are not a valid ClientHello.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<FirstMessage>, HelloError> {
        if self.buffered_bytes == 0
            && bytes
                .first()
                .is_some_and(|first| *first != HANDSHAKE_RECORD)
        {
            return Ok(Some(FirstMessage::NotTls));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let before = rest.len();
            let read = self.acceptor.read_tls(&mut rest);
            read.map_err(HelloError::InvalidRecords)?;
            self.buffered_bytes += before - rest.len();
            let accepted = self.acceptor.accept();
            let accepted = accepted.map_err(|(error, _)| HelloError::Malformed(error))?;
            if let Some(accepted) = accepted {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                return Ok(Some(FirstMessage::ClientHello(name)));
            }
            if self.buffered_bytes > MAX_CLIENT_HELLO_BYTES {
                return Err(HelloError::TooLong);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a ClientHello of TLS 1.2 with a server name, and an extension of `padding` bytes.
    fn hello(name: Option<&[u8]>, padding: usize) -> Vec<u8> {
        fn vector(length: usize, of: &[u8]) -> Vec<u8> {
            let size = of.len().to_be_bytes();
            [&size[size.len() - length..], of].concat()
        }
        let mut extensions = Vec::new();
        if let Some(name) = name {
            let list = vector(2, &[&[0][..], &vector(2, name)].concat());
            extensions.extend([&[0, 0][..], &vector(2, &list)].concat());
        }
        // Signature algorithms, and padding.
        extensions.extend([0, 13, 0, 4, 0, 2, 4, 3]);
        extensions.extend([&[0, 21][..], &vector(2, &vec![0; padding])].concat());
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
        body.extend(vector(2, &extensions));
        let message = [&[1][..], &vector(3, &body)].concat();
        let records = message.chunks(1 << 14);
        let record = |part: &[u8]| [&[0x16, 3, 1][..], &vector(2, part)].concat();
        records.flat_map(record).collect()
    }

    fn read(bytes: &[u8], step: usize) -> Result<Option<FirstMessage>, HelloError> {
        let mut reader = HelloReader::default();
        for part in bytes.chunks(step) {
            if let Some(message) = reader.push(part)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    #[test]
    fn server_name_is_read_from_fragmented_bytes() {
        for (name, expected) in [
            (Some(&b"Till.Shop.example"[..]), Some("till.shop.example")),
            (Some(b"10.0.0.1"), None),
            (None, None),
        ] {
            let bytes = hello(name, 300);
            let expected = FirstMessage::ClientHello(expected.map(str::to_owned));
            for step in [1, 7, bytes.len()] {
                let message = read(&bytes, step).unwrap();
                assert_eq!(message.as_ref(), Some(&expected), "{step}");
            }
            assert!(read(&bytes[..bytes.len() - 1], 64).unwrap().is_none());
            // Later bytes are ignored.
            let more = [&bytes[..], b"and more"].concat();
            assert_eq!(read(&more, bytes.len()).unwrap(), Some(expected));
        }
    }

    #[test]
    fn other_protocols_are_not_a_client_hello() {
        for bytes in [&b"GET / HTTP/1.1"[..], b"\x17\x03\x03", b"\x00"] {
            assert_eq!(read(bytes, 1).unwrap(), Some(FirstMessage::NotTls));
        }
        assert!(read(b"", 1).unwrap().is_none());
    }

    #[test]
    fn ambiguous_names_are_refused() {
        for name in [&b"a\0.example"[..], b"a.example\r\n", b"", b"*.example"] {
            let read = read(&hello(Some(name), 0), 64);
            assert!(matches!(read, Err(HelloError::Malformed(_))), "{read:?}");
        }
        assert!(read(b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x03", 64).is_err());
    }

    #[test]
    fn client_hello_beyond_the_limit_is_refused() {
        let bytes = hello(Some(b"a.example"), 40_000);
        let read = read(&bytes, 64);
        assert!(matches!(read, Err(HelloError::TooLong)), "{read:?}");
    }
}
