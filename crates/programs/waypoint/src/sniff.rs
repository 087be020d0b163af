//! A stream whose first bytes have been looked at, and are read again.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use ambit_tls::{FirstMessage, HelloError, HelloReader};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::message::Version;

/// What every connection of HTTP/2 begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The longest method that is taken for one.
const MAX_METHOD: usize = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Sniffed<IO> {
    io: IO,
    seen: Vec<u8>,
    given: usize,
    ended: bool,
}

/// What bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guess {
    Is(Version),
    Other,
    TooFew,
}

impl<IO: AsyncRead + Unpin> Sniffed<IO> {
    /// Nothing has been looked at.
    pub(crate) fn new(io: IO) -> Self {
        Self {
            io,
            seen: Vec::new(),
            given: 0,
            ended: false,
        }
    }

    /// The version of HTTP that the stream begins with; `None` if it begins with something else. Waits until that
    /// can be told; may be dropped and called again.
    pub(crate) async fn version(&mut self) -> Option<Version> {
        loop {
            match guess(&self.seen) {
                Guess::Is(version) => return Some(version),
                Guess::Other => return None,
                Guess::TooFew if self.ended => return None,
                Guess::TooFew => self.more().await,
            }
        }
    }

    /// What the stream begins with, if it is TLS. To be called before anything else.
    ///
    /// # Errors
    /// When it begins as TLS does, and cannot be read.
    pub(crate) async fn first_message(&mut self) -> Result<FirstMessage, HelloError> {
        let mut reader = HelloReader::default();
        let mut taken = 0;
        loop {
            let new = self.seen.get(taken..).unwrap_or_default();
            taken += new.len();
            if let Some(message) = reader.take(new)? {
                return Ok(message);
            }
            if self.ended {
                return Err(HelloError::Truncated);
            }
            self.more().await;
        }
    }

    /// Waits for anything at all.
    pub(crate) async fn first_bytes(&mut self) {
        while self.seen.is_empty() && !self.ended {
            self.more().await;
        }
    }

    async fn more(&mut self) {
        poll_fn(|cx| {
            let mut space = [0; 512];
            let mut buf = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => self.seen.extend_from_slice(buf.filled()),
                // Whoever reads on meets the same end.
                Ok(()) | Err(_) => self.ended = true,
            }
            Poll::Ready(())
        })
        .await;
    }
}

fn guess(seen: &[u8]) -> Guess {
    if seen.starts_with(PREFACE) {
        return Guess::Is(Version::Http2);
    }
    if PREFACE.starts_with(seen) {
        return Guess::TooFew;
    }
    // Empty lines may stand before a request (RFC 9112, section 2.2).
    let start = seen.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
    let line = start
        .and_then(|start| seen.get(start..))
        .unwrap_or_default();
    let method = line
        .iter()
        .take_while(|byte| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_'));
    let length = method.count();
    match line.get(length) {
        _ if length > MAX_METHOD => Guess::Other,
        None => Guess::TooFew,
        Some(b' ') if length > 0 => Guess::Is(Version::Http1),
        Some(_) => Guess::Other,
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Sniffed<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let left = this.seen.get(this.given..).unwrap_or_default();
        if left.is_empty() {
            this.seen = Vec::new();
            this.given = 0;
            return Pin::new(&mut this.io).poll_read(cx, buf);
        }
        let n = left.len().min(buf.remaining());
        buf.put_slice(left.get(..n).unwrap_or_default());
        this.given += n;
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Sniffed<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn first_bytes_tell_what_is_spoken() {
        for (bytes, expected) in [
            (&b""[..], Guess::TooFew),
            (b"P", Guess::TooFew),
            (b"PRI * HT", Guess::TooFew),
            (PREFACE, Guess::Is(Version::Http2)),
            (b"PRI * HTTP/1.1\r\n", Guess::Is(Version::Http1)),
            (b"PR", Guess::TooFew),
            (b"PROPFIND /", Guess::Is(Version::Http1)),
            (b"GET", Guess::TooFew),
            (b"GET ", Guess::Is(Version::Http1)),
            (b"\r\nGET /", Guess::Is(Version::Http1)),
            (b"\x16\x03\x01", Guess::Other),
            (b"SSH-2.0-OpenSSH", Guess::Other),
            (b" GET /", Guess::Other),
            (b"*1\r\n$4\r\nPING", Guess::Other),
            (&[b'A'; 40], Guess::Other),
        ] {
            assert_eq!(
                guess(bytes),
                expected,
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[tokio::test]
    async fn what_was_looked_at_is_read_again() {
        let (mut near, far) = duplex(1024);
        let mut sniffed = Sniffed::new(far);
        near.write_all(b"GE").await.unwrap();
        sniffed.first_bytes().await;
        near.write_all(b"T / HTTP/1.1\r\n\r\nrest").await.unwrap();
        assert_eq!(sniffed.version().await, Some(Version::Http1));
        near.write_all(b" and more").await.unwrap();
        near.shutdown().await.unwrap();
        let mut all = String::new();
        sniffed.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "GET / HTTP/1.1\r\n\r\nrest and more");
    }

    #[tokio::test]
    async fn a_stream_that_ends_early_is_no_http() {
        let (mut near, far) = duplex(1024);
        near.write_all(b"GET").await.unwrap();
        near.shutdown().await.unwrap();
        assert_eq!(Sniffed::new(far).version().await, None);
    }
}
