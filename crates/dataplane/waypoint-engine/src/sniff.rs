//! Detects HTTP by the first bytes of a stream, which stay buffered for the reader.
//!
//! HTTP means the connection preface of HTTP/2, or a request line of HTTP/1.x in the strict form of RFC 9112: a method,
//! a target and a version with one space between them. Lenient servers accept more: no version, several spaces, tabs.
//! Such a line is not detected as HTTP, so that it does not pass as an unauthorized request: [`crate::server`] rejects
//! it where policies apply to requests.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ambit_tls::{FirstMessage, HelloError, HelloReader};
use tokio::io::{AsyncRead, ReadBuf};

use crate::{http2::frames::PREFACE, message::Version};

/// Version at the end of an HTTP/1 request line, without the minor version's digit.
const HTTP1_VERSION_PREFIX: &[u8] = b"HTTP/1.";
/// Maximum length of a recognized HTTP method.
const MAX_METHOD_BYTES: usize = 32;
/// Maximum length of a recognised request line, with the empty lines before it (RFC 9112, section 3, recommends 8000).
const MAX_REQUEST_LINE_BYTES: usize = 8 << 10;

/// Stream whose first bytes were read to detect the protocol; its reader receives them first.
#[derive(Debug)]
pub(crate) struct SniffedStream<IO> {
    io: IO,
    buffered: Vec<u8>,
    replayed_bytes: usize,
    ended: bool,
}

/// Protocol detected from the first bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetectedProtocol {
    /// HTTP, detected by a request line (HTTP/1) or the connection preface (HTTP/2).
    Http(Version),
    /// Start of an HTTP/1 request line that is longer than [`MAX_REQUEST_LINE_BYTES`].
    RequestLineTooLong,
    /// Protocol that is not HTTP.
    Other,
    /// Stream that ended before any byte was received.
    Empty,
}

/// Result of protocol detection from the bytes received so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detection {
    Detected(DetectedProtocol),
    NeedMoreBytes,
}

impl<IO: AsyncRead + Unpin> SniffedStream<IO> {
    /// Wraps a stream from which nothing has been read.
    pub(crate) fn new(io: IO) -> Self {
        Self {
            io,
            buffered: Vec::new(),
            replayed_bytes: 0,
            ended: false,
        }
    }

    /// Reads until the received bytes identify the protocol. Cancel-safe.
    pub(crate) async fn detect_protocol(&mut self) -> DetectedProtocol {
        loop {
            match detect(&self.buffered) {
                Detection::Detected(opening) => return opening,
                Detection::NeedMoreBytes if self.ended && self.buffered.is_empty() => {
                    return DetectedProtocol::Empty;
                }
                Detection::NeedMoreBytes if self.ended => return DetectedProtocol::Other,
                Detection::NeedMoreBytes => self.read_more().await,
            }
        }
    }

    /// Returns the version of a stream that is declared as HTTP: HTTP/2 if it begins with the preface, else HTTP/1.
    pub(crate) async fn declared_version(&mut self) -> Version {
        while !self.ended
            && self.buffered.len() < PREFACE.len()
            && PREFACE.starts_with(&self.buffered)
        {
            self.read_more().await;
        }
        match self.buffered.starts_with(PREFACE) {
            true => Version::Http2,
            false => Version::Http1,
        }
    }

    /// Whether any byte of the stream has been received.
    pub(crate) fn has_bytes(&self) -> bool {
        !self.buffered.is_empty()
    }

    /// Reads the ClientHello at the start of a TLS stream, or detects that the stream is not TLS. Must be called before
    /// other methods.
    ///
    /// # Errors
    /// When the stream begins like TLS, and the ClientHello is invalid.
    pub(crate) async fn read_first_message(&mut self) -> Result<FirstMessage, HelloError> {
        let mut reader = HelloReader::default();
        let mut taken = 0;
        loop {
            let new = self.buffered.get(taken..).unwrap_or_default();
            taken += new.len();
            if let Some(message) = reader.push(new)? {
                return Ok(message);
            }
            if self.ended {
                return Err(HelloError::Truncated);
            }
            self.read_more().await;
        }
    }

    /// Waits for the first byte of the stream.
    pub(crate) async fn wait_for_first_byte(&mut self) {
        while self.buffered.is_empty() && !self.ended {
            self.read_more().await;
        }
    }

    async fn read_more(&mut self) {
        poll_fn(|cx| {
            let mut space = [0; 512];
            let mut buf = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => self.buffered.extend_from_slice(buf.filled()),
                // A later read returns the same end or error.
                Ok(()) | Err(_) => self.ended = true,
            }
            Poll::Ready(())
        })
        .await;
    }
}

fn detect(seen: &[u8]) -> Detection {
    if seen.starts_with(PREFACE) {
        return Detection::Detected(DetectedProtocol::Http(Version::Http2));
    }
    if PREFACE.starts_with(seen) {
        return Detection::NeedMoreBytes;
    }
    match match_request_line(seen) {
        None => Detection::Detected(DetectedProtocol::Other),
        Some(true) => Detection::Detected(DetectedProtocol::Http(Version::Http1)),
        Some(false) if seen.len() > MAX_REQUEST_LINE_BYTES => {
            Detection::Detected(DetectedProtocol::RequestLineTooLong)
        }
        Some(false) => Detection::NeedMoreBytes,
    }
}

/// Parses the start of an HTTP/1.x request line: true if the line is complete, false if more bytes are needed; `None`
/// if the bytes cannot become a request line.
fn match_request_line(seen: &[u8]) -> Option<bool> {
    // Empty lines may precede a request (RFC 9112, section 2.2).
    let mut line = seen;
    while let [b'\n', rest @ ..] | [b'\r', b'\n', rest @ ..] = line {
        line = rest;
    }
    if line == b"\r" {
        return Some(false);
    }
    let (method, line) = split_leading_bytes(line, is_token_byte);
    if method > MAX_METHOD_BYTES || method == 0 && !line.is_empty() {
        return None;
    }
    let Some(line) = skip_space(line)? else {
        return Some(false);
    };
    let (target, line) = split_leading_bytes(line, |byte| byte.is_ascii_graphic());
    if target == 0 && !line.is_empty() {
        return None;
    }
    let Some(line) = skip_space(line)? else {
        return Some(false);
    };
    let Some(line) = line.strip_prefix(HTTP1_VERSION_PREFIX) else {
        return HTTP1_VERSION_PREFIX.starts_with(line).then_some(false);
    };
    match line {
        [] => Some(false),
        [minor, ..] if !minor.is_ascii_digit() => None,
        // hyper accepts a lone line feed, and forwards the request with CRLF.
        [_] | [_, b'\r'] => Some(false),
        [_, b'\n', ..] | [_, b'\r', b'\n', ..] => Some(true),
        _ => None,
    }
}

/// Counts the leading bytes that `is_part` accepts, and returns the bytes after them.
fn split_leading_bytes(bytes: &[u8], is_part: impl Fn(u8) -> bool) -> (usize, &[u8]) {
    let length = bytes.iter().take_while(|byte| is_part(**byte)).count();
    (length, bytes.get(length..).unwrap_or_default())
}

/// Skips the space between two parts of a request line: `Some(None)` if no byte has been received yet, `None` if the
/// next byte is not a space.
fn skip_space(bytes: &[u8]) -> Option<Option<&[u8]>> {
    match bytes {
        [] => Some(None),
        [b' ', rest @ ..] => Some(Some(rest)),
        _ => None,
    }
}

/// Whether a byte may be part of a method (RFC 9110, section 5.6.2).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl<IO: AsyncRead + Unpin> AsyncRead for SniffedStream<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let left = this.buffered.get(this.replayed_bytes..).unwrap_or_default();
        if left.is_empty() {
            this.buffered = Vec::new();
            this.replayed_bytes = 0;
            return Pin::new(&mut this.io).poll_read(cx, buf);
        }
        let n = left.len().min(buf.remaining());
        buf.put_slice(left.get(..n).unwrap_or_default());
        this.replayed_bytes += n;
        Poll::Ready(Ok(()))
    }
}

ambit_hbone::pass_writes!(SniffedStream);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const HTTP1: Detection = Detection::Detected(DetectedProtocol::Http(Version::Http1));
    const HTTP2: Detection = Detection::Detected(DetectedProtocol::Http(Version::Http2));
    const OTHER: Detection = Detection::Detected(DetectedProtocol::Other);

    #[test]
    fn only_the_preface_and_request_lines_of_rfc_9112_are_http() {
        for (bytes, expected) in [
            (&b""[..], Detection::NeedMoreBytes),
            (b"P", Detection::NeedMoreBytes),
            (b"PRI * HT", Detection::NeedMoreBytes),
            (PREFACE, HTTP2),
            (b"PRI * HTTP/1.1\r\n", HTTP1),
            (b"PRI * HTTP/2.0\r\n\r\nXX", OTHER),
            (b"GET", Detection::NeedMoreBytes),
            (b"GET ", Detection::NeedMoreBytes),
            (b"GET / HTTP/1.", Detection::NeedMoreBytes),
            (b"GET / HTTP/1.1", Detection::NeedMoreBytes),
            (b"GET / HTTP/1.1\r", Detection::NeedMoreBytes),
            (b"GET / HTTP/1.1\r\n", HTTP1),
            (b"GET / HTTP/1.0\r\n", HTTP1),
            (b"PROPFIND /a?b=c HTTP/1.1\r\nHost", HTTP1),
            (b"OPTIONS * HTTP/1.1\r\n", HTTP1),
            (b"CONNECT web:80 HTTP/1.1\r\n", HTTP1),
            (b"get / HTTP/1.1\r\n", HTTP1),
            (b"M-SEARCH * HTTP/1.1\r\n", HTTP1),
            (b"\r\nGET / HTTP/1.1\r\n", HTTP1),
            (b"GET / HTTP/1.1\n", HTTP1),
            // Line-based protocols other than HTTP.
            (b"SET a b\r\n", OTHER),
            (b"PING\r\n", OTHER),
            (b"NICK foo\r\n", OTHER),
            (b"INVITE sip:bob@example.com SIP/2.0\r\n", OTHER),
            (b"OPTIONS rtsp://a RTSP/1.0\r\n", OTHER),
            (b"SELECT 1;", Detection::NeedMoreBytes),
            (b"SELECT 1;\n", OTHER),
            (b"SELECT 1 FROM", OTHER),
            (b"EHLO example.com\r\n", OTHER),
            (b"USER anonymous\r\n", OTHER),
            (b"*1\r\n$4\r\nPING", OTHER),
            (b"SSH-2.0-OpenSSH\r\n", OTHER),
            (b"\x16\x03\x01", OTHER),
            (b"\0\0\0\x2f", OTHER),
            // Requests that only lenient servers accept.
            (b"GET /\r\n", OTHER),
            (b"GET / \r\n", OTHER),
            (b"GET  / HTTP/1.1\r\n", OTHER),
            (b"GET /  HTTP/1.1\r\n", OTHER),
            (b"GET\t/ HTTP/1.1\r\n", OTHER),
            (b"GET /\tHTTP/1.1\r\n", OTHER),
            (b"GET / HTTP/1.1 \r\n", OTHER),
            (b"GET / HTTP/1.1\r\r\n", OTHER),
            (b"GET / HTTP/1.10\r\n", OTHER),
            (b"GET / HTTP/1.x\r\n", OTHER),
            (b"GET / HTTP/2.0\r\n", OTHER),
            (b"GET / HTTP/0.9\r\n", OTHER),
            (b"GET / http/1.1\r\n", OTHER),
            (b"GET /a b HTTP/1.1\r\n", OTHER),
            (b"GET /\0 HTTP/1.1\r\n", OTHER),
            (b"GET /\xc3\xa4 HTTP/1.1\r\n", OTHER),
            (b" GET / HTTP/1.1\r\n", OTHER),
            (b"\r\rGET / HTTP/1.1\r\n", OTHER),
            (b"\rGET / HTTP/1.1\r\n", OTHER),
            (b"\tGET / HTTP/1.1\r\n", OTHER),
            (b"\0GET / HTTP/1.1\r\n", OTHER),
            (b"\xef\xbb\xbfGET / HTTP/1.1\r\n", OTHER),
            (b"GE T / HTTP/1.1\r\n", OTHER),
            (b"G(ET / HTTP/1.1\r\n", OTHER),
            (&[b'A'; 40], OTHER),
        ] {
            assert_eq!(
                detect(bytes),
                expected,
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
        let long = [b"GET /", &[b'a'; MAX_REQUEST_LINE_BYTES][..]].concat();
        assert_eq!(
            detect(&long),
            Detection::Detected(DetectedProtocol::RequestLineTooLong)
        );
        let lines = b"\r\n".repeat(MAX_REQUEST_LINE_BYTES);
        assert_eq!(
            detect(&lines),
            Detection::Detected(DetectedProtocol::RequestLineTooLong)
        );
    }

    /// Generates edits of a request: position, byte, and whether the byte replaces the one there or is inserted.
    fn changes() -> impl proptest::strategy::Strategy<Value = Vec<(usize, u8, bool)>> {
        let byte = proptest::sample::select(&b"GgT/HP1.0 \t\r\n\0*:\x80"[..]);
        proptest::collection::vec((0..24_usize, byte, proptest::bool::ANY), 0..4)
    }

    proptest::proptest! {
        #[test]
        fn sniffed_protocol_is_final_and_agrees_with_a_strict_parser(changes in changes()) {
            let mut bytes = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
            for (at, byte, replaces) in changes {
                if replaces {
                    bytes[at] = byte;
                } else {
                    bytes.insert(at, byte);
                }
            }
            let mut decided = None;
            for end in 0..=bytes.len() {
                let now = detect(&bytes[..end]);
                if let Some((_, known)) = decided {
                    proptest::prop_assert_eq!(now, known, "{:?}", bytes[..end].escape_ascii());
                } else if now != Detection::NeedMoreBytes {
                    decided = Some((end, now));
                }
            }
            if let Some((end, HTTP1)) = decided {
                let mut headers = [httparse::EMPTY_HEADER; 4];
                let mut request = httparse::Request::new(&mut headers);
                let parsed = request.parse(&bytes[..end]);
                proptest::prop_assert!(
                    matches!(parsed, Ok(httparse::Status::Partial) | Err(httparse::Error::Version)),
                    "{:?} {parsed:?}", bytes[..end].escape_ascii()
                );
            }
        }
    }

    #[tokio::test]
    async fn sniffed_bytes_are_replayed_to_the_reader() {
        let (mut near, far) = duplex(1024);
        let mut sniffed = SniffedStream::new(far);
        near.write_all(b"GE").await.unwrap();
        sniffed.wait_for_first_byte().await;
        near.write_all(b"T / HTTP/1.1\r\n\r\nrest").await.unwrap();
        let http1 = DetectedProtocol::Http(Version::Http1);
        assert_eq!(sniffed.detect_protocol().await, http1);
        near.write_all(b" and more").await.unwrap();
        near.shutdown().await.unwrap();
        let mut all = String::new();
        sniffed.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "GET / HTTP/1.1\r\n\r\nrest and more");
    }

    #[tokio::test]
    async fn stream_that_ends_early_is_not_http() {
        for (bytes, expected) in [
            (&b"GET /"[..], DetectedProtocol::Other),
            (b"", DetectedProtocol::Empty),
        ] {
            let (mut near, far) = duplex(1024);
            near.write_all(bytes).await.unwrap();
            near.shutdown().await.unwrap();
            assert_eq!(SniffedStream::new(far).detect_protocol().await, expected);
        }
    }

    #[tokio::test]
    async fn declared_http_is_http1_unless_it_begins_with_the_preface() {
        for (bytes, expected) in [
            (PREFACE, Version::Http2),
            (b"PRX", Version::Http1),
            (b"SET a b", Version::Http1),
            (b"PRI * HTTP/2.0", Version::Http1),
        ] {
            let (mut near, far) = duplex(1024);
            near.write_all(bytes).await.unwrap();
            near.shutdown().await.unwrap();
            assert_eq!(SniffedStream::new(far).declared_version().await, expected);
        }
    }
}
